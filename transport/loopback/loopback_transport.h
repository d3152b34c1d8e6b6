#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "transport/loopback/loopback_network.h"
#include "transport/loopback/loopback_packet.h"
#include "transport/transport.h"

namespace forebay {

// The end of a LoopbackNetwork that one node holds. Addresses are "loopback:NAME".
//
// Borrows  the network, and the handler.
// Threads  one.
class LoopbackTransport final : public Transport {
 public:
  // Made by LoopbackNetwork::MakeTransport.
  LoopbackTransport(LoopbackNetwork& network, uint64_t node, TransportHandler& handler,
                    const TransportOptions& options);
  ~LoopbackTransport() override;
  LoopbackTransport(const LoopbackTransport&) = delete;
  LoopbackTransport& operator=(const LoopbackTransport&) = delete;

  absl::StatusOr<std::string> Listen(absl::string_view address) override;
  absl::StatusOr<EndpointId> Connect(absl::string_view address, Nanos deadline) override;
  void Send(EndpointId endpoint, OutgoingMessage message) override;
  void Close(EndpointId endpoint) override;
  bool Poll(Nanos now) override;
  // No descriptors: nothing sleeps in virtual time.
  bool PrepareToSleep(std::vector<int>& fds) override;
  Nanos NextDeadline() const override;

  const TransportCounts& counts() const { return counts_; }
  bool dead() const { return dead_; }
  uint64_t node() const { return node_; }

 private:
  friend class LoopbackNetwork;

  struct Outgoing {
    uint64_t id = 0;  // once it has begun
    std::string header;
    size_t header_bytes = 0;  // the header itself leaves first
    PayloadRanges payload;
    uint64_t payload_bytes = 0;
    uint64_t token = 0;
    bool early = false;     // OnSent when the last byte has left
    bool going = false;     // the peer has a landing
    bool answered = false;  // OnSent is given, or on its way
    uint64_t emitted = 0;   // payload bytes that have left
    uint64_t confirmed = 0;
  };
  struct Incoming {
    uint64_t payload_bytes = 0;
    Landing landing;
    size_t segment = 0;  // where the next byte lands
    size_t segment_offset = 0;
    uint64_t landed = 0;
    std::map<uint64_t, std::vector<std::byte>> ahead;  // came before their turn, by offset
  };
  enum class State : uint8_t { kConnecting, kOpen, kClosing };
  struct Endpoint {
    EndpointId id = 0;
    std::string address;
    State state = State::kConnecting;
    uint64_t peer_node = 0;
    EndpointId peer = 0;
    Nanos connect_deadline = kForever;
    Nanos last_heard = 0;
    Nanos asked_at = kForever;  // since when an answer is owed; kForever: none is
    bool told_connected = false;
    bool emptied = false;          // kClosing: landings and sends are handed back, or in answers_
    uint64_t answers_pending = 0;  // of answers_
    absl::Status why;              // kClosing
    uint64_t last_message = 0;
    uint64_t queued_bytes = 0;
    std::deque<Outgoing> waiting;
    std::map<uint64_t, Outgoing> active;
    std::map<uint64_t, Incoming> incoming;
    uint64_t seen_all_to = 0;  // each message up to here was seen
    std::set<uint64_t> seen;   // and these beyond
  };
  struct PendingAnswer {
    EndpointId endpoint = 0;
    uint64_t token = 0;
    absl::Status status;
  };

  // Stops for good. What a kernel would tell its peers.
  std::vector<LoopbackPacket> Die();

  LoopbackPacket PacketTo(const Endpoint& endpoint, LoopbackPacket::Kind kind, uint64_t message = 0,
                          uint64_t offset = 0) const;
  void Ask(Endpoint& endpoint, LoopbackPacket packet);
  Endpoint* FindFor(const LoopbackPacket& packet);

  void OnPacket(LoopbackPacket packet, Nanos now);
  void OnOpen(const LoopbackPacket& packet, Nanos now);
  // For an endpoint that is gone, or on its way.
  void OnStranger(const LoopbackPacket& packet);
  void BecomeOpen(Endpoint& endpoint);
  void OnBegin(Endpoint& endpoint, LoopbackPacket packet);
  void OnFragment(Endpoint& endpoint, const LoopbackPacket& packet);
  void OnConfirmation(Endpoint& endpoint, const LoopbackPacket& packet);
  bool FirstSight(Endpoint& endpoint, uint64_t message);
  void Suppress(const LoopbackPacket& packet);
  static void Land(Incoming& incoming, Bytes bytes);
  void FinishLanding(Endpoint& endpoint, uint64_t message);

  bool Pump(Endpoint& endpoint);
  void Begin(Endpoint& endpoint);
  bool EmitFragments(Endpoint& endpoint, Outgoing& outgoing);
  void AnswerSend(Endpoint& endpoint, Outgoing& outgoing, const absl::Status& status);
  void Answer(EndpointId endpoint, uint64_t token, absl::Status status);
  bool CheckTime(Endpoint& endpoint, Nanos now);
  void BeginClosing(Endpoint& endpoint, absl::Status why, bool tell_peer);
  bool GiveAnswers();
  bool HandBack();
  bool FinishClosing();
  bool HasWork() const;
  void Record(LoopbackEvent::Kind kind, EndpointId endpoint, uint64_t message, uint64_t bytes,
              uint64_t detail);

  LoopbackNetwork& network_;
  const uint64_t node_;
  TransportHandler& handler_;
  const TransportOptions options_;
  bool dead_ = false;
  std::map<EndpointId, Endpoint> endpoints_;
  std::map<std::pair<uint64_t, EndpointId>, EndpointId> by_peer_;
  std::set<std::pair<uint64_t, EndpointId>> opens_seen_;  // (node, its endpoint), for duplicates
  std::deque<PendingAnswer> answers_;                     // OnSent to give
  std::vector<EndpointId> closing_;
  TransportCounts counts_;
};

}  // namespace forebay
