#include "server/get_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/testing/status_matchers.h"
#include "server/testing/node_world.h"

namespace forebay {
namespace {

using ::forebay::testing::CollectGet;
using ::forebay::testing::Get;
using ::forebay::testing::GetRequest;
using ::forebay::testing::GotPart;
using ::forebay::testing::ItemsOf;
using ::forebay::testing::Lookup;
using ::forebay::testing::NodeWorld;
using ::forebay::testing::NodeWorldOptions;
using ::forebay::testing::Put;
using ::forebay::testing::PutMessage;
using ::forebay::testing::ScriptedClient;
using ::forebay::testing::TestChain;
using ::testing::HasSubstr;

constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;
constexpr absl::StatusCode kLate = absl::StatusCode::kDeadlineExceeded;

class GetOpTest : public ::testing::Test {
 protected:
  explicit GetOpTest(NodeWorldOptions options = {}) : world_(options), client_(world_, "client") {
    client_.Open(NodeWorld::Spec());
  }
  TestChain Stored(size_t pages, uint32_t first_token = 0) {
    TestChain chain(NodeWorld::SmallLayout(), client_.session().root, pages, first_token);
    Put(client_, PutMessage::Pages(chain, 0, pages));
    return chain;
  }

  NodeWorld world_;
  ScriptedClient client_;
};

TEST_F(GetOpTest, AnswersHitsAndMissesOfOneGetEachOnce) {
  const TestChain chain = Stored(3);
  std::vector<wire::GetItem> items = ItemsOf(chain, 0, 3);
  items[1].part = 9;                 // no such part
  items[2].key = PageKey();          // no such page
  items[3].payload_bytes_max = 511;  // no room for it
  const std::vector<GotPart> got = Get(client_, items);
  EXPECT_EQ(got[0].code, kOk);
  EXPECT_EQ(got[1].code, kNotFound);
  EXPECT_EQ(got[2].code, kNotFound);
  EXPECT_EQ(got[3].code, kNotFound);
  EXPECT_EQ(got[4].code, kOk);
  EXPECT_EQ(got[4].payload, chain.Payload(2, 0));
  FB_EXPECT_OK(CheckFrameIdentity(got[4].header, NodeWorld::SmallLayout(), chain.parts()[0],
                                  chain.keys()[2], 2));
  world_.ExpectQuiet();
}

TEST_F(GetOpTest, AGetOfNothingButMissesIsOneSmallAnswer) {
  const TestChain chain(NodeWorld::SmallLayout(), client_.session().root, 4);
  for (const GotPart& part : Get(client_, ItemsOf(chain, 0, 4))) EXPECT_EQ(part.code, kNotFound);
  EXPECT_EQ(client_.unread(), 0u);
}

TEST_F(GetOpTest, ManyPartsGoInMessagesOfAtMostSixtyFour) {
  const TestChain chain = Stored(100);
  const std::vector<GotPart> got = Get(client_, ItemsOf(chain, 0, 100));
  ASSERT_EQ(got.size(), 200u);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].code, kOk);
    EXPECT_EQ(got[i].payload, chain.Payload(i / 2, i % 2));
  }
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_get_items_total{result=\"hit\"} 200"));
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_get_bytes_total 102400"));
  world_.ExpectQuiet();
}

class GetWindowTest : public GetOpTest {
 protected:
  static NodeWorldOptions Options() {
    NodeWorldOptions options;
    options.node.limits.get_window_bytes = 1;  // One message at a time.
    options.node.limits.get_message_items = 2;
    options.faults.eager_bytes_max = 0;
    options.faults.sent_early_chance = 0;
    return options;
  }
  GetWindowTest() : GetOpTest(Options()) {}
};

TEST_F(GetWindowTest, WhatDoesNotFitTheWindowWaitsAndComes) {
  const TestChain chain = Stored(8);
  for (const GotPart& part : Get(client_, ItemsOf(chain, 0, 8))) EXPECT_EQ(part.code, kOk);
  world_.ExpectQuiet();
}

TEST_F(GetWindowTest, TheEarlierDeadlineGoesFirst) {
  const TestChain chain = Stored(8);
  const uint64_t patient = client_.NextOp();
  const uint64_t urgent = client_.NextOp();
  wire::Writer a = GetRequest(patient, client_.ns(), ItemsOf(chain, 0, 8), 20'000);
  wire::Writer b = GetRequest(urgent, client_.ns(), ItemsOf(chain, 0, 1), 1'000);
  client_.Send(a);
  client_.Send(b);
  EXPECT_EQ(CollectGet(client_, urgent, 2)[0].code, kOk);
  EXPECT_GT(world_.node->Status().get_bytes_in_flight, 0u);
  CollectGet(client_, patient, 16);
  world_.ExpectQuiet();
}

TEST_F(GetWindowTest, WhatCannotStartByItsDeadlineIsAnsweredLate) {
  const TestChain chain = Stored(8);
  world_.network.faults().delay_ns_min = 30 * kMillisecond;
  world_.network.faults().delay_ns_max = 40 * kMillisecond;
  const uint64_t op = client_.NextOp();
  wire::Writer writer = GetRequest(op, client_.ns(), ItemsOf(chain, 0, 8), 50);
  client_.Send(writer);
  const std::vector<GotPart> got = CollectGet(client_, op, 16);
  EXPECT_EQ(got[0].code, kOk);
  EXPECT_EQ(got[15].code, kLate);
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_get_items_total{result=\"late\"}"));
  world_.RunFor(kSecond);
  world_.ExpectQuiet();
}

TEST_F(GetWindowTest, ACancelledGetGivesBackItsPins) {
  const TestChain chain = Stored(8);
  const uint64_t op = client_.NextOp();
  wire::Writer writer = GetRequest(op, client_.ns(), ItemsOf(chain, 0, 8));
  client_.Send(writer);
  ASSERT_TRUE(world_.RunUntil([&] { return world_.node->Status().get_bytes_in_flight > 0; }));
  EXPECT_EQ(world_.node->Status().slots.pins, 16u);
  wire::Cancel cancel;
  cancel.target = op;
  wire::Writer stop(wire::Kind::kCancel, client_.NextOp(), cancel);
  client_.Send(stop);
  world_.RunFor(kSecond);
  world_.ExpectQuiet();
}

TEST_F(GetWindowTest, AClientThatDiesInTheGetLeavesNoPin) {
  const TestChain chain = Stored(8);
  for (int steps = 1; steps < 60; ++steps) {
    ScriptedClient other(world_, absl::StrCat("other", steps));
    other.Open(NodeWorld::Spec());
    wire::Writer writer = GetRequest(other.NextOp(), other.ns(), ItemsOf(chain, 0, 8));
    other.Send(writer);
    for (int step = 0; step < steps; ++step) {
      world_.network.Step();
      world_.clock.Advance(5 * kMicrosecond);
    }
    world_.network.KillNode(absl::StrCat("other", steps));
    world_.RunFor(20 * kSecond);
    world_.ExpectQuiet();
  }
}

TEST_F(GetWindowTest, AFrameThatIsBeingSentOutlivesItsPage) {
  const TestChain chain = Stored(4);
  const uint64_t op = client_.NextOp();
  wire::Writer writer = GetRequest(op, client_.ns(), ItemsOf(chain, 0, 1));
  client_.Send(writer);
  ASSERT_TRUE(world_.RunUntil([&] { return world_.node->Status().get_bytes_in_flight > 0; }));
  // Enough to push everything out that may go.
  ScriptedClient other(world_, "other");
  other.Open(NodeWorld::Spec());
  for (uint32_t i = 1; i < 20; ++i) {
    const TestChain more(NodeWorld::SmallLayout(), other.session().root, 100, 10'000 * i);
    Put(other, PutMessage::Pages(more, 0, 100));
  }
  const std::vector<GotPart> got = CollectGet(client_, op, 2);
  EXPECT_EQ(got[0].payload, chain.Payload(0, 0));
  EXPECT_EQ(got[1].payload, chain.Payload(0, 1));
  world_.ExpectQuiet();
}

TEST_F(GetOpTest, GetsPinNoMoreThanTheyMay) {
  NodeWorldOptions options;
  options.node.limits.pinned_percent_max = 1;  // 10 KiB
  NodeWorld world(options);
  ScriptedClient client(world, "c");
  client.Open(NodeWorld::Spec());
  const TestChain chain(NodeWorld::SmallLayout(), client.session().root, 20);
  Put(client, PutMessage::Pages(chain, 0, 20));
  size_t full = 0;
  for (const GotPart& part : Get(client, ItemsOf(chain, 0, 20))) {
    if (part.code == absl::StatusCode::kResourceExhausted) ++full;
  }
  EXPECT_EQ(full, 40u - 10'480u / 576u);
  world.ExpectQuiet();
}

TEST_F(GetWindowTest, ABusyEndpointSaysHowLongItsQueueIs) {
  const TestChain chain = Stored(60);
  EXPECT_EQ(Lookup(client_, chain.keys(), 1, wire::kProbe).reply.queue_us, 0u);
  Get(client_, ItemsOf(chain, 0, 60));
  const uint64_t op = client_.NextOp();
  wire::Writer writer = GetRequest(op, client_.ns(), ItemsOf(chain, 0, 60));
  client_.Send(writer);
  ASSERT_TRUE(world_.RunUntil([&] { return world_.node->Status().get_bytes_in_flight > 0; }));
  EXPECT_GT(Lookup(client_, chain.keys(), 1, wire::kProbe).reply.queue_us, 0u);
  CollectGet(client_, op, 120);
}

}  // namespace
}  // namespace forebay
