// Rows and heads of symmetric INT8.

#include <algorithm>

#include "codec/plane_kernel/elements.h"
#include "codec/plane_kernel/units.h"

// Compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/plane_kernel/int8.cc"
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
#include "codec/plane_kernel/symmetric.inc"
// clang-format on

struct Int8Codes {
  static constexpr float kLargest = kSymmetricCodeMax;

#if FOREBAY_VECTORS
  // The codes of the elements of `first` and `second`, in order. What is divided by its stored
  // scale is below 127.5, as in AffineCodes: nothing has to be cut off.
  template <class T>
  static HWY_INLINE V8 Encode(VU32 first, VU32 second, VF inverse) {
    const auto two_codes = [inverse](VU32 words) {
      const Pair x = PairOf<T>(words);
      // Codes from 1 to 255 do not borrow from each other.
      const auto rounder = hn::Set(DF(), kRounder + 128.0f);
      const auto even = hn::BitCast(DU32(), hn::Add(hn::Mul(x.even, inverse), rounder));
      const auto odd = hn::BitCast(DU32(), hn::Add(hn::Mul(x.odd, inverse), rounder));
      return hn::Add(even, hn::ShiftLeft<8>(odd));
    };
    return hn::Xor(InOrder(two_codes(first), two_codes(second)), hn::Set(D8(), 0x80));
  }
#endif
  template <class T>
  static uint8_t EncodeOne(uint16_t word, float inverse) {
    SymmetricGroup group;
    group.inverse = inverse;
    return static_cast<uint8_t>(SymmetricCode(T::Value(word), group));
  }

  // What decodes groups of one scale.
  struct Scaled {
    float scale;
  };
  template <class T>
  static HWY_INLINE Scaled ScaledBy(float scale) {
    return {scale};
  }
  template <class T>
  static HWY_INLINE bool Decode(const uint8_t* codes, size_t count, const Scaled& by, uint8_t* raw,
                                size_t element) {
    const float scale = by.scale;
    size_t i = 0;
#if FOREBAY_VECTORS
    // A code in the upper half of a lane is 2^16 times as large; its sign is in place.
    if (scale == 0 || scale >= 0x1p-110f) {
      const size_t lanes = PairLanes();
      const auto scales = hn::Set(DF(), scale * 0x1p-16f);
      for (; i + lanes <= count; i += lanes) {
        const auto chars = hn::LoadU(DChars(), reinterpret_cast<const int8_t*>(codes + i));
        const auto words = hn::BitCast(DI32(), hn::PromoteTo(DOrdered(), chars));
        const auto even = hn::ShiftLeft<16>(words);
        const auto odd = hn::AndNot(hn::Set(DI32(), 0xffff), words);
        StorePair<T>(
            {hn::Mul(hn::ConvertTo(DF(), even), scales), hn::Mul(hn::ConvertTo(DF(), odd), scales)},
            raw, element + i);
      }
    }
#endif
    for (; i < count; ++i) {
      const float value = SymmetricValue(static_cast<int8_t>(codes[i]), scale);
      StoreWord(T::Word(value), raw, element + i);
    }
    return true;
  }
};

bool EncodeInt8Here(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                    const StreamsToWrite& to) {
  return shape.dtype == DType::kBf16 ? EncodeSymmetric<Bf16, Int8Codes>(format, shape, raw, to)
                                     : EncodeSymmetric<Fp16, Int8Codes>(format, shape, raw, to);
}

bool DecodeInt8Here(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                    uint8_t* raw) {
  return shape.dtype == DType::kBf16 ? DecodeSymmetric<Bf16, Int8Codes>(format, shape, from, raw)
                                     : DecodeSymmetric<Fp16, Int8Codes>(format, shape, from, raw);
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay::plane_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::plane_kernel {

HWY_EXPORT(EncodeInt8Here);
HWY_EXPORT(DecodeInt8Here);

bool EncodeInt8(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                const StreamsToWrite& to) {
  return HWY_DYNAMIC_DISPATCH(EncodeInt8Here)(format, shape, raw, to);
}

bool DecodeInt8(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                uint8_t* raw) {
  return HWY_DYNAMIC_DISPATCH(DecodeInt8Here)(format, shape, from, raw);
}

}  // namespace forebay::plane_kernel
#endif
