// Hadamard transforms of rows (codec/steps/hadamard.h).

#include <algorithm>
#include <memory>

#include "codec/plane_kernel/elements.h"
#include "codec/plane_kernel/plane_kernel.h"
#include "codec/plane_kernel/units.h"
#include "codec/steps/hadamard.h"

// Compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/plane_kernel/rotation.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace forebay::plane_kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// In this order: each needs those before it.
// clang-format off
#include "codec/plane_kernel/vectors.inc"
#include "codec/plane_kernel/groups.inc"
#include "codec/plane_kernel/ordered.inc"
// clang-format on

// Beyond these a row is not rotated: so that no sum of any block overflows, forth or back.
constexpr float kRotatedForthMost = 0x1p64f;
constexpr float kRotatedBackMost = 0x1p96f;

#if FOREBAY_VECTORS

// a + b and a - b of lanes 2^kLog apart.
template <int kLog>
HWY_INLINE VF Butterflies(VF x) {
  VF swapped;
  if constexpr (kLog == 0) {
    swapped = hn::Shuffle2301(x);
  } else if constexpr (kLog == 1) {
    swapped = hn::Shuffle1032(x);
  } else {
    swapped = hn::ConcatLowerUpper(DF(), x, x);
  }
  const DU32 d;
  const auto lane = hn::And(hn::Iota(d, 0), hn::Set(d, 1u << kLog));
  const auto minus = hn::BitCast(DF(), hn::ShiftLeft<31 - kLog>(lane));
  // A product with 1 or -1 is exact, so that a fused sum rounds as any other.
  return hn::MulAdd(x, hn::Or(hn::Set(DF(), 1.0f), minus), swapped);
}

HWY_INLINE VF ButterfliesInside(VF x) {
  x = Butterflies<1>(Butterflies<0>(x));
  if constexpr (hn::MaxLanes(DF()) == 8) x = Butterflies<2>(x);
  return x;
}

// Those between vectors `apart` and 2 * apart apart, or `apart` alone where `last`.
HWY_INLINE void ButterfliesAcross(float* x, size_t n, size_t apart, bool last) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t begin = 0; begin < n; begin += last ? 2 * apart : 4 * apart) {
    for (size_t i = begin; i < begin + apart; i += lanes) {
      const auto a = hn::LoadU(d, x + i);
      const auto b = hn::LoadU(d, x + i + apart);
      const auto ab = hn::Add(a, b);
      const auto a_b = hn::Sub(a, b);
      if (last) {
        hn::StoreU(ab, d, x + i);
        hn::StoreU(a_b, d, x + i + apart);
        continue;
      }
      const auto e = hn::LoadU(d, x + i + 2 * apart);
      const auto f = hn::LoadU(d, x + i + 3 * apart);
      const auto ef = hn::Add(e, f);
      const auto e_f = hn::Sub(e, f);
      hn::StoreU(hn::Add(ab, ef), d, x + i);
      hn::StoreU(hn::Add(a_b, e_f), d, x + i + apart);
      hn::StoreU(hn::Sub(ab, ef), d, x + i + 2 * apart);
      hn::StoreU(hn::Sub(a_b, e_f), d, x + i + 3 * apart);
    }
  }
}

// All of a half block that fits the registers, times `factor`.
template <size_t kVectors>
HWY_INLINE void RotateInRegisters(const float* x, VF factor, float* to) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF v[kVectors];
  for (size_t i = 0; i < kVectors; ++i) v[i] = ButterfliesInside(hn::LoadU(d, x + i * lanes));
  for (size_t apart = 1; apart < kVectors; apart *= 2) {
    for (size_t i = 0; i < kVectors; ++i) {
      if ((i & apart) != 0) continue;
      const VF a = v[i];
      v[i] = hn::Add(a, v[i + apart]);
      v[i + apart] = hn::Sub(a, v[i + apart]);
    }
  }
  for (size_t i = 0; i < kVectors; ++i) hn::StoreU(hn::Mul(v[i], factor), d, to + i * lanes);
}

HWY_INLINE void RotateHalf(float* x, size_t n, VF factor) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  switch (n / lanes) {
    case 2:
      return RotateInRegisters<2>(x, factor, x);
    case 4:
      return RotateInRegisters<4>(x, factor, x);
    case 8:
      return RotateInRegisters<8>(x, factor, x);
    default:
      break;
  }
  for (size_t i = 0; i < n; i += lanes) {
    hn::StoreU(ButterfliesInside(hn::LoadU(d, x + i)), d, x + i);
  }
  for (size_t apart = lanes; apart < n; apart *= 4) {
    ButterfliesAcross(x, n, apart, 2 * apart >= n);
  }
  for (size_t i = 0; i < n; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factor), d, x + i);
  }
}

// A block of `n` >= PairLanes(): its even elements in the first half of `x`, its odd ones in the
// other. The largest magnitude.
template <class T>
HWY_INLINE float RotateVectors(const uint8_t* from, uint8_t* to, size_t element, size_t n,
                               float* x) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t half = n / 2;
  for (size_t i = 0; i < half; i += lanes) {
    const Pair pair = LoadPair<T>(from, element + 2 * i);
    hn::StoreU(hn::Add(pair.even, pair.odd), d, x + i);
    hn::StoreU(hn::Sub(pair.even, pair.odd), d, x + half + i);
  }
  const auto factor = hn::Set(d, HadamardFactor(n));
  RotateHalf(x, half, factor);
  RotateHalf(x + half, half, factor);
  auto most = hn::Zero(d);
  for (size_t i = 0; i < half; i += lanes) {
    const Pair pair{hn::LoadU(d, x + i), hn::LoadU(d, x + half + i)};
    if constexpr (T::kInf != Bf16::kInf) {
      most = hn::Max(most, hn::Max(hn::Abs(pair.even), hn::Abs(pair.odd)));
    }
    StorePair<T>(pair, to, element + 2 * i);
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

#endif  // FOREBAY_VECTORS

template <class T>
HWY_INLINE float RotateBlock(const uint8_t* from, uint8_t* to, size_t element, size_t n, float* x) {
#if FOREBAY_VECTORS
  if (n >= PairLanes()) return RotateVectors<T>(from, to, element, n, x);
#endif
  for (size_t i = 0; i < n; ++i) x[i] = T::Value(LoadWord(from, element + i));
  HadamardRotate(x, n);
  float most = 0;
  for (size_t i = 0; i < n; ++i) {
    most = std::max(most, Fp32OfBits(MagnitudeBits(x[i])));
    StoreWord(T::Word(x[i]), to, element + i);
  }
  return most;
}

// `scratch` holds a block.
template <class T>
bool RotateRows(const PlaneShape& shape, Rotation rotation, const uint8_t* from, uint8_t* to,
                float* scratch) {
  const bool forth = rotation == Rotation::kForth;
  for (size_t row = 0; row < shape.element_count(); row += shape.dim) {
    const uint16_t amax = AmaxWord(from, row, shape.dim);
    if (amax >= T::kInf) return false;
    if (T::Value(amax) > (forth ? kRotatedForthMost : kRotatedBackMost)) return false;
    float most = 0;
    for (size_t begin = 0; begin < shape.dim;) {
      const size_t n = HadamardBlock(shape.dim - begin);
      most = std::max(most, RotateBlock<T>(from, to, row + begin, n, scratch));
      begin += n;
    }
    if (forth && T::kInf != Bf16::kInf && most > 65504.0f) return false;
  }
  return true;
}

bool RotateHere(const PlaneShape& shape, Rotation rotation, const uint8_t* from, uint8_t* to,
                float* scratch) {
  return shape.dtype == DType::kBf16 ? RotateRows<Bf16>(shape, rotation, from, to, scratch)
                                     : RotateRows<Fp16>(shape, rotation, from, to, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay::plane_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::plane_kernel {

HWY_EXPORT(RotateHere);

bool Rotate(const PlaneShape& shape, Rotation rotation, const uint8_t* from, uint8_t* to) {
  if (shape.element_count() == 0) return true;
  const auto block = std::make_unique_for_overwrite<float[]>(HadamardBlock(shape.dim));
  return HWY_DYNAMIC_DISPATCH(RotateHere)(shape, rotation, from, to, block.get());
}

}  // namespace forebay::plane_kernel
#endif
