#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/testing/status_matchers.h"
#include "codec/composition.h"
#include "codec/testing/parts.h"

namespace forebay {
namespace {

using ::forebay::testing::CacheBytes;
using ::forebay::testing::Encode;
using ::forebay::testing::EncodedFrame;

const Codec& Named(const char* name) { return **CodecRegistry::Default().FindByName(name); }

// What the composition costs beside the planes: with half of the tokens kept, at most 0.03 bits for
// an element that is kept; 0.05 where each head keeps another number, which makes each a plane.
TEST(CompositionSizeTest, AMaskCostsAFewHundredthsOfABit) {
  const PlanesCodec codec("test", {PlaneKind::kInt2, GroupAxis::kColumn, 64, ScaleFormat::kBf16},
                          {PlaneKind::kInt2, GroupAxis::kRow, 64, ScaleFormat::kBf16});
  for (const uint16_t layers : {uint16_t{1}, uint16_t{2}, uint16_t{4}}) {
    const KvLayout layout =
        KvLayout::Uniform(layers, /*kv_heads=*/8, /*head_dim=*/128, DType::kBf16, 64, layers);
    const PartSpec part = layout.Parts()[0];
    const std::vector<std::byte> raw = CacheBytes(part, 7);
    for (const auto scope : {PlanScope::kLayer, PlanScope::kHead}) {
      for (const bool equal_counts : {true, false}) {
        PartPlan plan;
        plan.class_scope = scope;
        SeededRandom random(8);
        size_t streams = 0;  // bytes of codes, scales and zeros, with nothing between
        size_t kept = 0;
        for (size_t list = 0; list < ListCount(scope, part); ++list) {
          const uint32_t count = 32 + (equal_counts ? 0u : static_cast<uint32_t>(list % 5) - 2u);
          std::vector<TokenClass> classes(64, TokenClass::kDropped);
          for (uint32_t left = count; left > 0;) {
            TokenClass& c = classes[random.Below(64)];
            left -= c == TokenClass::kDropped ? 1 : 0;
            c = TokenClass::kCoded;
          }
          plan.classes.insert(plan.classes.end(), classes.begin(), classes.end());
          const size_t heads = scope == PlanScope::kHead ? 1 : 8;
          kept += heads * count;
          streams += heads * ((count + 3) / 4 * 128 + 128 * 4 + size_t{count} * (128 / 4 + 8));
        }
        const EncodedFrame frame = Encode(codec, layout, part, plan, raw);
        FB_ASSERT_OK(frame.status);
        const double overhead = 8.0 * static_cast<double>(frame.payload.size() - streams) /
                                static_cast<double>(kept * 256);
        RecordProperty(
            absl::StrCat("overhead_", layers, "_", static_cast<int>(scope), "_", equal_counts),
            absl::StrCat(overhead));
        EXPECT_LE(overhead, equal_counts ? 0.03 : 0.05)
            << layers << " layers, scope " << static_cast<int>(scope);
      }
    }
  }
}

// Half of the tokens in two bits, with all that a page, a mask and scales cost: 2.50 bits.
TEST(CompositionSizeTest, HalfOfTheTokensInTwoBitsKeepTheRatio) {
  const Codec& int2 = Named("int2");
  for (const uint16_t layers : {uint16_t{1}, uint16_t{4}}) {
    const KvLayout layout = KvLayout::Uniform(layers, 8, 128, DType::kBf16, 64, layers);
    const PartSpec part = layout.Parts()[0];
    const std::vector<std::byte> raw = CacheBytes(part, 15);
    for (const auto scope : {PlanScope::kLayer, PlanScope::kHead}) {
      PartPlan plan;
      plan.class_scope = scope;
      plan.classes.assign(ListCount(scope, part) * 64, TokenClass::kDropped);
      for (size_t i = 0; i < plan.classes.size(); i += 64) {
        for (size_t token = 0; token < 32; ++token) {
          plan.classes[i + (token * 37 + i / 64) % 64] = TokenClass::kCoded;
        }
      }
      const EncodedFrame frame = Encode(int2, layout, part, plan, raw);
      const double ratio =
          static_cast<double>(raw.size()) / static_cast<double>(frame.payload.size());
      EXPECT_GE(ratio, 12.8);
    }
  }
}

}  // namespace
}  // namespace forebay
