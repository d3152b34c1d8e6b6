#include "server/subscription.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/status_matchers.h"
#include "server/testing/node_world.h"

namespace forebay {
namespace {

using ::forebay::testing::NodeWorld;
using ::forebay::testing::NodeWorldOptions;
using ::forebay::testing::Put;
using ::forebay::testing::PutMessage;
using ::forebay::testing::ScriptedClient;
using ::forebay::testing::TestChain;

class SubscriptionTest : public ::testing::Test {
 protected:
  explicit SubscriptionTest(NodeWorldOptions options = {})
      : world_(options), writer_(world_, "writer"), reader_(world_, "reader") {
    writer_.Open(NodeWorld::Spec());
    reader_.Open(NodeWorld::Spec());
  }
  TestChain Chain(size_t pages) {
    return TestChain(NodeWorld::SmallLayout(), writer_.session().root, pages);
  }
  uint64_t Subscribe(const std::vector<PageKey>& keys, uint32_t deadline_ms = 10'000,
                     uint64_t op = 0) {
    wire::Subscribe subscribe;
    subscribe.namespace_id = reader_.ns();
    subscribe.key_count = static_cast<uint32_t>(keys.size());
    subscribe.deadline_ms = deadline_ms;
    if (op == 0) op = reader_.NextOp();
    wire::Writer writer(wire::Kind::kSubscribe, op, subscribe);
    writer.Array(absl::MakeConstSpan(keys));
    reader_.Send(writer);
    return op;
  }
  void ExpectEvent(uint64_t op, uint32_t page_count, bool final,
                   absl::StatusCode code = absl::StatusCode::kOk) {
    const auto event = reader_.Await(op).As<wire::SubscribeEvent>(wire::Kind::kSubscribeEvent);
    EXPECT_EQ(event.page_count, page_count);
    EXPECT_EQ(event.final, final ? 1u : 0u);
    EXPECT_EQ(event.status, static_cast<uint32_t>(code));
  }

  NodeWorld world_;
  ScriptedClient writer_;
  ScriptedClient reader_;
};

TEST_F(SubscriptionTest, TellsOfEachPageThatCompletesAndEndsWithTheLast) {
  const TestChain chain = Chain(3);
  Put(writer_, PutMessage::Pages(chain, 0, 1));
  const uint64_t op = Subscribe(chain.keys());
  ExpectEvent(op, 1, false);
  PutMessage half;
  half.Add(chain.Item(1, 0), chain.Payload(1, 0));
  Put(writer_, half);
  EXPECT_FALSE(reader_.Gets(op, kMillisecond));
  PutMessage other_half;
  other_half.Add(chain.Item(1, 1), chain.Payload(1, 1));
  Put(writer_, other_half);
  ExpectEvent(op, 2, false);
  Put(writer_, PutMessage::Pages(chain, 2, 3));
  ExpectEvent(op, 3, true);
  EXPECT_EQ(world_.node->Status().subscriptions, 0u);
}

TEST_F(SubscriptionTest, PagesThatComeOutOfOrderCountOnceTheGapIsClosed) {
  const TestChain chain = Chain(4);
  const uint64_t op = Subscribe(chain.keys());
  ExpectEvent(op, 0, false);
  Put(writer_, PutMessage::Pages(chain, 1, 4));
  EXPECT_FALSE(reader_.Gets(op, kMillisecond));
  Put(writer_, PutMessage::Pages(chain, 0, 1));
  ExpectEvent(op, 4, true);
}

TEST_F(SubscriptionTest, WhatIsHereAlreadyIsOneFinalEvent) {
  const TestChain chain = Chain(2);
  Put(writer_, PutMessage::Pages(chain, 0, 2));
  ExpectEvent(Subscribe(chain.keys()), 2, true);
  ExpectEvent(Subscribe({}), 0, true);
}

TEST_F(SubscriptionTest, EndsAtItsDeadlineWithWhatThereIs) {
  const TestChain chain = Chain(2);
  Put(writer_, PutMessage::Pages(chain, 0, 1));
  const uint64_t op = Subscribe(chain.keys(), 100);
  ExpectEvent(op, 1, false);
  world_.RunFor(50 * kMillisecond);
  EXPECT_FALSE(reader_.Gets(op, kMillisecond));
  ExpectEvent(op, 1, true, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(world_.node->Status().subscriptions, 0u);
}

TEST_F(SubscriptionTest, ManyWaitForOnePage) {
  const TestChain chain = Chain(1);
  std::vector<uint64_t> ops;
  for (int i = 0; i < 20; ++i) ops.push_back(Subscribe(chain.keys()));
  for (const uint64_t op : ops) ExpectEvent(op, 0, false);
  Put(writer_, PutMessage::Pages(chain, 0, 1));
  for (const uint64_t op : ops) ExpectEvent(op, 1, true);
}

TEST_F(SubscriptionTest, ACancelledOneHearsNothingMore) {
  const TestChain chain = Chain(1);
  const uint64_t op = Subscribe(chain.keys());
  ExpectEvent(op, 0, false);
  wire::Cancel cancel;
  cancel.target = op;
  wire::Writer writer(wire::Kind::kCancel, reader_.NextOp(), cancel);
  reader_.Send(writer);
  world_.RunFor(kMillisecond);
  EXPECT_EQ(world_.node->Status().subscriptions, 0u);
  Put(writer_, PutMessage::Pages(chain, 0, 1));
  EXPECT_FALSE(reader_.Gets(op, kMillisecond));
}

TEST_F(SubscriptionTest, DiesWithItsEndpoint) {
  const TestChain chain = Chain(1);
  ExpectEvent(Subscribe(chain.keys()), 0, false);
  reader_.Close();
  world_.RunFor(kSecond);
  EXPECT_EQ(world_.node->Status().subscriptions, 0u);
  Put(writer_, PutMessage::Pages(chain, 0, 1));
}

TEST_F(SubscriptionTest, OneOperationWaitsOnce) {
  const TestChain chain = Chain(1);
  const uint64_t op = Subscribe(chain.keys());
  ExpectEvent(op, 0, false);
  Subscribe(chain.keys(), 1000, op);
  const auto error = reader_.Await(op).As<wire::Error>(wire::Kind::kError);
  EXPECT_EQ(error.status, static_cast<uint32_t>(absl::StatusCode::kAlreadyExists));
  EXPECT_FALSE(reader_.closed());
}

class SubscriptionLimitTest : public SubscriptionTest {
 protected:
  static NodeWorldOptions Options() {
    NodeWorldOptions options;
    options.node.limits.subscriptions_per_session_max = 2;
    return options;
  }
  SubscriptionLimitTest() : SubscriptionTest(Options()) {}
};

TEST_F(SubscriptionLimitTest, ASessionWaitsForNoMoreThanItMay) {
  const TestChain chain = Chain(1);
  ExpectEvent(Subscribe(chain.keys()), 0, false);
  ExpectEvent(Subscribe(chain.keys()), 0, false);
  const uint64_t op = Subscribe(chain.keys());
  const auto error = reader_.Await(op).As<wire::Error>(wire::Kind::kError);
  EXPECT_EQ(error.status, static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
  Put(writer_, PutMessage::Pages(chain, 0, 1));
  ExpectEvent(Subscribe(chain.keys()), 1, true);
}

}  // namespace
}  // namespace forebay
