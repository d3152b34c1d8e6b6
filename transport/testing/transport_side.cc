#include "transport/testing/transport_side.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace forebay::testing {
namespace {

constexpr std::byte kScribble{0xee};
// A wait in virtual time may go round for ever without a clock that tells: by the wall's clock
// then.
constexpr Nanos kWallTimeMax = 40 * kSecond;
// Rounds in which a world's clock may stand still before a wait is called endless: only virtual
// time stands still at all.
constexpr uint64_t kRoundsWithoutTimeMax = 2'000'000;
// Payloads stay allocated, so that a late read by the transport sees scribbles and is no crash, up
// to this many buffers.
constexpr size_t kScribbledMax = 256;

bool PollAll(TransportWorld& world, absl::Span<TransportSide* const> sides) {
  bool worked = false;
  for (TransportSide* side : sides) worked |= side->Poll();
  if (worked) return true;
  std::vector<Transport*> transports;
  for (TransportSide* side : sides) {
    if (side->alive()) transports.push_back(&side->transport());
  }
  world.Idle(transports);
  return false;
}

}  // namespace

uint64_t NextMessageId() {
  static uint64_t last = 0;
  return ++last;
}

TransportSide::TransportSide(TransportWorld& world, std::string name,
                             const TransportOptions& options)
    : world_(world), name_(std::move(name)), handler_(name_) {
  handler_.on_sent = [this](EndpointId endpoint, uint64_t token, const absl::Status& status) {
    const auto it = payloads_.find(token);
    if (it != payloads_.end()) {
      for (std::vector<std::byte>& range : it->second) {
        std::fill(range.begin(), range.end(), kScribble);
        scribbled_.push_back(std::move(range));
      }
      payloads_.erase(it);
      if (scribbled_.size() > kScribbledMax) scribbled_.clear();
    }
    if (on_sent) on_sent(endpoint, token, status);
  };
  transport_ = world_.Make(handler_, options);
}

TransportSide::~TransportSide() { Kill(); }

bool TransportSide::Poll() {
  if (!alive()) return false;
  handler_.set_in_poll(true);
  const bool worked = transport_->Poll(world_.Now());
  handler_.set_in_poll(false);
  return worked;
}

void TransportSide::Kill() {
  if (!alive()) return;
  world_.Kill(std::move(transport_));
  transport_ = nullptr;
  handler_.VerifyMemory();
}

std::string TransportSide::Listen() {
  absl::StatusOr<std::string> address = transport_->Listen(world_.ListenAddress());
  EXPECT_TRUE(address.ok()) << name_ << " cannot listen: " << address.status();
  return address.ok() ? *address : "";
}

EndpointId TransportSide::Connect(const std::string& address, Nanos within) {
  absl::StatusOr<EndpointId> endpoint = transport_->Connect(address, world_.Now() + within);
  EXPECT_TRUE(endpoint.ok()) << name_ << " cannot connect: " << endpoint.status();
  if (!endpoint.ok()) return 0;
  EXPECT_NE(*endpoint, 0u);
  EXPECT_EQ(handler_.endpoint(*endpoint), nullptr) << "endpoint id " << *endpoint << " used again";
  return *endpoint;
}

uint64_t TransportSide::Send(EndpointId endpoint, const TestMessage& message) {
  std::vector<std::byte> whole(message.payload_bytes());
  FillPattern(message.id, AsMutableBytes(whole.data(), whole.size()));
  OutgoingMessage outgoing;
  outgoing.token = message.id;
  std::vector<std::vector<std::byte>>& ranges = payloads_[message.id];
  size_t at = 0;
  for (const size_t bytes : message.range_bytes) {
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(at);
    ranges.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(bytes));
    outgoing.payload.push_back(AsBytes(ranges.back().data(), bytes));
    at += bytes;
  }
  std::string header = message.Header();
  outgoing.header = AsBytes(header.data(), header.size());
  handler_.ExpectSent(endpoint, message.id);
  transport_->Send(endpoint, std::move(outgoing));
  std::fill(header.begin(), header.end(), '\xee');
  return message.id;
}

uint64_t TransportSide::SendLent(EndpointId endpoint, const TestMessage& message) {
  std::string header = message.Header();
  const MutableBytes lent =
      transport_->LendSendBuffer(endpoint, header.size(), message.payload_bytes());
  if (lent.empty()) return Send(endpoint, message);
  EXPECT_EQ(lent.size(), message.payload_bytes());
  EXPECT_LE(lent.size(), transport_->send_buffer_bytes_max());
  ++lent_count_;
  FillPattern(message.id, lent);
  payloads_[message.id];
  handler_.ExpectSent(endpoint, message.id);
  transport_->Send(endpoint, OutgoingMessage{.header = AsBytes(header.data(), header.size()),
                                             .payload = {lent},
                                             .token = message.id});
  std::fill(header.begin(), header.end(), '\xee');
  return message.id;
}

void TransportSide::SendBare(EndpointId endpoint, std::string header) {
  OutgoingMessage outgoing;
  outgoing.header = AsBytes(header.data(), header.size());
  transport_->Send(endpoint, outgoing);
  std::fill(header.begin(), header.end(), '\xee');
}

uint64_t TransportSide::SendPayload(EndpointId endpoint, const std::vector<size_t>& range_bytes) {
  return Send(endpoint, {.id = NextMessageId(), .range_bytes = range_bytes});
}

::testing::AssertionResult RunUntil(TransportWorld& world, absl::Span<TransportSide* const> sides,
                                    const char* awaited, const std::function<bool()>& done) {
  const Nanos deadline = world.Now() + world.traits().patience;
  const SystemClock wall;
  const Nanos wall_deadline = wall.Now() + kWallTimeMax;
  Nanos last = world.Now();
  uint64_t rounds_without_time = 0;
  while (!done()) {
    PollAll(world, sides);
    const Nanos now = world.Now();
    rounds_without_time = now == last ? rounds_without_time + 1 : 0;
    last = now;
    const bool stuck = rounds_without_time >= kRoundsWithoutTimeMax || wall.Now() >= wall_deadline;
    if (now < deadline && !stuck) continue;
    if (done()) break;
    std::string where;
    for (TransportSide* side : sides) absl::StrAppend(&where, "\n  ", side->handler().ToString());
    return ::testing::AssertionFailure()
           << "waited in vain for: " << awaited << (stuck ? " (time hardly moves)" : "") << where;
  }
  return ::testing::AssertionSuccess();
}

void RunFor(TransportWorld& world, absl::Span<TransportSide* const> sides, Nanos time, int rounds) {
  const Nanos until = world.Now() + time;
  uint64_t rounds_done = 0;
  while (world.Now() < until || rounds_done < static_cast<uint64_t>(rounds)) {
    PollAll(world, sides);
    if (++rounds_done > kRoundsWithoutTimeMax) break;
  }
}

ConnectedPair::ConnectedPair(TransportWorld& world, const TransportOptions& options)
    : server(world, "server", options), client(world, "client", options), world_(world) {}

bool ConnectedPair::Connect() {
  if (address.empty()) address = server.Listen();
  if (address.empty()) return false;
  const uint64_t connected_before = server.handler().connected_count();
  at_client = client.Connect(address);
  if (at_client == 0) return false;
  const ::testing::AssertionResult together = RunUntil("OnConnected on both sides", [&] {
    return client.handler().connected(at_client) &&
           server.handler().connected_count() > connected_before;
  });
  EXPECT_TRUE(together);
  at_server = server.handler().newest_endpoint();
  return static_cast<bool>(together);
}

::testing::AssertionResult ConnectedPair::RunUntil(const char* awaited,
                                                   const std::function<bool()>& done) {
  return ::forebay::testing::RunUntil(world_, {&server, &client}, awaited, done);
}

void ConnectedPair::RunFor(Nanos time, int rounds) {
  ::forebay::testing::RunFor(world_, {&server, &client}, time, rounds);
}

}  // namespace forebay::testing
