#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/steps/float_formats.h"
#include "codec/steps/host_device.h"

// Whole-number codes for groups of numbers that share a scale.
//
//   symmetric   x = code * scale,          code in [-127, 127]     scale = amax / 127
//   affine      x = code * scale + zero,   code in [0, 2^b - 1]    scale = (max - min) / (2^b - 1)
//                                          b = 2, 4 or 8           zero = min
//
// A scale is rounded to the format in which it is stored, and the codes are computed with what a
// reader will see. Codes are rounded to nearest, ties to even, and cut off at the ends of their
// range. Each step is one IEEE operation, so that SIMD and device code give the same bits.
//
// A scale below 2^-126, the smallest normal fp32, is stored as 0 with all codes 0, since its
// inverse might not be finite. So a group that is constant decodes to its zero exactly; the sign of
// zero is lost.
//
// Errors   none here: `codable` of a group is false where it holds Inf or NaN, where max - min is
//          not finite, or where decoding could overflow. Its codes mean nothing: keep it raw.
// Threads  pure functions; one element or one group a call.
// Requires round to nearest; the host compiled with -ffp-contract=off.
// Source   the group quantization of KIVI (arXiv 2402.02750), with a guard for constant groups.
namespace forebay {

// How scales and zeros are stored. There is no fp16: it overflows where bf16 data does not, and
// turns small scales into 0. kCompact is a byte for each, of affine groups alone
// (codec/steps/compact_scale.h).
enum class ScaleFormat : uint8_t { kBf16 = 1, kFp32 = 2, kCompact = 3 };

// `x` as a reader of the stored value sees it.
FB_HOST_DEVICE constexpr float AsStored(float x, ScaleFormat format) {
  return format == ScaleFormat::kBf16 ? Bf16ToFp32(Fp32ToBf16(x)) : x;
}

inline constexpr float kScaleSmallest = 0x1p-126f;

// Round to nearest, ties to even, by the adder: at 1.5 * 2^23 the unit in the last place is 1.
// Requires |x| <= 2^22.
FB_HOST_DEVICE constexpr int32_t RoundToInt(float x) {
  constexpr float kUnitIsOne = 12'582'912.0f;
  return static_cast<int32_t>(BitsOfFp32(AddFp32(x, kUnitIsOne)) - BitsOfFp32(kUnitIsOne));
}

// NaN becomes `low`: the order of the comparisons is that of maxps and minps.
FB_HOST_DEVICE constexpr float Clamp(float x, float low, float high) {
  const float raised = x > low ? x : low;
  return raised < high ? raised : high;
}

FB_HOST_DEVICE constexpr float InverseOfScale(float stored_scale) {
  return stored_scale >= kScaleSmallest ? DivideFp32(1.0f, stored_scale) : 0.0f;
}

FB_HOST_DEVICE constexpr float ScaleToStore(float scale, ScaleFormat format) {
  const float stored = AsStored(scale, format);
  // Written so that NaN stays.
  return stored < kScaleSmallest ? 0.0f : stored;
}

// ---- symmetric, 8 bits ----

struct SymmetricGroup {
  float scale = 0;    // as stored
  float inverse = 0;  // of the scale; 0 where that is 0
  bool codable = false;
};

inline constexpr float kSymmetricCodeMax = 127.0f;

// From a stored scale.
FB_HOST_DEVICE constexpr SymmetricGroup SymmetricGroupOf(float stored_scale) {
  SymmetricGroup group;
  group.scale = stored_scale;
  group.inverse = InverseOfScale(stored_scale);
  group.codable = IsFiniteFp32(MultiplyFp32(kSymmetricCodeMax, stored_scale));
  return group;
}

// From the largest magnitude of the group.
FB_HOST_DEVICE constexpr SymmetricGroup SymmetricGroupOfAmax(float amax, ScaleFormat format) {
  return SymmetricGroupOf(ScaleToStore(DivideFp32(amax, kSymmetricCodeMax), format));
}

FB_HOST_DEVICE constexpr int8_t SymmetricCode(float x, const SymmetricGroup& group) {
  const float scaled = MultiplyFp32(x, group.inverse);
  return static_cast<int8_t>(RoundToInt(Clamp(scaled, -kSymmetricCodeMax, kSymmetricCodeMax)));
}

FB_HOST_DEVICE constexpr float SymmetricValue(int8_t code, float scale) {
  return MultiplyFp32(static_cast<float>(code), scale);
}

// ---- affine, 2, 4 or 8 bits ----

struct AffineGroup {
  float scale = 0;    // as stored
  float zero = 0;     // as stored
  float inverse = 0;  // of the scale; 0 where that is 0
  bool codable = false;
};

template <int kBits>
inline constexpr float kAffineCodeMax = static_cast<float>((1 << kBits) - 1);

FB_HOST_DEVICE constexpr float AffineValue(uint8_t code, float scale, float zero) {
  return AddFp32(MultiplyFp32(static_cast<float>(code), scale), zero);
}

// From a stored scale and zero.
template <int kBits>
FB_HOST_DEVICE constexpr AffineGroup AffineGroupOf(float stored_scale, float stored_zero) {
  static_assert(kBits == 2 || kBits == 4 || kBits == 8);
  AffineGroup group;
  group.scale = stored_scale;
  group.zero = stored_zero;
  group.inverse = InverseOfScale(stored_scale);
  // The last code decodes to the largest value; a zero that is not finite shows in it too.
  group.codable = IsFiniteFp32(AffineValue((1 << kBits) - 1, stored_scale, stored_zero));
  return group;
}

// From the extremes of the group.
template <int kBits>
FB_HOST_DEVICE constexpr AffineGroup AffineGroupOfRange(float min, float max, ScaleFormat format) {
  const float range = AddFp32(max, -min);
  // -0 + 0 is +0. Which zero a minimum finds depends on the order of the search.
  const float zero = AddFp32(min, 0.0f);
  return AffineGroupOf<kBits>(ScaleToStore(DivideFp32(range, kAffineCodeMax<kBits>), format),
                              AsStored(zero, format));
}

template <int kBits>
FB_HOST_DEVICE constexpr uint8_t AffineCode(float x, const AffineGroup& group) {
  const float scaled = MultiplyFp32(AddFp32(x, -group.zero), group.inverse);
  return static_cast<uint8_t>(RoundToInt(Clamp(scaled, 0.0f, kAffineCodeMax<kBits>)));
}

// ---- whole groups: `count` >= 1 elements, `stride` elements apart ----

// Inf or NaN where there is one.
FB_HOST_DEVICE constexpr float GroupAmax(const float* x, size_t count, size_t stride) {
  uint32_t bits = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = MagnitudeBits(x[i * stride]);
    bits = magnitude > bits ? magnitude : bits;
  }
  return Fp32OfBits(bits);
}

struct GroupRange {
  float min;
  float max;
};

// Both are NaN where one element is Inf or NaN.
FB_HOST_DEVICE constexpr GroupRange RangeOfGroup(const float* x, size_t count, size_t stride) {
  GroupRange range{x[0], x[0]};
  for (size_t i = 1; i < count; ++i) {
    const float value = x[i * stride];
    range.min = value < range.min ? value : range.min;
    range.max = value > range.max ? value : range.max;
  }
  // Comparisons pass over NaN.
  if (!IsFiniteFp32(GroupAmax(x, count, stride))) {
    range = {Fp32OfBits(kFp32NanBits), Fp32OfBits(kFp32NanBits)};
  }
  return range;
}

// Writes codes[0, count), without gaps. What is not codable leaves codes that mean nothing.
FB_HOST_DEVICE constexpr SymmetricGroup EncodeSymmetricGroup(const float* x, size_t count,
                                                             size_t stride, ScaleFormat format,
                                                             int8_t* codes) {
  const SymmetricGroup group = SymmetricGroupOfAmax(GroupAmax(x, count, stride), format);
  for (size_t i = 0; i < count; ++i) codes[i] = SymmetricCode(x[i * stride], group);
  return group;
}

template <int kBits>
FB_HOST_DEVICE constexpr AffineGroup EncodeAffineGroup(const float* x, size_t count, size_t stride,
                                                       ScaleFormat format, uint8_t* codes) {
  const GroupRange range = RangeOfGroup(x, count, stride);
  const AffineGroup group = AffineGroupOfRange<kBits>(range.min, range.max, format);
  for (size_t i = 0; i < count; ++i) codes[i] = AffineCode<kBits>(x[i * stride], group);
  return group;
}

// ---- packed codes: code i at bits kBits * i of a little-endian string of bits ----

// The byte that holds codes[0, 8 / kBits).
template <int kBits>
FB_HOST_DEVICE constexpr uint8_t PackedByte(const uint8_t* codes) {
  static_assert(kBits == 2 || kBits == 4 || kBits == 8);
  uint32_t byte = 0;
  for (int i = 0; i < 8 / kBits; ++i) byte |= static_cast<uint32_t>(codes[i]) << (kBits * i);
  return static_cast<uint8_t>(byte);
}

template <int kBits>
FB_HOST_DEVICE constexpr uint8_t CodeAt(const uint8_t* packed, size_t i) {
  static_assert(kBits == 2 || kBits == 4 || kBits == 8);
  constexpr size_t kCodesPerByte = 8 / kBits;
  const uint32_t byte = packed[i / kCodesPerByte];
  return static_cast<uint8_t>((byte >> (kBits * (i % kCodesPerByte))) & ((1u << kBits) - 1));
}

}  // namespace forebay
