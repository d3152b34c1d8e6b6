#include "codec/plane_kernel.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

#include "codec/plane_outliers.h"
#include "codec/steps/compact_scale.h"
#include "codec/steps/hadamard.h"
#include "codec/steps/level_quant.h"

// This file is compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/plane_kernel.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#ifndef FOREBAY_PLANE_KERNEL_ONCE
#define FOREBAY_PLANE_KERNEL_ONCE
namespace forebay::plane_kernel {
namespace {

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

struct E4M3 {
  static constexpr float kLargest = 448.0f;
  static constexpr uint8_t kNotANumber = 0x7f;  // and above, without the sign
  static uint8_t Code(float x) { return Fp32ToE4M3(x); }
  static float Value(uint8_t code) { return E4M3ToFp32(code); }
};
struct E5M2 {
  static constexpr float kLargest = 57344.0f;
  static constexpr uint8_t kNotANumber = 0x7c;
  static uint8_t Code(float x) { return Fp32ToE5M2(x); }
  static float Value(uint8_t code) { return E5M2ToFp32(code); }
};

}  // namespace
}  // namespace forebay::plane_kernel
#endif

HWY_BEFORE_NAMESPACE();
namespace forebay::plane_kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// In this order: each needs those before it.
// clang-format off
#include "codec/plane_vectors.inc"
#include "codec/plane_groups.inc"
#include "codec/plane_tables.inc"
#include "codec/plane_ordered.inc"
#include "codec/plane_symmetric.inc"
#include "codec/plane_affine_rows.inc"
#include "codec/plane_affine_columns.inc"
#include "codec/plane_levels.inc"
#include "codec/plane_compact.inc"
#include "codec/plane_rotation.inc"
#include "codec/plane_outliers.inc"
// clang-format on

template <class T>
bool EncodeAs(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
              const StreamsToWrite& to) {
  switch (format.kind) {
    case PlaneKind::kFp8E4M3:
      return EncodeSymmetric<T, Fp8CodesOf<E4M3>>(format, shape, raw, to);
    case PlaneKind::kFp8E5M2:
      return EncodeSymmetric<T, Fp8CodesOf<E5M2>>(format, shape, raw, to);
    case PlaneKind::kInt8:
      return EncodeSymmetric<T, Int8Codes>(format, shape, raw, to);
    case PlaneKind::kInt4:
      return format.scale == ScaleFormat::kCompact ? EncodeCompact<T, 4>(format, shape, raw, to)
                                                   : EncodeAffine<T, 4>(format, shape, raw, to);
    case PlaneKind::kInt2:
      return format.scale == ScaleFormat::kCompact ? EncodeCompact<T, 2>(format, shape, raw, to)
                                                   : EncodeAffine<T, 2>(format, shape, raw, to);
    case PlaneKind::kLloyd4:
      return EncodeLevels<T, 4>(format, shape, raw, to);
    case PlaneKind::kLloyd3:
      return EncodeLevels<T, 3>(format, shape, raw, to);
    case PlaneKind::kLloyd2:
      return EncodeLevels<T, 2>(format, shape, raw, to);
    case PlaneKind::kRaw:
    case PlaneKind::kSplitFixed:
    case PlaneKind::kSplitEntropy:
      break;
  }
  return false;
}

template <class T>
bool DecodeAs(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
              uint8_t* raw) {
  switch (format.kind) {
    case PlaneKind::kFp8E4M3:
      return DecodeSymmetric<T, Fp8CodesOf<E4M3>>(format, shape, from, raw);
    case PlaneKind::kFp8E5M2:
      return DecodeSymmetric<T, Fp8CodesOf<E5M2>>(format, shape, from, raw);
    case PlaneKind::kInt8:
      return DecodeSymmetric<T, Int8Codes>(format, shape, from, raw);
    case PlaneKind::kInt4:
      return DecodeAffine<T, 4>(format, shape, from, raw);
    case PlaneKind::kInt2:
      return DecodeAffine<T, 2>(format, shape, from, raw);
    case PlaneKind::kLloyd4:
      return DecodeLevels<T, 4>(format, shape, from, raw);
    case PlaneKind::kLloyd3:
      return DecodeLevels<T, 3>(format, shape, from, raw);
    case PlaneKind::kLloyd2:
      return DecodeLevels<T, 2>(format, shape, from, raw);
    case PlaneKind::kRaw:
    case PlaneKind::kSplitFixed:
    case PlaneKind::kSplitEntropy:
      break;
  }
  return false;
}

bool EncodeHere(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                const StreamsToWrite& to) {
  return shape.dtype == DType::kBf16 ? EncodeAs<Bf16>(format, shape, raw, to)
                                     : EncodeAs<Fp16>(format, shape, raw, to);
}

bool DecodeHere(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                uint8_t* raw) {
  return shape.dtype == DType::kBf16 ? DecodeAs<Bf16>(format, shape, from, raw)
                                     : DecodeAs<Fp16>(format, shape, from, raw);
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay::plane_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::plane_kernel {

HWY_EXPORT(EncodeHere);
HWY_EXPORT(DecodeHere);
HWY_EXPORT(RotateHere);
HWY_EXPORT(TakeOutliersHere);

bool Encode(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
            const StreamsToWrite& to) {
  return HWY_DYNAMIC_DISPATCH(EncodeHere)(format, shape, raw, to);
}

bool Decode(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
            uint8_t* raw) {
  return HWY_DYNAMIC_DISPATCH(DecodeHere)(format, shape, from, raw);
}

bool Rotate(const PlaneShape& shape, Rotation rotation, const uint8_t* from, uint8_t* to) {
  if (shape.element_count() == 0) return true;
  const auto block = std::make_unique_for_overwrite<float[]>(HadamardBlock(shape.dim));
  return HWY_DYNAMIC_DISPATCH(RotateHere)(shape, rotation, from, to, block.get());
}

bool TakeOutliers(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                  uint8_t* dense, uint8_t* outliers) {
  if (shape.element_count() == 0) return true;
  std::memcpy(dense, raw, shape.raw_bytes());
  const auto keys =
      std::make_unique_for_overwrite<int16_t[]>(OutlierVectorsOf(format, shape).length);
  return HWY_DYNAMIC_DISPATCH(TakeOutliersHere)(format, shape, dense, outliers, keys.get());
}

}  // namespace forebay::plane_kernel
#endif
