#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/log.h"
#include "transport/local/handshake.h"
#include "transport/local/local_address.h"
#include "transport/local/local_channel.h"
#include "transport/local/unique_fd.h"
#include "transport/transport.h"

// The transport for peers on the same host: shared memory, and a UNIX socket that authenticates the
// peer, passes descriptors, wakes a sleeper, and tells at once of a death. This header is the guide
// to the folder.
//
//   local_address   "local:/path", "local:@name"; the listener with its lock; who may connect
//   shared_area     the memfd of two rings and two staging areas; regions mapped read-only; seals
//   handshake       how two ends meet
//   record_ring     records between processes that do not trust each other
//   local_channel   an open endpoint: messages, chunks, acknowledgements, sleep
namespace forebay {

struct LocalTransportOptions {
  // Memory that peers who connect to us may map, read-only, in this order. The memfd is sealed by
  // its owner with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_FUTURE_WRITE. With `memory`, where this
  // process has all of it mapped, payloads that lie there go to such peers without a copy on our
  // side: the peer copies straight out of it, until OnSent.
  struct Export {
    int fd = -1;  // borrowed
    uint64_t bytes = 0;
    const std::byte* memory = nullptr;
  };

  TransportOptions base;
  std::vector<Export> exports;
  // Of each direction of an endpoint that a peer opened: see SharedArea::Sizes. The kernel gives
  // pages as they are first used; an endpoint without payloads uses a few.
  uint64_t ring_bytes = 256 * 1024;
  uint64_t staging_bytes = 8 << 20;
  uint64_t chunk_bytes = 64 * 1024;  // staged at once; at most a quarter of staging_bytes
  // Users besides our own and root that may connect, and to whose daemon we may connect.
  std::vector<uint32_t> allowed_uids;
  mode_t socket_mode = 0600;          // of the socket file; 0660 to let a group try
  uint64_t poll_bytes_max = 1 << 20;  // payload that one Poll() moves for one endpoint
};

// See transport.h and above.
//
// A message without payload may overtake payloads. What a peer sent without payload before it
// closed or died is still delivered. A message of token 0 that finds the send queue full closes the
// endpoint.
//
// Errors   peers of another user: PERMISSION_DENIED on both sides.
// Threads  one reactor.
class LocalTransport final : public Transport {
 public:
  // Borrows the clock and the handler. INVALID_ARGUMENT for sizes out of range;
  // FAILED_PRECONDITION for an export that is not sealed; RESOURCE_EXHAUSTED without descriptors.
  static absl::StatusOr<std::unique_ptr<LocalTransport>> Create(const Clock& clock,
                                                                TransportHandler& handler,
                                                                LocalTransportOptions options);
  ~LocalTransport() override;

  // ALREADY_EXISTS where another daemon listens; see LocalListener::Open().
  absl::StatusOr<std::string> Listen(absl::string_view address) override;
  absl::StatusOr<EndpointId> Connect(absl::string_view address, Nanos deadline) override;
  void Send(EndpointId endpoint, OutgoingMessage message) override;
  void Close(EndpointId endpoint) override;
  MutableBytes LendSendBuffer(EndpointId endpoint, size_t header_bytes, size_t bytes) override;
  size_t send_buffer_bytes_max() const override { return options_.staging_bytes / 2; }

  bool Poll(Nanos now) override;
  bool PrepareToSleep(std::vector<int>& fds) override;
  Nanos NextDeadline() const override;

  const TransportCounts& counts() const { return counts_; }

 private:
  struct Peer;
  struct FailedSend {
    EndpointId endpoint = 0;
    uint64_t token = 0;
    absl::Status status;
  };

  LocalTransport(const Clock& clock, TransportHandler& handler, LocalTransportOptions options);
  absl::Status Init();
  Peer* Find(EndpointId endpoint);
  Peer& AddPeer(std::unique_ptr<LocalHandshake> handshake, LocalSide side, Nanos deadline);
  void FailSend(EndpointId endpoint, uint64_t token, absl::Status status);
  bool HandBackFailedSends();
  bool HasFailedSend(EndpointId endpoint) const;
  bool PollSockets();
  void Accept(size_t listener);
  void AdvanceHandshake(Peer& peer);
  void Open(Peer& peer);
  void Drop(Peer& peer, absl::Status why);
  bool Reap();
  void WatchListeners(bool watch);

  const Clock& clock_;
  TransportHandler& handler_;
  const LocalTransportOptions options_;
  TransportCounts counts_;
  LogLimiter log_limiter_;
  int64_t own_uid_ = -1;
  std::vector<HandshakeExport> handshake_exports_;
  std::vector<ExportedMemory> exported_;
  std::vector<std::byte> header_scratch_;
  LocalChannel::Setup setup_;

  UniqueFd epoll_;
  std::vector<LocalListener> listeners_;
  std::vector<std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<EndpointId, Peer*> by_id_;
  std::vector<FailedSend> failed_sends_;

  bool in_poll_ = false;
  bool asleep_ = false;
  bool reap_ = false;  // some peer has ended
  Nanos now_ = 0;      // of the last poll
  Nanos sockets_polled_at_ = 0;
  uint64_t polls_since_sockets_ = 0;
  Nanos accept_again_at_ = kForever;  // descriptors ran out: listen again then
  size_t first_ = 0;                  // whose turn is first
};

}  // namespace forebay
