#include "client/read_rule.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"

namespace forebay {
namespace {

constexpr LayerClass kClasses[] = {LayerClass::kFull, LayerClass::kSlidingWindow,
                                   LayerClass::kState};

// Layers of the given classes; sliding ones with a window of `window_tokens`.
KvLayout LayoutOf(const std::vector<LayerClass>& classes, uint32_t window_tokens,
                  uint32_t page_tokens = 16) {
  KvLayout layout =
      KvLayout::Uniform(static_cast<uint32_t>(classes.size()), 2, 8, DType::kBf16, page_tokens, 1);
  for (size_t i = 0; i < classes.size(); ++i) {
    layout.layers[i].layer_class = classes[i];
    if (classes[i] == LayerClass::kSlidingWindow) layout.layers[i].window_tokens = window_tokens;
  }
  return layout;
}

TEST(ReadRuleTest, AWindowNeedsThePagesThatHoldItsLastTokens) {
  for (const auto& [tokens, pages] :
       std::vector<std::pair<uint32_t, uint32_t>>{{1, 1}, {16, 1}, {17, 2}, {32, 2}, {33, 3}}) {
    const ReadRule rule(LayoutOf({LayerClass::kSlidingWindow}, tokens));
    uint32_t needed = 0;
    for (uint32_t page = 0; page < 10; ++page) {
      needed += rule.Needs(LayerClass::kSlidingWindow, page, 10);
    }
    EXPECT_EQ(needed, pages) << tokens;
    EXPECT_TRUE(rule.Needs(LayerClass::kSlidingWindow, 9, 10));
  }
}

TEST(ReadRuleTest, TheWidestWindowCounts) {
  KvLayout layout = LayoutOf({LayerClass::kSlidingWindow, LayerClass::kSlidingWindow}, 16);
  layout.layers[0].window_tokens = 40;
  const ReadRule rule(layout);
  EXPECT_TRUE(rule.Needs(LayerClass::kSlidingWindow, 7, 10));
  EXPECT_FALSE(rule.Needs(LayerClass::kSlidingWindow, 6, 10));
}

TEST(ReadRuleTest, AWindowWithoutLimitNeedsEveryPage) {
  for (const uint32_t page_tokens : {1u, 16u, 256u}) {
    for (const uint32_t back : {0u, 1u, 15u}) {
      const ReadRule rule(LayoutOf({LayerClass::kSlidingWindow},
                                   std::numeric_limits<uint32_t>::max() - back, page_tokens));
      for (const uint32_t page : {0u, 1u, 999u}) {
        EXPECT_TRUE(rule.Needs(LayerClass::kSlidingWindow, page, 1000)) << page_tokens;
      }
      EXPECT_EQ(rule.UsablePages(std::vector<ClassMask>(5, ClassBit(LayerClass::kSlidingWindow))),
                5u);
      const ClassMask whole = ClassBit(LayerClass::kSlidingWindow);
      EXPECT_EQ(rule.UsablePages({0, whole, whole}), 0u);
    }
  }
}

// What lookup calls usable must be just what fetch will ask for: the largest n of which nothing
// that is needed lacks, each n tried for itself.
TEST(ReadRuleTest, UsableIsWhatNothingNeededLacks) {
  SeededRandom random(11);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<LayerClass> classes(1 + random.Below(4));
    for (LayerClass& c : classes) c = kClasses[random.Below(3)];
    const KvLayout layout = LayoutOf(classes, static_cast<uint32_t>(1 + random.Below(80)));
    const ReadRule rule(layout);
    std::vector<ClassMask> complete(random.Below(20));
    for (ClassMask& mask : complete) {
      mask = layout.Classes();
      for (const LayerClass c : kClasses) {
        if (random.Chance(0.15)) mask &= static_cast<ClassMask>(~ClassBit(c));
      }
    }
    const auto lacks = [&](uint32_t n) {
      for (uint32_t page = 0; page < n; ++page) {
        for (const LayerClass c : classes) {
          if (rule.Needs(c, page, n) && (complete[page] & ClassBit(c)) == 0) return true;
        }
      }
      return false;
    };
    auto longest = static_cast<uint32_t>(complete.size());
    while (longest > 0 && lacks(longest)) --longest;
    ASSERT_EQ(rule.UsablePages(complete), longest) << "round " << round;
  }
}

}  // namespace
}  // namespace forebay
