#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/steps/float_formats.h"
#include "codec/steps/host_device.h"
#include "codec/steps/int_quant.h"

// The scale and the zero of an affine group in one byte each, in units of its head:
//
//   unit    fp32, the largest magnitude of the head / 127
//   zero    int8 * unit: the largest that is not above the group's minimum
//   scale   E4M4 * unit: the smallest that covers the rest, zero + (2^b - 1) * scale >= maximum
//
// E4M4 is an unsigned small float: 4 bits of exponent (bias 9) above 4 of mantissa, code 0 is 0,
// largest 124, no Inf, no NaN. Nothing of a group lies beyond its codes, so an element is off by
// half a scale at most; against an exact scale and zero the scale is at most 1/16 and
// unit / (2^b - 1) larger (where it is above unit / 256, below which E4M4 has fewer bits).
// Codes are computed with the stored numbers, as in codec/steps/int_quant.h.
//
// A unit below 2^-126 is stored as 0, and all of the head becomes 0.
//
// Errors   none here; whoever encodes looks whether what the codes stand for is finite.
// Threads  pure functions, a group a call.
// Requires round to nearest; the host compiled with -ffp-contract=off.
namespace forebay {

struct CompactUnit {
  float unit = 0;
  float inverse = 0;  // of the unit; 0 where that is 0
};

FB_HOST_DEVICE constexpr CompactUnit CompactUnitOf(float stored_unit) {
  return {stored_unit, InverseOfScale(stored_unit)};
}

FB_HOST_DEVICE constexpr CompactUnit CompactUnitOfAmax(float amax) {
  return CompactUnitOf(ScaleToStore(DivideFp32(amax, 127.0f), ScaleFormat::kFp32));
}

using CompactScaleFloat = SmallFloat</*kMantissaBits=*/4, /*kBias=*/9>;

FB_HOST_DEVICE constexpr float CompactScale(uint8_t code, float unit) {
  return MultiplyFp32(CompactScaleFloat::ValueOf(code), unit);
}
FB_HOST_DEVICE constexpr float CompactZero(int8_t code, float unit) {
  return MultiplyFp32(static_cast<float>(code), unit);
}

struct CompactGroup {
  uint8_t scale = 0;
  int8_t zero = 0;
};

// From the extremes of the group. Requires the unit of a head that holds them.
template <int kBits>
FB_HOST_DEVICE constexpr CompactGroup CompactGroupOfRange(float min, float max,
                                                          const CompactUnit& unit) {
  // No range of a finite head needs more than 85; the cut is for those that are not codable.
  constexpr float kScaleMost = 100.0f;
  int32_t zero = RoundToInt(Clamp(MultiplyFp32(min, unit.inverse), -127.0f, 127.0f));
  if (MultiplyFp32(static_cast<float>(zero), unit.unit) > min && unit.unit > 0) --zero;
  const float stored_zero = CompactZero(static_cast<int8_t>(zero), unit.unit);
  const float per_code = DivideFp32(unit.inverse, kAffineCodeMax<kBits>);
  const float wanted = Clamp(MultiplyFp32(AddFp32(max, -stored_zero), per_code), 0.0f, kScaleMost);
  uint32_t scale = CompactScaleFloat::CodeOf(BitsOfFp32(wanted));
  const float reach = AffineValue(
      (1 << kBits) - 1, CompactScale(static_cast<uint8_t>(scale), unit.unit), stored_zero);
  if (reach < max && unit.unit > 0) ++scale;
  return {static_cast<uint8_t>(scale), static_cast<int8_t>(zero)};
}

template <int kBits>
FB_HOST_DEVICE constexpr AffineGroup AffineGroupOfCompact(const CompactGroup& group, float unit) {
  return AffineGroupOf<kBits>(CompactScale(group.scale, unit), CompactZero(group.zero, unit));
}

}  // namespace forebay
