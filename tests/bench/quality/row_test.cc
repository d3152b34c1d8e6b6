#include "tests/bench/quality/row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace forebay::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Of 20 tokens the steps of the last 10 but one: 9 of them from position 10 on.
SequenceQuality Text(double kl, double nll_more, std::optional<double> same_greedy) {
  SequenceQuality text;
  for (int i = 0; i < 9; ++i) text.steps.push_back({kl, 1.0, 1.0 + nll_more, i != 0});
  text.layers.resize(2);
  text.layers[1].key.Add(std::vector<float>{1}, std::vector<float>{1.5f});
  text.bytes.all = {100, 200};
  text.same_greedy_tokens = same_greedy;
  return text;
}

TEST(SummarizeTest, MeansOverTextsLayersAndPositions) {
  const QualityRow row = Summarize({Text(0.1, 0.2, 10), Text(0.3, 0.4, 64)}, 20);
  EXPECT_EQ(row.steps.count, 18u);
  EXPECT_NEAR(row.steps.kl, 0.2, 1e-12);
  EXPECT_NEAR(row.steps.top1, 8.0 / 9, 1e-12);
  EXPECT_NEAR(row.steps.ppl_ratio, std::exp(0.3), 1e-12);
  EXPECT_NEAR(row.ppl, std::exp(1), 1e-12);
  EXPECT_NEAR(row.kl_p99, 0.3, 1e-12);
  EXPECT_NEAR(row.kl_interval.low, 0.1, 1e-12);
  EXPECT_NEAR(row.kl_interval.high, 0.3, 1e-12);
  EXPECT_NEAR(row.ppl_interval.high, std::exp(0.4), 1e-12);
  EXPECT_EQ(row.same_greedy_tokens, 37);
  EXPECT_EQ(row.bytes.all.bits(), 4);
  EXPECT_EQ(row.layers[0].key.value(), 0);
  EXPECT_EQ(row.layers[1].key.value(), 0.5);
  EXPECT_EQ(row.all_layers.key.value(), 0.5);
}

TEST(SummarizeTest, TextsOfStepsAloneCountWhereTheyHaveFigures) {
  const QualityRow row = Summarize({Text(0.1, 0.2, 10), Text(0.3, 0.4, std::nullopt)}, 20);
  EXPECT_NEAR(row.steps.kl, 0.2, 1e-12);
  EXPECT_EQ(row.same_greedy_tokens, 10);
}

// Position 10 of 20 begins the sixth tenth; the step of position 10 is the one that differs in top.
TEST(SummarizeTest, DecilesArePositionsInTheText) {
  const QualityRow row = Summarize({Text(0.1, 0, 0)}, 20);
  for (size_t decile = 0; decile < 10; ++decile) {
    EXPECT_EQ(row.deciles[decile].count, decile < 5 ? 0u : decile == 9 ? 1u : 2u) << decile;
  }
  EXPECT_EQ(row.deciles[5].top1, 0.5);
  EXPECT_EQ(row.deciles[6].top1, 1);
}

TEST(RowTest, JsonSaysWhatTheTableSays) {
  QualityRow row = Summarize({Text(0.125, 0, 64)}, 20);
  row.model = "m";
  row.name = "c";
  row.needles = NeedleShares{1, 0.5, 0, 0, 0};
  EXPECT_THAT(
      ToJson(row),
      AllOf(HasSubstr("\"codec\": \"c\""), HasSubstr("\"kl\": 0.125"), HasSubstr("\"bits\": 4"),
            HasSubstr("\"needles\": [1, 0.5, 0, 0, 0]"),
            HasSubstr("\"needles_question_seen\": null"), HasSubstr("\"same_greedy_tokens\": 64")));
  EXPECT_THAT(CodecTableLine(row), AllOf(HasSubstr("0.125"), HasSubstr("100  50   0   0   0")));
  row.kept = 0.25;
  EXPECT_THAT(ToJson(row), AllOf(HasSubstr("\"policy\": \"c\""), HasSubstr("\"kept\": 0.25"),
                                 HasSubstr("\"same_greedy_tokens\": null")));
  EXPECT_THAT(RetentionTableLine(row), HasSubstr("25.0%"));
}

}  // namespace
}  // namespace forebay::bench
