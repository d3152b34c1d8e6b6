#include "tests/sim/watched_transport.h"

#include "absl/strings/str_cat.h"
#include "base/checksum.h"

namespace forebay::testing {

Nanos DriftingClock::ToLocal(Nanos world) const {
  if (world == kForever) return kForever;
  return world + static_cast<Nanos>(drift_ * static_cast<double>(world - origin_));
}

Nanos DriftingClock::ToWorld(Nanos local) const {
  if (local == kForever) return kForever;
  // One more, so that at that moment the local clock has got there.
  return origin_ + static_cast<Nanos>(static_cast<double>(local - origin_) / (1 + drift_)) + 1;
}

WatchedTransport::WatchedTransport(LoopbackNetwork& network, const std::string& node,
                                   TransportHandler& user, const TransportOptions& options,
                                   const Clock& world, const DriftingClock* local,
                                   TransportHooks hooks)
    : world_(world),
      local_(local),
      user_(user),
      hooks_(std::move(hooks)),
      inner_(network.MakeTransport(node, *this, options)) {}

absl::StatusOr<std::string> WatchedTransport::Listen(absl::string_view address) {
  return inner_->Listen(address);
}

absl::StatusOr<EndpointId> WatchedTransport::Connect(absl::string_view address, Nanos deadline) {
  return inner_->Connect(address, local_ == nullptr ? deadline : local_->ToWorld(deadline));
}

uint64_t WatchedTransport::ChecksumOfRanges(const PayloadRanges& ranges) {
  RunningChecksum checksum;
  for (const Bytes range : ranges) checksum.Update(range);
  return checksum.Digest();
}

void WatchedTransport::Send(EndpointId endpoint, OutgoingMessage message) {
  if (hooks_.on_send) hooks_.on_send(endpoint, message);
  if (message.token != 0 && !message.payload.empty()) {
    Lent& lent = lent_[{endpoint, message.token}];
    lent.ranges = message.payload;
    lent.checksum = ChecksumOfRanges(lent.ranges);
    lent_ranges_ += lent.ranges.size();
    for (const Bytes range : lent.ranges) lent_bytes_ += range.size();
  }
  inner_->Send(endpoint, std::move(message));
}

bool WatchedTransport::Poll(Nanos /*now*/) { return inner_->Poll(world_.Now()); }

Nanos WatchedTransport::NextDeadline() const {
  const Nanos next = inner_->NextDeadline();
  return local_ == nullptr ? next : local_->ToLocal(next);
}

void WatchedTransport::OnConnected(EndpointId endpoint, const PeerDescription& peer) {
  PeerDescription described = peer;
  if (hooks_.describe) hooks_.describe(endpoint, described);
  user_.OnConnected(endpoint, described);
}

Landing WatchedTransport::OnMessage(EndpointId endpoint, Bytes header, uint64_t payload_bytes) {
  if (hooks_.on_message) hooks_.on_message(endpoint, header);
  return user_.OnMessage(endpoint, header, payload_bytes);
}

void WatchedTransport::OnLanded(EndpointId endpoint, uint64_t token, const absl::Status& status) {
  user_.OnLanded(endpoint, token, status);
}

void WatchedTransport::Check(EndpointId endpoint, const Lent& lent) {
  if (ChecksumOfRanges(lent.ranges) == lent.checksum) return;
  hooks_.on_violation(
      absl::StrCat("memory lent to a send on endpoint ", endpoint, " changed before OnSent"));
}

void WatchedTransport::OnSent(EndpointId endpoint, uint64_t token, const absl::Status& status) {
  const auto it = lent_.find({endpoint, token});
  if (it != lent_.end()) {
    Check(endpoint, it->second);
    lent_ranges_ -= it->second.ranges.size();
    for (const Bytes range : it->second.ranges) lent_bytes_ -= range.size();
    lent_.erase(it);
  }
  user_.OnSent(endpoint, token, status);
}

void WatchedTransport::OnClosed(EndpointId endpoint, const absl::Status& why) {
  user_.OnClosed(endpoint, why);
}

bool WatchedTransport::Lends(const std::byte* begin, size_t bytes) const {
  for (const auto& [name, lent] : lent_) {
    for (const Bytes range : lent.ranges) {
      if (begin < range.data() + range.size() && range.data() < begin + bytes) return true;
    }
  }
  return false;
}

void WatchedTransport::CheckLent() {
  for (const auto& [name, lent] : lent_) Check(name.first, lent);
}

}  // namespace forebay::testing
