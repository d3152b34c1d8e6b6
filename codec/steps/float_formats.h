#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/steps/host_device.h"

// Conversions between fp32 and the narrow number formats of caches: bf16, fp16, FP8 (E4M3, E5M2),
// FP4 (E2M1), and the block scales E8M0 and UE4M3.
//
// Every narrow value is exact in fp32, and fp32 is rounded once, to nearest with ties to the even
// code. So a detour through fp32 loses nothing: bf16 -> fp32 -> E4M3 is one rounding.
//
//            largest   smallest normal   step below it   NaN in                      Inf in
//   bf16     3.39e38   2^-126            2^-133          a quiet NaN, sign kept      Inf
//   fp16     65,504    2^-14             2^-24           a quiet NaN, sign kept      Inf
//   E4M3     448       2^-6              2^-9            0x7f                        +-448
//   E5M2     57,344    2^-14             2^-16           0x7f                        +-57,344
//   E2M1     6         1                 0.5             0x7 (6)                     +-6
//   UE4M3    448       2^-6              2^-9            0x7f                        448
//
// Too large a value becomes Inf in bf16 and fp16, and the largest finite one in the others. The
// sign of zero is kept, except in the unsigned scales.
//
// Errors   none: every input has an output.
// Threads  pure functions.
// Requires round to nearest. Subnormal fp32 may be flushed to zero.
// Source   IEEE 754; OCP 8-bit Floating Point (OFP8) 1.0; OCP Microscaling Formats (MX) 1.0; the
//          saturating conversions of cuda_fp8.h, cuda_fp4.h.
namespace forebay {

FB_HOST_DEVICE constexpr uint32_t BitsOfFp32(float x) { return __builtin_bit_cast(uint32_t, x); }
FB_HOST_DEVICE constexpr float Fp32OfBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline constexpr uint32_t kFp32SignBit = 0x8000'0000u;
inline constexpr uint32_t kFp32InfBits = 0x7f80'0000u;
inline constexpr uint32_t kFp32NanBits = 0x7fc0'0000u;  // the quiet NaN without payload

// |x| as bits: these order as the magnitudes do, with Inf and then NaN above all numbers.
FB_HOST_DEVICE constexpr uint32_t MagnitudeBits(float x) { return BitsOfFp32(x) & ~kFp32SignBit; }
FB_HOST_DEVICE constexpr bool IsFiniteFp32(float x) { return MagnitudeBits(x) < kFp32InfBits; }
FB_HOST_DEVICE constexpr bool IsNanFp32(float x) { return MagnitudeBits(x) > kFp32InfBits; }

// One operation, one rounding. nvcc would fuse a product and a sum unless told otherwise; the host
// must be compiled with -ffp-contract=off to give the same bits.
FB_HOST_DEVICE constexpr float AddFp32(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __fadd_rn(a, b);
#endif
  return a + b;
}
FB_HOST_DEVICE constexpr float MultiplyFp32(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __fmul_rn(a, b);
#endif
  return a * b;
}
FB_HOST_DEVICE constexpr float DivideFp32(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __fdiv_rn(a, b);
#endif
  return a / b;
}

// What the formats share: codes with `kMantissaBits` below an exponent of bias `kBias`. A code
// holds no sign here, and says nothing of Inf and NaN.
template <int kMantissaBits, int kBias>
struct SmallFloat {
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kSmallestNormalBits = static_cast<uint32_t>(128 - kBias) << 23;
  // The power of two at which one unit in the last place of fp32 is a subnormal step. What is added
  // to it is rounded to whole steps, and the number of steps stands in the low bits.
  static constexpr uint32_t kStepCounterBits =
      static_cast<uint32_t>(127 + 24 - kBias - kMantissaBits) << 23;

  // Requires a number, not above the largest code's. The carry of rounding runs into the exponent,
  // which is what makes 1.99 the code of 2.
  FB_HOST_DEVICE static constexpr uint32_t CodeOf(uint32_t magnitude_bits) {
    const uint32_t to_even = (magnitude_bits >> kShift) & 1;
    const uint32_t half_less_one = (1u << (kShift - 1)) - 1;
    const uint32_t normal = (magnitude_bits - kRebias + half_less_one + to_even) >> kShift;
    const float counted = AddFp32(Fp32OfBits(magnitude_bits), Fp32OfBits(kStepCounterBits));
    const uint32_t subnormal = BitsOfFp32(counted) - kStepCounterBits;
    return magnitude_bits >= kSmallestNormalBits ? normal : subnormal;
  }

  // No subnormal fp32 appears on the way, so that a process that flushes them gets the same.
  FB_HOST_DEVICE static constexpr float ValueOf(uint32_t code) {
    const float subnormal =
        AddFp32(Fp32OfBits(kStepCounterBits | code), -Fp32OfBits(kStepCounterBits));
    const float normal = Fp32OfBits((code << kShift) + kRebias);
    return code >> kMantissaBits == 0 ? subnormal : normal;
  }
};

FB_HOST_DEVICE constexpr uint32_t SmallerOf(uint32_t a, uint32_t b) { return a < b ? a : b; }

FB_HOST_DEVICE constexpr float WithSign(float magnitude, uint32_t sign_bit) {
  return Fp32OfBits(BitsOfFp32(magnitude) | sign_bit);
}

// The most significant bit of a code `bits` wide, as the sign bit of fp32.
template <int kBits>
FB_HOST_DEVICE constexpr uint32_t SignOfCode(uint32_t code) {
  return (code << (32 - kBits)) & kFp32SignBit;
}

// ---- bf16 and fp16 ----

FB_HOST_DEVICE constexpr uint16_t Fp32ToBf16(float x) {
  const uint32_t bits = BitsOfFp32(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>(IsNanFp32(x) ? quiet_nan : rounded);
}

// All bits kept, those of a signalling NaN too.
FB_HOST_DEVICE constexpr float Bf16ToFp32(uint16_t code) {
  return Fp32OfBits(static_cast<uint32_t>(code) << 16);
}

// A NaN keeps the upper ten bits of its payload, as the conversion instructions of x86 do.
FB_HOST_DEVICE constexpr uint16_t Fp32ToFp16(float x) {
  const uint32_t magnitude = MagnitudeBits(x);
  // 65,520 and more is Inf; cutting off at 2^16 keeps larger exponents from wrapping around.
  const uint32_t number = SmallFloat<10, 15>::CodeOf(SmallerOf(magnitude, 0x4780'0000u));
  const uint32_t quiet_nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  const uint32_t code = IsNanFp32(x) ? quiet_nan : number;
  return static_cast<uint16_t>(code | ((BitsOfFp32(x) >> 16) & 0x8000));
}

// The same, with the largest finite value in the place of what is beyond it, Inf included: for
// decoded values that overshoot what was encoded by a rounding error. NaN stays NaN.
FB_HOST_DEVICE constexpr uint16_t Fp32ToFp16Saturated(float x) {
  const uint32_t code = Fp32ToFp16(x);
  return static_cast<uint16_t>((code & 0x7fff) == 0x7c00 ? code - 1 : code);
}

// A signalling NaN becomes quiet, as in hardware.
FB_HOST_DEVICE constexpr float Fp16ToFp32(uint16_t code) {
  const uint32_t magnitude = code & 0x7fffu;
  const float number = SmallFloat<10, 15>::ValueOf(magnitude);
  const uint32_t quiet = magnitude > 0x7c00 ? 0x0040'0000u : 0;
  const float special = Fp32OfBits(kFp32InfBits | ((magnitude & 0x3ff) << 13) | quiet);
  return WithSign(magnitude >= 0x7c00 ? special : number, SignOfCode<16>(code));
}

// ---- FP8 and FP4: the low bits of a byte, all finite but for NaN ----

inline constexpr uint32_t kE4M3LargestBits = 0x43e0'0000u;  // 448
inline constexpr uint32_t kE5M2LargestBits = 0x4760'0000u;  // 57,344
inline constexpr uint32_t kE2M1LargestBits = 0x40c0'0000u;  // 6

FB_HOST_DEVICE constexpr uint8_t Fp32ToE4M3(float x) {
  const uint32_t code = SmallFloat<3, 7>::CodeOf(SmallerOf(MagnitudeBits(x), kE4M3LargestBits));
  const uint32_t sign = (BitsOfFp32(x) >> 24) & 0x80;
  return static_cast<uint8_t>(IsNanFp32(x) ? 0x7f : code | sign);
}

FB_HOST_DEVICE constexpr float E4M3ToFp32(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float number = SmallFloat<3, 7>::ValueOf(magnitude);
  return WithSign(magnitude == 0x7f ? Fp32OfBits(kFp32NanBits) : number, SignOfCode<8>(code));
}

FB_HOST_DEVICE constexpr uint8_t Fp32ToE5M2(float x) {
  const uint32_t code = SmallFloat<2, 15>::CodeOf(SmallerOf(MagnitudeBits(x), kE5M2LargestBits));
  const uint32_t sign = (BitsOfFp32(x) >> 24) & 0x80;
  return static_cast<uint8_t>(IsNanFp32(x) ? 0x7f : code | sign);
}

// 0x7c and 0xfc, which no encoder here writes, are Inf.
FB_HOST_DEVICE constexpr float E5M2ToFp32(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float number = SmallFloat<2, 15>::ValueOf(magnitude);
  const float special = Fp32OfBits(magnitude == 0x7c ? kFp32InfBits : kFp32NanBits);
  return WithSign(magnitude >= 0x7c ? special : number, SignOfCode<8>(code));
}

// Four bits: sign, two of exponent, one of mantissa. The upper four of the byte are zero.
FB_HOST_DEVICE constexpr uint8_t Fp32ToE2M1(float x) {
  const uint32_t code = SmallFloat<1, 1>::CodeOf(SmallerOf(MagnitudeBits(x), kE2M1LargestBits));
  const uint32_t sign = (BitsOfFp32(x) >> 28) & 0x8;
  return static_cast<uint8_t>(IsNanFp32(x) ? 0x7 : code | sign);
}

// Only the low four bits of `code` count.
FB_HOST_DEVICE constexpr float E2M1ToFp32(uint8_t code) {
  return WithSign(SmallFloat<1, 1>::ValueOf(code & 0x7u), SignOfCode<4>(code));
}

// ---- block scales ----

// The exponents of the largest numbers, which the floor rule leaves room for.
inline constexpr int kE4M3ExponentMax = 8;
inline constexpr int kE5M2ExponentMax = 15;
inline constexpr int kE2M1ExponentMax = 2;

// The scale of a block whose largest magnitude is `amax`: 2^(floor(log2 amax) - exponent_max), as
// the OCP's floor rule wants it, and no less than 2^-127. 0xff, which is NaN, for Inf and NaN.
// Requires 0 <= exponent_max; the sign of `amax` does not count.
FB_HOST_DEVICE constexpr uint8_t E8M0OfAmax(float amax, int exponent_max) {
  const int exponent = static_cast<int>(MagnitudeBits(amax) >> 23);
  const int code = exponent > exponent_max ? exponent - exponent_max : 0;
  return static_cast<uint8_t>(exponent == 0xff ? 0xff : code);
}

// 2^(code - 127); NaN for 0xff.
FB_HOST_DEVICE constexpr float E8M0ToFp32(uint8_t code) {
  const uint32_t power = code == 0 ? 0x0040'0000u : static_cast<uint32_t>(code) << 23;
  return Fp32OfBits(code == 0xff ? kFp32NanBits : power);
}

// 2^(127 - code), which turns the division by a scale into an exact product; NaN for 0xff.
FB_HOST_DEVICE constexpr float E8M0Inverse(uint8_t code) {
  const uint32_t power = code == 0xfe ? 0x0040'0000u : static_cast<uint32_t>(0xfe - code) << 23;
  return Fp32OfBits(code == 0xff ? kFp32NanBits : power);
}

// E4M3 without a sign: a scale. What is below zero becomes zero.
FB_HOST_DEVICE constexpr uint8_t Fp32ToUE4M3(float x) {
  const uint8_t code = Fp32ToE4M3(x);
  return (code & 0x80) != 0 ? 0 : code;
}

// The top bit of `code` does not count: a reader that must refuse it looks first.
FB_HOST_DEVICE constexpr float UE4M3ToFp32(uint8_t code) { return E4M3ToFp32(code & 0x7f); }

}  // namespace forebay
