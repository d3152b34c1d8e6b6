#include "codec/steps/float_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/random.h"

namespace forebay {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A format as the standards define it. Only the oracle below reads the numbers.
struct Format {
  const char* name;
  int mantissa_bits;
  int bias;
  uint32_t largest_code;  // of the finite ones, without sign
  bool overflows_to_inf;
  uint32_t sign_code;
  uint32_t (*encode)(float);
  float (*decode)(uint32_t);
};

const Format kBf16Format = {"bf16",
                            7,
                            127,
                            0x7f7f,
                            true,
                            0x8000,
                            [](float x) -> uint32_t { return Fp32ToBf16(x); },
                            [](uint32_t code) { return Bf16ToFp32(static_cast<uint16_t>(code)); }};
const Format kFp16Format = {"fp16",
                            10,
                            15,
                            0x7bff,
                            true,
                            0x8000,
                            [](float x) -> uint32_t { return Fp32ToFp16(x); },
                            [](uint32_t code) { return Fp16ToFp32(static_cast<uint16_t>(code)); }};
const Format kE4M3Format = {"E4M3",
                            3,
                            7,
                            0x7e,
                            false,
                            0x80,
                            [](float x) -> uint32_t { return Fp32ToE4M3(x); },
                            [](uint32_t code) { return E4M3ToFp32(static_cast<uint8_t>(code)); }};
const Format kE5M2Format = {"E5M2",
                            2,
                            15,
                            0x7b,
                            false,
                            0x80,
                            [](float x) -> uint32_t { return Fp32ToE5M2(x); },
                            [](uint32_t code) { return E5M2ToFp32(static_cast<uint8_t>(code)); }};
const Format kE2M1Format = {"E2M1",
                            1,
                            1,
                            0x7,
                            false,
                            0x8,
                            [](float x) -> uint32_t { return Fp32ToE2M1(x); },
                            [](uint32_t code) { return E2M1ToFp32(static_cast<uint8_t>(code)); }};
const Format kFormats[] = {kBf16Format, kFp16Format, kE4M3Format, kE5M2Format, kE2M1Format};

// The value of a code without sign, from the definition: a fraction times a power of two.
double DefinedValue(const Format& format, uint32_t code) {
  const int exponent = static_cast<int>(code >> format.mantissa_bits);
  const uint32_t mantissa = code & ((1u << format.mantissa_bits) - 1);
  const uint32_t leading = exponent > 0 ? 1u << format.mantissa_bits : 0;
  return std::ldexp(leading + mantissa, std::max(exponent, 1) - format.bias - format.mantissa_bits);
}

// The slow way: the nearest of all values, the even code of two equally near ones. Everything it
// computes is exact in double.
class NearestValue {
 public:
  explicit NearestValue(const Format& format) : format_(format) {
    // One more than the largest: what overflow to Inf is measured against.
    const uint32_t last = format.largest_code + (format.overflows_to_inf ? 1 : 0);
    for (uint32_t code = 0; code <= last; ++code) values_.push_back(DefinedValue(format, code));
  }

  // Requires a number or Inf.
  uint32_t CodeOf(float x) const {
    const double magnitude = std::fabs(static_cast<double>(x));
    const uint32_t sign = std::signbit(x) ? format_.sign_code : 0;
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    auto code = static_cast<uint32_t>(above - values_.begin());
    if (code == values_.size()) return sign | (code - 1);
    if (code == 0) return sign;
    const double to_lower = magnitude - values_[code - 1];
    const double to_upper = values_[code] - magnitude;
    if (to_lower < to_upper || (to_lower == to_upper && code % 2 == 1)) --code;
    return sign | code;
  }

 private:
  const Format& format_;
  std::vector<double> values_;
};

// Counts instead of a message for each of thousands.
template <typename Inputs>
void ExpectNearest(const Format& format, const Inputs& for_each_input) {
  const NearestValue oracle(format);
  size_t inputs = 0;
  size_t wrong = 0;
  for_each_input([&](float x) {
    if (std::isnan(x)) return;
    ++inputs;
    if (format.encode(x) == oracle.CodeOf(x)) return;
    if (++wrong <= 5) {
      ADD_FAILURE() << format.name << " of " << x << " is " << format.encode(x) << ", not "
                    << oracle.CodeOf(x);
    }
  });
  EXPECT_EQ(wrong, 0u) << format.name;
  EXPECT_GT(inputs, 0u) << format.name;
}

TEST(FloatFormatsTest, EveryBf16IsTheNearestOfEachFormat) {
  for (const Format& format : kFormats) {
    ExpectNearest(format, [](auto check) {
      for (uint32_t code = 0; code < 0x10000; ++code) {
        check(Bf16ToFp32(static_cast<uint16_t>(code)));
      }
    });
  }
}

TEST(FloatFormatsTest, EveryFp16IsTheNearestOfEachFormat) {
  for (const Format& format : kFormats) {
    ExpectNearest(format, [](auto check) {
      for (uint32_t code = 0; code < 0x10000; ++code) {
        check(Fp16ToFp32(static_cast<uint16_t>(code)));
      }
    });
  }
}

// Halfway between every two neighbours, and one unit of fp32 to each side of it.
TEST(FloatFormatsTest, EveryMidpointGoesToTheEvenCode) {
  for (const Format& format : kFormats) {
    ExpectNearest(format, [&format](auto check) {
      for (uint32_t code = 0; code <= format.largest_code; ++code) {
        const double middle = (DefinedValue(format, code) + DefinedValue(format, code + 1)) / 2;
        const auto x = static_cast<float>(middle);
        ASSERT_EQ(static_cast<double>(x), middle);
        for (const float near : {x, std::nextafter(x, 0.0f), std::nextafter(x, kInf)}) {
          check(near);
          check(-near);
        }
      }
    });
  }
}

TEST(FloatFormatsTest, RandomNumbersOfEveryExponentAreRoundedToTheNearest) {
  for (const Format& format : kFormats) {
    ExpectNearest(format, [](auto check) {
      SeededRandom random(7);
      for (int i = 0; i < 300'000; ++i) check(Fp32OfBits(static_cast<uint32_t>(random.Next())));
      for (const float x : {0.0f, -0.0f, kInf, -kInf, std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min()}) {
        check(x);
      }
    });
  }
}

TEST(FloatFormatsTest, EveryCodeDecodesToItsDefinition) {
  for (const Format& format : kFormats) {
    for (uint32_t code = 0; code <= format.largest_code; ++code) {
      const double value = DefinedValue(format, code);
      ASSERT_EQ(format.decode(code), value) << format.name << " " << code;
      ASSERT_EQ(format.decode(code | format.sign_code), -value) << format.name << " " << code;
      ASSERT_TRUE(std::signbit(format.decode(code | format.sign_code))) << format.name;
    }
  }
}

TEST(FloatFormatsTest, EveryFiniteCodeComesBack) {
  for (const Format& format : kFormats) {
    for (uint32_t code = 0; code <= format.largest_code; ++code) {
      ASSERT_EQ(format.encode(format.decode(code)), code) << format.name;
      const uint32_t negative = code | format.sign_code;
      ASSERT_EQ(format.encode(format.decode(negative)), negative) << format.name;
    }
  }
}

// Payloads too: only the quiet bit may be added.
TEST(FloatFormatsTest, EverySixteenBitNanStaysOne) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto word = static_cast<uint16_t>(code);
    if ((code & 0x7fff) > 0x7c00) {
      ASSERT_TRUE(IsNanFp32(Fp16ToFp32(word)));
      ASSERT_EQ(Fp32ToFp16(Fp16ToFp32(word)), code | 0x200);
    }
    if ((code & 0x7fff) > 0x7f80) {
      ASSERT_TRUE(IsNanFp32(Bf16ToFp32(word)));
      ASSERT_EQ(Fp32ToBf16(Bf16ToFp32(word)), code | 0x40);
    }
  }
  // A payload that the narrow format has no room for must not turn the NaN into Inf.
  EXPECT_EQ(Fp32ToFp16(Fp32OfBits(0x7f80'0001)), 0x7e00);
  EXPECT_EQ(Fp32ToBf16(Fp32OfBits(0xff80'0001)), 0xffc0);
}

TEST(FloatFormatsTest, SpecialCodesDecodeAsDefined) {
  EXPECT_EQ(Fp16ToFp32(0x7c00), kInf);
  EXPECT_EQ(Fp16ToFp32(0xfc00), -kInf);
  EXPECT_EQ(Bf16ToFp32(0xff80), -kInf);
  EXPECT_EQ(E5M2ToFp32(0x7c), kInf);
  EXPECT_EQ(E5M2ToFp32(0xfc), -kInf);
  constexpr uint8_t kNans[] = {0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff};
  for (const uint8_t code : kNans) {
    EXPECT_TRUE(IsNanFp32(E5M2ToFp32(code))) << int{code};
  }
  EXPECT_TRUE(IsNanFp32(E4M3ToFp32(0x7f)));
  EXPECT_TRUE(IsNanFp32(E4M3ToFp32(0xff)));
}

struct Fp8Vector {
  float x;
  int e4m3;  // -1: not given
  int e5m2;
};

TEST(FloatFormatsTest, Fp8Vectors) {
  const Fp8Vector vectors[] = {
      {0, 0x00, 0x00},      {1, 0x38, 0x3c},       {448, 0x7e, 0x5f},
      {464, 0x7e, -1},      {480, 0x7e, 0x60},     {1e9, 0x7e, 0x7b},
      {0x1p-9, 0x01, 0x18}, {0x1p-10, 0x00, 0x14}, {0x1p-10f * 1.01f, 0x01, -1},
      {0.1f, 0x1d, 0x2e},   {-3.3f, 0xc5, 0xc3},   {17, 0x58, 0x4c},
      {18.9f, 0x59, 0x4d},  {kInf, 0x7e, 0x7b},    {-kInf, 0xfe, 0xfb},
      {kNan, 0x7f, 0x7f},   {-kNan, 0x7f, 0x7f},   {-0.0f, 0x80, 0x80}};
  for (const Fp8Vector& vector : vectors) {
    if (vector.e4m3 >= 0) {
      EXPECT_EQ(Fp32ToE4M3(vector.x), vector.e4m3) << vector.x;
    }
    if (vector.e5m2 >= 0) {
      EXPECT_EQ(Fp32ToE5M2(vector.x), vector.e5m2) << vector.x;
    }
  }
  EXPECT_EQ(E4M3ToFp32(0x1d), 0.1015625f);
  EXPECT_EQ(E5M2ToFp32(0x2e), 0.09375f);
}

TEST(FloatFormatsTest, E2M1RoundsToTheEvenCodeAndSaturates) {
  const float grid[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) EXPECT_EQ(E2M1ToFp32(code), grid[code]);
  const std::pair<float, int> ties[] = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4},
                                        {2.5f, 4},  {3.5f, 6},  {5, 6},     {7, 7}};
  for (const auto& [x, code] : ties) EXPECT_EQ(Fp32ToE2M1(x), code) << x;
  EXPECT_EQ(Fp32ToE2M1(-0.0f), 0x8);
  EXPECT_EQ(Fp32ToE2M1(-kInf), 0xf);
  EXPECT_EQ(Fp32ToE2M1(kNan), 0x7);
  EXPECT_EQ(E2M1ToFp32(0xf1), 0.5f);  // only four bits count
}

TEST(FloatFormatsTest, SaturatedFp16HasNoInf) {
  EXPECT_EQ(Fp32ToFp16Saturated(65532.0f), 0x7bff);
  EXPECT_EQ(Fp32ToFp16Saturated(-kInf), 0xfbff);
  EXPECT_EQ(Fp32ToFp16Saturated(1.0f), 0x3c00);
  EXPECT_TRUE(IsNanFp32(Fp16ToFp32(Fp32ToFp16Saturated(kNan))));
}

TEST(FloatFormatsTest, E8M0CodesArePowersOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    ASSERT_EQ(E8M0ToFp32(byte), std::ldexp(1.0f, code - 127));
    ASSERT_EQ(E8M0Inverse(byte), std::ldexp(1.0f, 127 - code));
  }
  EXPECT_TRUE(IsNanFp32(E8M0ToFp32(0xff)));
  EXPECT_TRUE(IsNanFp32(E8M0Inverse(0xff)));
}

TEST(FloatFormatsTest, E8M0FollowsTheFloorRule) {
  SeededRandom random(8);
  for (int i = 0; i < 100'000; ++i) {
    const float amax = Fp32OfBits(static_cast<uint32_t>(random.Next()));
    if (!std::isfinite(amax) || amax == 0) continue;
    for (const int exponent_max : {kE4M3ExponentMax, kE5M2ExponentMax, kE2M1ExponentMax}) {
      const int expected = std::max(std::ilogb(amax) - exponent_max + 127, 0);
      ASSERT_EQ(E8M0OfAmax(amax, exponent_max), expected) << amax;
    }
  }
  EXPECT_EQ(E8M0OfAmax(0, kE2M1ExponentMax), 0);
  EXPECT_EQ(E8M0OfAmax(kInf, kE2M1ExponentMax), 0xff);
  EXPECT_EQ(E8M0OfAmax(kNan, kE2M1ExponentMax), 0xff);
  EXPECT_EQ(E8M0OfAmax(448, kE4M3ExponentMax), 127);
  EXPECT_EQ(E8M0OfAmax(512, kE4M3ExponentMax), 128);
}

TEST(FloatFormatsTest, UE4M3IsE4M3WithoutASign) {
  for (int code = 0; code < 0x7f; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    ASSERT_EQ(UE4M3ToFp32(byte), E4M3ToFp32(byte));
    ASSERT_EQ(Fp32ToUE4M3(UE4M3ToFp32(byte)), code);
  }
  EXPECT_EQ(Fp32ToUE4M3(-1.0f), 0);
  EXPECT_EQ(Fp32ToUE4M3(-0.0f), 0);
  EXPECT_EQ(Fp32ToUE4M3(1e9f), 0x7e);
  EXPECT_EQ(Fp32ToUE4M3(kNan), 0x7f);
}

#if defined(__x86_64__)
// Engines may run with subnormals flushed to zero, on either side of an operation.
class ScopedFlushToZero {
 public:
  ScopedFlushToZero() { _mm_setcsr(before_ | 0x8040); }
  ~ScopedFlushToZero() { _mm_setcsr(before_); }

 private:
  const unsigned before_ = _mm_getcsr();
};

TEST(FloatFormatsTest, FlushingSubnormalsChangesNothing) {
  for (const Format& format : kFormats) {
    std::vector<uint32_t> values;
    std::vector<uint32_t> codes;
    const auto add_all = [&] {
      for (uint32_t code = 0; code <= format.largest_code; ++code) {
        values.push_back(BitsOfFp32(format.decode(code)));
      }
      for (uint32_t word = 0; word < 0x10000; ++word) {
        codes.push_back(format.encode(Fp32OfBits(word << 16 | word)));
      }
    };
    add_all();
    const std::vector<uint32_t> usual_values = std::move(values);
    const std::vector<uint32_t> usual_codes = std::move(codes);
    values.clear();
    codes.clear();
    {
      const ScopedFlushToZero flush;
      const volatile float subnormal = 0x1p-130f;
      const volatile float one = 1.0f;
      EXPECT_EQ(BitsOfFp32(subnormal * one), 0u);
      add_all();
    }
    EXPECT_EQ(values, usual_values) << format.name;
    EXPECT_EQ(codes, usual_codes) << format.name;
  }
}
#endif

// Usable where the compiler wants a constant: tables.
static_assert(Fp32ToE4M3(448.0f) == 0x7e);
static_assert(Fp16ToFp32(0x3c00) == 1.0f);
static_assert(Fp32ToBf16(1.0f) == 0x3f80);

}  // namespace
}  // namespace forebay
