#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_worker.h"

namespace forebay {

struct UcxCounts {
  TransportCounts base;
  uint64_t pings_sent = 0;
  uint64_t peers_silent = 0;        // endpoints closed by peer_timeout
  uint64_t late_arrivals = 0;       // active messages for endpoints that are gone
  uint64_t rendezvous_bytes = 0;    // fetched straight into a landing
  uint64_t bounced_bytes = 0;       // fetched by way of a buffer, since they span segments
  uint64_t handshakes_dropped = 0;  // too slow, too many, or refused
};

// UCX active messages between two processes, over TCP or RDMA: the same code with other devices.
//
// A peer connects to a plain socket ("ucx:127.0.0.1:7471"). Over it both say hello: who they are,
// the address of their ucp_worker, and a random number that the other puts into each active
// message. Then both make an endpoint of UCX (error mode PEER) and find each other by active
// messages; the socket stays as the sign of life: when a process ends, its peers see it at once.
// An endpoint is open when ping and pong went each way, and when UCX has swapped its own numbers of
// the ends (kResolved) over the link that is still empty: UCX 1.13 aborts the process where an
// endpoint is closed while such a message waits behind others.
// What waits for a peer that stands still is ended by pings over UCX itself, so that a cut link of
// the data path is noticed too. A new connection has new numbers: what is late for an old one is
// dropped.
//
// A large payload goes in pieces, each by rendezvous from the sender's range straight into the
// receiver's segment; a piece that spans segments is fetched into a buffer and copied. Small ones
// are sent at once. Closing waits until UCX has given back every request: that is the fence after
// which landings are handed back.
//
// Addresses "ucx:127.0.0.1:7471", "ucx:[::1]:7471"; port 0 in Listen() takes a free one. UCX opens
//           ports of its own on `devices`.
// Trust     one trust domain: UCX obeys raw addresses that a peer sends within its own protocol,
// and
//           a worker address is parsed by UCX, of which we check the length alone; Debian's UCX
//           also aborts on what its assertions find. Never let strangers reach these ports.
// Threads   one reactor. Nothing here locks. UCX itself may run a thread for its timers.
class UcxTransport final : public Transport {
 public:
  // As UcxWorker::Create; INVALID_ARGUMENT too for options that make no sense. The clock and the
  // handler must outlive it.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const Clock& clock,
                                                              TransportHandler& handler,
                                                              UcxTransportOptions options);
  ~UcxTransport() override;
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  absl::StatusOr<std::string> Listen(absl::string_view address) override;
  // RESOURCE_EXHAUSTED at endpoints_max.
  absl::StatusOr<EndpointId> Connect(absl::string_view address, Nanos deadline) override;
  // Before OnConnected: OnSent(UNAVAILABLE).
  void Send(EndpointId endpoint, OutgoingMessage message) override;
  void Close(EndpointId endpoint) override;

  bool Poll(Nanos now) override;
  bool PrepareToSleep(std::vector<int>& fds) override;
  Nanos NextDeadline() const override { return next_timer_; }

  const UcxCounts& counts() const { return counts_; }

 private:
  static constexpr unsigned kActiveMessageId = 0;
  // What epoll hands back for a listener; for an endpoint it is the endpoint's id.
  static constexpr uint64_t kListenerTag = 1ull << 63;
  static uint64_t ListenerTag(int fd) { return kListenerTag | static_cast<uint32_t>(fd); }

  // An OnSent that waits for its place in Poll().
  struct RefusedSend {
    EndpointId endpoint;
    uint64_t token;
    absl::Status status;
  };
  struct Listener {
    int fd = -1;
    Nanos retry_at = 0;  // after the kernel refused a descriptor; 0: it listens
  };

  UcxTransport(const Clock& clock, TransportHandler& handler, UcxTransportOptions options,
               std::unique_ptr<UcxWorker> worker, int epoll_fd);

  // ucx_transport.cc: the turn.
  bool DeliverRefusals();
  bool AdvanceClosing();
  void HandBack(UcxEndpoint& endpoint);
  void RunTimers();
  Nanos CheckEndpoint(UcxEndpoint& endpoint);
  void AddTimer(Nanos when);
  bool FailBroken();
  UcxEndpoint* Find(EndpointId id);
  void BeginClose(UcxEndpoint& endpoint, absl::Status why);
  void CloseNow(UcxEndpoint& endpoint, absl::Status why);
  void CloseForGarbage(UcxEndpoint& endpoint, const absl::Status& what);
  void TearDown(UcxEndpoint& endpoint);

  // ucx_connect.cc: from a socket to an endpoint that works.
  UcxEndpoint& AddEndpoint(int fd, const SocketAddress& peer, Nanos deadline);
  bool PollSockets();
  void Accept(Listener& listener);
  absl::Status Watch(int fd, uint32_t events, uint64_t tag, bool is_new);
  void AdvanceSocket(UcxEndpoint& endpoint);
  void ReadSocket(UcxEndpoint& endpoint);
  void WriteSocket(UcxEndpoint& endpoint);
  void Say(UcxEndpoint& endpoint, UcxHello hello);
  void TakeHello(UcxEndpoint& endpoint, const UcxHello& hello);
  void MeetPeer(UcxEndpoint& endpoint, const UcxHello& hello);
  void TakeReady(UcxEndpoint& endpoint, uint32_t serial);
  void TryAgain(UcxEndpoint& endpoint, uint32_t serial_min);
  void ReturnEnd(UcxEndpoint& endpoint);
  bool MakeEnd(UcxEndpoint& endpoint, uint32_t serial);
  void SayReady(UcxEndpoint& endpoint);
  absl::StatusOr<std::unique_ptr<UcxEnd>> NewEnd(UcxEndpoint& endpoint);
  static void ReleaseEnd(std::unique_ptr<UcxEnd> end);
  void OpenIfResolved(UcxEndpoint& endpoint);
  void RemoveSocket(UcxEndpoint& endpoint);
  static bool HasMet(const UcxEndpoint& endpoint);
  static void OnUcpError(void* end, ucp_ep_h ucp, ucs_status_t status);

  // ucx_send.cc
  absl::Status CheckSend(UcxEndpoint* endpoint, const OutgoingMessage& message) const;
  void SendSmall(UcxEndpoint& endpoint, const OutgoingMessage& message, UcxEnvelope envelope);
  void SendLarge(UcxEndpoint& endpoint, const OutgoingMessage& message, UcxEnvelope envelope);
  void SendSmallHeader(UcxEndpoint& endpoint, const OutgoingMessage& header, UcxEnvelope envelope);
  void SendPing(UcxEndpoint& endpoint, UcxEnvelope::Kind kind, uint64_t number);
  void Post(UcxEndpoint& endpoint, std::unique_ptr<UcxSend> send, Bytes data);
  bool DeliverSends();
  void FinishSend(UcxEndpoint& endpoint, const UcxSend& send);
  static void OnSendDone(void* request, ucs_status_t status, void* send);

  // ucx_receive.cc
  static ucs_status_t OnActiveMessage(void* transport, const void* header, size_t header_bytes,
                                      void* data, size_t data_bytes,
                                      const ucp_am_recv_param_t* param);
  ucs_status_t TakeArrival(Bytes header, void* data, size_t data_bytes, bool rendezvous);
  bool DeliverArrivals();
  void DeliverArrival(UcxArrival arrival);
  void DeliverMessage(UcxEndpoint& endpoint, UcxArrival arrival);
  void DeliverPiece(UcxEndpoint& endpoint, UcxArrival arrival);
  void TakePiece(UcxEndpoint& endpoint, UcxIncoming& incoming, UcxArrival arrival);
  void StartReceive(UcxEndpoint& endpoint, UcxIncoming& incoming, UcxArrival& arrival);
  void PieceLanded(UcxEndpoint& endpoint, uint64_t message, uint64_t offset, uint64_t bytes);
  void FinishIncoming(UcxEndpoint& endpoint, uint64_t message);
  bool DeliverReceives();
  void Release(UcxArrival& arrival);
  static void OnReceiveDone(void* request, ucs_status_t status, size_t bytes, void* receive);

  const Clock& clock_;
  TransportHandler& handler_;
  const UcxTransportOptions options_;
  const size_t rendezvous_bytes_;
  std::unique_ptr<UcxWorker> worker_;
  const int epoll_fd_;
  const Uint128Bytes incarnation_;  // of worker_

  Nanos now_ = 0;
  Nanos next_timer_ = kForever;
  uint32_t turns_without_sockets_ = 0;
  EndpointId last_endpoint_ = 0;
  std::vector<Listener> listeners_;
  absl::flat_hash_map<EndpointId, std::unique_ptr<UcxEndpoint>> endpoints_;
  absl::flat_hash_map<uint64_t, EndpointId> connections_;
  absl::flat_hash_map<Uint128Bytes, UcxPeerWorker> peer_workers_;  // by incarnation
  std::vector<EndpointId> closing_;
  uint32_t abandoned_count_ = 0;
  uint32_t strangers_count_ = 0;  // sockets that were accepted and said no hello yet
  std::deque<UcxArrival> arrivals_;
  std::deque<std::unique_ptr<UcxSend>> sends_done_;
  std::deque<std::unique_ptr<UcxReceive>> receives_done_;
  // Named by UCX's error callback.
  std::vector<std::pair<EndpointId, ucs_status_t>> broken_;
  std::deque<RefusedSend> refused_;
  LogLimiter garbage_log_;
  UcxCounts counts_;
};

}  // namespace forebay
