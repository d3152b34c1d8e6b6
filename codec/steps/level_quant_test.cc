#include "codec/steps/level_quant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace forebay {
namespace {

double NormalDensity(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }
double NormalUpTo(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// Each level is the mean of what takes it: that is what makes levels those of Lloyd and Max.
template <int kBits>
void ExpectMeansOfTheirCells(double error) {
  constexpr LevelTable<kBits> kTable = LloydMaxLevels<kBits>();
  double sum_of_squares = 0;
  for (int m = 0; m < kTable.kCount; ++m) {
    const double low = m == 0 ? 0 : kTable.threshold(m - 1);
    const double high = m + 1 == kTable.kCount ? 40 : kTable.threshold(m);
    const double weight = NormalUpTo(high) - NormalUpTo(low);
    const double mean = (NormalDensity(low) - NormalDensity(high)) / weight;
    EXPECT_NEAR(kTable.level[m], mean, 2e-5) << kBits << " bits, level " << m;
    sum_of_squares += 2 * weight * mean * mean;
  }
  EXPECT_NEAR(1 - sum_of_squares, error, 5e-4);
}

TEST(LevelQuantTest, LevelsAreTheMeansOfTheirCells) {
  ExpectMeansOfTheirCells<2>(0.1175);
  ExpectMeansOfTheirCells<3>(0.0345);
  ExpectMeansOfTheirCells<4>(0.0095);
}

template <int kBits>
void ExpectTheNearestLevel() {
  constexpr LevelTable<kBits> kTable = LloydMaxLevels<kBits>();
  SeededRandom random(1);
  for (int round = 0; round < 20'000; ++round) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random.Below(60)) - 30);
    const float x = scale * (static_cast<float>(random.Below(1 << 16)) / (1 << 13) - 4);
    const uint8_t code = LevelCode<kBits>(x, InverseOfScale(scale), kTable);
    ASSERT_LT(code, 1 << kBits);
    const float error = std::fabs(x - LevelValue<kBits>(code, scale, kTable));
    for (int other = 0; other < 1 << kBits; ++other) {
      const float value = LevelValue<kBits>(static_cast<uint8_t>(other), scale, kTable);
      ASSERT_LE(error, std::fabs(x - value) + 1e-6f * scale);
    }
  }
  // Values ascend with the codes.
  for (int code = 1; code < 1 << kBits; ++code) {
    EXPECT_LT(LevelValue<kBits>(static_cast<uint8_t>(code - 1), 1, kTable),
              LevelValue<kBits>(static_cast<uint8_t>(code), 1, kTable));
  }
  EXPECT_EQ(LevelCode<kBits>(-0.0f, 1, kTable), kTable.kCount);
  EXPECT_EQ(LevelCode<kBits>(0.0f, 1, kTable), kTable.kCount);
  EXPECT_EQ(LevelCode<kBits>(1e30f, 1, kTable), (1 << kBits) - 1);
  EXPECT_EQ(LevelCode<kBits>(-1e30f, 1, kTable), 0);
}

TEST(LevelQuantTest, CodesAreTheNearestLevels) {
  ExpectTheNearestLevel<2>();
  ExpectTheNearestLevel<3>();
  ExpectTheNearestLevel<4>();
}

TEST(LevelQuantTest, TheScaleIsTheRootOfTheMeanSquare) {
  for (const float unit : {1.0f, 0x1p-126f, 0x1p-70f, 0x1p70f, 0x1p120f}) {
    std::vector<float> x;
    for (int i = 0; i < 37; ++i) x.push_back(i % 2 == 0 ? 3 * unit : -4 * unit);
    std::vector<uint8_t> codes(x.size());
    const float scale = EncodeLevelGroup<4>(x.data(), x.size(), LloydMaxLevels<4>(),
                                            ScaleFormat::kFp32, codes.data());
    EXPECT_FLOAT_EQ(scale / unit, std::sqrt((19 * 9 + 18 * 16) / 37.0f));
  }
  const std::vector<float> zeros(20, 0.0f);
  std::vector<uint8_t> codes(20);
  EXPECT_EQ(
      EncodeLevelGroup<2>(zeros.data(), 20, LloydMaxLevels<2>(), ScaleFormat::kBf16, codes.data()),
      0.0f);
  EXPECT_EQ(LevelValue<2>(codes[0], 0.0f, LloydMaxLevels<2>()), 0.0f);
}

template <int kBits>
void ExpectEightComeBack() {
  SeededRandom random(2);
  constexpr uint64_t kMask = (1u << kBits) - 1;
  for (int round = 0; round < 1000; ++round) {
    const uint64_t codes = random.Next() & kMask * 0x0101'0101'0101'0101u;
    const uint64_t packed = PackedEight<kBits>(codes);
    for (int i = 0; i < 8; ++i) {
      ASSERT_EQ(packed >> i * kBits & kMask, codes >> 8 * i & 0xff);
    }
    if (kBits < 8) {
      ASSERT_EQ(packed >> (8 * kBits & 63), 0u);
    }
    ASSERT_EQ(EightCodes<kBits>(packed), codes);
  }
}

TEST(LevelQuantTest, EightCodesComeBack) {
  ExpectEightComeBack<2>();
  ExpectEightComeBack<3>();
  ExpectEightComeBack<4>();
  ExpectEightComeBack<6>();
  ExpectEightComeBack<8>();
}

}  // namespace
}  // namespace forebay
