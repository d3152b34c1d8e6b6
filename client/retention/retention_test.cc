#include "client/retention/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/random.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint32_t> Kept(const RetentionMask& mask, uint32_t scope) {
  std::vector<uint32_t> kept;
  for (uint32_t token = 0; token < mask.tokens; ++token) {
    if (mask.Keeps(scope, token)) kept.push_back(token);
  }
  EXPECT_EQ(kept.size(), mask.Kept(scope));
  return kept;
}

TEST(RetentionBudgetTest, ACountOrAFractionToTheNearest) {
  EXPECT_EQ(*RetentionBudget::Count(7).Of(7), 7u);
  EXPECT_EQ(*RetentionBudget::Fraction(0.5).Of(7), 4u);
  EXPECT_EQ(*RetentionBudget::Fraction(0.25).Of(5), 1u);
  EXPECT_EQ(*RetentionBudget::Fraction(0).Of(5), 0u);
  EXPECT_EQ(*RetentionBudget::Fraction(1).Of(5), 5u);
}

TEST(RetentionBudgetTest, RefusesWhatIsNoneAtAll) {
  EXPECT_THAT(RetentionBudget::Count(8).Of(7),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("8 tokens")));
  for (const double fraction : {-1.0, -0.01, 1.01, std::nan("")}) {
    EXPECT_THAT(RetentionBudget::Fraction(fraction).Of(7),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("fraction")));
  }
}

TEST(StreamingTest, KeepsSinksAndTheNewest) {
  const auto mask = PlanStreaming(10, {RetentionBudget::Count(5), /*sinks=*/2});
  FB_ASSERT_OK(mask);
  EXPECT_EQ(mask->scopes, 1u);
  EXPECT_THAT(Kept(*mask, 0), ElementsAre(0, 1, 7, 8, 9));
}

TEST(StreamingTest, ABudgetOfAllKeepsAllHoweverShortThePrompt) {
  for (const uint32_t tokens : {0u, 1u, 3u, 64u, 65u}) {
    const auto mask = PlanStreaming(tokens, {RetentionBudget::Fraction(1), /*sinks=*/4});
    FB_ASSERT_OK(mask);
    EXPECT_EQ(*mask, RetentionMask::KeepAll(tokens, 1));
  }
}

TEST(StreamingTest, RefusesABudgetBelowTheSinks) {
  EXPECT_THAT(PlanStreaming(10, {RetentionBudget::Count(3), /*sinks=*/4}),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("4 sinks")));
}

// One layer, two heads.
constexpr float kTwoHeads[] = {
    9, 0, 5, 1, 5, 5, 0, 0,  //
    0, 1, 2, 3, 4, 5, 6, 7,
};
const AttentionMass kMass{1, 2, 8, kTwoHeads};

TEST(HeavyHittersTest, EachHeadKeepsItsOwnTiesToTheLowerIndex) {
  // 5 tokens: sink 0, of the other 4 the newest 2 (6, 7), and the two largest of 1 to 5.
  const auto masks = PlanHeavyHitters(kMass, {RetentionBudget::Count(5), /*sinks=*/1,
                                              /*recent_share=*/0.5, RetentionScope::kEachHead});
  FB_ASSERT_OK(masks);
  ASSERT_EQ(masks->size(), 1u);
  EXPECT_THAT(Kept((*masks)[0], 0), ElementsAre(0, 2, 4, 6, 7));
  EXPECT_THAT(Kept((*masks)[0], 1), ElementsAre(0, 4, 5, 6, 7));
}

TEST(HeavyHittersTest, AllHeadsRankByTheSum) {
  // Sums of 1 to 5: 1, 7, 4, 9, 10.
  const auto masks = PlanHeavyHitters(kMass, {RetentionBudget::Count(6), /*sinks=*/1,
                                              /*recent_share=*/0.4, RetentionScope::kAllHeads});
  FB_ASSERT_OK(masks);
  EXPECT_EQ((*masks)[0].scopes, 1u);
  EXPECT_THAT(Kept((*masks)[0], 0), ElementsAre(0, 2, 4, 5, 6, 7));
}

TEST(HeavyHittersTest, RefusesWhatIsNoAttention) {
  const HeavyHitterOptions options;
  EXPECT_THAT(PlanHeavyHitters({1, 2, 7, kTwoHeads}, options),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("16 values")));
  EXPECT_THAT(PlanHeavyHitters({1, 0, 8, {}}, options),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("0 values")));
  for (const float bad : {-1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(2 * 3 * 4, 1.0f);
    values[(1 * 3 + 2) * 4 + 1] = bad;
    EXPECT_THAT(
        PlanHeavyHitters({2, 3, 4, values}, options),
        HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("of layer 1, head 2, token 1")));
  }
  HeavyHitterOptions share;
  share.recent_share = 1.5;
  EXPECT_THAT(PlanHeavyHitters(kMass, share),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("recent share")));
}

// One head whose window is its last two tokens; token 4 stands out.
constexpr float kPeak[] = {0, 0, 1, 0, 9, 0, 0, 2, 100, 100};
const AttentionMass kPeakMass{1, 1, 10, kPeak};

ObservationOptions Observation(uint32_t kept, uint32_t kernel, MassPooling pooling) {
  return {RetentionBudget::Count(kept), /*sinks=*/0, /*window_tokens=*/2, kernel, pooling,
          RetentionScope::kEachHead};
}

TEST(ObservationWindowTest, PoolingKeepsTheNeighboursOfAPeak) {
  const auto masks = PlanObservationWindow(kPeakMass, Observation(5, 3, MassPooling::kMax));
  FB_ASSERT_OK(masks);
  EXPECT_THAT(Kept((*masks)[0], 0), ElementsAre(3, 4, 5, 8, 9));
}

TEST(ObservationWindowTest, WithoutAKernelTokensRankAlone) {
  const auto masks = PlanObservationWindow(kPeakMass, Observation(5, 1, MassPooling::kMax));
  FB_ASSERT_OK(masks);
  EXPECT_THAT(Kept((*masks)[0], 0), ElementsAre(2, 4, 7, 8, 9));
}

TEST(ObservationWindowTest, AnAverageCountsWhatIsPastTheEndsAsNothing) {
  // Averages over 5 of tokens 0 to 7, times 5: 1, 1, 10, 10, 10, 11, 11, 2. The window is no part.
  const auto masks = PlanObservationWindow(kPeakMass, Observation(4, 5, MassPooling::kAverage));
  FB_ASSERT_OK(masks);
  EXPECT_THAT(Kept((*masks)[0], 0), ElementsAre(5, 6, 8, 9));
}

TEST(ObservationWindowTest, RefusesAnEvenKernelAndABudgetBelowTheWindow) {
  EXPECT_THAT(PlanObservationWindow(kPeakMass, Observation(5, 4, MassPooling::kMax)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("odd")));
  EXPECT_THAT(PlanObservationWindow(kPeakMass, Observation(1, 3, MassPooling::kMax)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("newest 2")));
}

struct Case {
  std::string policy;
  uint32_t recent = 0;
  absl::StatusOr<std::vector<RetentionMask>> masks;
};

// By every planner, of `kept` tokens, with as many sinks and newest tokens as fit.
std::vector<Case> PlanAll(const AttentionMass& mass, uint32_t kept, RetentionScope scope) {
  const uint32_t sinks = std::min(kept, 3u), window = std::min(kept - sinks, 5u);
  const RetentionBudget budget = RetentionBudget::Count(kept);
  std::vector<Case> cases;
  cases.push_back({"h2o", (kept - sinks) / 2, PlanHeavyHitters(mass, {budget, sinks, 0.5, scope})});
  for (const MassPooling pooling : {MassPooling::kMax, MassPooling::kAverage}) {
    cases.push_back({"snapkv", window,
                     PlanObservationWindow(mass, {budget, sinks, window, 7, pooling, scope})});
  }
  const auto mask = PlanStreaming(mass.tokens, {budget, sinks});
  FB_EXPECT_OK(mask);
  cases.push_back({"streaming", kept - sinks, std::vector<RetentionMask>(mass.layers, *mask)});
  return cases;
}

// Masses of few different values, so that ties abound.
TEST(RetentionPropertyTest, ExactlyTheBudgetWithSinksAndNewestIn) {
  SeededRandom random(3);
  for (int round = 0; round < 300; ++round) {
    const auto tokens = static_cast<uint32_t>(random.Below(150));
    const auto kept = static_cast<uint32_t>(random.Below(tokens + 1));
    std::vector<float> values(size_t{2} * 3 * tokens);
    for (float& value : values) value = static_cast<float>(random.Below(4));
    const AttentionMass mass{2, 3, tokens, values};
    for (const RetentionScope scope : {RetentionScope::kEachHead, RetentionScope::kAllHeads}) {
      for (const Case& c : PlanAll(mass, kept, scope)) {
        FB_ASSERT_OK(c.masks) << c.policy;
        for (const RetentionMask& mask : *c.masks) {
          ASSERT_EQ(mask.tokens, tokens);
          for (uint32_t s = 0; s < mask.scopes; ++s) {
            ASSERT_EQ(mask.Kept(s), kept) << c.policy;
            for (uint32_t t = 0; t < std::min(kept, 3u); ++t) EXPECT_TRUE(mask.Keeps(s, t));
            for (uint32_t t = tokens - c.recent; t < tokens; ++t) EXPECT_TRUE(mask.Keeps(s, t));
          }
        }
      }
    }
  }
}

// Whatever H2O drops got no more attention than what it chose.
TEST(RetentionPropertyTest, HeavyHittersAreTheHeaviest) {
  SeededRandom random(4);
  for (int round = 0; round < 100; ++round) {
    std::vector<float> values(100);
    for (float& value : values) value = static_cast<float>(random.Below(50));
    const auto masks =
        PlanHeavyHitters({1, 1, 100, values}, {RetentionBudget::Count(40), /*sinks=*/4,
                                               /*recent_share=*/0.5, RetentionScope::kEachHead});
    FB_ASSERT_OK(masks);
    const RetentionMask& mask = (*masks)[0];
    for (uint32_t in = 4; in < 82; ++in) {
      for (uint32_t out = 4; out < 82; ++out) {
        if (!mask.Keeps(0, in) || mask.Keeps(0, out)) continue;
        EXPECT_TRUE(values[in] > values[out] || (values[in] == values[out] && in < out));
      }
    }
  }
}

// What a planner says follows from its input alone.
TEST(RetentionPropertyTest, TheSameInputGivesTheSameMasks) {
  std::vector<float> values(64, 1.0f);
  const AttentionMass mass{1, 1, 64, values};
  EXPECT_EQ(*PlanHeavyHitters(mass, {}), *PlanHeavyHitters(mass, {}));
  EXPECT_EQ(*PlanObservationWindow(mass, {RetentionBudget::Count(40)}),
            *PlanObservationWindow(mass, {RetentionBudget::Count(40)}));
}

}  // namespace
}  // namespace forebay
