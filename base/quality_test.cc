#include "base/quality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

constexpr QualityClass kClasses[] = {QualityClass::kExact, QualityClass::kNear, QualityClass::kFair,
                                     QualityClass::kCoarse};

TEST(QualityTest, ABoundAllowsWhatIsNoWorseInEach) {
  const QualityBound near_fair{QualityClass::kNear, QualityClass::kFair};
  EXPECT_TRUE(near_fair.Allows({}));
  EXPECT_TRUE(near_fair.Allows(near_fair));
  EXPECT_FALSE(near_fair.Allows({QualityClass::kFair, QualityClass::kNear}));
  EXPECT_FALSE(QualityBound{}.Allows({QualityClass::kExact, QualityClass::kNear}));
  EXPECT_EQ(Strictest(near_fair, {QualityClass::kCoarse, QualityClass::kExact}),
            (QualityBound{QualityClass::kNear, QualityClass::kExact}));
  EXPECT_EQ(Weakest(near_fair, {QualityClass::kCoarse, QualityClass::kExact}),
            (QualityBound{QualityClass::kCoarse, QualityClass::kFair}));
}

TEST(QualityTest, APartSpansTheBoundsOfItsLayers) {
  QualityContract contract;
  contract.bound = {QualityClass::kFair, QualityClass::kFair};
  contract.layers = {{0, 2, {}}, {7, 1, {QualityClass::kNear, QualityClass::kCoarse}}};
  FB_EXPECT_OK(contract.Validate(8));
  EXPECT_TRUE(contract.At(1).exact());
  EXPECT_EQ(contract.At(2), contract.bound);
  EXPECT_EQ(contract.At(7), contract.layers[1].bound);
  PartSpec part;
  part.layer_begin = 1;
  part.layer_count = 2;
  EXPECT_TRUE(contract.StrictestOf(part).exact());
  EXPECT_EQ(contract.WeakestOf(part), contract.bound);
}

TEST(QualityTest, TheHeadersWordComesBackAndIsOneForEachBound) {
  std::set<uint16_t> words;
  for (QualityClass k : kClasses) {
    for (QualityClass v : kClasses) {
      const uint16_t word = PackQuality({k, v});
      EXPECT_TRUE(words.insert(word).second);
      const absl::StatusOr<QualityBound> back = UnpackQuality(word);
      FB_ASSERT_OK(back);
      EXPECT_EQ(*back, (QualityBound{k, v}));
    }
  }
  EXPECT_EQ(PackQuality({QualityClass::kNear, QualityClass::kFair}), 0x0302);
  for (uint32_t word = 0; word <= UINT16_MAX; ++word) {
    EXPECT_EQ(UnpackQuality(static_cast<uint16_t>(word)).ok(),
              words.contains(static_cast<uint16_t>(word)));
  }
}

TEST(QualityTest, TextComesBack) {
  for (const char* text : {"exact", "near", "near/fair", "coarse, retention",
                           "fair, layers 0-1 exact, layers 7-7 near/coarse, retention"}) {
    const absl::StatusOr<QualityContract> contract = QualityContract::Parse(text);
    FB_ASSERT_OK(contract);
    EXPECT_EQ(contract->ToString(), text);
  }
  const absl::StatusOr<QualityContract> one = QualityContract::Parse("fair,layers 3 exact");
  FB_ASSERT_OK(one);
  EXPECT_EQ(one->ToString(), "fair, layers 3-3 exact");
}

TEST(QualityTest, BadTextIsRefusedByWhatIsWrong) {
  const struct {
    const char* text;
    const char* why;
  } kCases[] = {
      {"", "quality class \"\""},
      {"good", "quality class \"good\""},
      {"near/", "quality class \"\""},
      {"near, drop", "\"drop\""},
      {"near, layers", "want \"layers"},
      {"near, layers 3-1 fair", "want \"layers"},
      {"near, layers 0-70000 fair", "want \"layers"},
      {"near, layers 0-1 fine", "quality class \"fine\""},
      {"near, layers 2-3 fair, layers 3-4 fair", "ascending"},
  };
  for (const auto& bad : kCases) {
    EXPECT_THAT(QualityContract::Parse(bad.text).status(),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr(bad.why)))
        << bad.text;
  }
}

TEST(QualityTest, AContractForMoreLayersThanThereAreIsRefused) {
  QualityContract contract;
  contract.layers = {{3, 2, {}}};
  EXPECT_THAT(contract.Validate(4),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("within 4 layers")));
}

}  // namespace
}  // namespace forebay
