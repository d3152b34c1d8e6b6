// Publish, look up and fetch between real client cores and real nodes, in virtual time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/testing/status_matchers.h"
#include "tests/integration/client_world.h"

namespace forebay {
namespace {

using ::forebay::testing::ClientWorld;
using ::forebay::testing::EngineMemory;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::forebay::testing::SpecOf;
using ::forebay::testing::Tokens;
using ::forebay::testing::WorldClient;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kPageTokens = 4;

KvLayout SmallLayout() {
  return KvLayout::Uniform(/*layer_count=*/4, /*kv_heads=*/2, /*head_dim=*/8, DType::kBf16,
                           kPageTokens, /*layers_per_part=*/2);
}

std::vector<PageKey> Chain(const PageKey& root, uint32_t pages, uint32_t first_token = 0) {
  return PageKeysOf(root, Tokens(pages * kPageTokens, first_token), kPageTokens);
}

// Publishes `pages` pages with one client and fetches them with another.
void RoundTrip(ClientWorld& world, uint32_t pages) {
  const KvLayout layout = SmallLayout();
  auto writer = world.NewClient("writer");
  auto reader = world.NewClient("reader");
  FB_ASSERT_OK(writer->Open(SpecOf(layout)));
  FB_ASSERT_OK(reader->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(writer->root, pages);
  EngineMemory source(layout, pages);
  source.Fill(pages);
  const auto published = writer->Publish(keys, source.view);
  FB_ASSERT_OK(published);
  EXPECT_EQ(published->pages_stored, pages) << published->first_error;
  EXPECT_EQ(published->pages_refused, 0u);
  EXPECT_EQ(published->bytes, source.bytes.size());

  const auto hit = reader->Lookup(keys);
  FB_ASSERT_OK(hit);
  ASSERT_EQ((*hit)->page_count(), pages);
  EngineMemory target(layout, pages);
  const auto fetched = reader->Fetch(*hit, target.view);
  FB_ASSERT_OK(fetched);
  EXPECT_EQ(fetched->page_count, pages);
  EXPECT_EQ(fetched->bytes, source.bytes.size());
  EXPECT_EQ(target.bytes, source.bytes);
  EXPECT_THAT(reader->Release(*hit), ::testing::Eq(absl::StatusOr<bool>(true)));
}

TEST(ClientNodeTest, WhatOnePublishesAnotherFetches) {
  ClientWorld world(1);
  RoundTrip(world, 8);
}

TEST(ClientNodeTest, ThreeNodesShareAChain) {
  ClientWorld world(3);
  RoundTrip(world, 100);
  int used = 0;
  for (int i = 0; i < 3; ++i) used += world.node(i).Status().pages.pages > 0;
  EXPECT_GE(used, 2);
}

TEST(ClientNodeTest, SlowReorderingAndDuplicatingLinksChangeOnlyTheTime) {
  LoopbackFaults faults;
  faults.delay_ns_max = 5 * kMillisecond;
  faults.duplicate_chance = 0.05;
  faults.fragment_bytes_max = 512;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    ClientWorld world(2, seed, faults);
    RoundTrip(world, 40);
  }
}

TEST(ClientNodeTest, AFlippedBitIsAMissAndNeverAPage) {
  LoopbackFaults faults;
  ClientWorld world(1, 3, faults);
  const KvLayout layout = SmallLayout();
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(client->root, 30);
  EngineMemory source(layout, 30);
  source.Fill(1);
  FB_ASSERT_OK(client->Publish(keys, source.view));
  const auto hit = client->Lookup(keys);
  FB_ASSERT_OK(hit);
  world.network.faults().corrupt_chance = 0.3;
  world.network.faults().fragment_bytes_max = 1024;
  int missed = 0;
  const size_t page_bytes = layout.PageBytes();
  for (int round = 0; round < 10; ++round) {
    EngineMemory target(layout, 30);
    const auto fetched = client->Fetch(*hit, target.view);
    FB_ASSERT_OK(fetched);
    for (size_t page = 0; page < 30; ++page) {
      if (!fetched->pages[page]) {
        ++missed;
        continue;
      }
      EXPECT_EQ(memcmp(target.bytes.data() + page * page_bytes,
                       source.bytes.data() + page * page_bytes, page_bytes),
                0)
          << page;
    }
  }
  EXPECT_GT(missed, 0);
}

TEST(ClientNodeTest, APrefixOfAChainIsFound) {
  ClientWorld world(3);
  const KvLayout layout = SmallLayout();
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(client->root, 50);
  EngineMemory source(layout, 50);
  const std::vector<PageKey> some(keys.begin(), keys.begin() + 21);
  FB_ASSERT_OK(client->Publish(some, source.view));
  EXPECT_EQ(client->Pages(keys), 21u);
  EXPECT_EQ(client->Pages({}), 0u);
}

TEST(ClientNodeTest, ADeadNodeIsAMissOfItsPagesWithinTheDeadline) {
  for (LoopbackDeath death : {LoopbackDeath::kReset, LoopbackDeath::kSilent}) {
    ClientWorld world(3);
    const KvLayout layout = SmallLayout();
    auto client = world.NewClient("client");
    FB_ASSERT_OK(client->Open(SpecOf(layout)));
    const std::vector<PageKey> keys = Chain(client->root, 120);
    EngineMemory source(layout, 120);
    source.Fill(9);
    FB_ASSERT_OK(client->Publish(keys, source.view));
    const auto hit = client->Lookup(keys);
    FB_ASSERT_OK(hit);
    ASSERT_EQ((*hit)->page_count(), 120u);
    world.KillNode((*hit)->daemons[119], death);

    const Nanos begin = world.clock.Now();
    EngineMemory target(layout, 120);
    FetchOptions options;
    options.deadline = kSecond;
    const auto fetched = client->Fetch(*hit, target.view, options);
    FB_ASSERT_OK(fetched);
    EXPECT_LE(world.clock.Now() - begin, kSecond + 200 * kMillisecond);
    const size_t page_bytes = layout.PageBytes();
    for (size_t page = 0; page < 120; ++page) {
      EXPECT_EQ(fetched->pages[page], (*hit)->daemons[page] != (*hit)->daemons[119]) << page;
      if (!fetched->pages[page]) continue;
      EXPECT_EQ(memcmp(target.bytes.data() + page * page_bytes,
                       source.bytes.data() + page * page_bytes, page_bytes),
                0);
    }
    // A lookup answers too, with the pages before the first that is away.
    LookupOptions lookup;
    lookup.deadline = kSecond;
    const auto again = client->Lookup(keys, lookup);
    FB_ASSERT_OK(again);
    EXPECT_LT((*again)->page_count(), 120u);
  }
}

TEST(ClientNodeTest, ReconnectsToANodeThatStartedAgainAndOldLeasesAreVoid) {
  ClientWorld world(1);
  const KvLayout layout = SmallLayout();
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(client->root, 5);
  EngineMemory source(layout, 5);
  source.Fill(2);
  FB_ASSERT_OK(client->Publish(keys, source.view));
  const auto hit = client->Lookup(keys);
  FB_ASSERT_OK(hit);
  ASSERT_EQ((*hit)->page_count(), 5u);

  world.KillNode(0);
  world.RunFor(500 * kMillisecond);
  EXPECT_FALSE(client->core->daemons()[0].connected);
  EXPECT_THAT(client->core->daemons()[0].last_error, HasSubstr("nobody answers"));
  world.StartNode(0);
  EXPECT_TRUE(world.RunUntil([&] { return client->core->daemons()[0].connected; }))
      << client->core->daemons()[0].last_error;
  EXPECT_EQ(client->core->daemons()[0].reconnects, 1u);

  EXPECT_EQ(client->Pages(keys), 0u);
  EXPECT_THAT(client->Release(*hit), ::testing::Eq(absl::StatusOr<bool>(false)));
  FB_ASSERT_OK(client->Publish(keys, source.view));
  EXPECT_EQ(client->Pages(keys), 5u);
}

TEST(ClientNodeTest, ACancelledFetchGivesTheMemoryBack) {
  LoopbackFaults faults;
  faults.delay_ns_min = faults.delay_ns_max = kMillisecond;
  ClientWorld world(1, 5, faults);
  const KvLayout layout = SmallLayout();
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(client->root, 60);
  EngineMemory source(layout, 60);
  source.Fill(3);
  FB_ASSERT_OK(client->Publish(keys, source.view));
  const auto hit = client->Lookup(keys);
  FB_ASSERT_OK(hit);
  // At every step of the fetch: nothing is written after its end.
  for (Nanos after = 0; after < 8 * kMillisecond; after += 700 * kMicrosecond) {
    EngineMemory target(layout, 60);
    absl::Status status;
    bool done = false;
    const uint64_t call = client->core->Fetch(client->ns, *hit, target.view, {}, nullptr,
                                              [&](absl::StatusOr<FetchResult> result) {
                                                status = result.status();
                                                done = true;
                                              });
    world.RunFor(after);
    if (!done) {
      client->core->Cancel(call);
      ASSERT_TRUE(world.RunUntil([&] { return done; }, kSecond));
      EXPECT_THAT(status, HasCode(absl::StatusCode::kCancelled));
    }
    const std::vector<std::byte> at_the_end = target.bytes;
    world.RunFor(50 * kMillisecond);
    EXPECT_EQ(target.bytes, at_the_end);
  }
}

TEST(ClientNodeTest, AStalledLandingIsTakenBackAtTheDeadlineByClosing) {
  ClientWorld world(1);
  const KvLayout layout = SmallLayout();
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(client->root, 200);
  EngineMemory source(layout, 200);
  FB_ASSERT_OK(client->Publish(keys, source.view));
  const auto hit = client->Lookup(keys);
  FB_ASSERT_OK(hit);
  EngineMemory target(layout, 200);
  FetchOptions options;
  options.deadline = 20 * kMillisecond;
  absl::StatusOr<FetchResult> result = absl::UnknownError("");
  bool done = false;
  client->core->Fetch(client->ns, *hit, target.view, options, nullptr,
                      [&](absl::StatusOr<FetchResult> fetched) {
                        result = std::move(fetched);
                        done = true;
                      });
  const Nanos begin = world.clock.Now();
  world.RunFor(150 * kMicrosecond);
  ASSERT_FALSE(done);
  world.network.Cut("node0", "client");
  ASSERT_TRUE(world.RunUntil([&] { return done; }, kSecond));
  EXPECT_LE(world.clock.Now() - begin, 125 * kMillisecond);
  FB_ASSERT_OK(result);
  EXPECT_LT(result->page_count, 200u);
  world.network.MendAll();
}

TEST(ClientNodeTest, APublishEndsAtItsDeadlineAndSaysWhatWasRefused) {
  ClientWorld world(1);
  const KvLayout layout = SmallLayout();
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(layout)));
  world.network.Cut("node0", "client");
  EngineMemory source(layout, 10);
  PublishOptions options;
  options.deadline = 50 * kMillisecond;
  const auto published = client->Publish(Chain(client->root, 10), source.view, options);
  FB_ASSERT_OK(published);
  EXPECT_EQ(published->pages_stored, 0u);
  EXPECT_EQ(published->pages_refused, 10u);
  EXPECT_THAT(published->first_error, HasCode(absl::StatusCode::kDeadlineExceeded));
  world.network.MendAll();
}

// A daemon that begins to drain at any moment of a publish of several messages refuses what is
// still to come, and answers what came before: to a call that must not be gone yet.
TEST(ClientNodeTest, ADaemonThatDrainsInTheMiddleOfAPublishAnswersNobodyWhoIsGone) {
  const KvLayout layout = SmallLayout();
  constexpr uint32_t kPages = 4000;
  uint32_t cut_short = 0;
  for (int step = 0; step < 60; ++step) {
    ClientWorld world(1);
    auto client = world.NewClient("client");
    FB_ASSERT_OK(client->Open(SpecOf(layout)));
    EngineMemory source(layout, kPages);
    std::optional<absl::StatusOr<PublishResult>> ended;
    client->core->Publish(client->ns, Chain(client->root, kPages), source.view, {},
                          [&](absl::StatusOr<PublishResult> result) { ended = std::move(result); });
    world.RunFor(step * 20 * kMicrosecond);
    world.node(0).BeginShutdown(kSecond);
    ASSERT_TRUE(world.RunUntil([&] { return ended.has_value(); }));
    FB_ASSERT_OK(*ended);
    if ((*ended)->pages_stored > 0 && (*ended)->pages_refused > 0) {
      ++cut_short;
      EXPECT_THAT((*ended)->first_error.message(), HasSubstr(ClientWorld::ControlOf(0)));
    }
    EXPECT_EQ((*ended)->pages_stored + (*ended)->pages_refused, kPages);
    world.RunFor(kSecond);  // whatever is still answered
  }
  EXPECT_GT(cut_short, 3u) << "no step fell into the middle";
}

TEST(ClientNodeTest, TwoTenantsWithTheSameNamesShareNothing) {
  ClientWorld tenants(1);
  tenants.KillNode(0);
  tenants.node_options.tenants = {{"a", "the secret of a", {}}, {"b", "the secret of b", {}}};
  tenants.StartNode(0);
  const KvLayout layout = SmallLayout();
  auto a = tenants.NewClient("client-a", "a");
  auto b = tenants.NewClient("client-b", "b");
  FB_ASSERT_OK(a->Open(SpecOf(layout)));
  FB_ASSERT_OK(b->Open(SpecOf(layout)));
  EXPECT_NE(a->root, b->root);
  EngineMemory source(layout, 4);
  FB_ASSERT_OK(a->Publish(Chain(a->root, 4), source.view));
  EXPECT_EQ(a->Pages(Chain(a->root, 4)), 4u);
  EXPECT_EQ(b->Pages(Chain(b->root, 4)), 0u);
  // Even with a's own keys.
  EXPECT_EQ(b->Pages(Chain(a->root, 4)), 0u);
}

// Each field of the identity, changed alone.
TEST(ClientNodeTest, EveryFieldOfTheIdentityAloneIsAMiss) {
  ClientWorld world(1);
  const KvLayout layout = SmallLayout();
  const NamespaceSpec base = SpecOf(layout);
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(base));
  EngineMemory source(layout, 4);
  FB_ASSERT_OK(client->Publish(Chain(client->root, 4), source.view));
  ASSERT_EQ(client->Pages(Chain(client->root, 4)), 4u);

  std::vector<std::pair<std::string, NamespaceSpec>> others;
  const auto other = [&](const std::string& name, auto change) {
    NamespaceSpec spec = base;
    change(spec);
    others.emplace_back(name, spec);
  };
  other("model", [](NamespaceSpec& s) { s.model = "model2"; });
  other("model_revision", [](NamespaceSpec& s) { s.model_revision = "2"; });
  other("position_encoding", [](NamespaceSpec& s) { s.position_encoding = "none"; });
  other("adapter", [](NamespaceSpec& s) { s.adapter = "x"; });
  other("salt", [](NamespaceSpec& s) { s.salt = "x"; });
  other("plane order", [](NamespaceSpec& s) { s.layout.plane_order = PlaneOrder::kHeadMajor; });
  other("dtype", [](NamespaceSpec& s) {
    for (LayerSpec& layer : s.layout.layers) layer.dtype = DType::kFp16;
  });
  other("attention", [](NamespaceSpec& s) {
    for (LayerSpec& layer : s.layout.layers) layer.attention = AttentionKind::kMha;
  });
  other("kv_heads", [](NamespaceSpec& s) {
    for (LayerSpec& layer : s.layout.layers) layer.kv_heads = 4;
  });
  other("k_dim", [](NamespaceSpec& s) {
    for (LayerSpec& layer : s.layout.layers) layer.k_dim = 16;
  });
  other("v_dim", [](NamespaceSpec& s) {
    for (LayerSpec& layer : s.layout.layers) layer.v_dim = 16;
  });
  other("layers_per_part", [](NamespaceSpec& s) { s.layout.layers_per_part = 1; });
  other("heads_per_part", [](NamespaceSpec& s) { s.layout.heads_per_part = 1; });
  other("split_key_value", [](NamespaceSpec& s) { s.layout.split_key_value = true; });
  other("layer count", [](NamespaceSpec& s) { s.layout.layers.pop_back(); });
  other("page_tokens", [](NamespaceSpec& s) { s.layout.page_tokens = 8; });

  std::set<PageKey> roots = {client->root};
  const std::vector<PageKey> published = Chain(client->root, 4);
  for (const auto& [name, spec] : others) {
    auto reader = world.NewClient(absl::StrCat("reader of ", name));
    const auto opened = reader->Open(spec);
    FB_ASSERT_OK(opened) << name;
    EXPECT_TRUE(roots.insert(reader->root).second) << name;
    EXPECT_EQ(reader->Pages(Chain(reader->root, 4)), 0u) << name;
    EXPECT_EQ(reader->Pages(published), 0u) << name;
  }
}

TEST(ClientNodeTest, ASpecThatIsWrongFailsWithEveryFault) {
  ClientWorld world(1);
  auto client = world.NewClient("client");
  NamespaceSpec spec = SpecOf(SmallLayout());
  spec.model.clear();
  EXPECT_THAT(client->Open(spec),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("model")));
}

TEST(ClientNodeTest, NoNodeAtAllIsUnavailableAndNamesThem) {
  ClientWorld world(2);
  world.KillNode(0);
  world.KillNode(1);
  auto client = world.NewClient("client");
  const Nanos begin = world.clock.Now();
  EXPECT_THAT(
      client->Open(SpecOf(SmallLayout()), 300 * kMillisecond),
      HasStatus(absl::StatusCode::kUnavailable,
                AllOf(HasSubstr("node0:1"), HasSubstr("node1:1"), HasSubstr("nobody answers"))));
  EXPECT_LE(world.clock.Now() - begin, 301 * kMillisecond);
}

TEST(ClientNodeTest, OneNodeOfTwoIsEnoughToOpen) {
  ClientWorld world(2);
  world.KillNode(1);
  auto client = world.NewClient("client");
  const Nanos begin = world.clock.Now();
  FB_ASSERT_OK(client->Open(SpecOf(SmallLayout()), 5 * kSecond));
  EXPECT_LE(world.clock.Now() - begin, kSecond);
}

TEST(ClientNodeTest, ANodeWithAnotherSecretIsNotBelieved) {
  ClientWorld world(2);
  world.KillNode(1);
  world.node_options.tenants = {{std::string(kDefaultTenant), "another secret", {}}};
  world.StartNode(1);
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(SmallLayout()), kSecond));
  const std::vector<DaemonStatus> daemons = client->core->daemons();
  EXPECT_NE(daemons[0].connected, daemons[1].connected);
  EXPECT_THAT(daemons[0].last_error + daemons[1].last_error, HasSubstr("root key"));
}

TEST(ClientNodeTest, AMillionKeysAreRefusedAtOnce) {
  ClientWorld world(1);
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(SmallLayout())));
  EXPECT_THAT(client->Lookup(std::vector<PageKey>(1'000'000)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("65536")));
}

TEST(ClientNodeTest, ALongChainGoesInSeveralMessages) {
  ClientWorld world(2);
  RoundTrip(world, 5000);
}

TEST(ClientNodeTest, ASubscriberHearsOfPagesAsTheyCome) {
  ClientWorld world(2);
  const KvLayout layout = SmallLayout();
  auto writer = world.NewClient("writer");
  auto reader = world.NewClient("reader");
  FB_ASSERT_OK(writer->Open(SpecOf(layout)));
  FB_ASSERT_OK(reader->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(writer->root, 40);
  EngineMemory source(layout, 40);
  std::vector<uint32_t> progress;
  absl::StatusOr<uint32_t> result = absl::UnknownError("");
  bool done = false;
  reader->core->Subscribe(
      reader->ns, keys, {.deadline = 10 * kSecond},
      [&](uint32_t pages) { progress.push_back(pages); },
      [&](absl::StatusOr<uint32_t> pages) {
        result = pages;
        done = true;
      });
  world.RunFor(10 * kMillisecond);
  EXPECT_FALSE(done);
  FB_ASSERT_OK(writer->Publish({keys.begin(), keys.begin() + 20}, source.view));
  world.RunFor(10 * kMillisecond);
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back(), 20u);
  EXPECT_FALSE(done);
  FB_ASSERT_OK(writer->Publish(keys, source.view, {.first_page = 20}));
  ASSERT_TRUE(world.RunUntil([&] { return done; }, kSecond));
  FB_ASSERT_OK(result);
  EXPECT_EQ(*result, 40u);
}

TEST(ClientNodeTest, ASubscriptionEndsAtItsDeadlineWithWhatThereIs) {
  ClientWorld world(1);
  const KvLayout layout = SmallLayout();
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(client->root, 10);
  EngineMemory source(layout, 10);
  FB_ASSERT_OK(client->Publish({keys.begin(), keys.begin() + 3}, source.view));
  absl::StatusOr<uint32_t> result = absl::UnknownError("");
  client->core->Subscribe(client->ns, keys, {.deadline = 200 * kMillisecond}, nullptr,
                          [&](absl::StatusOr<uint32_t> pages) { result = pages; });
  world.RunFor(201 * kMillisecond);
  FB_ASSERT_OK(result);
  EXPECT_EQ(*result, 3u);
}

}  // namespace
}  // namespace forebay
