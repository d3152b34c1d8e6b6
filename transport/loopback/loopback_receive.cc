// The receiving half of LoopbackTransport: what packets do when they arrive.

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/loopback/loopback_transport.h"

namespace forebay {
namespace {

using Kind = LoopbackPacket::Kind;

// Whether who sent it believes in the endpoint, and must be told that it is gone.
bool WantsReset(Kind kind) {
  return kind == Kind::kAccept || kind == Kind::kBegin || kind == Kind::kFragment ||
         kind == Kind::kPing;
}

}  // namespace

LoopbackTransport::Endpoint* LoopbackTransport::FindFor(const LoopbackPacket& packet) {
  EndpointId id = packet.to_endpoint;
  if (id == 0) {
    const auto by_peer = by_peer_.find({packet.from_node, packet.from_endpoint});
    if (by_peer == by_peer_.end()) return nullptr;
    id = by_peer->second;
  }
  const auto it = endpoints_.find(id);
  return it == endpoints_.end() || it->second.state == State::kClosing ? nullptr : &it->second;
}

void LoopbackTransport::OnPacket(LoopbackPacket packet, Nanos now) {
  Record(LoopbackEvent::Kind::kDelivered, packet.to_endpoint, packet.message, packet.bytes.size(),
         static_cast<uint64_t>(packet.kind));
  if (packet.kind == Kind::kOpen) return OnOpen(packet, now);
  Endpoint* endpoint = FindFor(packet);
  if (endpoint == nullptr) return OnStranger(packet);
  endpoint->last_heard = now;
  endpoint->asked_at = kForever;
  switch (packet.kind) {
    case Kind::kRefuse:
      return BeginClosing(*endpoint, absl::UnavailableError("nobody listens there, or it is full"),
                          /*tell_peer=*/false);
    case Kind::kClose:
      return BeginClosing(*endpoint, absl::UnavailableError("closed by the peer"),
                          /*tell_peer=*/false);
    case Kind::kReset:
      return BeginClosing(*endpoint, absl::UnavailableError("the peer is gone"),
                          /*tell_peer=*/false);
    default:
      break;
  }
  // Anything else from the peer says that it accepted us, whichever packet comes first.
  if (endpoint->state == State::kConnecting) {
    endpoint->peer = packet.from_endpoint;
    by_peer_[{endpoint->peer_node, endpoint->peer}] = endpoint->id;
    BecomeOpen(*endpoint);
    if (dead_) return;
    if (endpoint->state != State::kOpen) return OnStranger(packet);
  }
  switch (packet.kind) {
    case Kind::kBegin:
      return OnBegin(*endpoint, std::move(packet));
    case Kind::kFragment:
      return OnFragment(*endpoint, packet);
    case Kind::kGo:
    case Kind::kProgress:
    case Kind::kDone:
      return OnConfirmation(*endpoint, packet);
    case Kind::kPing:
      return network_.Post(PacketTo(*endpoint, Kind::kPong));
    default:
      return;  // kAccept and kPong: that it came is all it says
  }
}

void LoopbackTransport::OnOpen(const LoopbackPacket& packet, Nanos now) {
  if (!opens_seen_.emplace(packet.from_node, packet.from_endpoint).second) return Suppress(packet);
  if (endpoints_.size() >= options_.endpoints_max) {
    LoopbackPacket refusal;
    refusal.kind = Kind::kRefuse;
    refusal.from_node = node_;
    refusal.to_node = packet.from_node;
    refusal.to_endpoint = packet.from_endpoint;
    return network_.Post(std::move(refusal));
  }
  const EndpointId id = ++network_.last_endpoint_;
  Endpoint& endpoint = endpoints_[id];
  endpoint.id = id;
  endpoint.peer_node = packet.from_node;
  endpoint.peer = packet.from_endpoint;
  endpoint.last_heard = now;
  endpoint.address = absl::StrCat("loopback:", network_.NameOfNode(packet.from_node));
  by_peer_[{endpoint.peer_node, endpoint.peer}] = id;
  network_.Post(PacketTo(endpoint, Kind::kAccept));
  BecomeOpen(endpoint);
}

void LoopbackTransport::BecomeOpen(Endpoint& endpoint) {
  endpoint.state = State::kOpen;
  endpoint.told_connected = true;
  ++counts_.endpoints_open;
  PeerDescription peer;
  peer.address = endpoint.address;
  Record(LoopbackEvent::Kind::kConnected, endpoint.id, 0, 0, 0);
  handler_.OnConnected(endpoint.id, peer);
}

void LoopbackTransport::OnStranger(const LoopbackPacket& packet) {
  Record(LoopbackEvent::Kind::kDiscarded, packet.to_endpoint, packet.message, packet.bytes.size(),
         static_cast<uint64_t>(packet.kind));
  if (packet.carries_payload()) ++network_.counts_.late_fragments_discarded;
  // A close that overtook its open: the open must find the door shut.
  if (packet.to_endpoint == 0 && packet.from_node != 0) {
    opens_seen_.emplace(packet.from_node, packet.from_endpoint);
  }
  if (!WantsReset(packet.kind) || packet.from_node == 0) return;
  LoopbackPacket reset;
  reset.kind = Kind::kReset;
  reset.from_node = node_;
  reset.to_node = packet.from_node;
  reset.from_endpoint = packet.to_endpoint;
  reset.to_endpoint = packet.from_endpoint;
  network_.Post(std::move(reset));
}

void LoopbackTransport::Suppress(const LoopbackPacket& packet) {
  ++network_.counts_.duplicates_suppressed;
  Record(LoopbackEvent::Kind::kDiscarded, packet.to_endpoint, packet.message, packet.bytes.size(),
         static_cast<uint64_t>(packet.kind));
}

bool LoopbackTransport::FirstSight(Endpoint& endpoint, uint64_t message) {
  if (message <= endpoint.seen_all_to || !endpoint.seen.insert(message).second) return false;
  while (endpoint.seen.erase(endpoint.seen_all_to + 1) > 0) ++endpoint.seen_all_to;
  return true;
}

void LoopbackTransport::OnBegin(Endpoint& endpoint, LoopbackPacket packet) {
  if (!FirstSight(endpoint, packet.message)) return Suppress(packet);
  ++counts_.messages_received;
  Record(LoopbackEvent::Kind::kMessage, endpoint.id, packet.message, packet.payload_bytes, 0);
  Landing landing = handler_.OnMessage(
      endpoint.id, AsBytes(packet.header.data(), packet.header.size()), packet.payload_bytes);
  if (dead_) return;
  const bool open = endpoint.state == State::kOpen;
  if (packet.payload_bytes == 0 || landing.segments.empty()) {
    if (open) network_.Post(PacketTo(endpoint, Kind::kDone, packet.message));
    return;
  }
  uint64_t segment_bytes = 0;
  for (const LandingSegment& segment : landing.segments) segment_bytes += segment.bytes.size();
  FB_CHECK(segment_bytes == packet.payload_bytes);  // else the receiver has a bug

  // An endpoint that OnMessage closed hands this back with the rest.
  Incoming& incoming = endpoint.incoming[packet.message];
  incoming.payload_bytes = packet.payload_bytes;
  incoming.landing = std::move(landing);
  if (!open) return;
  if (!packet.carries_payload()) {
    return network_.Post(PacketTo(endpoint, Kind::kGo, packet.message));
  }
  Land(incoming, AsBytes(packet.bytes.data(), packet.bytes.size()));
  FinishLanding(endpoint, packet.message);
}

void LoopbackTransport::OnFragment(Endpoint& endpoint, const LoopbackPacket& packet) {
  const auto it = endpoint.incoming.find(packet.message);
  if (it == endpoint.incoming.end() || packet.offset < it->second.landed) return Suppress(packet);
  Incoming& incoming = it->second;
  if (packet.offset > incoming.landed) {
    if (!incoming.ahead.emplace(packet.offset, packet.bytes).second) return Suppress(packet);
    ++network_.counts_.overtakes;
    return;
  }
  Land(incoming, AsBytes(packet.bytes.data(), packet.bytes.size()));
  while (!incoming.ahead.empty() && incoming.ahead.begin()->first == incoming.landed) {
    const std::vector<std::byte> next = std::move(incoming.ahead.begin()->second);
    incoming.ahead.erase(incoming.ahead.begin());
    Land(incoming, AsBytes(next.data(), next.size()));
  }
  if (incoming.landed == incoming.payload_bytes) return FinishLanding(endpoint, packet.message);
  network_.Post(PacketTo(endpoint, Kind::kProgress, packet.message, incoming.landed));
}

void LoopbackTransport::Land(Incoming& incoming, Bytes bytes) {
  while (!bytes.empty()) {
    LandingSegment& segment = incoming.landing.segments[incoming.segment];
    const size_t room = segment.bytes.size() - incoming.segment_offset;
    const size_t take = std::min(room, bytes.size());
    std::byte* to = segment.bytes.data() + incoming.segment_offset;
    if (segment.checksum != nullptr) {
      segment.checksum->CopyAndUpdate(to, bytes.data(), take);
    } else if (take > 0) {
      std::memcpy(to, bytes.data(), take);
    }
    bytes.remove_prefix(take);
    incoming.landed += take;
    incoming.segment_offset += take;
    if (take < room) continue;
    ++incoming.segment;
    incoming.segment_offset = 0;
  }
}

void LoopbackTransport::FinishLanding(Endpoint& endpoint, uint64_t message) {
  const auto it = endpoint.incoming.find(message);
  const uint64_t token = it->second.landing.token;
  counts_.payload_bytes_received += it->second.payload_bytes;
  Record(LoopbackEvent::Kind::kLanded, endpoint.id, message, it->second.payload_bytes, 0);
  endpoint.incoming.erase(it);
  network_.Post(PacketTo(endpoint, Kind::kDone, message));
  handler_.OnLanded(endpoint.id, token, absl::OkStatus());
}

void LoopbackTransport::OnConfirmation(Endpoint& endpoint, const LoopbackPacket& packet) {
  const auto it = endpoint.active.find(packet.message);
  if (it == endpoint.active.end()) return Suppress(packet);
  Outgoing& outgoing = it->second;
  outgoing.going = true;
  if (packet.kind == Kind::kProgress) {
    outgoing.confirmed = std::max(outgoing.confirmed, packet.offset);
  } else if (packet.kind == Kind::kDone) {
    AnswerSend(endpoint, outgoing, absl::OkStatus());
    endpoint.active.erase(it);
  }
}

}  // namespace forebay
