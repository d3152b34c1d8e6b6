#include "transport/loopback/loopback_transport.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"

namespace forebay {
namespace {

using Kind = LoopbackPacket::Kind;

constexpr absl::string_view kScheme = "loopback:";
// Messages of one endpoint that move at once; with several, large ones do not stop small ones.
constexpr size_t kActiveMax = 8;

absl::StatusOr<std::string> NameIn(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, kScheme) || address.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\" is no address like \"loopback:NAME\""));
  }
  return std::string(address);
}

uint64_t BytesOf(const PayloadRanges& ranges) {
  uint64_t sum = 0;
  for (const Bytes& range : ranges) sum += range.size();
  return sum;
}

std::vector<std::byte> CopyOut(const PayloadRanges& ranges, uint64_t offset, size_t bytes) {
  std::vector<std::byte> out;
  out.reserve(bytes);
  for (const Bytes& range : ranges) {
    if (offset >= range.size()) {
      offset -= range.size();
      continue;
    }
    const size_t take = std::min(range.size() - static_cast<size_t>(offset), bytes - out.size());
    const auto begin = range.begin() + static_cast<std::ptrdiff_t>(offset);
    out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(take));
    offset = 0;
    if (out.size() == bytes) break;
  }
  return out;
}

}  // namespace

LoopbackTransport::LoopbackTransport(LoopbackNetwork& network, uint64_t node,
                                     TransportHandler& handler, const TransportOptions& options)
    : network_(network), node_(node), handler_(handler), options_(options) {}

LoopbackTransport::~LoopbackTransport() { network_.EndNode(node_, LoopbackDeath::kByChance); }

std::vector<LoopbackPacket> LoopbackTransport::Die() {
  dead_ = true;
  std::vector<LoopbackPacket> resets;
  for (const auto& [id, endpoint] : endpoints_) {
    if (endpoint.peer_node != 0) resets.push_back(PacketTo(endpoint, Kind::kReset));
  }
  return resets;
}

absl::StatusOr<std::string> LoopbackTransport::Listen(absl::string_view address) {
  absl::StatusOr<std::string> name = NameIn(address);
  if (!name.ok()) return name.status();
  if (dead_) return absl::UnavailableError("this node is dead");
  if (!network_.TakeName(*name, node_)) {
    return absl::AlreadyExistsError(absl::StrCat("somebody listens at ", address, " already"));
  }
  return std::string(address);
}

absl::StatusOr<EndpointId> LoopbackTransport::Connect(absl::string_view address, Nanos deadline) {
  absl::StatusOr<std::string> name = NameIn(address);
  if (!name.ok()) return name.status();
  if (dead_) return absl::UnavailableError("this node is dead");
  if (endpoints_.size() >= options_.endpoints_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this transport has ", endpoints_.size(), " endpoints already"));
  }
  const EndpointId id = ++network_.last_endpoint_;
  Endpoint& endpoint = endpoints_[id];
  endpoint.id = id;
  endpoint.connect_deadline = deadline;
  endpoint.address = std::string(address);
  endpoint.peer_node = network_.Listener(*name);
  if (endpoint.peer_node == 0) {
    network_.RefuseOpen(node_, id);
  } else {
    network_.Post(PacketTo(endpoint, Kind::kOpen));
  }
  return id;
}

void LoopbackTransport::Send(EndpointId id, OutgoingMessage message) {
  if (dead_) return;
  const uint64_t payload_bytes = BytesOf(message.payload);
  FB_CHECK(message.token != 0 || payload_bytes == 0);
  const auto it = endpoints_.find(id);
  if (it == endpoints_.end() || it->second.state == State::kClosing) {
    return Answer(id, message.token, absl::UnavailableError("the endpoint is closed"));
  }
  Endpoint& endpoint = it->second;
  if (message.header.empty() || message.header.size() > kHeaderBytesMax ||
      payload_bytes > kPayloadBytesMax) {
    return Answer(id, message.token,
                  absl::InvalidArgumentError(absl::StrCat("a message of ", message.header.size(),
                                                          " header bytes and ", payload_bytes,
                                                          " payload bytes is out of range")));
  }
  const uint64_t bytes = message.header.size() + payload_bytes;
  if (endpoint.queued_bytes + bytes > SendQueueLimit(options_, message.token)) {
    absl::Status full = absl::ResourceExhaustedError(
        absl::StrCat("the send queue holds ", endpoint.queued_bytes, " bytes"));
    if (message.token == 0) return BeginClosing(endpoint, std::move(full), /*tell_peer=*/true);
    return Answer(id, message.token, std::move(full));
  }
  endpoint.queued_bytes += bytes;
  Outgoing outgoing;
  outgoing.header.assign(reinterpret_cast<const char*>(message.header.data()),
                         message.header.size());
  outgoing.header_bytes = message.header.size();
  outgoing.payload = std::move(message.payload);
  outgoing.payload_bytes = payload_bytes;
  outgoing.token = message.token;
  endpoint.waiting.push_back(std::move(outgoing));
}

void LoopbackTransport::Close(EndpointId id) {
  const auto it = endpoints_.find(id);
  if (dead_ || it == endpoints_.end()) return;
  BeginClosing(it->second, absl::CancelledError("closed on this side"), /*tell_peer=*/true);
}

void LoopbackTransport::BeginClosing(Endpoint& endpoint, absl::Status why, bool tell_peer) {
  if (endpoint.state == State::kClosing) return;
  endpoint.state = State::kClosing;
  endpoint.why = std::move(why);
  closing_.push_back(endpoint.id);
  if (tell_peer && endpoint.peer_node != 0) network_.Post(PacketTo(endpoint, Kind::kClose));
}

LoopbackPacket LoopbackTransport::PacketTo(const Endpoint& endpoint, Kind kind, uint64_t message,
                                           uint64_t offset) const {
  LoopbackPacket packet;
  packet.kind = kind;
  packet.from_node = node_;
  packet.to_node = endpoint.peer_node;
  packet.from_endpoint = endpoint.id;
  packet.to_endpoint = endpoint.peer;
  packet.message = message;
  packet.offset = offset;
  return packet;
}

void LoopbackTransport::Ask(Endpoint& endpoint, LoopbackPacket packet) {
  if (endpoint.asked_at == kForever) endpoint.asked_at = network_.clock_.Now();
  network_.Post(std::move(packet));
}

bool LoopbackTransport::Poll(Nanos now) {
  if (dead_) return false;
  bool worked = false;
  for (LoopbackPacket& packet : network_.TakeDue(node_, now)) {
    if (dead_) return true;
    OnPacket(std::move(packet), now);
    worked = true;
  }
  for (auto& [id, endpoint] : endpoints_) {
    worked |= Pump(endpoint);
    worked |= CheckTime(endpoint, now);
  }
  worked |= HandBack();
  worked |= GiveAnswers();
  worked |= FinishClosing();
  return worked;
}

bool LoopbackTransport::PrepareToSleep(std::vector<int>& fds) {
  static_cast<void>(fds);
  return dead_ || (!HasWork() && network_.NextDue(node_) > network_.clock_.Now());
}

bool LoopbackTransport::HasWork() const {
  if (!answers_.empty() || !closing_.empty()) return true;
  for (const auto& [id, endpoint] : endpoints_) {
    if (endpoint.state != State::kOpen) continue;
    if (!endpoint.waiting.empty() && endpoint.active.size() < kActiveMax) return true;
  }
  return false;
}

Nanos LoopbackTransport::NextDeadline() const {
  if (dead_) return kForever;
  if (HasWork()) return network_.clock_.Now();
  Nanos next = network_.NextDue(node_);
  for (const auto& [id, endpoint] : endpoints_) {
    Nanos due = endpoint.connect_deadline;
    if (endpoint.state == State::kOpen) {
      due = endpoint.asked_at != kForever ? endpoint.asked_at + options_.peer_timeout
                                          : endpoint.last_heard + options_.keepalive_interval;
    }
    next = std::min(next, due);
  }
  return next;
}

bool LoopbackTransport::CheckTime(Endpoint& endpoint, Nanos now) {
  if (dead_ || endpoint.state == State::kClosing) return false;
  if (endpoint.state == State::kConnecting) {
    if (now < endpoint.connect_deadline) return false;
    BeginClosing(endpoint, absl::DeadlineExceededError("nobody answered in time"),
                 /*tell_peer=*/true);
    return true;
  }
  if (endpoint.asked_at != kForever) {
    if (now - endpoint.asked_at < options_.peer_timeout) return false;
    BeginClosing(endpoint, absl::UnavailableError("the peer gives no sign"), /*tell_peer=*/true);
    return true;
  }
  if (now - endpoint.last_heard < options_.keepalive_interval) return false;
  Ask(endpoint, PacketTo(endpoint, Kind::kPing));
  return true;
}

bool LoopbackTransport::Pump(Endpoint& endpoint) {
  if (dead_ || endpoint.state != State::kOpen) return false;
  bool worked = false;
  while (!endpoint.waiting.empty() && endpoint.active.size() < kActiveMax) {
    Begin(endpoint);
    worked = true;
  }
  for (auto& [id, outgoing] : endpoint.active) worked |= EmitFragments(endpoint, outgoing);
  return worked;
}

void LoopbackTransport::Begin(Endpoint& endpoint) {
  const size_t choices =
      network_.faults_.reorder ? std::min(endpoint.waiting.size(), kActiveMax) : 1;
  const auto chosen =
      endpoint.waiting.begin() + static_cast<std::ptrdiff_t>(network_.random_.Below(choices));
  const uint64_t id = ++endpoint.last_message;
  Outgoing& outgoing = endpoint.active[id] = std::move(*chosen);
  endpoint.waiting.erase(chosen);
  outgoing.id = id;

  LoopbackPacket packet = PacketTo(endpoint, Kind::kBegin, id);
  packet.header = std::move(outgoing.header);
  packet.payload_bytes = outgoing.payload_bytes;
  const bool small = outgoing.payload_bytes <= network_.faults_.eager_bytes_max;
  if (small && network_.random_.Chance(0.5)) {
    packet.bytes = CopyOut(outgoing.payload, 0, static_cast<size_t>(outgoing.payload_bytes));
    outgoing.emitted = outgoing.payload_bytes;
  }
  outgoing.early = network_.random_.Chance(network_.faults_.sent_early_chance);
  ++counts_.messages_sent;
  counts_.payload_bytes_sent += outgoing.payload_bytes;
  const bool whole = outgoing.emitted == outgoing.payload_bytes;
  Ask(endpoint, std::move(packet));
  if (outgoing.early && whole) AnswerSend(endpoint, outgoing, absl::OkStatus());
}

bool LoopbackTransport::EmitFragments(Endpoint& endpoint, Outgoing& outgoing) {
  const LoopbackFaults& faults = network_.faults_;
  bool worked = false;
  while (outgoing.going && outgoing.emitted < outgoing.payload_bytes &&
         outgoing.emitted - outgoing.confirmed < faults.window_bytes) {
    const uint64_t spread = faults.fragment_bytes_max - faults.fragment_bytes_min + 1;
    const uint64_t wanted =
        std::max<uint64_t>(1, faults.fragment_bytes_min + network_.random_.Below(spread));
    const size_t bytes =
        static_cast<size_t>(std::min(wanted, outgoing.payload_bytes - outgoing.emitted));
    LoopbackPacket packet = PacketTo(endpoint, Kind::kFragment, outgoing.id, outgoing.emitted);
    packet.bytes = CopyOut(outgoing.payload, outgoing.emitted, bytes);
    outgoing.emitted += bytes;
    Ask(endpoint, std::move(packet));
    worked = true;
  }
  if (worked && outgoing.early && outgoing.emitted == outgoing.payload_bytes) {
    AnswerSend(endpoint, outgoing, absl::OkStatus());
  }
  return worked;
}

void LoopbackTransport::AnswerSend(Endpoint& endpoint, Outgoing& outgoing,
                                   const absl::Status& status) {
  if (outgoing.answered) return;
  outgoing.answered = true;
  outgoing.payload.clear();
  endpoint.queued_bytes -= outgoing.header_bytes + outgoing.payload_bytes;
  Answer(endpoint.id, outgoing.token, status);
}

void LoopbackTransport::Answer(EndpointId id, uint64_t token, absl::Status status) {
  if (token == 0) return;
  const auto it = endpoints_.find(id);
  if (it != endpoints_.end()) ++it->second.answers_pending;
  answers_.push_back({id, token, std::move(status)});
}

// Gives what was owed when it began: a handler that sends again from OnSent waits for the next
// poll.
bool LoopbackTransport::GiveAnswers() {
  const size_t count = answers_.size();
  for (size_t i = 0; i < count && !dead_; ++i) {
    const PendingAnswer answer = std::move(answers_.front());
    answers_.pop_front();
    const auto it = endpoints_.find(answer.endpoint);
    if (it != endpoints_.end()) --it->second.answers_pending;
    Record(LoopbackEvent::Kind::kSentBack, answer.endpoint, answer.token, 0,
           static_cast<uint64_t>(answer.status.raw_code()));
    handler_.OnSent(answer.endpoint, answer.token, answer.status);
  }
  return count > 0;
}

// Landings and sends of endpoints that close.
bool LoopbackTransport::HandBack() {
  bool worked = false;
  const std::vector<EndpointId> closing = closing_;
  for (const EndpointId id : closing) {
    Endpoint& endpoint = endpoints_.at(id);
    if (dead_ || endpoint.emptied) continue;
    endpoint.emptied = true;
    worked = true;
    for (auto& [message, outgoing] : endpoint.active) {
      AnswerSend(endpoint, outgoing, endpoint.why);
    }
    for (Outgoing& outgoing : endpoint.waiting) AnswerSend(endpoint, outgoing, endpoint.why);
    endpoint.active.clear();
    endpoint.waiting.clear();
    std::map<uint64_t, Incoming> incoming;
    incoming.swap(endpoint.incoming);
    for (const auto& [message, landing] : incoming) {
      if (dead_) break;
      Record(LoopbackEvent::Kind::kLanded, id, message, landing.landed,
             static_cast<uint64_t>(endpoint.why.raw_code()));
      handler_.OnLanded(id, landing.landing.token, endpoint.why);
    }
  }
  return worked;
}

bool LoopbackTransport::FinishClosing() {
  bool worked = false;
  std::vector<EndpointId> closing;
  closing.swap(closing_);
  for (const EndpointId id : closing) {
    const auto it = endpoints_.find(id);
    if (dead_) return worked;
    // Not before everything of it is handed back; a callback may have closed it just now.
    if (!it->second.emptied || it->second.answers_pending > 0) {
      closing_.push_back(id);
      continue;
    }
    const absl::Status why = std::move(it->second.why);
    if (it->second.told_connected) --counts_.endpoints_open;
    by_peer_.erase({it->second.peer_node, it->second.peer});
    endpoints_.erase(it);
    Record(LoopbackEvent::Kind::kClosed, id, 0, 0, static_cast<uint64_t>(why.raw_code()));
    handler_.OnClosed(id, why);
    worked = true;
  }
  return worked;
}

void LoopbackTransport::Record(LoopbackEvent::Kind kind, EndpointId endpoint, uint64_t message,
                               uint64_t bytes, uint64_t detail) {
  network_.Record(kind, node_, endpoint, message, bytes, detail);
}

}  // namespace forebay
