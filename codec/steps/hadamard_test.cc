#include "codec/steps/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace forebay {
namespace {

TEST(HadamardTest, BlocksAreTheLargestThatFit) {
  EXPECT_EQ(HadamardBlock(1), 1u);
  EXPECT_EQ(HadamardBlock(2), 2u);
  EXPECT_EQ(HadamardBlock(80), 64u);
  EXPECT_EQ(HadamardBlock(128), 128u);
  EXPECT_EQ(HadamardBlock(65535), 32768u);
}

TEST(HadamardTest, FactorsAreRoots) {
  for (size_t n = 1; n <= 65536; n *= 2) {
    EXPECT_FLOAT_EQ(HadamardFactor(n), 1 / std::sqrt(static_cast<float>(n))) << n;
  }
}

std::vector<float> Numbers(size_t n, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> x(n);
  for (float& value : x) value = static_cast<float>(random.Below(1 << 16)) / (1 << 15) - 1;
  return x;
}

// Entry (i, j) of the matrix is -1 to the number of bits that i and j share.
TEST(HadamardTest, IsTheProductWithTheMatrix) {
  for (size_t n = 1; n <= 256; n *= 2) {
    const std::vector<float> x = Numbers(n, n);
    std::vector<float> y = x;
    HadamardRotate(y.data(), n);
    for (size_t i = 0; i < n; ++i) {
      double want = 0;
      for (size_t j = 0; j < n; ++j) want += (std::popcount(i & j) % 2 == 0 ? 1 : -1) * x[j];
      EXPECT_NEAR(y[i], want / std::sqrt(static_cast<double>(n)), 1e-5) << n << ", " << i;
    }
  }
}

TEST(HadamardTest, IsItsOwnInverse) {
  for (size_t n = 1; n <= 1024; n *= 2) {
    const std::vector<float> x = Numbers(n, 7 * n);
    std::vector<float> y = x;
    HadamardRotate(y.data(), n);
    HadamardRotate(y.data(), n);
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], x[i], 1e-5);
  }
}

TEST(HadamardTest, SpreadsAnOutlier) {
  std::vector<float> x(64, 0.0f);
  x[17] = 8;
  HadamardRotate(x.data(), 64);
  for (const float value : x) EXPECT_EQ(std::fabs(value), 1.0f);
}

}  // namespace
}  // namespace forebay
