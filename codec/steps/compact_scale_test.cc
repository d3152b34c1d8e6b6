#include "codec/steps/compact_scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace forebay {
namespace {

TEST(CompactScaleTest, CodesAscendFromZeroToTheLargest) {
  EXPECT_EQ(CompactScaleFloat::ValueOf(0), 0.0f);
  EXPECT_EQ(CompactScaleFloat::ValueOf(1), 0x1p-12f);
  EXPECT_EQ(CompactScaleFloat::ValueOf(16), 0x1p-8f);
  EXPECT_EQ(CompactScaleFloat::ValueOf(255), 124.0f);
  for (uint32_t code = 1; code < 256; ++code) {
    const float value = CompactScaleFloat::ValueOf(code);
    EXPECT_GT(value, CompactScaleFloat::ValueOf(code - 1));
    EXPECT_EQ(CompactScaleFloat::CodeOf(BitsOfFp32(value)), code);
  }
}

// A head of channels whose spreads and offsets differ by up to 2^6.
struct Head {
  std::vector<std::vector<float>> groups;
  float amax = 0;
};
Head MakeHead(SeededRandom& random, int exponent) {
  Head head;
  const auto unit = [&] { return static_cast<float>(random.Below(1 << 20)) / (1 << 19) - 1.0f; };
  for (int g = 0; g < 20; ++g) {
    const float spread = std::ldexp(1.0f, exponent + static_cast<int>(random.Below(6)));
    const float offset = std::ldexp(unit(), exponent + static_cast<int>(random.Below(7)));
    std::vector<float>& group = head.groups.emplace_back();
    for (int i = 0; i < 64; ++i) {
      group.push_back(Bf16ToFp32(Fp32ToBf16(offset + spread * unit())));
      head.amax = std::max(head.amax, std::fabs(group.back()));
    }
  }
  return head;
}

template <int kBits>
void ExpectTheStatedBound() {
  SeededRandom random(1);
  for (int round = 0; round < 300; ++round) {
    const Head head = MakeHead(random, static_cast<int>(random.Below(40)) - 20);
    const CompactUnit unit = CompactUnitOfAmax(head.amax);
    for (const std::vector<float>& x : head.groups) {
      const auto [min, max] = std::minmax_element(x.begin(), x.end());
      const CompactGroup stored = CompactGroupOfRange<kBits>(*min, *max, unit);
      const AffineGroup group = AffineGroupOfCompact<kBits>(stored, unit.unit);
      ASSERT_TRUE(group.codable);
      // The zero is the largest that is not above the minimum.
      ASSERT_LE(group.zero, *min);
      ASSERT_GT(CompactZero(static_cast<int8_t>(stored.zero + 1), unit.unit), *min);
      // The scale is the smallest that covers.
      constexpr uint8_t kLast = (1 << kBits) - 1;
      ASSERT_GE(AffineValue(kLast, group.scale, group.zero), *max);
      if (stored.scale > 0) {
        const float less = CompactScale(static_cast<uint8_t>(stored.scale - 1), unit.unit);
        ASSERT_LT(AffineValue(kLast, less, group.zero), *max * (1 + 1e-6f) + 1e-6f * head.amax);
      }
      const float exact = (*max - *min) / kLast;
      ASSERT_LE(group.scale, (exact + unit.unit / kLast) * 1.0626f + unit.unit * 0x1p-12f);
      for (const float value : x) {
        const float decoded = AffineValue(AffineCode<kBits>(value, group), group.scale, group.zero);
        ASSERT_LE(std::fabs(value - decoded), 0.5001f * group.scale + 1e-6f * head.amax);
      }
    }
  }
}

TEST(CompactScaleTest, ZeroAndScaleAreTheTightestThatCover) {
  ExpectTheStatedBound<2>();
  ExpectTheStatedBound<4>();
}

TEST(CompactScaleTest, TheEndsOfAHeadAreCovered) {
  for (const float amax : {1.0f, 3.0f, 100.0f, 0x1.fep100f, 0x1p-100f, 0x1p-118f}) {
    const CompactUnit unit = CompactUnitOfAmax(amax);
    const CompactGroup stored = CompactGroupOfRange<2>(-amax, amax, unit);
    const AffineGroup group = AffineGroupOfCompact<2>(stored, unit.unit);
    EXPECT_LE(group.zero, -amax);
    EXPECT_GE(AffineValue(3, group.scale, group.zero), amax);
  }
}

TEST(CompactScaleTest, AHeadOfZerosOrOfTheSmallestNumbersIsZero) {
  for (const float amax : {0.0f, 0x1p-130f, 0x1p-126f}) {
    const CompactUnit unit = CompactUnitOfAmax(amax);
    EXPECT_EQ(unit.unit, 0.0f);
    const CompactGroup stored = CompactGroupOfRange<4>(-amax, amax, unit);
    EXPECT_EQ(stored.scale, 0);
    EXPECT_EQ(stored.zero, 0);
  }
}

TEST(CompactScaleTest, WhatCouldOverflowIsNotCodable) {
  const float largest = Bf16ToFp32(0x7f7f);
  const CompactUnit unit = CompactUnitOfAmax(largest);
  const CompactGroup stored = CompactGroupOfRange<2>(-largest, largest, unit);
  EXPECT_FALSE(AffineGroupOfCompact<2>(stored, unit.unit).codable);
}

}  // namespace
}  // namespace forebay
