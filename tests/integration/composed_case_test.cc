// What the pool stores of the case that the project composes: two bits, half of the tokens
// retained, a prefix that four sequences share. Measured in the node, against four caches of bf16.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "client/retention/retention.h"
#include "tests/integration/client_world.h"

namespace forebay {
namespace {

using ::forebay::testing::ClientWorld;
using ::forebay::testing::EngineMemory;
using ::forebay::testing::SpecOf;
using ::forebay::testing::Tokens;

constexpr uint32_t kTokens = 64 * 1024;
constexpr uint32_t kPageTokens = 128;
constexpr uint32_t kPages = kTokens / kPageTokens;
constexpr uint32_t kSharers = 4;

// Near normal, a scale for each channel.
void FillNumbers(EngineMemory& memory) {
  SeededRandom random(1);
  for (size_t i = 0; i + 1 < memory.bytes.size(); i += 2) {
    const uint64_t bits64 = random.Next();
    const double sum = static_cast<double>(bits64 & 0xffff) +
                       static_cast<double>(bits64 >> 16 & 0xffff) +
                       static_cast<double>(bits64 >> 32 & 0xffff);
    const auto value =
        static_cast<float>((sum / 65536 - 1.5) * (1 + static_cast<double>(i / 2 % 128 % 7)));
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const auto half = static_cast<uint16_t>(bits >> 16);
    std::memcpy(memory.bytes.data() + i, &half, sizeof(half));
  }
}

// Half of the tokens for each head, by attention that falls where it falls.
std::shared_ptr<PublishPlan> HalfRetained(uint32_t heads) {
  SeededRandom random(2);
  std::vector<float> attention(size_t{heads} * kTokens);
  for (float& a : attention) a = static_cast<float>(random.Below(1000));
  const absl::StatusOr<std::vector<RetentionMask>> masks =
      PlanHeavyHitters({1, heads, kTokens, attention}, {.budget = RetentionBudget::Fraction(0.5)});
  auto plan = std::make_shared<PublishPlan>();
  plan->masks = *masks;
  plan->exact_sinks = 4;
  plan->exact_newest = 128;
  return plan;
}

TEST(ComposedCaseTest, FourSharersOfAPrefixStoreAFiftiethOfFourCaches) {
  constexpr uint32_t kHeads = 2;
  const KvLayout layout = KvLayout::Uniform(/*layer_count=*/1, kHeads, /*head_dim=*/128,
                                            DType::kBf16, kPageTokens, /*layers_per_part=*/1);
  NamespaceSpec spec = SpecOf(layout);
  spec.quality.bound = {QualityClass::kCoarse, QualityClass::kCoarse};
  spec.quality.retention = true;
  ClientWorld world(1);
  EngineMemory source(layout, kPages);
  FillNumbers(source);
  PublishOptions options;
  options.deadline = 600 * kSecond;
  options.plan = HalfRetained(kHeads);
  const uint64_t four_caches = kSharers * uint64_t{source.bytes.size()};
  for (uint32_t i = 0; i < kSharers; ++i) {
    ClientCoreOptions client_options;
    client_options.codec = "int2";
    auto client = world.NewClient("sharer", std::string(kDefaultTenant), client_options);
    FB_ASSERT_OK(client->Open(spec));
    const std::vector<PageKey> keys = PageKeysOf(client->root, Tokens(kTokens), kPageTokens);
    const auto published = client->Publish(keys, source.view, options);
    FB_ASSERT_OK(published);
    ASSERT_EQ(published->pages_stored, kPages) << published->first_error;
  }
  const NodeStatus status = world.node(0).Status();
  EXPECT_EQ(status.pages.pages, kPages);
  const double frames =
      static_cast<double>(four_caches) / static_cast<double>(status.pages.frame_bytes);
  const double slots = static_cast<double>(four_caches) / static_cast<double>(status.used_bytes);
  RecordProperty("times_less_in_frames", std::to_string(frames));
  RecordProperty("times_less_in_slots", std::to_string(slots));
  std::cout << "stored " << frames << " times less in frames, " << slots << " in slots\n";
  EXPECT_GE(frames, 51.2);
  EXPECT_GE(slots, 51.2);
}

}  // namespace
}  // namespace forebay
