// Pages through a real node in virtual time, under each codec and contract.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "codec/codec.h"
#include "tests/integration/client_world.h"

namespace forebay {
namespace {

using ::forebay::testing::ClientWorld;
using ::forebay::testing::EngineMemory;
using ::forebay::testing::HasStatus;
using ::forebay::testing::SpecOf;
using ::forebay::testing::Tokens;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kPageTokens = 64;
constexpr uint32_t kPages = 6;
constexpr QualityBound kAny{QualityClass::kCoarse, QualityClass::kCoarse};

KvLayout SmallLayout(uint32_t layers_per_part = 2) {
  return KvLayout::Uniform(/*layer_count=*/4, /*kv_heads=*/2, /*head_dim=*/64, DType::kBf16,
                           kPageTokens, layers_per_part);
}

std::vector<PageKey> Chain(const PageKey& root, uint32_t pages = kPages) {
  return PageKeysOf(root, Tokens(pages * kPageTokens), kPageTokens);
}

float FromBf16(const std::byte* at) {
  uint16_t half;
  std::memcpy(&half, at, sizeof(half));
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Numbers between -1 and 1.
void FillNumbers(EngineMemory& memory, uint64_t seed) {
  SeededRandom random(seed);
  for (size_t i = 0; i + 1 < memory.bytes.size(); i += 2) {
    const float value = static_cast<float>(random.Below(2001)) / 1000 - 1;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const auto half = static_cast<uint16_t>(bits >> 16);
    std::memcpy(memory.bytes.data() + i, &half, sizeof(half));
  }
}

float LargestError(const EngineMemory& a, const EngineMemory& b) {
  float largest = 0;
  for (size_t i = 0; i + 1 < a.bytes.size(); i += 2) {
    largest =
        std::max(largest, std::abs(FromBf16(a.bytes.data() + i) - FromBf16(b.bytes.data() + i)));
  }
  return largest;
}

NamespaceSpec SpecWith(const KvLayout& layout, const QualityBound& bound) {
  NamespaceSpec spec = SpecOf(layout);
  spec.quality.bound = bound;
  return spec;
}

ClientCoreOptions With(absl::string_view codec) {
  ClientCoreOptions options;
  options.codec = std::string(codec);
  return options;
}

// Of the class's worst format, for numbers between -1 and 1.
float ErrorMax(QualityClass c) {
  switch (c) {
    case QualityClass::kExact:
      return 0;
    case QualityClass::kNear:
      return 0.05f;
    case QualityClass::kFair:
      return 0.15f;
    case QualityClass::kCoarse:
      return 2;
  }
  return 0;
}

TEST(CodecNodeTest, EveryCodecBringsPagesBackWithinItsClass) {
  const KvLayout layout = SmallLayout();
  for (const auto& codec : CodecRegistry::Default().codecs()) {
    SCOPED_TRACE(std::string(codec->name()));
    ClientWorld world(2);
    auto writer = world.NewClient("writer", std::string(kDefaultTenant), With(codec->name()));
    auto reader = world.NewClient("reader");
    FB_ASSERT_OK(writer->Open(SpecWith(layout, codec->quality())));
    FB_ASSERT_OK(reader->Open(SpecWith(layout, codec->quality())));
    EngineMemory source(layout, kPages);
    FillNumbers(source, 1);
    const std::vector<PageKey> keys = Chain(writer->root);
    const auto published = writer->Publish(keys, source.view);
    FB_ASSERT_OK(published);
    EXPECT_EQ(published->pages_stored, kPages) << published->first_error;
    if (!codec->identity()) {
      EXPECT_LT(published->bytes, source.bytes.size());
    }

    const auto hit = reader->Lookup(keys);
    FB_ASSERT_OK(hit);
    EngineMemory target(layout, kPages);
    const auto fetched = reader->Fetch(*hit, target.view);
    FB_ASSERT_OK(fetched);
    EXPECT_EQ(fetched->page_count, kPages) << fetched->first_error;
    EXPECT_EQ(fetched->bytes, published->bytes);
    const QualityBound quality = codec->quality();
    EXPECT_LE(LargestError(source, target), ErrorMax(std::max(quality.k, quality.v)));
    EXPECT_EQ(source.bytes == target.bytes, quality.exact());
  }
}

// The guard that keeps readers who asked for exact from what is not: they have other keys.
TEST(CodecNodeTest, ContractsShareNoPage) {
  ClientWorld world(1);
  const KvLayout layout = SmallLayout();
  auto writer = world.NewClient("writer", std::string(kDefaultTenant), With("int8"));
  auto reader = world.NewClient("reader");
  const QualityBound near{QualityClass::kNear, QualityClass::kNear};
  FB_ASSERT_OK(writer->Open(SpecWith(layout, near)));
  EngineMemory source(layout, kPages);
  FillNumbers(source, 1);
  FB_ASSERT_OK(writer->Publish(Chain(writer->root), source.view));
  for (const QualityBound& bound : {QualityBound{}, kAny, near}) {
    FB_ASSERT_OK(reader->Open(SpecWith(layout, bound)));
    EXPECT_EQ(reader->Pages(Chain(reader->root)), bound == near ? kPages : 0);
  }
}

TEST(CodecNodeTest, AForcedCodecThatTheContractForbidsIsRefusedByName) {
  ClientWorld world(1);
  auto writer = world.NewClient("writer", std::string(kDefaultTenant), With("int4"));
  EXPECT_THAT(writer->Open(SpecWith(SmallLayout(), {})).status(),
              HasStatus(absl::StatusCode::kInvalidArgument,
                        AllOf(HasSubstr("int4"), HasSubstr("fair"), HasSubstr("exact"))));
}

// Layers with a bound of their own keep it whatever is forced for the rest.
TEST(CodecNodeTest, AStricterLayerStaysExact) {
  ClientWorld world(1);
  const KvLayout layout = SmallLayout(/*layers_per_part=*/1);
  NamespaceSpec spec = SpecWith(layout, kAny);
  spec.quality.layers = {{0, 2, {}}};
  auto client = world.NewClient("client", std::string(kDefaultTenant), With("int2"));
  FB_ASSERT_OK(client->Open(spec));
  EngineMemory source(layout, kPages);
  FillNumbers(source, 1);
  const std::vector<PageKey> keys = Chain(client->root);
  FB_ASSERT_OK(client->Publish(keys, source.view));
  const auto hit = client->Lookup(keys);
  FB_ASSERT_OK(hit);
  EngineMemory target(layout, kPages);
  FB_ASSERT_OK(client->Fetch(*hit, target.view));
  const size_t page_bytes = layout.PageBytes();
  for (uint32_t page = 0; page < kPages; ++page) {
    const size_t at = page * page_bytes;
    EXPECT_EQ(std::memcmp(source.bytes.data() + at, target.bytes.data() + at, page_bytes / 2), 0);
    EXPECT_NE(std::memcmp(source.bytes.data() + at + page_bytes / 2,
                          target.bytes.data() + at + page_bytes / 2, page_bytes / 2),
              0);
  }
}

// Numbers that no codec may touch: the part stays raw, the page is right, and it is counted.
TEST(CodecNodeTest, ANonFinitePartStaysRaw) {
  ClientWorld world(1);
  const KvLayout layout = SmallLayout();
  auto client = world.NewClient("client", std::string(kDefaultTenant), With("int4"));
  FB_ASSERT_OK(client->Open(SpecWith(layout, kAny)));
  EngineMemory source(layout, kPages);
  FillNumbers(source, 1);
  const uint16_t infinity = 0x7f80;
  std::memcpy(source.bytes.data() + 100, &infinity, sizeof(infinity));
  const std::vector<PageKey> keys = Chain(client->root);
  FB_ASSERT_OK(client->Publish(keys, source.view));
  const auto hit = client->Lookup(keys);
  FB_ASSERT_OK(hit);
  EngineMemory target(layout, kPages);
  const auto fetched = client->Fetch(*hit, target.view);
  FB_ASSERT_OK(fetched);
  EXPECT_EQ(fetched->page_count, kPages);
  const size_t part_bytes = layout.Parts()[0].raw_bytes;
  EXPECT_EQ(std::memcmp(source.bytes.data(), target.bytes.data(), part_bytes), 0);
  EXPECT_NE(source.bytes, target.bytes);
  EXPECT_THAT(client->registry.Text(), HasSubstr("forebay_client_raw_fallback_parts_total 1\n"));
}

// Half of the tokens dropped, the same for all heads or others for each; sinks and newest exact.
TEST(CodecNodeTest, DroppedTokensCostNothingAndAreNamedToTheReader) {
  const KvLayout layout = SmallLayout();
  constexpr uint32_t kTokens = kPages * kPageTokens;
  for (const bool by_head : {false, true}) {
    ClientWorld world(1);
    auto client = world.NewClient("client", std::string(kDefaultTenant), With("int4"));
    NamespaceSpec spec = SpecWith(layout, kAny);
    spec.quality.retention = true;
    FB_ASSERT_OK(client->Open(spec));
    EngineMemory source(layout, kPages);
    FillNumbers(source, 1);
    const std::vector<PageKey> keys = Chain(client->root);
    auto plan = std::make_shared<PublishPlan>();
    plan->exact_sinks = 4;
    plan->exact_newest = 16;
    for (uint32_t layer = 0; layer < 4; ++layer) {
      RetentionMask& mask =
          plan->masks.emplace_back(RetentionMask::DropAll(kTokens, by_head ? 2 : 1));
      for (uint32_t scope = 0; scope < mask.scopes; ++scope) {
        for (uint32_t t = 0; t < kTokens; ++t) {
          if (t < 4 || t >= kTokens - 16 || (t + layer + scope) % 2 == 0) mask.Keep(scope, t);
        }
      }
    }
    PublishOptions options;
    options.plan = plan;
    const auto published = client->Publish(keys, source.view, options);
    FB_ASSERT_OK(published);
    EXPECT_EQ(published->pages_stored, kPages) << published->first_error;
    EXPECT_LT(published->bytes * 5, source.bytes.size());

    const auto hit = client->Lookup(keys);
    FB_ASSERT_OK(hit);
    EngineMemory target(layout, kPages);
    const auto fetched = client->Fetch(*hit, target.view);
    FB_ASSERT_OK(fetched);
    ASSERT_EQ(fetched->page_count, kPages) << fetched->first_error;
    ASSERT_EQ(fetched->kept.size(), 4u);
    for (uint32_t layer = 0; layer < 4; ++layer) {
      const RetentionMask& mask = plan->masks[layer];
      for (uint32_t head = 0; head < 2; ++head) {
        for (uint32_t t = 0; t < kTokens; ++t) {
          const bool kept = fetched->kept[layer].Keeps(head, t);
          ASSERT_EQ(kept, mask.Keeps(mask.ScopeOf(head), t));
          const LayerView& view = target.view.layers[layer];
          const std::byte* const k = view.k + t / kPageTokens * view.k_block_stride +
                                     t % kPageTokens * view.k_token_stride +
                                     head * view.k_head_stride;
          const std::byte* const from = source.bytes.data() + (k - target.bytes.data());
          if (!kept) {
            EXPECT_EQ(FromBf16(k), 0.0f);
          } else if (t < 4 || t >= kTokens - 16) {
            EXPECT_EQ(std::memcmp(k, from, 128), 0);
          } else {
            EXPECT_NEAR(FromBf16(k), FromBf16(from), 0.15f);
          }
        }
      }
    }
  }
}

TEST(CodecNodeTest, DroppingTokensWhereTheContractDoesNotNameItIsRefused) {
  ClientWorld world(1);
  const KvLayout layout = SmallLayout();
  auto client = world.NewClient("client", std::string(kDefaultTenant), With("int4"));
  FB_ASSERT_OK(client->Open(SpecWith(layout, kAny)));
  EngineMemory source(layout, kPages);
  PublishOptions options;
  auto plan = std::make_shared<PublishPlan>();
  plan->masks.assign(4, RetentionMask::DropAll(kPages * kPageTokens, 1));
  options.plan = plan;
  EXPECT_THAT(client->Publish(Chain(client->root), source.view, options).status(),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("does not name")));
  // Formats beyond a layer's bound likewise, and lists of other lengths.
  plan = std::make_shared<PublishPlan>();
  plan->formats.resize(3);
  options.plan = plan;
  EXPECT_THAT(client->Publish(Chain(client->root), source.view, options).status(),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("3 formats for 4 layers")));
}

TEST(CodecNodeTest, AFlippedBitOfAnEncodedFrameIsAMissAndNeverAPage) {
  LoopbackFaults faults;
  ClientWorld world(1, 3, faults);
  const KvLayout layout = SmallLayout();
  auto client = world.NewClient("client", std::string(kDefaultTenant), With("lossless"));
  FB_ASSERT_OK(client->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(client->root);
  EngineMemory source(layout, kPages);
  FillNumbers(source, 1);
  FB_ASSERT_OK(client->Publish(keys, source.view));
  const auto hit = client->Lookup(keys);
  FB_ASSERT_OK(hit);
  world.network.faults().corrupt_chance = 0.3;
  world.network.faults().fragment_bytes_max = 4096;
  int missed = 0;
  const size_t page_bytes = layout.PageBytes();
  for (int round = 0; round < 20; ++round) {
    EngineMemory target(layout, kPages);
    const auto fetched = client->Fetch(*hit, target.view);
    FB_ASSERT_OK(fetched);
    for (size_t page = 0; page < kPages; ++page) {
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

}  // namespace
}  // namespace forebay
