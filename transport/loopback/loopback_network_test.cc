#include "transport/loopback/loopback_network.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/manual_clock.h"
#include "base/testing/status_matchers.h"
#include "transport/loopback/loopback_transport.h"
#include "transport/testing/recording_handler.h"

namespace forebay {
namespace {

using ::forebay::testing::FillPattern;
using ::forebay::testing::HasCode;
using ::forebay::testing::ManualClock;
using ::forebay::testing::RecordingHandler;
using ::forebay::testing::TestMessage;

// Two nodes, "a" that listens and "b" that connected to it. All polls come from network.Step().
class LoopbackNetworkTest : public ::testing::Test {
 protected:
  explicit LoopbackNetworkTest(uint64_t seed = 1) : seed_(seed), network_(seed, clock_) {
    options_.peer_timeout = 100 * kMillisecond;
    options_.keepalive_interval = 20 * kMillisecond;
    a_handler_.set_in_poll(true);
    b_handler_.set_in_poll(true);
    a_ = network_.MakeTransport("a", a_handler_, options_);
    b_ = network_.MakeTransport("b", b_handler_, options_);
  }

  void Connect() {
    FB_ASSERT_OK(a_->Listen("loopback:a"));
    const absl::StatusOr<EndpointId> end = b_->Connect("loopback:a", clock_.Now() + kSecond);
    FB_ASSERT_OK(end);
    b_end_ = *end;
    RunFor(kMillisecond);
    ASSERT_TRUE(b_handler_.connected(b_end_));
    a_end_ = a_handler_.newest_endpoint();
  }

  // Jumps from one due moment to the next.
  void RunFor(Nanos time) {
    const Nanos until = clock_.Now() + time;
    while (clock_.Now() < until) {
      if (!network_.Step()) clock_.Set(std::min(until, network_.NextDeadline()));
    }
  }

  // From b to a, of `bytes` payload; the memory stays until the test ends.
  uint64_t Send(size_t bytes) {
    const TestMessage message{.id = ++last_id_, .range_bytes = {bytes}};
    payloads_.push_back(std::make_unique<std::vector<std::byte>>(bytes));
    FillPattern(message.id, AsMutableBytes(payloads_.back()->data(), bytes));
    const std::string header = message.Header();
    OutgoingMessage outgoing;
    outgoing.header = AsBytes(header.data(), header.size());
    outgoing.payload.push_back(AsBytes(payloads_.back()->data(), bytes));
    outgoing.token = message.id;
    b_handler_.ExpectSent(b_end_, message.id);
    b_->Send(b_end_, std::move(outgoing));
    return message.id;
  }

  const uint64_t seed_;
  ManualClock clock_;
  LoopbackNetwork network_;
  TransportOptions options_;
  RecordingHandler a_handler_{"a"};
  RecordingHandler b_handler_{"b"};
  std::unique_ptr<LoopbackTransport> a_;
  std::unique_ptr<LoopbackTransport> b_;
  EndpointId a_end_ = 0;
  EndpointId b_end_ = 0;
  uint64_t last_id_ = 0;
  std::vector<std::unique_ptr<std::vector<std::byte>>> payloads_;
};

// Mixed traffic with every fault on; the state of things at its end, in one line.
std::string RunScenario(uint64_t seed) {
  ManualClock clock;
  LoopbackFaults faults;
  faults.duplicate_chance = 0.1;
  faults.corrupt_chance = 0.05;
  LoopbackNetwork network(seed, clock, faults);
  RecordingHandler handlers[3] = {RecordingHandler("x"), RecordingHandler("y"),
                                  RecordingHandler("z")};
  std::unique_ptr<LoopbackTransport> transports[3];
  for (int i = 0; i < 3; ++i) {
    handlers[i].set_in_poll(true);
    handlers[i].set_expect_damage(true);
    transports[i] = network.MakeTransport(absl::StrCat("n", i), handlers[i]);
    EXPECT_TRUE(transports[i]->Listen(absl::StrCat("loopback:n", i)).ok());
  }
  std::vector<std::byte> payload(300'000);
  std::vector<EndpointId> ends;
  for (int i = 0; i < 3; ++i) {
    ends.push_back(
        *transports[i]->Connect(absl::StrCat("loopback:n", (i + 1) % 3), clock.Now() + kSecond));
  }
  uint64_t token = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    if (turn % 10 == 0) {
      const size_t from = static_cast<size_t>(turn / 10 % 3);
      OutgoingMessage message;
      message.header = AsBytes("header", 6);
      message.payload.push_back(AsBytes(payload.data(), static_cast<size_t>(turn) * 97 % 300'000));
      message.token = ++token;
      handlers[from].ExpectSent(ends[from], message.token);
      transports[from]->Send(ends[from], std::move(message));
    }
    if (turn == 1000) network.Cut("n0", "n1");
    if (turn == 1500) network.Mend("n0", "n1");
    if (turn == 2000) network.KillNode("n2");
    if (!network.Step()) clock.Set(std::min(network.NextDeadline(), clock.Now() + kMillisecond));
  }
  std::string summary = absl::StrCat(network.trace_hash(), " at ", clock.Now());
  for (const RecordingHandler& handler : handlers)
    absl::StrAppend(&summary, "; ", handler.ToString());
  return summary;
}

TEST(LoopbackSeedTest, EqualSeedsGiveEqualRuns) {
  for (const uint64_t seed : {1, 2, 3}) EXPECT_EQ(RunScenario(seed), RunScenario(seed));
}

TEST(LoopbackSeedTest, OtherSeedsGiveOtherRuns) { EXPECT_NE(RunScenario(1), RunScenario(2)); }

TEST_F(LoopbackNetworkTest, PayloadsComeInFragmentsAtLaterPolls) {
  network_.faults().fragment_bytes_max = 10'000;
  network_.faults().window_bytes = 40'000;
  Connect();
  Send(1'000'000);
  uint64_t steps_with_bytes = 0;
  for (uint64_t before = 0; a_handler_.landed_count() == 0;) {
    if (!network_.Step()) clock_.Set(network_.NextDeadline());
    steps_with_bytes += network_.counts().packets_delivered > before ? 1 : 0;
    before = network_.counts().packets_delivered;
  }
  EXPECT_GT(steps_with_bytes, 25u);
  EXPECT_EQ(a_handler_.delivered_count(), 1u);
  EXPECT_GT(network_.counts().overtakes, 0u);
}

TEST_F(LoopbackNetworkTest, MessagesOvertakeEachOtherOnlyWhereReorderingIsOn) {
  for (const bool reorder : {true, false}) {
    LoopbackFaults faults;
    faults.reorder = reorder;
    ManualClock clock;
    LoopbackNetwork network(/*seed=*/5, clock, faults);
    RecordingHandler to("to"), from("from");
    to.set_in_poll(true);
    from.set_in_poll(true);
    auto receiver = network.MakeTransport("to", to);
    auto sender = network.MakeTransport("from", from);
    FB_ASSERT_OK(receiver->Listen("loopback:to"));
    const EndpointId end = *sender->Connect("loopback:to", clock.Now() + kSecond);
    for (uint64_t id = 1; id <= 200; ++id) {
      const std::string header = TestMessage{.id = id, .range_bytes = {}}.Header();
      OutgoingMessage message;
      message.header = AsBytes(header.data(), header.size());
      sender->Send(end, message);
    }
    for (int i = 0; i < 5000 && to.messages_count() < 200; ++i) {
      if (!network.Step()) clock.Set(network.NextDeadline());
    }
    ASSERT_EQ(to.messages_count(), 200u);
    int inversions = 0;
    for (size_t i = 1; i < 200; ++i) {
      inversions += to.received()[i]->id < to.received()[i - 1]->id ? 1 : 0;
    }
    if (reorder) {
      EXPECT_GT(inversions, 10);
    } else {
      EXPECT_EQ(inversions, 0);
    }
  }
}

TEST_F(LoopbackNetworkTest, TheNextDeadlineIsWhenTheNextPacketIsDue) {
  Connect();
  while (network_.Step()) {
  }
  ASSERT_EQ(network_.packets_in_air(), 0u);
  network_.faults().delay_ns_min = network_.faults().delay_ns_max = 2 * kMillisecond;
  Send(0);
  EXPECT_EQ(b_->NextDeadline(), clock_.Now()) << "a message waits to leave";
  network_.Step();
  const Nanos sent = clock_.Now();
  EXPECT_EQ(a_->NextDeadline(), sent + 2 * kMillisecond);
  EXPECT_EQ(network_.NextDeadline(), sent + 2 * kMillisecond);
  clock_.Set(sent + 2 * kMillisecond - 1);
  network_.Step();
  EXPECT_EQ(a_handler_.messages_count(), 0u);
  clock_.Set(sent + 2 * kMillisecond);
  network_.Step();
  EXPECT_EQ(a_handler_.messages_count(), 1u);
}

TEST_F(LoopbackNetworkTest, ASilentDeathIsFoundByTimeout) {
  Connect();
  ASSERT_TRUE(network_.KillNode("a", LoopbackDeath::kSilent));
  Send(1000);
  RunFor(options_.peer_timeout / 2);
  EXPECT_FALSE(b_handler_.closed(b_end_));
  RunFor(options_.peer_timeout);
  ASSERT_TRUE(b_handler_.closed(b_end_));
  EXPECT_THAT(b_handler_.endpoint(b_end_)->why, HasCode(absl::StatusCode::kUnavailable));
  EXPECT_GT(network_.counts().packets_lost, 0u);
}

TEST_F(LoopbackNetworkTest, AnIdlePeerFindsASilentDeathByItsKeepalive) {
  Connect();
  ASSERT_TRUE(network_.KillNode("a", LoopbackDeath::kSilent));
  RunFor(options_.keepalive_interval + options_.peer_timeout + kMillisecond);
  EXPECT_TRUE(b_handler_.closed(b_end_));
}

TEST_F(LoopbackNetworkTest, ADeathWithResetIsToldAtOnce) {
  Connect();
  ASSERT_TRUE(network_.KillNode("a", LoopbackDeath::kReset));
  RunFor(kMillisecond);
  EXPECT_TRUE(b_handler_.closed(b_end_));
  EXPECT_FALSE(network_.KillNode("a")) << "there is none any more";
  EXPECT_FALSE(network_.KillNode("c"));
}

// A dead node gets no callbacks and its memory is let be, though its object stays.
TEST_F(LoopbackNetworkTest, ADeadNodeStandsStill) {
  Connect();
  for (int i = 0; i < 4; ++i) Send(500'000);
  network_.Step();
  clock_.Advance(50 * kMicrosecond);
  network_.Step();
  network_.KillNode("a");
  const uint64_t messages = a_handler_.messages_count();
  clock_.Advance(kSecond);
  EXPECT_FALSE(a_->Poll(clock_.Now()));
  EXPECT_TRUE(a_->dead());
  EXPECT_EQ(a_->NextDeadline(), kForever);
  EXPECT_FALSE(a_->Connect("loopback:b", clock_.Now() + kSecond).ok());
  EXPECT_FALSE(a_->Listen("loopback:again").ok());
  a_->Close(a_end_);
  EXPECT_EQ(a_handler_.messages_count(), messages);
  EXPECT_EQ(a_handler_.landed_count() + a_handler_.closed_count(), 0u);
}

// Killed from inside its own callback, as a failpoint of a simulation does.
TEST_F(LoopbackNetworkTest, ANodeMayDieInsideItsOwnCallback) {
  Connect();
  a_handler_.on_message = [&](RecordingHandler::Received&) { network_.KillNode("a"); };
  for (int i = 0; i < 3; ++i) Send(2000);
  RunFor(2 * options_.peer_timeout);
  EXPECT_EQ(a_handler_.messages_count(), 1u);
  EXPECT_EQ(a_handler_.landed_count(), 0u);
  EXPECT_TRUE(b_handler_.closed(b_end_));
}

TEST_F(LoopbackNetworkTest, ANodeThatStartsAnewGetsNothingOfTheOld) {
  Connect();
  for (int i = 0; i < 4; ++i) Send(200'000);
  network_.Step();
  ASSERT_GT(network_.packets_in_air(), 0u);
  network_.KillNode("a", LoopbackDeath::kSilent);
  a_.reset();
  RecordingHandler again_handler("a again");
  again_handler.set_in_poll(true);
  auto again = network_.MakeTransport("a", again_handler, options_);
  FB_ASSERT_OK(again->Listen("loopback:a"));
  RunFor(2 * options_.peer_timeout);
  EXPECT_TRUE(b_handler_.closed(b_end_));
  EXPECT_EQ(again_handler.messages_count() + again_handler.connected_count(), 0u);

  FB_ASSERT_OK(b_->Connect("loopback:a", clock_.Now() + kSecond));
  RunFor(kMillisecond);
  EXPECT_EQ(again_handler.connected_count(), 1u);
}

TEST_F(LoopbackNetworkTest, AShortCutOnlyDelays) {
  Connect();
  network_.Cut("a", "b");
  const uint64_t token = Send(100'000);
  RunFor(options_.peer_timeout / 2);
  EXPECT_EQ(a_handler_.messages_count(), 0u);
  EXPECT_GT(network_.packets_held(), 0u);
  network_.Mend("a", "b");
  EXPECT_EQ(network_.packets_held(), 0u);
  RunFor(10 * kMillisecond);
  EXPECT_EQ(a_handler_.delivered_count(), 1u);
  FB_EXPECT_OK(b_handler_.sent(token)->status);
}

TEST_F(LoopbackNetworkTest, ALongCutEndsBothSidesAndWhatWasHeldComesToNothing) {
  Connect();
  Send(1'000'000);
  while (a_handler_.messages_count() == 0) {
    if (!network_.Step()) clock_.Set(network_.NextDeadline());
  }
  RunFor(100 * kMicrosecond);
  network_.Cut("b", "a");
  RunFor(options_.keepalive_interval + options_.peer_timeout + kMillisecond);
  EXPECT_TRUE(a_handler_.closed(a_end_));
  EXPECT_TRUE(b_handler_.closed(b_end_));
  EXPECT_EQ(a_handler_.landings_out() + b_handler_.sends_out(), 0u);
  network_.MendAll();
  RunFor(10 * kMillisecond);
  EXPECT_EQ(a_handler_.messages_count(), 1u);
  a_handler_.VerifyMemory();
}

TEST_F(LoopbackNetworkTest, ACutMayHaveOneDirection) {
  Connect();
  network_.CutOneWay("a", "b");
  Send(0);
  RunFor(kMillisecond);
  EXPECT_EQ(a_handler_.messages_count(), 1u) << "b to a is open";
  RunFor(options_.keepalive_interval + options_.peer_timeout + kMillisecond);
  EXPECT_TRUE(b_handler_.closed(b_end_)) << "no answer ever came back";
}

// What is in the air when an endpoint closes arrives all the same, and is thrown away: the landing
// memory may hold another page by then.
TEST_F(LoopbackNetworkTest, LateFragmentsAreDiscarded) {
  network_.faults().delay_ns_max = 5 * kMillisecond;
  network_.faults().fragment_bytes_max = 10'000;
  FB_ASSERT_OK(a_->Listen("loopback:a"));
  b_end_ = *b_->Connect("loopback:a", clock_.Now() + kSecond);
  RunFor(20 * kMillisecond);
  a_end_ = a_handler_.newest_endpoint();
  Send(1'000'000);
  while (network_.counts().overtakes == 0) {
    if (!network_.Step()) clock_.Set(network_.NextDeadline());
  }
  ASSERT_EQ(a_handler_.landings_out(), 1u);
  a_->Close(a_end_);
  network_.Step();
  ASSERT_TRUE(a_handler_.closed(a_end_));
  ASSERT_GT(network_.packets_in_air(), 0u);
  RunFor(20 * kMillisecond);
  EXPECT_GT(network_.counts().late_fragments_discarded, 0u);
  a_handler_.VerifyMemory();
  EXPECT_TRUE(b_handler_.closed(b_end_));
}

// Damage on the way lands, and the running checksum is of what landed: so its reader finds out.
TEST_F(LoopbackNetworkTest, CorruptedBytesLandAndTheChecksumTells) {
  Connect();
  network_.faults().corrupt_chance = 1;
  a_handler_.set_expect_damage(true);
  for (const size_t bytes : {10, 5000, 300'000}) Send(static_cast<size_t>(bytes));
  RunFor(10 * kMillisecond);
  ASSERT_EQ(a_handler_.delivered_count(), 3u);
  EXPECT_GE(network_.counts().fragments_corrupted, 3u);
  for (const auto& received : a_handler_.received()) {
    std::vector<std::byte> sent(received->payload_bytes);
    FillPattern(received->id, AsMutableBytes(sent.data(), sent.size()));
    EXPECT_EQ(received->checksum_landed, received->checksum_memory);
    EXPECT_NE(received->checksum_landed, ChecksumOf(AsBytes(sent.data(), sent.size())));
  }
}

TEST_F(LoopbackNetworkTest, DuplicatesAreSuppressed) {
  network_.faults().duplicate_chance = 1;
  Connect();
  for (int i = 0; i < 20; ++i) Send(static_cast<size_t>(i) * 5000);
  RunFor(20 * kMillisecond);
  EXPECT_EQ(a_handler_.messages_count(), 20u);
  EXPECT_EQ(a_handler_.delivered_count(), 20u);
  EXPECT_EQ(a_handler_.connected_count(), 1u);
  EXPECT_GT(network_.counts().duplicates_suppressed, 20u);
}

// OnSent that comes early is a promise about the memory only: the peer may die before it has the
// bytes.
TEST_F(LoopbackNetworkTest, OnSentMayComeBeforeThePeerHasTheBytes) {
  network_.faults().sent_early_chance = 1;
  network_.faults().delay_ns_max = kMillisecond;
  Connect();
  RunFor(2 * kMillisecond);
  const uint64_t token = Send(0);
  network_.Step();
  network_.Step();
  ASSERT_NE(b_handler_.sent(token), nullptr);
  FB_EXPECT_OK(b_handler_.sent(token)->status);
  EXPECT_EQ(a_handler_.messages_count(), 0u);
  network_.KillNode("a");
  RunFor(2 * options_.peer_timeout);
  EXPECT_EQ(a_handler_.messages_count(), 0u);
}

// A handler that tries again from OnSent holds OnClosed up, no longer.
TEST_F(LoopbackNetworkTest, OnClosedWaitsForTheAnswerToASendDuringClosing) {
  Connect();
  Send(100'000);
  int again = 0;
  b_handler_.on_sent = [&](EndpointId, uint64_t, const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    if (++again <= 3) Send(10);
  };
  b_->Close(b_end_);
  RunFor(kMillisecond);
  EXPECT_EQ(again, 4);
  EXPECT_TRUE(b_handler_.closed(b_end_));  // and the handler checks that it came last
}

TEST_F(LoopbackNetworkTest, NobodyAnswersAtOnceOnlyWhereResetsAreOn) {
  for (const double chance : {0.0, 1.0}) {
    network_.faults().reset_chance = chance;
    const EndpointId end = *b_->Connect("loopback:nobody", clock_.Now() + 50 * kMillisecond);
    RunFor(kMillisecond);
    EXPECT_EQ(b_handler_.closed(end), chance == 1.0);
    RunFor(50 * kMillisecond);
    ASSERT_TRUE(b_handler_.closed(end));
    EXPECT_THAT(b_handler_.endpoint(end)->why,
                HasCode(chance == 1.0 ? absl::StatusCode::kUnavailable
                                      : absl::StatusCode::kDeadlineExceeded));
  }
}

TEST_F(LoopbackNetworkTest, TheTraceIsReadable) {
  std::string text;
  network_.set_trace([&](const LoopbackEvent& event) { text += event.ToString() + "\n"; });
  Connect();
  Send(100);
  RunFor(kMillisecond);
  network_.KillNode("a");
  for (const char* word :
       {"sent", "delivered", "OnConnected", "OnMessage", "OnLanded", "OnSent", "killed"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word;
  }
  network_.set_trace(nullptr);
}

}  // namespace
}  // namespace forebay
