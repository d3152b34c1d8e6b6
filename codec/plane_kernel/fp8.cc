// Rows, heads and whole planes of FP8.

#include <algorithm>
#include <type_traits>

#include "codec/plane_kernel/elements.h"
#include "codec/plane_kernel/units.h"

// Compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/plane_kernel/fp8.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#ifndef FOREBAY_FP8_ONCE
#define FOREBAY_FP8_ONCE
namespace forebay::plane_kernel {
namespace {

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
#include "codec/plane_kernel/vectors.inc"
#include "codec/plane_kernel/groups.inc"
#include "codec/plane_kernel/tables.inc"
#include "codec/plane_kernel/symmetric.inc"
// clang-format on

template <class F8>
struct Fp8CodesOf {
  static constexpr float kLargest = F8::kLargest;
  static constexpr bool kE4M3 = F8::kLargest == E4M3::kLargest;
  static constexpr int kMantissaBits = kE4M3 ? 3 : 2;
  static constexpr float kSmallestNormal = kE4M3 ? 0x1p-6f : 0x1p-14f;
  // From the exponents of codes to those of `sum` in Magnitude.
  static constexpr uint32_t kExponentOffset = (kE4M3 ? 121 : 113) + 23 - kMantissaBits;

#if FOREBAY_VECTORS
  // Low halves: the code of a magnitude, and kExponentOffset << kMantissaBits. The unit in the last
  // place of the sum is the step of the codes around y; the number of steps comes out at its lower
  // end, and with the exponent it is the code.
  static HWY_INLINE VU32 Magnitude(VF y) {
    const DU32 du;
    const auto raised = hn::BitCast(du, hn::Max(y, hn::Set(DF(), kSmallestNormal)));
    const auto exponent = hn::And(raised, hn::Set(du, 0x7f80'0000u));
    const auto rounder = hn::Add(exponent, hn::Set(du, (23u - kMantissaBits) << 23));
    const auto sum = hn::BitCast(du, hn::Add(y, hn::BitCast(DF(), rounder)));
    return hn::Add(sum, hn::ShiftRight<23 - kMantissaBits>(sum));
  }

  // Nothing has to be cut off, as in Int8Codes.
  template <class T>
  static HWY_INLINE V8 Encode(VU32 first, VU32 second, VF inverse) {
    const auto two_codes = [inverse](VU32 words) {
      const Pair x = PairOf<T>(hn::And(words, hn::Set(DU32(), 0x7fff'7fffu)));
      const auto even = Magnitude(hn::Mul(x.even, inverse));
      const auto odd = Magnitude(hn::Mul(x.odd, inverse));
      return hn::Add(even, hn::ShiftLeft<8>(odd));
    };
    const auto both = hn::BitCast(DWords(), InOrder(two_codes(first), two_codes(second)));
    constexpr uint32_t kOffset = kExponentOffset << kMantissaBits;
    constexpr auto kOffsets = static_cast<uint16_t>(kOffset + (kOffset << 8));
    const auto codes = hn::BitCast(D8(), hn::Sub(both, hn::Set(DWords(), kOffsets)));
    const auto high = hn::ConcatOdd(D8(), hn::BitCast(D8(), second), hn::BitCast(D8(), first));
    return hn::Or(codes, hn::And(high, hn::Set(D8(), 0x80)));
  }

  static HWY_INLINE VF Value(VI32 signed_codes) {
    const DU32 du;
    const auto codes = hn::BitCast(du, signed_codes);
    const auto magnitude = hn::ShiftLeft<23 - kMantissaBits>(hn::And(codes, hn::Set(du, 0x7f)));
    const auto number =
        hn::Mul(hn::BitCast(DF(), magnitude), hn::Set(DF(), kE4M3 ? 0x1p120f : 0x1p112f));
    const auto sign = hn::And(hn::ShiftLeft<24>(codes), hn::Set(du, 0x8000'0000u));
    return hn::BitCast(DF(), hn::Or(hn::BitCast(du, number), sign));
  }

  // Elements of codes below two exponents, by table; each exponent above adds one to the element's.
  // False where that is not so: where elements are subnormal, or beyond the largest.
  template <class T>
  static HWY_INLINE bool TableOf(float scale, ByteTables& tables) {
    constexpr uint16_t kOne = T::kInf == Bf16::kInf ? 0x0080 : 0x0400;
    const float step = scale * (kSmallestNormal / (1 << kMantissaBits));
    if (!(step >= kScaleSmallest) || T::Word(step * (1 << kMantissaBits)) < kOne) return false;
    if (T::kInf != Bf16::kInf && MultiplyFp32(F8::kLargest, scale) > 65504.0f) return false;
    TableWords words = LinearTable<T>(step, 0.0f);
    const DWords d;
    for (size_t k = 0; k < 16; k += hn::Lanes(d)) {
      const auto is_normal = hn::Gt(hn::Iota(DOrdered(), static_cast<int16_t>(k)),
                                    hn::Set(DOrdered(), (1 << kMantissaBits) - 1));
      const auto less = hn::IfThenElseZero(hn::RebindMask(d, is_normal), hn::Set(d, kOne));
      hn::Store(hn::Sub(hn::Load(d, words.word + k), less), d, words.word + k);
    }
    tables = TablesOf(words.word);
    return true;
  }

  // IndexLanes() codes; their magnitudes are added to `largest`.
  template <class T>
  static HWY_INLINE void DecodeByTable(const ByteTables& tables, const uint8_t* codes, V8& largest,
                                       uint8_t* raw, size_t element) {
    constexpr int kPlace = T::kInf == Bf16::kInf ? 7 : 10;  // of the exponent in an element
    const D8 d;
    const auto in_order = InTableOrder(hn::LoadU(d, codes));
    const auto magnitude = hn::And(in_order, hn::Set(d, 0x7f));
    largest = hn::Max(largest, magnitude);
    constexpr auto kMantissa = static_cast<uint8_t>((1 << kMantissaBits) - 1);
    const auto normal =
        hn::Or(hn::And(magnitude, hn::Set(d, kMantissa)), hn::Set(d, kMantissa + 1));
    const auto index = hn::Min(magnitude, normal);
    const auto sign = hn::And(in_order, hn::Set(d, 0x80));
    const auto low = hn::TableLookupBytes(tables.low, index);
    const auto high = hn::Or(hn::TableLookupBytes(tables.high, index), sign);
    const auto exponent = hn::AndNot(hn::Set(d, kMantissa), magnitude);
    const auto add = [&](auto words, auto exponents, size_t at) {
      const DWords dw;
      const auto shifted = hn::ShiftRight<8 + kMantissaBits - kPlace>(hn::BitCast(dw, exponents));
      StoreWords(hn::BitCast(DU32(), hn::Add(hn::BitCast(dw, words), shifted)), raw, at);
    };
    const auto zero = hn::Zero(d);
    add(hn::InterleaveLower(d, low, high), hn::InterleaveLower(d, zero, exponent), element);
    add(hn::InterleaveUpper(d, low, high), hn::InterleaveUpper(d, zero, exponent),
        element + PairLanes());
  }
#endif

  struct Scaled {
    float scale;
#if FOREBAY_VECTORS
    bool has_tables;
    ByteTables tables;
#endif
  };
  template <class T>
  static HWY_INLINE Scaled ScaledBy(float scale) {
    Scaled scaled;
    scaled.scale = scale;
#if FOREBAY_VECTORS
    scaled.has_tables = TableOf<T>(scale, scaled.tables);
#endif
    return scaled;
  }
  template <class T>
  static HWY_INLINE bool Decode(const uint8_t* codes, size_t count, const Scaled& by, uint8_t* raw,
                                size_t element) {
    const float scale = by.scale;
    size_t i = 0;
    bool sound = true;
#if FOREBAY_VECTORS
    const D8 d;
    auto largest = hn::Zero(d);
    if (by.has_tables) {
      for (; i + IndexLanes() <= count; i += IndexLanes()) {
        DecodeByTable<T>(by.tables, codes + i, largest, raw, element + i);
      }
      sound = hn::AllTrue(d, hn::Lt(largest, hn::Set(d, F8::kNotANumber)));
    }
    const auto scales = hn::Set(DF(), scale);
    const DBytes half;
    auto most = hn::Zero(half);
    for (; i + PairLanes() <= count; i += PairLanes()) {
      most = hn::Max(most, hn::And(hn::LoadU(half, codes + i), hn::Set(half, 0x7f)));
      const CodePair pair = LoadCodes(codes + i);
      StorePair<T>({hn::Mul(Value(pair.even), scales), hn::Mul(Value(pair.odd), scales)}, raw,
                   element + i);
    }
    sound &= hn::AllTrue(half, hn::Lt(most, hn::Set(half, F8::kNotANumber)));
#endif
    for (; i < count; ++i) {
      sound &= (codes[i] & 0x7f) < F8::kNotANumber;
      StoreWord(T::Word(MultiplyFp32(F8::Value(codes[i]), scale)), raw, element + i);
    }
    return sound;
  }

  template <class T>
  static uint8_t EncodeOne(uint16_t word, float inverse) {
    return F8::Code(MultiplyFp32(T::Value(word), inverse));
  }
};

template <class T>
bool EncodeFp8As(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                 const StreamsToWrite& to) {
  return format.kind == PlaneKind::kFp8E4M3
             ? EncodeSymmetric<T, Fp8CodesOf<E4M3>>(format, shape, raw, to)
             : EncodeSymmetric<T, Fp8CodesOf<E5M2>>(format, shape, raw, to);
}

template <class T>
bool DecodeFp8As(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                 uint8_t* raw) {
  return format.kind == PlaneKind::kFp8E4M3
             ? DecodeSymmetric<T, Fp8CodesOf<E4M3>>(format, shape, from, raw)
             : DecodeSymmetric<T, Fp8CodesOf<E5M2>>(format, shape, from, raw);
}

bool EncodeFp8Here(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                   const StreamsToWrite& to) {
  return shape.dtype == DType::kBf16 ? EncodeFp8As<Bf16>(format, shape, raw, to)
                                     : EncodeFp8As<Fp16>(format, shape, raw, to);
}

bool DecodeFp8Here(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                   uint8_t* raw) {
  return shape.dtype == DType::kBf16 ? DecodeFp8As<Bf16>(format, shape, from, raw)
                                     : DecodeFp8As<Fp16>(format, shape, from, raw);
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay::plane_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::plane_kernel {

HWY_EXPORT(EncodeFp8Here);
HWY_EXPORT(DecodeFp8Here);

bool EncodeFp8(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
               const StreamsToWrite& to) {
  return HWY_DYNAMIC_DISPATCH(EncodeFp8Here)(format, shape, raw, to);
}

bool DecodeFp8(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
               uint8_t* raw) {
  return HWY_DYNAMIC_DISPATCH(DecodeFp8Here)(format, shape, from, raw);
}

}  // namespace forebay::plane_kernel
#endif
