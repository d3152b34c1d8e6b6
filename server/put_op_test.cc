#include "server/put_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/checksum.h"
#include "base/testing/status_matchers.h"
#include "server/testing/node_world.h"

namespace forebay {
namespace {

using ::forebay::testing::Get;
using ::forebay::testing::GotPart;
using ::forebay::testing::ItemsOf;
using ::forebay::testing::Lookup;
using ::forebay::testing::NodeWorld;
using ::forebay::testing::NodeWorldOptions;
using ::forebay::testing::Put;
using ::forebay::testing::PutMessage;
using ::forebay::testing::ScriptedClient;
using ::forebay::testing::TestChain;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr absl::StatusCode kExists = absl::StatusCode::kAlreadyExists;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;
constexpr absl::StatusCode kFull = absl::StatusCode::kResourceExhausted;

class PutOpTest : public ::testing::Test {
 protected:
  explicit PutOpTest(NodeWorldOptions options = {}) : world_(options), client_(world_, "client") {
    client_.Open(NodeWorld::Spec());
  }
  TestChain Chain(size_t pages, uint32_t first_token = 0) {
    return TestChain(NodeWorld::SmallLayout(), client_.session().root, pages, first_token);
  }
  uint32_t Pages(const TestChain& chain) {
    return Lookup(client_, chain.keys(), 1, wire::kProbe).reply.page_count;
  }
  void ExpectWhole(const TestChain& chain, size_t pages) {
    const std::vector<GotPart> got = Get(client_, ItemsOf(chain, 0, pages));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].code, kOk) << i;
      EXPECT_EQ(got[i].payload, chain.Payload(i / 2, i % 2)) << i;
    }
  }

  NodeWorld world_;
  ScriptedClient client_;
};

TEST_F(PutOpTest, WhatWasPutIsFoundAndComesBack) {
  const TestChain chain = Chain(5);
  EXPECT_THAT(Put(client_, PutMessage::Pages(chain, 0, 5)), Each(kOk));
  EXPECT_EQ(Pages(chain), 5u);
  ExpectWhole(chain, 5);
  world_.ExpectQuiet();
}

TEST_F(PutOpTest, APageIsVisibleOnlyWithItsLastPart) {
  const TestChain chain = Chain(1);
  PutMessage first;
  first.Add(chain.Item(0, 0), chain.Payload(0, 0));
  EXPECT_THAT(Put(client_, first), ElementsAre(kOk));
  EXPECT_EQ(Pages(chain), 0u);
  PutMessage second;
  second.Add(chain.Item(0, 1), chain.Payload(0, 1));
  EXPECT_THAT(Put(client_, second), ElementsAre(kOk));
  EXPECT_EQ(Pages(chain), 1u);
}

TEST_F(PutOpTest, ThePartThatIsHereStaysAndIsSuccess) {
  const TestChain chain = Chain(2);
  Put(client_, PutMessage::Pages(chain, 0, 1));
  EXPECT_THAT(Put(client_, PutMessage::Pages(chain, 0, 2)),
              ElementsAre(kExists, kExists, kOk, kOk));
  EXPECT_THAT(Put(client_, PutMessage::Pages(chain, 0, 2)), Each(kExists));
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_identity_conflicts_total 0"));
  ExpectWhole(chain, 2);
  world_.ExpectQuiet();
}

TEST_F(PutOpTest, OtherBytesUnderOneIdentityAreAConflictAndTheFirstStays) {
  const TestChain chain = Chain(1);
  Put(client_, PutMessage::Pages(chain, 0, 1));
  std::vector<std::byte> other = chain.Payload(0, 0);
  other[7] ^= std::byte{1};
  wire::PutItem item = chain.Item(0, 0);
  item.header.payload_checksum = ChecksumOf(other);
  item.header.Seal();
  PutMessage put;
  put.Add(item, other);
  EXPECT_THAT(Put(client_, put), ElementsAre(kExists));
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_identity_conflicts_total 1"));
  ExpectWhole(chain, 1);
}

TEST_F(PutOpTest, TwoPutsOfOnePartAtOnceStoreOne) {
  const TestChain chain = Chain(4);
  const PutMessage put = PutMessage::Pages(chain, 0, 4);
  const uint64_t first = client_.NextOp();
  const uint64_t second = client_.NextOp();
  wire::Writer a = put.Message(first, client_.ns());
  wire::Writer b = put.Message(second, client_.ns());
  client_.Send(a, put.payload);
  client_.Send(b, put.payload);
  client_.Await(first);
  client_.Await(second);
  EXPECT_EQ(world_.node->Status().pages.frames, 8u);
  ExpectWhole(chain, 4);
  world_.ExpectQuiet();
}

TEST_F(PutOpTest, AFlippedPayloadBitIsDataLossForItsItemAlone) {
  const TestChain chain = Chain(2);
  PutMessage put = PutMessage::Pages(chain, 0, 2);
  put.payload[600] ^= std::byte{16};
  EXPECT_THAT(Put(client_, put), ElementsAre(kOk, kDataLoss, kOk, kOk));
  EXPECT_EQ(Pages(chain), 0u);
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_put_items_total{result=\"corrupt\"} 1"));
  world_.ExpectQuiet();
}

TEST_F(PutOpTest, EveryFlippedHeaderBitIsRefused) {
  const TestChain chain = Chain(1);
  for (size_t bit = 0; bit < sizeof(FrameHeader) * 8; ++bit) {
    wire::PutItem item = chain.Item(0, 0);
    reinterpret_cast<uint8_t*>(&item.header)[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    PutMessage put;
    // A flipped length must not make the message itself unsound: that is another test's.
    put.Add(item, std::vector<std::byte>(std::min<uint32_t>(item.header.payload_bytes, 1 << 20)));
    if (put.payload.size() != item.header.payload_bytes) continue;
    if (put.payload.size() == 512) put.payload = chain.Payload(0, 0);
    const std::vector<absl::StatusCode> codes = Put(client_, put);
    ASSERT_EQ(codes.size(), 1u);
    EXPECT_NE(codes[0], kOk) << "bit " << bit;
    EXPECT_NE(codes[0], kExists) << "bit " << bit;
  }
  EXPECT_EQ(world_.node->Status().pages.pages, 0u);
  world_.ExpectQuiet();
}

TEST_F(PutOpTest, WrongItemsAreRefusedAndTheOthersStored) {
  const TestChain chain = Chain(3);
  PutMessage put;
  wire::PutItem no_such_part = chain.Item(0, 0);
  no_such_part.part = 2;
  put.Add(no_such_part, chain.Payload(0, 0));
  wire::PutItem other_part = chain.Item(0, 1);
  other_part.part = 0;
  put.Add(other_part, chain.Payload(0, 1));
  wire::PutItem other_page = chain.Item(1, 0);
  other_page.key = chain.keys()[2];
  put.Add(other_page, chain.Payload(1, 0));
  wire::PutItem short_part = chain.Item(0, 0);
  short_part.header.payload_bytes = 100;
  short_part.header.Seal();
  put.Add(short_part, std::vector<std::byte>(100));
  wire::PutItem own_parent = chain.Item(1, 0);
  own_parent.parent = own_parent.key;
  put.Add(own_parent, chain.Payload(1, 0));
  wire::PutItem no_codec = chain.Item(0, 0);
  no_codec.header.codec = 99;
  no_codec.header.Seal();
  put.Add(no_codec, chain.Payload(0, 0));
  put.Add(chain.Item(0, 0), chain.Payload(0, 0));
  EXPECT_THAT(Put(client_, put), ElementsAre(kInvalid, kDataLoss, kDataLoss, kInvalid, kInvalid,
                                             absl::StatusCode::kUnimplemented, kOk));
  EXPECT_EQ(world_.node->Status().pages.frames, 1u);
  world_.ExpectQuiet();
}

TEST_F(PutOpTest, APayloadOfAnotherLengthThanItsItemsClosesTheEndpoint) {
  const TestChain chain = Chain(1);
  PutMessage put = PutMessage::Pages(chain, 0, 1);
  put.payload.pop_back();
  const uint64_t op = client_.NextOp();
  wire::Writer writer = put.Message(op, client_.ns());
  client_.Send(writer, put.payload);
  const auto error = client_.Await(op).As<wire::Error>(wire::Kind::kError);
  EXPECT_EQ(error.status, static_cast<uint32_t>(kInvalid));
  client_.AwaitClosed();
  EXPECT_EQ(world_.node->Status().pages.pages, 0u);
  world_.ExpectQuiet();
}

TEST_F(PutOpTest, AClientThatDiesInThePutLeavesNothing) {
  for (int steps = 0; steps < 40; ++steps) {
    ScriptedClient other(world_, absl::StrCat("other", steps));
    other.Open(NodeWorld::Spec());
    const TestChain chain = Chain(8, 1000 + 100 * static_cast<uint32_t>(steps));
    const PutMessage put = PutMessage::Pages(chain, 0, 8);
    wire::Writer writer = put.Message(other.NextOp(), other.ns());
    other.Send(writer, put.payload);
    for (int step = 0; step < steps; ++step) {
      world_.network.Step();
      world_.clock.Advance(5 * kMicrosecond);
    }
    const bool whole = Pages(chain) == 8;
    other.Close();
    world_.RunFor(kSecond);
    EXPECT_TRUE(whole || Pages(chain) == 0 || Pages(chain) == 8) << steps;
    world_.ExpectQuiet();
  }
}

class PutTimeoutTest : public PutOpTest {
 protected:
  static NodeWorldOptions Options() {
    NodeWorldOptions options;
    options.node.limits.put_timeout_ms = 100;
    return options;
  }
  PutTimeoutTest() : PutOpTest(Options()) {}
};

TEST_F(PutTimeoutTest, APutThatDoesNotEndClosesItsEndpoint) {
  const TestChain chain = Chain(4);
  const PutMessage put = PutMessage::Pages(chain, 0, 4);
  world_.network.faults().eager_bytes_max = 0;
  world_.network.faults().fragment_bytes_max = 16;
  wire::Writer writer = put.Message(client_.NextOp(), client_.ns());
  client_.Send(writer, put.payload);
  ASSERT_TRUE(world_.RunUntil([&] { return world_.node->Status().puts_in_flight == 1; }));
  EXPECT_EQ(world_.node->Status().slots.filling, 8u);
  world_.network.Cut("client", "node");
  world_.RunFor(200 * kMillisecond);
  EXPECT_EQ(world_.node->Status().endpoints, 0u);
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_put_timeouts_total 1"));
  EXPECT_EQ(world_.node->Status().pages.pages, 0u);
  world_.ExpectQuiet();
}

class PutPressureTest : public PutOpTest {
 protected:
  // 4 slabs of 8 KiB: a few dozen frames of 576 bytes.
  static NodeWorldOptions Options() {
    NodeWorldOptions options;
    options.node.dram.capacity_bytes = 32 << 10;
    options.node.dram.slab_bytes = 8 << 10;
    options.node.limits.pinned_percent_max = 100;
    return options;
  }
  PutPressureTest() : PutOpTest(Options()) {}
};

TEST_F(PutPressureTest, AFullPoolEvictsLeavesOfOlderChains) {
  for (uint32_t i = 0; i < 30; ++i) {
    const TestChain chain = Chain(6, 1000 * i);
    EXPECT_THAT(Put(client_, PutMessage::Pages(chain, 0, 6)), Each(kOk)) << i;
    EXPECT_EQ(Pages(chain), 6u);
    world_.ExpectQuiet();
  }
  // What is left of an older chain is a prefix of it.
  for (uint32_t i = 0; i < 30; ++i) {
    const TestChain chain = Chain(6, 1000 * i);
    const uint32_t prefix = Pages(chain);
    for (size_t page = 0; page < 6; ++page) {
      const std::vector<GotPart> got = Get(client_, ItemsOf(chain, page, page + 1));
      EXPECT_EQ(got[0].code == kOk, page < prefix) << "chain " << i << " page " << page;
    }
  }
}

TEST_F(PutPressureTest, AChainLargerThanThePoolKeepsItsBeginning) {
  const TestChain chain = Chain(60);
  for (size_t page = 0; page < 60; ++page) {
    const std::vector<absl::StatusCode> codes =
        Put(client_, PutMessage::Pages(chain, page, page + 1));
    for (const absl::StatusCode code : codes) EXPECT_TRUE(code == kOk || code == kFull) << page;
  }
  const uint32_t prefix = Pages(chain);
  EXPECT_GT(prefix, 10u);
  ExpectWhole(chain, prefix);
  world_.ExpectQuiet();
}

TEST_F(PutPressureTest, LeasedPagesAreNeverEvictedAndTheWriterIsToldThatThePoolIsFull) {
  const TestChain held = Chain(14);
  EXPECT_THAT(Put(client_, PutMessage::Pages(held, 0, 14)), Each(kOk));
  const auto leased = Lookup(client_, held.keys(), 30'000);
  ASSERT_EQ(leased.reply.page_count, 14u);

  const TestChain more = Chain(40, 5000);
  std::vector<absl::StatusCode> codes = Put(client_, PutMessage::Pages(more, 0, 40));
  EXPECT_THAT(codes, ::testing::Contains(kFull));
  EXPECT_EQ(Pages(held), 14u);
  ExpectWhole(held, 14);

  EXPECT_EQ(testing::Release(client_, leased.reply.lease).valid, 1u);
  world_.ExpectQuiet();
  const TestChain last = Chain(8, 9000);
  EXPECT_THAT(Put(client_, PutMessage::Pages(last, 0, 8)), Each(kOk));
}

}  // namespace
}  // namespace forebay
