#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/loopback/loopback_network.h"
#include "transport/loopback/loopback_transport.h"
#include "transport/transport.h"

namespace forebay::testing {

// A clock that runs fast or slow against the world's.
class DriftingClock final : public Clock {
 public:
  DriftingClock(const Clock& world, double drift)
      : world_(world), origin_(world.Now()), drift_(drift) {}
  Nanos Now() const override { return ToLocal(world_.Now()); }
  Nanos ToLocal(Nanos world) const;
  Nanos ToWorld(Nanos local) const;

 private:
  const Clock& world_;
  const Nanos origin_;
  const double drift_;
};

// What a world wants to see of a transport, or to change. Each may be null.
struct TransportHooks {
  std::function<void(EndpointId, PeerDescription&)> describe;  // adds shared memory to a peer
  std::function<void(EndpointId, OutgoingMessage&)> on_send;   // may change the message
  std::function<void(EndpointId, Bytes header)> on_message;    // came in
  std::function<void(const std::string& what)> on_violation;
};

// One end of the loopback network, between it and its user. It holds the user to its side of the
// contract: memory that was lent to a Send must not change before OnSent.
//
// Time at this interface is the user's clock; the network's is the world's.
class WatchedTransport final : public Transport, public TransportHandler {
 public:
  WatchedTransport(LoopbackNetwork& network, const std::string& node, TransportHandler& user,
                   const TransportOptions& options, const Clock& world, const DriftingClock* local,
                   TransportHooks hooks);

  absl::StatusOr<std::string> Listen(absl::string_view address) override;
  absl::StatusOr<EndpointId> Connect(absl::string_view address, Nanos deadline) override;
  void Send(EndpointId endpoint, OutgoingMessage message) override;
  void Close(EndpointId endpoint) override { inner_->Close(endpoint); }
  bool Poll(Nanos now) override;
  bool PrepareToSleep(std::vector<int>& fds) override { return inner_->PrepareToSleep(fds); }
  Nanos NextDeadline() const override;

  void OnConnected(EndpointId endpoint, const PeerDescription& peer) override;
  Landing OnMessage(EndpointId endpoint, Bytes header, uint64_t payload_bytes) override;
  void OnLanded(EndpointId endpoint, uint64_t token, const absl::Status& status) override;
  void OnSent(EndpointId endpoint, uint64_t token, const absl::Status& status) override;
  void OnClosed(EndpointId endpoint, const absl::Status& why) override;

  // Lent for sends that have not ended.
  uint64_t lent_ranges() const { return lent_ranges_; }
  uint64_t lent_bytes() const { return lent_bytes_; }
  bool Lends(const std::byte* begin, size_t bytes) const;
  // Looks at all that is lent.
  void CheckLent();

 private:
  struct Lent {
    PayloadRanges ranges;
    uint64_t checksum = 0;
  };
  static uint64_t ChecksumOfRanges(const PayloadRanges& ranges);
  void Check(EndpointId endpoint, const Lent& lent);

  const Clock& world_;
  const DriftingClock* const local_;  // null: the world's
  TransportHandler& user_;
  TransportHooks hooks_;
  std::map<std::pair<EndpointId, uint64_t>, Lent> lent_;
  uint64_t lent_ranges_ = 0;
  uint64_t lent_bytes_ = 0;
  std::unique_ptr<LoopbackTransport> inner_;
};

}  // namespace forebay::testing
