#include "tests/bench/quality/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace forebay::bench {
namespace {

TEST(CompareLogitsTest, EqualLogitsDifferByExactlyNothing) {
  SeededRandom random(1);
  std::vector<float> logits(300);
  for (float& logit : logits) logit = static_cast<float>(random.Below(4000)) / 100 - 20;
  const StepQuality step = CompareLogits(logits, logits, 7);
  EXPECT_EQ(step.kl, 0);
  EXPECT_EQ(step.nll, step.nll_reference);
  EXPECT_TRUE(step.same_top);
}

// p = (1/2, 1/2), q = (3/4, 1/4).
TEST(CompareLogitsTest, ByHand) {
  const StepQuality step =
      CompareLogits(std::vector<float>{5, 5}, std::vector<float>{std::log(3.0f), 0}, 1);
  EXPECT_NEAR(step.kl, 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25), 1e-6);
  EXPECT_NEAR(step.nll_reference, std::log(2), 1e-6);
  EXPECT_NEAR(step.nll, std::log(4), 1e-6);
  EXPECT_TRUE(step.same_top);  // the first of equals
}

TEST(CompareLogitsTest, AnotherTopShows) {
  const std::vector<float> p = {1, 2, 3}, q = {1, 3, 2};
  const StepQuality step = CompareLogits(p, q, 0);
  EXPECT_FALSE(step.same_top);
  EXPECT_GT(step.kl, 0);
  // A constant on all logits changes nothing.
  EXPECT_NEAR(CompareLogits(p, std::vector<float>{101, 103, 102}, 0).kl, step.kl, 1e-9);
}

TEST(CompareLogitsTest, LargeLogitsDoNotOverflow) {
  const StepQuality step =
      CompareLogits(std::vector<float>{3e4f, 0}, std::vector<float>{0, 3e4f}, 0);
  EXPECT_NEAR(step.kl, 3e4, 1);
  EXPECT_NEAR(step.nll, 3e4, 1);
}

TEST(RelativeErrorTest, IsARatioOfNorms) {
  RelativeError error;
  EXPECT_EQ(error.value(), 0);
  error.Add(std::vector<float>{3, 4}, std::vector<float>{3, 4.5f});
  EXPECT_NEAR(error.value(), 0.1, 1e-9);
  RelativeError other;
  other.Add(std::vector<float>{0, 5}, std::vector<float>{0.5f, 5});
  error.Add(other);
  EXPECT_NEAR(error.value(), std::sqrt(0.5 / 50), 1e-9);
}

TEST(BootstrapTest, HoldsTheMeanAndNarrowsWithMoreValues) {
  const auto width = [](size_t count) {
    std::vector<double> values(count);
    SeededRandom random(count);
    for (double& value : values) value = static_cast<double>(random.Below(1000));
    const Interval interval = BootstrapMean(values);
    EXPECT_LE(interval.low, Mean(values));
    EXPECT_GE(interval.high, Mean(values));
    return interval.high - interval.low;
  };
  EXPECT_LT(width(400), width(20) / 2);
}

TEST(BootstrapTest, OneValueOrEqualOnesLeaveNoDoubt) {
  for (const std::vector<double>& values : {std::vector<double>{2}, {2, 2, 2}}) {
    EXPECT_EQ(BootstrapMean(values).low, 2);
    EXPECT_EQ(BootstrapMean(values).high, 2);
  }
  EXPECT_EQ(BootstrapMean({}).high, 0);
}

// Two rows that go up and down together differ by far less than either varies.
TEST(BootstrapTest, DifferencesAreByPairs) {
  const std::vector<double> a = {1, 5, 9, 13}, b = {1.1, 5.2, 9.1, 13.2};
  const auto same = [](double x) { return x; };
  const Interval interval = BootstrapDifference(a, b, same);
  EXPECT_GE(interval.low, -0.2 - 1e-9);
  EXPECT_LE(interval.high, -0.1 + 1e-9);
  const Interval squares = BootstrapDifference(a, a, [](double x) { return x * x; });
  EXPECT_EQ(squares.low, 0);
  EXPECT_EQ(squares.high, 0);
  EXPECT_EQ(BootstrapDifference({}, {}, same).high, 0);
}

// A uniform variable's mean of n has the deviation 0.2887 / sqrt(n): 95% lie within 1.96 of these.
TEST(BootstrapTest, HasTheWidthOfTheNormalInterval) {
  std::vector<double> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) / 1000;
  const Interval interval = BootstrapMean(values);
  EXPECT_NEAR(interval.high - interval.low, 2 * 1.96 * 0.2887 / std::sqrt(1000), 0.003);
}

}  // namespace
}  // namespace forebay::bench
