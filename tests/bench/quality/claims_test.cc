#include "tests/bench/quality/claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace forebay::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A row of two texts, with errors in proportion to `damage`.
QualityRow Row(const std::string& name, uint64_t payload, double damage) {
  const auto text = [&](double factor) {
    SequenceQuality quality;
    const double d = damage * factor;
    for (int i = 0; i < 9; ++i) quality.steps.push_back({d, 1, 1 + d, i != 0});
    quality.layers.resize(1);
    LayerQuality& layer = quality.layers[0];
    const auto got = static_cast<float>(1 + d);
    for (RelativeError* e : {&layer.key, &layer.value, &layer.attention, &layer.attention_exact}) {
      e->Add(std::vector<float>{1}, {&got, 1});
    }
    quality.bytes.all = {payload, 100};
    quality.same_greedy_tokens = 64 - d;
    return quality;
  };
  QualityRow row = Summarize({text(1), text(2)}, 20);
  row.model = "m";
  row.name = name;
  row.needles = NeedleShares{1, 1, 1, 1, 1};
  return row;
}

std::vector<std::string> Failing(const std::vector<QualityRow>& rows) {
  std::vector<std::string> failing;
  for (const Claim& claim : CheckClaims(rows)) {
    if (!claim.holds()) failing.push_back(claim.what);
  }
  return failing;
}

Claim OfColumn(const std::vector<QualityRow>& rows, const std::string& column) {
  for (Claim& claim : CheckClaims(rows)) {
    if (claim.what.ends_with(": " + column)) return std::move(claim);
  }
  ADD_FAILURE() << "no claim of " << column;
  return {};
}

TEST(ClaimsTest, RowsThatAreAbsentClaimNothing) {
  EXPECT_THAT(CheckClaims({}), IsEmpty());
  EXPECT_THAT(CheckClaims({Row("kivi4", 60, 0.1)}), IsEmpty());
  QualityRow policy = Row("int8", 60, 1);
  policy.kept = 0.5;
  EXPECT_THAT(CheckClaims({policy}), IsEmpty());
}

TEST(ClaimsTest, BoundsOfSingleRows) {
  EXPECT_THAT(Failing({Row("lossless", 132, 0), Row("lossless_fast", 153, 0),
                       Row("int8", 100, 1e-3), Row("k8v4", 80, 3e-3), Row("int4", 60, 2e-2)}),
              IsEmpty());
  EXPECT_THAT(Failing({Row("lossless", 139, 1e-9), Row("lossless_fast", 155, 0),
                       Row("int8", 100, 3e-3), Row("k8v4", 80, 6e-3), Row("int4", 60, 4e-2)}),
              testing::ElementsAre("lossless: KL", "lossless: ratio", "lossless_fast: ratio",
                                   "int8: KL", "k8v4: KL", "int4: KL"));
}

TEST(ClaimsTest, LessDamageInFewerBitsHoldsInEveryColumn) {
  const std::vector<QualityRow> rows = {Row("kivi4", 62, 0.02), Row("uniform_4.5b", 56, 0.01)};
  EXPECT_EQ(CheckClaims(rows).size(), 12u);
  EXPECT_THAT(Failing(rows), IsEmpty());
  // Both are never off in the same direction by chance here: every text says the same.
  EXPECT_FALSE(OfColumn(rows, "KL").in_doubt());
  EXPECT_LT(OfColumn(rows, "KL").difference->high, 0);
  EXPECT_GT(OfColumn(rows, "same64").difference->low, 0);
}

TEST(ClaimsTest, MoreDamageFailsInEveryColumnThatShowsIt) {
  const std::vector<std::string> failing =
      Failing({Row("kivi2", 37, 0.01), Row("uniform_2.2b", 28, 0.02)});
  std::vector<std::string> due;
  for (const char* column :
       {"bits", "uniform_2.2b beside kivi2: K err", "uniform_2.2b beside kivi2: V err",
        "uniform_2.2b beside kivi2: attn1", "uniform_2.2b beside kivi2: attn",
        "uniform_2.2b beside kivi2: KL", "uniform_2.2b beside kivi2: KL p99",
        "uniform_2.2b beside kivi2: |PPL x - 1|", "uniform_2.2b beside kivi2: same64"}) {
    due.push_back(column == std::string("bits") ? "uniform_2.2b: bits" : column);
  }
  EXPECT_EQ(failing, due);  // as many tops and needles are right, which is no worse
}

TEST(ClaimsTest, KiviAcrossHeadsIsTheOneBesideWhereItIs) {
  EXPECT_THAT(OfColumn({Row("kivi4", 80, 0.005), Row("kivi4_across", 62, 0.02),
                        Row("uniform_4.5b", 56, 0.01)},
                       "KL")
                  .what,
              HasSubstr("kivi4_across"));
}

// A ratio below 1 is as far off as one above.
TEST(ClaimsTest, PerplexityCountsByItsDistanceFromOne) {
  QualityRow ours = Row("uniform_4.5b", 56, 0.01), theirs = Row("kivi4", 62, 0.02);
  ours.steps.ppl_ratio = 0.99;
  theirs.steps.ppl_ratio = 1.02;
  Claim claim = OfColumn({ours, theirs}, "|PPL x - 1|");
  EXPECT_NEAR(claim.ours, 0.01, 1e-12);
  EXPECT_TRUE(claim.holds());
  ours.steps.ppl_ratio = 0.97;
  claim = OfColumn({ours, theirs}, "|PPL x - 1|");
  EXPECT_FALSE(claim.holds());
}

TEST(ClaimsTest, TextsThatDisagreeLeaveADoubt) {
  QualityRow ours = Row("uniform_4.5b", 56, 0.01), theirs = Row("kivi4", 62, 0.02);
  ours.samples.kl = {0.1, 0.01, 0.02, 0.01};
  theirs.samples.kl = {0.01, 0.02, 0.05, 0.04};
  const Claim claim = OfColumn({ours, theirs}, "KL");
  EXPECT_TRUE(claim.in_doubt());
  EXPECT_THAT(ClaimLine(claim), HasSubstr("in doubt"));
}

TEST(ClaimsTest, LinesAndJsonSayTheVerdict) {
  Claim claim{"m", "a beside b: top-1", 0.5, 0.5, true, std::nullopt};
  EXPECT_THAT(ClaimLine(claim), AllOf(HasSubstr("holds"), HasSubstr("equal")));
  EXPECT_THAT(ToJson(claim),
              AllOf(HasSubstr("\"holds\": true"), HasSubstr("\"difference_interval\": null")));
  claim.ours = 0.25;
  EXPECT_THAT(ClaimLine(claim), AllOf(HasSubstr("FAILS"), Not(HasSubstr("equal"))));
  EXPECT_THAT(ToJson(claim), HasSubstr("\"holds\": false"));
}

}  // namespace
}  // namespace forebay::bench
