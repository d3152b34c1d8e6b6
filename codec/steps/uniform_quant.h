#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/steps/float_formats.h"
#include "codec/steps/host_device.h"
#include "codec/steps/int_quant.h"

// Whole-number codes at one step for all of a channel: no scale travels with a group.
//
//   x = mean + code * step       code = RNE((x - mean) / step), in [-reach, reach]
//
// A code beyond the reach is an escape: its element is kept apart, exactly. Otherwise
//   |x - decoded| <= step / 2
// but for the rounding of fp32 (2^-16 steps at most, and the last place of x - mean) and of the
// element's own type. Decoded again, a decoded element has the same code where that last rounding
// is less than half a step.
//
// A channel's class tells which table its codes are coded with: 2 * log2(sigma / step), to the
// nearest, from kUniformClassMin on, where the codes are almost all zero.
//
// Errors   none: every finite x has a code, or is an escape.
// Threads  pure functions; one element a call.
// Requires round to nearest; the host compiled with -ffp-contract=off; steps of
//          UniformStepIsSound.
// Source   the entropy-coded scalar quantizer: H. Gish, J. Pierce, "Asymptotically efficient
//          quantizing", 1968.
namespace forebay {

inline constexpr int32_t kUniformCodeMax = 127;
inline constexpr int32_t kUniformEscape = -128;
inline constexpr int kUniformClasses = 17;
inline constexpr int kUniformClassMin = -4;

struct UniformChannel {
  float mean = 0;
  float step = 1;
  float inverse = 1;  // of the step
  float reach = kUniformCodeMax;
};

// Of a channel: far from where fp32 ends, so that neither the inverse nor 127 steps leave it.
FB_HOST_DEVICE constexpr bool UniformStepIsSound(float step) {
  return step >= 0x1p-80f && step <= 0x1p80f;
}

FB_HOST_DEVICE constexpr int32_t UniformCode(float x, const UniformChannel& channel) {
  const float scaled = MultiplyFp32(AddFp32(x, -channel.mean), channel.inverse);
  const float beyond = AddFp32(channel.reach, 1.0f);
  const int32_t code = RoundToInt(Clamp(scaled, -beyond, beyond));
  const auto reach = static_cast<int32_t>(channel.reach);
  return code > reach || code < -reach ? kUniformEscape : code;
}

FB_HOST_DEVICE constexpr float UniformValue(int32_t code, const UniformChannel& channel) {
  return AddFp32(MultiplyFp32(static_cast<float>(code), channel.step), channel.mean);
}

// 8 * log2(x), to the nearest. Requires a positive normal number.
FB_HOST_DEVICE constexpr int32_t Log2Eighths(float x) {
  // The mantissas of 2^(1/16), 2^(3/16), ...: where one eighth is as near as the next.
  constexpr uint32_t kBetween[8] = {0x05aac3, 0x11c3d3, 0x1ef532, 0x2d583f,
                                    0x3d08a4, 0x4e248c, 0x60ccdf, 0x75257d};
  const uint32_t bits = BitsOfFp32(x);
  const uint32_t mantissa = bits & 0x7fffff;
  int32_t eighths = (static_cast<int32_t>(bits >> 23) - 127) * 8;
  for (int i = 0; i < 8; ++i) eighths += mantissa >= kBetween[i] ? 1 : 0;
  return eighths;
}

// 2^(eighths / 8), to the nearest fp32. Requires a result that is a normal number.
FB_HOST_DEVICE constexpr float Exp2Eighths(int32_t eighths) {
  constexpr uint32_t kMantissas[8] = {0x000000, 0x0b95c2, 0x1837f0, 0x25fed7,
                                      0x3504f3, 0x45672a, 0x5744fd, 0x6ac0c7};
  const int32_t exponent = eighths >> 3;
  return Fp32OfBits((static_cast<uint32_t>(exponent + 127) << 23) | kMantissas[eighths & 7]);
}

// The place of a class among kUniformClasses, for a sigma and a step in eighths of their log2.
FB_HOST_DEVICE constexpr int UniformClass(int32_t sigma_eighths, int32_t step_eighths) {
  const int32_t place = ((sigma_eighths - step_eighths + 2) >> 2) - kUniformClassMin;
  return place < 0 ? 0 : place >= kUniformClasses ? kUniformClasses - 1 : place;
}

}  // namespace forebay
