#include "codec/uniform/uniform_kernel.h"

#include <cstring>

#include "codec/steps/uniform_quant.h"

// This file is compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/uniform/uniform_kernel.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#ifndef FOREBAY_UNIFORM_ONCE
#define FOREBAY_UNIFORM_ONCE
namespace forebay::uniform_kernel {
namespace {

struct Bf16 {
  static constexpr uint16_t kInf = 0x7f80;
  static float Value(uint16_t word) { return Bf16ToFp32(word); }
  static uint16_t Word(float x) { return Fp32ToBf16(x); }
};
struct Fp16 {
  static constexpr uint16_t kInf = 0x7c00;
  static float Value(uint16_t word) { return Fp16ToFp32(word); }
  static uint16_t Word(float x) { return Fp32ToFp16Saturated(x); }
};

inline UniformChannel ChannelAt(const Channels& channels, size_t c) {
  return {channels.mean[c], channels.step[c], channels.inverse[c], channels.reach[c]};
}

template <class T>
inline void QuantizeOne(const Channels& channels, size_t c, const uint8_t* raw, uint8_t* code,
                        Found& found) {
  uint16_t word;
  std::memcpy(&word, raw, sizeof(word));
  found.finite &= (word & 0x7fff) < T::kInf;
  const int32_t value = UniformCode(T::Value(word), ChannelAt(channels, c));
  found.escapes |= value == kUniformEscape;
  *code = static_cast<uint8_t>(value);
}

template <class T>
inline bool DequantizeOne(const Channels& channels, size_t c, uint8_t code, uint8_t* raw) {
  const auto value = static_cast<int8_t>(code);
  const uint16_t word = T::Word(UniformValue(value, ChannelAt(channels, c)));
  std::memcpy(raw, &word, sizeof(word));
  return value == kUniformEscape;
}

}  // namespace
}  // namespace forebay::uniform_kernel
#endif  // FOREBAY_UNIFORM_ONCE

HWY_BEFORE_NAMESPACE();
namespace forebay::uniform_kernel::HWY_NAMESPACE {
namespace {

// Elsewhere Highway makes up the conversions of fp16, and subnormals come out otherwise.
#undef FOREBAY_UNIFORM_F16C
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define FOREBAY_UNIFORM_F16C 1
#else
#define FOREBAY_UNIFORM_F16C 0
#endif

#undef FOREBAY_UNIFORM_VECTORS
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
#define FOREBAY_UNIFORM_VECTORS 1

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 8>;
using D32 = hn::RebindToUnsigned<DF>;
using DI32 = hn::RebindToSigned<DF>;
using D16 = hn::Rebind<uint16_t, DF>;
using DF16 = hn::Rebind<hwy::float16_t, DF>;
using D8 = hn::Rebind<uint8_t, DF>;
using DI8 = hn::Rebind<int8_t, DF>;
using VF = hn::VFromD<DF>;
using V32 = hn::VFromD<D32>;
using VI32 = hn::VFromD<DI32>;
using V16 = hn::VFromD<D16>;
constexpr DF df;
constexpr D32 d32;
constexpr DI32 di32;
constexpr D16 d16;
constexpr size_t kN = hn::MaxLanes(DF());
constexpr float kUnitIsOne = 12'582'912.0f;  // as in RoundToInt

template <class T>
HWY_INLINE VF ValuesOf(V16 words, V32 wide) {
  if constexpr (T::kInf == Bf16::kInf) {
    (void)words;
    return hn::BitCast(df, hn::ShiftLeft<16>(wide));
  } else {
#if FOREBAY_UNIFORM_F16C
    return hn::PromoteTo(df, hn::BitCast(DF16(), words));
#else
    HWY_ALIGN uint16_t from[kN];
    HWY_ALIGN float to[kN];
    hn::Store(words, d16, from);
    for (size_t i = 0; i < kN; ++i) to[i] = T::Value(from[i]);
    return hn::Load(df, to);
#endif
  }
}

template <class T>
HWY_INLINE V16 WordsOf(VF x) {
  if constexpr (T::kInf == Bf16::kInf) {
    const V32 bits = hn::BitCast(d32, x);
    const V32 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    const V32 rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
    return hn::TruncateTo(d16, hn::ShiftRight<16>(rounded));
  } else {
#if FOREBAY_UNIFORM_F16C
    const VF limit = hn::Set(df, 65504.0f);
    return hn::BitCast(d16, hn::DemoteTo(DF16(), hn::Min(hn::Max(x, hn::Neg(limit)), limit)));
#else
    HWY_ALIGN float from[kN];
    HWY_ALIGN uint16_t to[kN];
    hn::Store(x, df, from);
    for (size_t i = 0; i < kN; ++i) to[i] = T::Word(from[i]);
    return hn::Load(d16, to);
#endif
  }
}
#else
#define FOREBAY_UNIFORM_VECTORS 0
#endif

template <class T>
Found QuantizeAs(const Channels& channels, size_t at, const uint8_t* raw, size_t count,
                 uint8_t* codes) {
  Found found;
  size_t c = at % channels.period;
  size_t i = 0;
#if FOREBAY_UNIFORM_VECTORS
  V32 largest = hn::Zero(d32);
  auto escapes = hn::Zero(df);
  for (; i + kAlign <= count; i += kAlign) {
    for (size_t v = 0; v < kAlign; v += kN) {
      const V16 words = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(raw + 2 * (i + v)));
      const V32 wide = hn::PromoteTo(d32, words);
      largest = hn::Max(largest, hn::And(wide, hn::Set(d32, 0x7fff)));
      const VF centred = hn::Sub(ValuesOf<T>(words, wide), hn::LoadU(df, channels.mean + c + v));
      const VF scaled = hn::Mul(centred, hn::LoadU(df, channels.inverse + c + v));
      const VF beyond = hn::Add(hn::LoadU(df, channels.reach + c + v), hn::Set(df, 1.0f));
      const VF cut = hn::Min(hn::Max(scaled, hn::Neg(beyond)), beyond);
      const VF counted = hn::Add(cut, hn::Set(df, kUnitIsOne));
      const VF code = hn::Sub(counted, hn::Set(df, kUnitIsOne));
      const auto is_escape = hn::Ge(hn::Abs(code), beyond);
      escapes = hn::Or(escapes, hn::VecFromMask(df, is_escape));
      const V32 byte = hn::And(hn::BitCast(d32, counted), hn::Set(d32, 0xff));
      const V32 chosen = hn::IfThenElse(hn::RebindMask(d32, is_escape), hn::Set(d32, 0x80), byte);
      hn::StoreU(hn::U8FromU32(chosen), D8(), codes + i + v);
    }
    c += kAlign;
    if (c == channels.period) c = 0;
  }
  found.finite = hn::GetLane(hn::MaxOfLanes(d32, largest)) < T::kInf;
  found.escapes = !hn::AllFalse(df, hn::MaskFromVec(escapes));
#endif
  for (; i < count; ++i) {
    QuantizeOne<T>(channels, c, raw + 2 * i, codes + i, found);
    if (++c == channels.period) c = 0;
  }
  return found;
}

template <class T>
bool DequantizeAs(const Channels& channels, size_t at, const uint8_t* codes, size_t count,
                  uint8_t* raw) {
  bool escapes = false;
  size_t c = at % channels.period;
  size_t i = 0;
#if FOREBAY_UNIFORM_VECTORS
  VI32 least = hn::Zero(di32);
  for (; i + kAlign <= count; i += kAlign) {
    for (size_t v = 0; v < kAlign; v += kN) {
      const VI32 code =
          hn::PromoteTo(di32, hn::LoadU(DI8(), reinterpret_cast<const int8_t*>(codes + i + v)));
      least = hn::Min(least, code);
      const VF steps = hn::Mul(hn::ConvertTo(df, code), hn::LoadU(df, channels.step + c + v));
      const VF value = hn::Add(steps, hn::LoadU(df, channels.mean + c + v));
      hn::StoreU(WordsOf<T>(value), d16, reinterpret_cast<uint16_t*>(raw + 2 * (i + v)));
    }
    c += kAlign;
    if (c == channels.period) c = 0;
  }
  escapes = hn::GetLane(hn::MinOfLanes(di32, least)) == kUniformEscape;
#endif
  for (; i < count; ++i) {
    escapes |= DequantizeOne<T>(channels, c, codes[i], raw + 2 * i);
    if (++c == channels.period) c = 0;
  }
  return escapes;
}

Found QuantizeHere(DType dtype, const Channels& channels, size_t at, const uint8_t* raw,
                   size_t count, uint8_t* codes) {
  return dtype == DType::kBf16 ? QuantizeAs<Bf16>(channels, at, raw, count, codes)
                               : QuantizeAs<Fp16>(channels, at, raw, count, codes);
}

bool DequantizeHere(DType dtype, const Channels& channels, size_t at, const uint8_t* codes,
                    size_t count, uint8_t* raw) {
  return dtype == DType::kBf16 ? DequantizeAs<Bf16>(channels, at, codes, count, raw)
                               : DequantizeAs<Fp16>(channels, at, codes, count, raw);
}

}  // namespace
}  // namespace forebay::uniform_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::uniform_kernel {
namespace {
HWY_EXPORT(QuantizeHere);
HWY_EXPORT(DequantizeHere);
}  // namespace

Found Quantize(DType dtype, const Channels& channels, size_t at, const uint8_t* raw, size_t count,
               uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(QuantizeHere)(dtype, channels, at, raw, count, codes);
}

bool Dequantize(DType dtype, const Channels& channels, size_t at, const uint8_t* codes,
                size_t count, uint8_t* raw) {
  return HWY_DYNAMIC_DISPATCH(DequantizeHere)(dtype, channels, at, codes, count, raw);
}

}  // namespace forebay::uniform_kernel
#endif  // HWY_ONCE
