#include "transport/loopback/loopback_network.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/loopback/loopback_transport.h"

namespace forebay {
namespace {

using Kind = LoopbackPacket::Kind;

const char* NameOf(LoopbackEvent::Kind kind) {
  switch (kind) {
    case LoopbackEvent::Kind::kSent:
      return "sent";
    case LoopbackEvent::Kind::kDuplicated:
      return "duplicated";
    case LoopbackEvent::Kind::kCorrupted:
      return "corrupted";
    case LoopbackEvent::Kind::kHeld:
      return "held";
    case LoopbackEvent::Kind::kDelivered:
      return "delivered";
    case LoopbackEvent::Kind::kDiscarded:
      return "discarded";
    case LoopbackEvent::Kind::kLost:
      return "lost";
    case LoopbackEvent::Kind::kConnected:
      return "OnConnected";
    case LoopbackEvent::Kind::kMessage:
      return "OnMessage";
    case LoopbackEvent::Kind::kLanded:
      return "OnLanded";
    case LoopbackEvent::Kind::kSentBack:
      return "OnSent";
    case LoopbackEvent::Kind::kClosed:
      return "OnClosed";
    case LoopbackEvent::Kind::kKilled:
      return "killed";
  }
  return "?";
}

uint64_t Mix(uint64_t hash, uint64_t value) {
  return SeededRandom(hash ^ (value * 0x9fb21c651e98df25ull)).Next();
}

}  // namespace

std::string LoopbackEvent::ToString() const {
  return absl::StrCat(now, " node ", node, " endpoint ", endpoint, " message ", message, " ",
                      NameOf(kind), " bytes ", bytes, " detail ", detail);
}

LoopbackNetwork::LoopbackNetwork(uint64_t seed, const Clock& clock, const LoopbackFaults& faults)
    : clock_(clock), faults_(faults), random_(seed), trace_hash_(seed) {}

LoopbackNetwork::~LoopbackNetwork() {
  for (const auto& [number, node] : nodes_) FB_CHECK(node.transport == nullptr);
}

std::unique_ptr<LoopbackTransport> LoopbackNetwork::MakeTransport(absl::string_view node_name,
                                                                  TransportHandler& handler,
                                                                  const TransportOptions& options) {
  const uint64_t number = nodes_.size() + 1;
  auto transport = std::make_unique<LoopbackTransport>(*this, number, handler, options);
  Node& node = nodes_[number];
  node.name = std::string(node_name);
  node.transport = transport.get();
  return transport;
}

bool LoopbackNetwork::KillNode(absl::string_view node_name, LoopbackDeath death) {
  bool found = false;
  for (auto& [number, node] : nodes_) {
    if (node.transport == nullptr || node.name != node_name) continue;
    EndNode(number, death);
    found = true;
  }
  return found;
}

void LoopbackNetwork::EndNode(uint64_t number, LoopbackDeath death) {
  Node& node = nodes_.at(number);
  if (node.transport == nullptr) return;
  Record(LoopbackEvent::Kind::kKilled, number, 0, 0, 0, 0);
  node.resets = death == LoopbackDeath::kByChance ? random_.Chance(faults_.reset_chance)
                                                  : death == LoopbackDeath::kReset;
  LoopbackTransport* transport = node.transport;
  node.transport = nullptr;
  node.air.clear();
  for (auto it = listeners_.begin(); it != listeners_.end();) {
    it = it->second == number ? listeners_.erase(it) : std::next(it);
  }
  // What it sent before stays in the air: packets outlive who sent them.
  for (LoopbackPacket& packet : transport->Die()) {
    if (node.resets) Post(std::move(packet));
  }
}

void LoopbackNetwork::Cut(absl::string_view a, absl::string_view b) {
  CutOneWay(a, b);
  CutOneWay(b, a);
}

void LoopbackNetwork::CutOneWay(absl::string_view from, absl::string_view to) {
  cuts_.emplace(std::string(from), std::string(to));
  for (auto& [number, node] : nodes_) {
    for (auto it = node.air.begin(); it != node.air.end();) {
      if (!IsCut(it->second)) {
        ++it;
        continue;
      }
      ++counts_.packets_held;
      held_.push_back(std::move(it->second));
      it = node.air.erase(it);
    }
  }
}

void LoopbackNetwork::Mend(absl::string_view a, absl::string_view b) {
  cuts_.erase(NamePair(std::string(a), std::string(b)));
  cuts_.erase(NamePair(std::string(b), std::string(a)));
  ReleaseHeld();
}

void LoopbackNetwork::MendAll() {
  cuts_.clear();
  ReleaseHeld();
}

void LoopbackNetwork::ReleaseHeld() {
  std::vector<LoopbackPacket> held;
  held.swap(held_);
  for (LoopbackPacket& packet : held) {
    if (IsCut(packet)) {
      held_.push_back(std::move(packet));
    } else {
      Launch(std::move(packet));
    }
  }
}

bool LoopbackNetwork::IsCut(const LoopbackPacket& packet) const {
  if (cuts_.empty() || packet.from_node == 0) return false;
  return cuts_.contains({nodes_.at(packet.from_node).name, nodes_.at(packet.to_node).name});
}

bool LoopbackNetwork::Step() {
  std::vector<LoopbackTransport*> order;
  for (auto& [number, node] : nodes_) {
    if (node.transport != nullptr) order.push_back(node.transport);
  }
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.Below(i)]);
  bool worked = false;
  for (LoopbackTransport* transport : order) {
    // One callback may kill or destroy another node: ask again who is there.
    const bool there = std::any_of(nodes_.begin(), nodes_.end(), [transport](const auto& entry) {
      return entry.second.transport == transport;
    });
    if (there) worked |= transport->Poll(clock_.Now());
  }
  return worked;
}

Nanos LoopbackNetwork::NextDeadline() const {
  Nanos next = kForever;
  for (const auto& [number, node] : nodes_) {
    if (node.transport != nullptr) next = std::min(next, node.transport->NextDeadline());
  }
  return next;
}

size_t LoopbackNetwork::packets_in_air() const {
  size_t count = 0;
  for (const auto& [number, node] : nodes_) count += node.air.size();
  return count;
}

void LoopbackNetwork::Post(LoopbackPacket packet) {
  ++counts_.packets_sent;
  Record(LoopbackEvent::Kind::kSent, packet.from_node, packet.from_endpoint, packet.message,
         packet.bytes.size(), static_cast<uint64_t>(packet.kind));
  if (packet.carries_payload() && random_.Chance(faults_.corrupt_chance)) {
    const uint64_t bit = random_.Below(packet.bytes.size() * 8);
    packet.bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    ++counts_.fragments_corrupted;
    Record(LoopbackEvent::Kind::kCorrupted, packet.from_node, packet.from_endpoint, packet.message,
           bit, 0);
  }
  if (random_.Chance(faults_.duplicate_chance)) {
    ++counts_.packets_duplicated;
    Record(LoopbackEvent::Kind::kDuplicated, packet.from_node, packet.from_endpoint, packet.message,
           0, 0);
    Launch(packet);
  }
  Launch(std::move(packet));
}

void LoopbackNetwork::Launch(LoopbackPacket packet) {
  if (IsCut(packet)) {
    ++counts_.packets_held;
    Record(LoopbackEvent::Kind::kHeld, packet.to_node, packet.to_endpoint, packet.message, 0, 0);
    held_.push_back(std::move(packet));
    return;
  }
  Node& to = nodes_.at(packet.to_node);
  if (to.transport == nullptr) {
    ++counts_.packets_lost;
    Record(LoopbackEvent::Kind::kLost, packet.to_node, packet.to_endpoint, packet.message, 0, 0);
    const bool from_lives =
        packet.from_node != 0 && nodes_.at(packet.from_node).transport != nullptr;
    if (!to.resets || !from_lives || packet.kind == Kind::kReset) return;
    // The kernel of a process that ended answers for it.
    LoopbackPacket reset;
    reset.kind = Kind::kReset;
    reset.from_node = packet.to_node;
    reset.to_node = packet.from_node;
    reset.from_endpoint = packet.to_endpoint;
    reset.to_endpoint = packet.from_endpoint;
    Launch(std::move(reset));
    return;
  }
  const Nanos spread = std::max<Nanos>(0, faults_.delay_ns_max - faults_.delay_ns_min);
  packet.due = clock_.Now() + faults_.delay_ns_min +
               static_cast<Nanos>(random_.Below(static_cast<uint64_t>(spread) + 1));
  if (!faults_.reorder) {
    // One queue for each direction between two nodes keeps what any pair of endpoints sends in
    // order.
    Nanos& queue_end = queue_ends_[{packet.from_node, packet.to_node}];
    packet.due = std::max(packet.due, queue_end);
    queue_end = packet.due;
  }
  const std::pair<Nanos, uint64_t> order(packet.due, ++last_order_);
  to.air.emplace(order, std::move(packet));
}

std::vector<LoopbackPacket> LoopbackNetwork::TakeDue(uint64_t number, Nanos now) {
  std::vector<LoopbackPacket> taken;
  auto& air = nodes_.at(number).air;
  while (!air.empty() && air.begin()->first.first <= now) {
    taken.push_back(std::move(air.begin()->second));
    air.erase(air.begin());
    ++counts_.packets_delivered;
  }
  return taken;
}

Nanos LoopbackNetwork::NextDue(uint64_t number) const {
  const auto& air = nodes_.at(number).air;
  return air.empty() ? kForever : air.begin()->first.first;
}

uint64_t LoopbackNetwork::Listener(const std::string& name) const {
  const auto it = listeners_.find(name);
  return it == listeners_.end() ? 0 : it->second;
}

bool LoopbackNetwork::TakeName(const std::string& name, uint64_t node) {
  return listeners_.emplace(name, node).second;
}

void LoopbackNetwork::RefuseOpen(uint64_t node, EndpointId endpoint) {
  if (!random_.Chance(faults_.reset_chance)) return;
  LoopbackPacket refusal;
  refusal.kind = Kind::kRefuse;
  refusal.to_node = node;
  refusal.to_endpoint = endpoint;
  Post(std::move(refusal));
}

void LoopbackNetwork::Record(LoopbackEvent::Kind kind, uint64_t node, EndpointId endpoint,
                             uint64_t message, uint64_t bytes, uint64_t detail) {
  const LoopbackEvent event{clock_.Now(), kind, node, endpoint, message, bytes, detail};
  for (const uint64_t value : {static_cast<uint64_t>(event.now), static_cast<uint64_t>(kind), node,
                               endpoint, message, bytes, detail}) {
    trace_hash_ = Mix(trace_hash_, value);
  }
  if (trace_) trace_(event);
}

}  // namespace forebay
