#include "codec/steps/int_quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace forebay {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kFp32Max = std::numeric_limits<float>::max();
constexpr ScaleFormat kScaleFormats[] = {ScaleFormat::kBf16, ScaleFormat::kFp32};

// Values of bf16, as caches hold them: `count` of them between `low` and `high`.
std::vector<float> RandomGroup(SeededRandom& random, size_t count, double low, double high) {
  std::vector<float> group(count);
  for (float& value : group) {
    const double unit = static_cast<double>(random.Next() >> 11) * 0x1p-53;
    value = Bf16ToFp32(Fp32ToBf16(static_cast<float>(low + unit * (high - low))));
  }
  return group;
}

TEST(IntQuantTest, RoundsToTheNearestWithTiesToEven) {
  SeededRandom random(1);
  for (int i = 0; i < 200'000; ++i) {
    const float x = static_cast<float>(static_cast<int>(random.Below(65537)) - 32768) / 64.0f;
    ASSERT_EQ(RoundToInt(x), static_cast<int32_t>(std::nearbyint(x))) << x;
  }
  for (const auto& [x, expected] : {std::pair{0.5f, 0},
                                    {1.5f, 2},
                                    {2.5f, 2},
                                    {-0.5f, 0},
                                    {-1.5f, -2},
                                    {-0.0f, 0},
                                    {4194304.0f, 4194304}}) {
    EXPECT_EQ(RoundToInt(x), expected) << x;
  }
}

// Not above half a step, in exact arithmetic, where nothing is cut off.
TEST(IntQuantTest, SymmetricCodesAreTheNearest) {
  SeededRandom random(2);
  for (const ScaleFormat format : kScaleFormats) {
    for (int round = 0; round < 500; ++round) {
      const double reach = std::ldexp(1.0, static_cast<int>(random.Below(40)) - 20);
      const std::vector<float> x = RandomGroup(random, 64, -reach, reach);
      std::array<int8_t, 64> codes;
      const SymmetricGroup group = EncodeSymmetricGroup(x.data(), 64, 1, format, codes.data());
      ASSERT_TRUE(group.codable);
      ASSERT_EQ(group.scale, AsStored(group.scale, format));
      for (size_t i = 0; i < 64; ++i) {
        ASSERT_GE(codes[i], -127);
        const double error =
            std::fabs(double{x[i]} - static_cast<double>(codes[i]) * double{group.scale});
        // bf16 may round the scale down by 2^-8: the extreme sticks out by 127/256 of a step.
        ASSERT_LE(error, 0.5001 * double{group.scale}) << x[i];
      }
    }
  }
}

TEST(IntQuantTest, SymmetricScaleIsAmaxBy127) {
  const float x[] = {1, -127, 63.5f, 62.5f, 0.5f, 1.5f};
  int8_t codes[6];
  const SymmetricGroup group = EncodeSymmetricGroup(x, 6, 1, ScaleFormat::kBf16, codes);
  EXPECT_EQ(group.scale, 1.0f);
  EXPECT_EQ(std::vector<int8_t>(codes, codes + 6), (std::vector<int8_t>{1, -127, 64, 62, 0, 2}));
  EXPECT_EQ(SymmetricValue(codes[1], group.scale), -127.0f);
}

TEST(IntQuantTest, DecodingAndEncodingAgainChangesNothing) {
  SeededRandom random(3);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<float> x = RandomGroup(random, 32, -3, 5);
    std::array<int8_t, 32> first;
    std::array<int8_t, 32> second;
    std::array<float, 32> decoded;
    for (const ScaleFormat format : kScaleFormats) {
      const SymmetricGroup group = EncodeSymmetricGroup(x.data(), 32, 1, format, first.data());
      for (size_t i = 0; i < 32; ++i) decoded[i] = SymmetricValue(first[i], group.scale);
      const SymmetricGroup again =
          EncodeSymmetricGroup(decoded.data(), 32, 1, format, second.data());
      ASSERT_EQ(first, second);
      ASSERT_EQ(group.scale, again.scale);
    }
  }
}

template <int kBits>
void ExpectAffineCodesAreNearest(ScaleFormat format) {
  SeededRandom random(4);
  for (int round = 0; round < 500; ++round) {
    const double reach = std::ldexp(1.0, static_cast<int>(random.Below(40)) - 20);
    const std::vector<float> x = RandomGroup(random, 32, -reach, 2 * reach);
    std::array<uint8_t, 32> codes;
    const AffineGroup group = EncodeAffineGroup<kBits>(x.data(), 32, 1, format, codes.data());
    ASSERT_TRUE(group.codable);
    ASSERT_EQ(group.zero, *std::min_element(x.begin(), x.end()));
    const double code_max = (1 << kBits) - 1;
    for (size_t i = 0; i < 32; ++i) {
      ASSERT_LE(codes[i], code_max);
      const double value = group.zero + static_cast<double>(codes[i]) * double{group.scale};
      // bf16 may round the scale down by 2^-8, by which the largest then sticks out.
      const double beyond = format == ScaleFormat::kBf16 ? code_max / 256 : 0;
      ASSERT_LE(std::fabs(x[i] - value), std::max(0.5001, beyond) * double{group.scale});
    }
  }
}

TEST(IntQuantTest, AffineCodesAreTheNearest) {
  for (const ScaleFormat format : kScaleFormats) {
    ExpectAffineCodesAreNearest<2>(format);
    ExpectAffineCodesAreNearest<4>(format);
    ExpectAffineCodesAreNearest<8>(format);
  }
}

// The codes belong to the scale that a reader sees. 255 steps of 1/255, rounded to bf16, are not 1.
TEST(IntQuantTest, CodesAreComputedWithTheStoredScale) {
  std::vector<float> x(256);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 255.0f;
  std::vector<uint8_t> codes(x.size());
  const AffineGroup group =
      EncodeAffineGroup<8>(x.data(), x.size(), 1, ScaleFormat::kBf16, codes.data());
  ASSERT_NE(group.scale, 1.0f / 255.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(codes[i], std::min(std::nearbyint(x[i] / group.scale), 255.0f)) << i;
  }
}

TEST(IntQuantTest, AConstantGroupDecodesToItsZeroExactly) {
  for (const float value : {1.5f, -3.25f, 0.0f, 0x1p-130f, -0x1p120f}) {
    const std::vector<float> x(32, value);
    for (const ScaleFormat format : kScaleFormats) {
      std::array<uint8_t, 32> codes;
      codes.fill(9);
      const AffineGroup group = EncodeAffineGroup<2>(x.data(), 32, 1, format, codes.data());
      EXPECT_TRUE(group.codable);
      EXPECT_EQ(group.scale, 0.0f);
      EXPECT_EQ(codes, (std::array<uint8_t, 32>{}));
      EXPECT_EQ(AffineValue(0, group.scale, group.zero), value);
    }
  }
  const std::vector<float> zeros = {0.0f, -0.0f};
  std::array<int8_t, 2> codes;
  const SymmetricGroup group =
      EncodeSymmetricGroup(zeros.data(), 2, 1, ScaleFormat::kFp32, codes.data());
  EXPECT_EQ(group.scale, 0.0f);
  EXPECT_EQ(codes, (std::array<int8_t, 2>{}));
}

// Their inverse would be Inf, and 0 * Inf a code out of nowhere.
TEST(IntQuantTest, AScaleBelowTheSmallestNormalIsZero) {
  const std::vector<float> x = {0x1p-127f, -0x1p-130f, 0};
  std::array<int8_t, 3> symmetric;
  EXPECT_EQ(EncodeSymmetricGroup(x.data(), 3, 1, ScaleFormat::kBf16, symmetric.data()).scale, 0);
  EXPECT_EQ(symmetric, (std::array<int8_t, 3>{}));
  std::array<uint8_t, 3> affine;
  EXPECT_EQ(EncodeAffineGroup<4>(x.data(), 3, 1, ScaleFormat::kFp32, affine.data()).scale, 0);
  EXPECT_EQ(affine, (std::array<uint8_t, 3>{}));
}

TEST(IntQuantTest, WhatIsNotFiniteIsNotCodable) {
  for (const float bad : {kInf, -kInf, kNan}) {
    for (size_t at = 0; at < 4; ++at) {
      std::vector<float> x = {1, 2, 3, 4};
      x[at] = bad;
      std::array<int8_t, 4> symmetric;
      std::array<uint8_t, 4> affine;
      for (const ScaleFormat format : kScaleFormats) {
        EXPECT_FALSE(EncodeSymmetricGroup(x.data(), 4, 1, format, symmetric.data()).codable);
        EXPECT_FALSE(EncodeAffineGroup<2>(x.data(), 4, 1, format, affine.data()).codable);
        EXPECT_FALSE(EncodeAffineGroup<8>(x.data(), 4, 1, format, affine.data()).codable);
      }
    }
  }
}

// No code is out of range, whatever comes in: tables may be indexed by it.
TEST(IntQuantTest, NanHasTheLowestCode) {
  EXPECT_EQ(SymmetricCode(kNan, SymmetricGroupOf(1)), -127);
  EXPECT_EQ(AffineCode<4>(kNan, AffineGroupOf<4>(1, 0)), 0);
  EXPECT_EQ(AffineCode<4>(kInf, AffineGroupOf<4>(1, 0)), 15);
}

TEST(IntQuantTest, WhatCouldOverflowIsNotCodable) {
  // max - min is Inf.
  EXPECT_FALSE(AffineGroupOfRange<4>(-kFp32Max, kFp32Max, ScaleFormat::kFp32).codable);
  // bf16 rounds the largest fp32 to Inf.
  EXPECT_FALSE(AffineGroupOfRange<4>(-kFp32Max, 0, ScaleFormat::kBf16).codable);
  EXPECT_TRUE(AffineGroupOfRange<4>(-kFp32Max, 0, ScaleFormat::kFp32).codable);
  // 127 times a scale that was rounded up.
  EXPECT_FALSE(SymmetricGroupOfAmax(kFp32Max, ScaleFormat::kBf16).codable &&
               !IsFiniteFp32(127.0f * SymmetricGroupOfAmax(kFp32Max, ScaleFormat::kBf16).scale));
  EXPECT_FALSE(SymmetricGroupOf(0x1.1p121f).codable);
  EXPECT_TRUE(SymmetricGroupOfAmax(0x1p127f, ScaleFormat::kBf16).codable);
}

// Where a search meets -0 and +0 first must not show in the bytes.
TEST(IntQuantTest, AZeroHasNoSign) {
  EXPECT_FALSE(std::signbit(AffineGroupOfRange<2>(-0.0f, 1, ScaleFormat::kBf16).zero));
}

TEST(IntQuantTest, StridesReadOneChannelOfMany) {
  std::vector<float> x(8 * 3);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  std::array<uint8_t, 8> codes;
  const AffineGroup group =
      EncodeAffineGroup<4>(x.data() + 1, 8, 3, ScaleFormat::kFp32, codes.data());
  EXPECT_EQ(group.zero, 1.0f);
  EXPECT_EQ(group.scale, 21.0f / 15.0f);
  EXPECT_EQ(codes.front(), 0);
  EXPECT_EQ(codes.back(), 15);
}

// 32 tokens of one channel, as in KIVI, whose scale is fp16.
TEST(IntQuantTest, Kivi2Vector) {
  std::array<float, 32> x;
  for (size_t i = 0; i < 32; ++i) x[i] = (static_cast<float>(i) - 16) / 8;
  const GroupRange range = RangeOfGroup(x.data(), 32, 1);
  const float raw_scale = (range.max - range.min) / 3;
  const AffineGroup group =
      AffineGroupOf<2>(Fp16ToFp32(Fp32ToFp16(raw_scale)), Fp16ToFp32(Fp32ToFp16(range.min)));
  EXPECT_EQ(group.scale, 1.2919921875f);
  EXPECT_EQ(group.zero, -2.0f);

  std::array<uint8_t, 32> codes;
  for (size_t i = 0; i < 32; ++i) codes[i] = AffineCode<2>(x[i], group);
  std::vector<uint8_t> packed;
  for (size_t i = 0; i < 32; i += 4) packed.push_back(PackedByte<2>(&codes[i]));
  // The words 0x55555000, 0xfffaaaaa.
  EXPECT_EQ(packed, (std::vector<uint8_t>{0x00, 0x50, 0x55, 0x55, 0xaa, 0xaa, 0xfa, 0xff}));

  const float levels[] = {-2, -0.7080078125f, 0.583984375f, 1.8759765625f};
  for (size_t i = 0; i < 32; ++i) {
    const uint8_t code = CodeAt<2>(packed.data(), i);
    ASSERT_EQ(code, codes[i]);
    ASSERT_EQ(AffineValue(code, group.scale, group.zero), levels[code]);
  }
  // In Forebay's own metadata the codes are the same.
  std::array<uint8_t, 32> ours;
  EncodeAffineGroup<2>(x.data(), 32, 1, ScaleFormat::kBf16, ours.data());
  EXPECT_EQ(ours, codes);
}

template <int kBits>
void ExpectCodesComeBack() {
  SeededRandom random(5);
  std::array<uint8_t, 64> codes;
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random.Below(1 << kBits));
  std::vector<uint8_t> packed;
  for (size_t i = 0; i < codes.size(); i += 8 / kBits) {
    packed.push_back(PackedByte<kBits>(&codes[i]));
  }
  ASSERT_EQ(packed.size(), codes.size() * kBits / 8);
  for (size_t i = 0; i < codes.size(); ++i) ASSERT_EQ(CodeAt<kBits>(packed.data(), i), codes[i]);
}

TEST(IntQuantTest, PackedCodesComeBack) {
  ExpectCodesComeBack<2>();
  ExpectCodesComeBack<4>();
  ExpectCodesComeBack<8>();
  const uint8_t nibbles[] = {0x3, 0xa};
  EXPECT_EQ(PackedByte<4>(nibbles), 0xa3);  // the even one is low
}

static_assert(RoundToInt(2.5f) == 2);
static_assert(SymmetricGroupOf(0.5f).inverse == 2.0f);

}  // namespace
}  // namespace forebay
