#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/steps/float_formats.h"
#include "codec/steps/host_device.h"
#include "codec/steps/int_quant.h"

// Codes that stand for levels at uneven distances: x = level[code] * scale, with a scale that is
// the root of the mean square of the group, so that levels are in units of a standard deviation.
//
// Levels are symmetric. Code 2^(b-1) + m is the m-th level above zero, 2^(b-1) - 1 - m the m-th
// below it; -0 is above. A number between two levels takes the nearer one, one half-way the outer.
// What is beyond the last level becomes that level: nothing is flagged, since heavy tails are what
// the levels are chosen against.
//
// The mean square is a sum in a fixed order: kSumLanes partial sums of the elements i, i +
// kSumLanes,
// ..., then pairs of sums kSumLanes / 2, ..., 2, 1 apart. Elements are first brought to about 1 by
// a power of two, exactly, so that squares neither overflow nor vanish.
//
// Errors   none here; Inf and NaN show in the largest magnitude, which the caller knows.
// Threads  pure functions; one element or one group a call.
// Requires round to nearest; the host compiled with -ffp-contract=off.
// Source   Lloyd-Max levels of the normal distribution, after a rotation as in TurboQuant
//          (arXiv 2504.19874); tables of a model's own, as in KVQuant (arXiv 2401.18079), have the
//          same shape.
namespace forebay {

// The levels above zero, ascending, and where a number passes to the next.
template <int kBits>
struct LevelTable {
  static constexpr int kCount = 1 << (kBits - 1);
  float level[kCount];

  FB_HOST_DEVICE constexpr float threshold(int m) const {
    return MultiplyFp32(AddFp32(level[m], level[m + 1]), 0.5f);
  }
  FB_HOST_DEVICE constexpr float largest() const { return level[kCount - 1]; }
};

// Least mean square error for N(0, 1): 0.1175, 0.0345 and 0.0095 of the variance.
template <int kBits>
FB_HOST_DEVICE constexpr LevelTable<kBits> LloydMaxLevels() {
  static_assert(kBits >= 2 && kBits <= 4);
  if constexpr (kBits == 2) return {{0.45278f, 1.51042f}};
  if constexpr (kBits == 3) return {{0.24509f, 0.75601f, 1.34391f, 2.15195f}};
  if constexpr (kBits == 4) {
    return {{0.12840f, 0.38805f, 0.65676f, 0.94234f, 1.25623f, 1.61805f, 2.06902f, 2.73259f}};
  }
}

inline constexpr size_t kSumLanes = 16;

// A power of two that brings `amax` to [1, 2), or as near as fp32 gets, and its inverse.
struct PowerOfTwo {
  float factor;
  float inverse;
};
FB_HOST_DEVICE constexpr PowerOfTwo PowerToOne(float amax) {
  const uint32_t exponent = MagnitudeBits(amax) >> 23;
  // At both ends one of the two would not be a normal number.
  const uint32_t cut = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  return {Fp32OfBits((254 - cut) << 23), Fp32OfBits(cut << 23)};
}

FB_HOST_DEVICE inline float SqrtFp32(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// The sum of `partial`, which is used up.
FB_HOST_DEVICE constexpr float SumOfPartials(float* partial) {
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) partial[i] = AddFp32(partial[i], partial[i + half]);
  }
  return partial[0];
}

// The scale of a group of `count` elements whose squares, times `power.factor` before squaring,
// have this sum.
FB_HOST_DEVICE inline float LevelScale(float sum_of_squares, size_t count, const PowerOfTwo& power,
                                       ScaleFormat format) {
  const float mean = DivideFp32(sum_of_squares, static_cast<float>(count));
  return ScaleToStore(MultiplyFp32(SqrtFp32(mean), power.inverse), format);
}

template <int kBits>
FB_HOST_DEVICE constexpr uint8_t LevelCode(float x, float inverse_of_scale,
                                           const LevelTable<kBits>& table) {
  const float scaled = MultiplyFp32(x, inverse_of_scale);
  const float magnitude = Fp32OfBits(MagnitudeBits(scaled));
  uint32_t code = table.kCount;
  for (int m = 0; m + 1 < table.kCount; ++m) code += magnitude >= table.threshold(m) ? 1 : 0;
  return static_cast<uint8_t>(scaled < 0 ? code ^ ((1u << kBits) - 1) : code);
}

template <int kBits>
FB_HOST_DEVICE constexpr float LevelValue(uint8_t code, float scale,
                                          const LevelTable<kBits>& table) {
  const bool above = code >= table.kCount;
  const float level = table.level[above ? code - table.kCount : table.kCount - 1 - code];
  return MultiplyFp32(above ? level : -level, scale);
}

// Writes codes[0, count), without gaps; returns the stored scale. Requires finite elements.
template <int kBits>
FB_HOST_DEVICE inline float EncodeLevelGroup(const float* x, size_t count,
                                             const LevelTable<kBits>& table, ScaleFormat format,
                                             uint8_t* codes) {
  const PowerOfTwo power = PowerToOne(GroupAmax(x, count, 1));
  float partial[kSumLanes] = {};
  for (size_t i = 0; i < count; ++i) {
    const float unit = MultiplyFp32(x[i], power.factor);
    partial[i % kSumLanes] = AddFp32(partial[i % kSumLanes], MultiplyFp32(unit, unit));
  }
  const float scale = LevelScale(SumOfPartials(partial), count, power, format);
  const float inverse = InverseOfScale(scale);
  for (size_t i = 0; i < count; ++i) codes[i] = LevelCode<kBits>(x[i], inverse, table);
  return scale;
}

// ---- eight codes at a time: kBits bytes of a little-endian string of bits, kBits <= 8 ----

// From codes in the bytes of a word, the first lowest.
template <int kBits>
FB_HOST_DEVICE constexpr uint64_t PackedEight(uint64_t codes) {
  constexpr uint64_t kOne = ((1ull << kBits) - 1) * 0x0001'0001'0001'0001u;
  constexpr uint64_t kTwo = ((1ull << 2 * kBits) - 1) * 0x0000'0001'0000'0001u;
  codes = (codes & kOne) | (codes >> 8 & kOne) << kBits;
  codes = (codes & kTwo) | (codes >> 16 & kTwo) << 2 * kBits;
  return (codes & 0xffff'ffffu) | codes >> 32 << 4 * kBits;
}

template <int kBits>
FB_HOST_DEVICE constexpr uint64_t EightCodes(uint64_t packed) {
  constexpr uint64_t kOne = ((1ull << kBits) - 1) * 0x0001'0001'0001'0001u;
  constexpr uint64_t kTwo = ((1ull << 2 * kBits) - 1) * 0x0000'0001'0000'0001u;
  constexpr uint64_t kFour = (1ull << 4 * kBits) - 1;
  uint64_t codes = (packed & kFour) | (packed >> 4 * kBits & kFour) << 32;
  codes = (codes & kTwo) | (codes >> 2 * kBits & kTwo) << 16;
  return (codes & kOne) | (codes >> kBits & kOne) << 8;
}

}  // namespace forebay
