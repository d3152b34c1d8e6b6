#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/steps/float_formats.h"
#include "codec/steps/int_quant.h"

// One element, or one stored scale, at a time: what the units of this folder do without vectors.
// No alignment is needed anywhere.
namespace forebay::plane_kernel {

// Elements as words whose order as int16 is that of the numbers: negative ones have all bits but
// the sign turned. Its own inverse.
inline int16_t Ordered(uint16_t word) {
  return static_cast<int16_t>(word ^ (static_cast<int16_t>(word) >> 15 & 0x7fff));
}

struct Bf16 {
  static constexpr uint16_t kInf = 0x7f80;
  static float Value(uint16_t word) { return Bf16ToFp32(word); }
  static uint16_t Word(float x) { return Fp32ToBf16(x); }
};
struct Fp16 {
  static constexpr uint16_t kInf = 0x7c00;
  static float Value(uint16_t word) { return Fp16ToFp32(word); }
  // A decoded extreme may overshoot by a rounding error.
  static uint16_t Word(float x) { return Fp32ToFp16Saturated(x); }
};

inline uint16_t LoadWord(const uint8_t* raw, size_t element) {
  uint16_t word;
  std::memcpy(&word, raw + 2 * element, sizeof(word));
  return word;
}
inline void StoreWord(uint16_t word, uint8_t* raw, size_t element) {
  std::memcpy(raw + 2 * element, &word, sizeof(word));
}

inline size_t ScaleBytes(ScaleFormat format) { return format == ScaleFormat::kBf16 ? 2 : 4; }

inline void StoreScale(float value, ScaleFormat format, uint8_t* stream, size_t i) {
  if (format == ScaleFormat::kBf16) {
    const uint16_t word = Fp32ToBf16(value);
    std::memcpy(stream + 2 * i, &word, sizeof(word));
  } else {
    std::memcpy(stream + 4 * i, &value, sizeof(value));
  }
}
inline float LoadScale(ScaleFormat format, const uint8_t* stream, size_t i) {
  if (format == ScaleFormat::kBf16) {
    uint16_t word;
    std::memcpy(&word, stream + 2 * i, sizeof(word));
    return Bf16ToFp32(word);
  }
  float value;
  std::memcpy(&value, stream + 4 * i, sizeof(value));
  return value;
}

// Whether a decoded value is finite in the element type too.
template <class T>
inline bool Fits(float x) {
  return IsFiniteFp32(x) && (T::Word(x) & 0x7fff) < T::kInf;
}

}  // namespace forebay::plane_kernel
