// Affine groups whose scales and zeros are a byte each. They are only written here: who reads
// widens them and goes on as with fp32.

#include <algorithm>

#include "codec/plane_kernel/elements.h"
#include "codec/plane_kernel/units.h"
#include "codec/steps/compact_scale.h"
#include "codec/steps/level_quant.h"

// Compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/plane_kernel/compact.cc"
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
#include "codec/plane_kernel/packed_rows.inc"
// clang-format on

// What codes are computed with.
struct CompactParams {
  float zero;
  float inverse;
};

#if FOREBAY_VECTORS

// As CompactScaleFloat.
HWY_INLINE VI32 CompactScaleCodes(VF x) {
  using F = CompactScaleFloat;
  const DU32 d;
  const auto bits = hn::BitCast(d, x);
  const auto odd = hn::And(hn::ShiftRight<F::kShift>(bits), hn::Set(d, 1));
  const auto half = hn::Set(d, (1u << (F::kShift - 1)) - 1 - F::kRebias);
  const auto normal = hn::ShiftRight<F::kShift>(hn::Add(bits, hn::Add(odd, half)));
  const auto counter = hn::Set(d, F::kStepCounterBits);
  const auto counted = hn::Add(x, hn::BitCast(DF(), counter));
  const auto subnormal = hn::Sub(hn::BitCast(d, counted), counter);
  const auto is_normal =
      hn::RebindMask(d, hn::Ge(x, hn::Set(DF(), Fp32OfBits(F::kSmallestNormalBits))));
  return hn::BitCast(DI32(), hn::IfThenElse(is_normal, normal, subnormal));
}

HWY_INLINE VF CompactScales(VI32 codes, VF unit) {
  using F = CompactScaleFloat;
  const DU32 d;
  const auto bits = hn::BitCast(d, codes);
  const auto counter = hn::Set(d, F::kStepCounterBits);
  const auto subnormal =
      hn::Sub(hn::BitCast(DF(), hn::Or(counter, bits)), hn::BitCast(DF(), counter));
  const auto normal =
      hn::BitCast(DF(), hn::Add(hn::ShiftLeft<F::kShift>(bits), hn::Set(d, F::kRebias)));
  const auto is_normal = hn::RebindMask(DF(), hn::Gt(codes, hn::Set(DI32(), 15)));
  return hn::Mul(hn::IfThenElse(is_normal, normal, subnormal), unit);
}

struct CompactGroups {
  VI32 scale_codes;
  VF zero_codes;
  VF zero;
  VF scale;
  VF last;
};

// As CompactGroupOfRange.
template <int kBits>
HWY_INLINE CompactGroups CompactGroupsOf(VF min, VF max, const CompactUnit& unit) {
  const DF d;
  const auto units = hn::Set(d, unit.unit);
  const auto to_int = hn::Set(d, 12'582'912.0f);
  const auto codes_most = hn::Set(d, kAffineCodeMax<kBits>);
  const auto steps = hn::Mul(min, hn::Set(d, unit.inverse));
  const auto cut = hn::Min(hn::Max(steps, hn::Set(d, -127.0f)), hn::Set(d, 127.0f));
  CompactGroups groups;
  groups.zero_codes = hn::Sub(hn::Add(cut, to_int), to_int);
  const auto above = hn::Gt(hn::Mul(groups.zero_codes, units), min);
  const auto one = hn::Set(d, unit.unit > 0 ? 1.0f : 0.0f);
  groups.zero_codes = hn::Sub(groups.zero_codes, hn::IfThenElseZero(above, one));
  groups.zero = hn::Mul(groups.zero_codes, units);
  const auto per_code = hn::Set(d, DivideFp32(unit.inverse, kAffineCodeMax<kBits>));
  const auto wanted = hn::Mul(hn::Sub(max, groups.zero), per_code);
  groups.scale_codes = CompactScaleCodes(hn::Min(hn::Max(wanted, hn::Zero(d)), hn::Set(d, 100.0f)));
  const auto first = CompactScales(groups.scale_codes, units);
  const auto reach = hn::Add(hn::Mul(codes_most, first), groups.zero);
  const auto short_of = hn::RebindMask(DI32(), hn::Lt(reach, max));
  groups.scale_codes = hn::Add(
      groups.scale_codes, hn::IfThenElseZero(short_of, hn::Set(DI32(), unit.unit > 0 ? 1 : 0)));
  groups.scale = CompactScales(groups.scale_codes, units);
  groups.last = hn::Add(hn::Mul(codes_most, groups.scale), groups.zero);
  return groups;
}

#endif  // FOREBAY_VECTORS

// Writes the scales and zeros of `count` groups. Requires a head that is finite; false where a
// decoded value would not be.
template <class T, int kBits>
HWY_INLINE bool WriteCompactParams(const OrderedRange* range, size_t count, const CompactUnit& unit,
                                   uint8_t* scales, uint8_t* zeros, CompactParams* params) {
  const auto value = [](int16_t ordered) {
    return T::Value(static_cast<uint16_t>(Ordered(static_cast<uint16_t>(ordered))));
  };
  bool sound = true;
  size_t g = 0;
#if FOREBAY_VECTORS
  const DF d;
  constexpr size_t kLanes = hn::MaxLanes(DF());
  alignas(32) float min[kLanes];
  alignas(32) float max[kLanes];
  // What rounds to Inf in bf16 is above; fp16 is cut off.
  const auto most = hn::Set(d, Fp32OfBits(T::kInf == Bf16::kInf ? 0x7f7f'7fffu : 0x7f7f'ffffu));
  for (; g + kLanes <= count; g += kLanes) {
    for (size_t i = 0; i < kLanes; ++i) {
      min[i] = value(range[g + i].min);
      max[i] = value(range[g + i].max);
    }
    const CompactGroups groups = CompactGroupsOf<kBits>(hn::Load(d, min), hn::Load(d, max), unit);
    sound &= hn::AllTrue(
        d, hn::And(hn::Le(hn::Abs(groups.zero), most), hn::Le(hn::Abs(groups.last), most)));
    const auto codable = hn::Ge(groups.scale, hn::Set(d, kScaleSmallest));
    const auto inverse = hn::IfThenElseZero(codable, hn::Div(hn::Set(d, 1.0f), groups.scale));
    hn::StoreInterleaved2(groups.zero, inverse, d, &params[g].zero);
    const auto bytes = hn::Set(DI32(), 0xff);
    const auto zero_bytes = hn::And(hn::ConvertTo(DI32(), groups.zero_codes), bytes);
    hn::StoreU(hn::DemoteTo(DHalfBytes(), zero_bytes), DHalfBytes(), zeros + g);
    hn::StoreU(hn::DemoteTo(DHalfBytes(), groups.scale_codes), DHalfBytes(), scales + g);
  }
#endif
  for (; g < count; ++g) {
    const CompactGroup stored =
        CompactGroupOfRange<kBits>(value(range[g].min), value(range[g].max), unit);
    const AffineGroup group = AffineGroupOfCompact<kBits>(stored, unit.unit);
    sound &= Fits<T>(group.zero) && Fits<T>(AffineValue((1 << kBits) - 1, group.scale, group.zero));
    scales[g] = stored.scale;
    zeros[g] = static_cast<uint8_t>(stored.zero);
    params[g] = {group.zero, group.inverse};
  }
  return sound;
}

// Groups along the rows of one head.
template <class T, int kBits>
bool EncodeCompactRows(const PlaneFormat& format, const PlaneShape& shape, uint32_t head,
                       const CompactUnit& unit, const uint8_t* raw, const StreamsToWrite& to) {
  constexpr size_t kAtOnce = 32;  // what one group waits for is done for others meanwhile
  const size_t group = format.group == 0 ? shape.dim : format.group;
  const size_t in_row = (shape.dim + group - 1) / group;
  const size_t row_bytes = (size_t{shape.dim} * kBits + 7) / 8;
  const size_t groups = shape.tokens * in_row;
  const size_t first = head * groups;
  uint32_t token = 0;
  size_t c = 0;
  for (size_t begin = 0; begin < groups; begin += kAtOnce) {
    const size_t size = std::min(kAtOnce, groups - begin);
    size_t element[kAtOnce];
    size_t count[kAtOnce];
    uint8_t* codes[kAtOnce];
    OrderedRange range[kAtOnce];
    CompactParams params[kAtOnce];
    for (size_t g = 0; g < size; ++g) {
      element[g] = shape.RowAt(token, head) + c;
      count[g] = std::min<size_t>(group, shape.dim - c);
      codes[g] = to.codes + (size_t{head} * shape.tokens + token) * row_bytes + c * kBits / 8;
      range[g] = RangeOfRow(raw, element[g], count[g]);
      c += group;
      if (c >= shape.dim) {
        c = 0;
        ++token;
      }
    }
    const size_t at = first + begin;
    if (!WriteCompactParams<T, kBits>(range, size, unit, to.scales + at, to.zeros + at, params)) {
      return false;
    }
    for (size_t g = 0; g < size; ++g) {
      PackRow<T, kBits>(
          raw, element[g], count[g],
          [&]([[maybe_unused]] auto x) {
#if FOREBAY_VECTORS
            const auto zero = hn::Set(DF(), params[g].zero);
            const auto inverse = hn::Set(DF(), params[g].inverse);
            return CodePair{CutAffineCodes<kBits>(x.even, zero, inverse),
                            CutAffineCodes<kBits>(x.odd, zero, inverse)};
#endif
          },
          [&](float x) {
            return AffineCode<kBits>(x, {0, params[g].zero, params[g].inverse, true});
          },
          codes[g]);
    }
  }
  return true;
}

constexpr size_t kCompactChannels = 128;
constexpr size_t kCompactTokens = 64;

// Extremes of `width` channels over `tokens` rows that are `stride` elements apart.
HWY_INLINE void RangesOfColumns(const uint8_t* raw, size_t first, size_t stride, size_t tokens,
                                size_t width, OrderedRange* range) {
  size_t c = 0;
#if FOREBAY_VECTORS
  const DOrdered d;
  alignas(32) int16_t least_lanes[hn::MaxLanes(DOrdered())];
  alignas(32) int16_t most_lanes[hn::MaxLanes(DOrdered())];
  for (; c + hn::Lanes(d) <= width; c += hn::Lanes(d)) {
    auto least = OrderedOf(d, hn::BitCast(d, LoadWords(raw, first + c)));
    auto most = least;
    for (size_t token = 1; token < tokens; ++token) {
      const auto ordered = OrderedOf(d, hn::BitCast(d, LoadWords(raw, first + token * stride + c)));
      least = hn::Min(least, ordered);
      most = hn::Max(most, ordered);
    }
    hn::StoreU(least, d, least_lanes);
    hn::StoreU(most, d, most_lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) range[c + i] = {least_lanes[i], most_lanes[i]};
  }
#endif
  for (; c < width; ++c) {
    const int16_t word = Ordered(LoadWord(raw, first + c));
    range[c] = {word, word};
    for (size_t token = 1; token < tokens; ++token) {
      const int16_t ordered = Ordered(LoadWord(raw, first + token * stride + c));
      range[c].min = std::min(range[c].min, ordered);
      range[c].max = std::max(range[c].max, ordered);
    }
  }
}

// A byte of each channel: the codes of `tokens` <= 8 / kBits rows.
template <class T, int kBits>
HWY_INLINE void CodesOfColumns(const uint8_t* raw, size_t first, size_t stride, size_t tokens,
                               size_t width, const CompactParams* params, uint8_t* codes) {
  size_t c = 0;
#if FOREBAY_VECTORS
  const DF d;
  for (; c + PairLanes() <= width; c += PairLanes()) {
    Pair zero;
    Pair inverse;
    hn::LoadInterleaved4(d, &params[c].zero, zero.even, inverse.even, zero.odd, inverse.odd);
    CodePair packed{hn::Zero(DI32()), hn::Zero(DI32())};
    for (size_t token = tokens; token-- > 0;) {
      const Pair x = LoadPair<T>(raw, first + token * stride + c);
      packed.even = hn::Or(hn::ShiftLeft<kBits>(packed.even),
                           CutAffineCodes<kBits>(x.even, zero.even, inverse.even));
      packed.odd = hn::Or(hn::ShiftLeft<kBits>(packed.odd),
                          CutAffineCodes<kBits>(x.odd, zero.odd, inverse.odd));
    }
    StoreCodes(packed, codes + c);
  }
#endif
  for (; c < width; ++c) {
    const AffineGroup group{0, params[c].zero, params[c].inverse, true};
    uint32_t packed = 0;
    for (size_t token = tokens; token-- > 0;) {
      const float x = T::Value(LoadWord(raw, first + token * stride + c));
      packed = packed << kBits | AffineCode<kBits>(x, group);
    }
    codes[c] = static_cast<uint8_t>(packed);
  }
}

// One group of `tokens` rows, the channels from `begin` on; `at` is the index of channel 0's group,
// `codes` its first byte.
template <class T, int kBits>
bool EncodeCompactStrip(const PlaneShape& shape, size_t first, size_t tokens, size_t begin,
                        const CompactUnit& unit, const uint8_t* raw, size_t at, uint8_t* codes,
                        const StreamsToWrite& to) {
  constexpr size_t kPerByte = 8 / kBits;
  const size_t width = std::min(kCompactChannels, shape.dim - begin);
  // Rows a power of two apart fall on the same few sets of a cache: brought together they do not.
  alignas(32) uint8_t strip[2 * kCompactChannels * kCompactTokens];
  const uint8_t* from = raw;
  size_t element = first + begin;
  size_t stride = shape.row_stride();
  if (tokens <= kCompactTokens) {
    for (size_t token = 0; token < tokens; ++token) {
      std::memcpy(strip + 2 * token * width, raw + 2 * (element + token * stride), 2 * width);
    }
    from = strip;
    element = 0;
    stride = width;
  }
  OrderedRange range[kCompactChannels];
  CompactParams params[kCompactChannels];
  RangesOfColumns(from, element, stride, tokens, width, range);
  if (!WriteCompactParams<T, kBits>(range, width, unit, to.scales + at + begin,
                                    to.zeros + at + begin, params)) {
    return false;
  }
  for (size_t token = 0; token < tokens; token += kPerByte) {
    CodesOfColumns<T, kBits>(from, element + token * stride, stride,
                             std::min(kPerByte, tokens - token), width, params,
                             codes + token / kPerByte * shape.dim + begin);
  }
  return true;
}

template <class T, int kBits>
bool EncodeCompact(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                   const StreamsToWrite& to) {
  constexpr size_t kPerByte = 8 / kBits;
  const uint32_t coded = CodedTokens(format, shape);
  uint8_t* codes = to.codes;
  size_t at = 0;
  for (uint32_t head = 0; head < shape.heads && coded > 0; ++head) {
    uint16_t amax = 0;
    for (uint32_t token = 0; token < coded; ++token) {
      amax = std::max(amax, AmaxWord(raw, shape.RowAt(token, head), shape.dim));
    }
    if (amax >= T::kInf) return false;
    const CompactUnit unit = CompactUnitOfAmax(T::Value(amax));
    StoreScale(unit.unit, ScaleFormat::kFp32, to.units, head);
    if (format.axis == GroupAxis::kRow) {
      if (!EncodeCompactRows<T, kBits>(format, shape, head, unit, raw, to)) return false;
      continue;
    }
    const uint32_t group = format.group == 0 ? coded : format.group;
    for (uint32_t token = 0; token < coded; token += group) {
      const size_t tokens = std::min(group, coded - token);
      for (size_t c = 0; c < shape.dim; c += kCompactChannels) {
        if (!EncodeCompactStrip<T, kBits>(shape, shape.RowAt(token, head), tokens, c, unit, raw, at,
                                          codes, to)) {
          return false;
        }
      }
      at += shape.dim;
      codes += (tokens + kPerByte - 1) / kPerByte * shape.dim;
    }
  }
  return true;
}

template <class T>
bool EncodeCompactAs(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                     const StreamsToWrite& to) {
  return format.kind == PlaneKind::kInt4 ? EncodeCompact<T, 4>(format, shape, raw, to)
                                         : EncodeCompact<T, 2>(format, shape, raw, to);
}

bool EncodeCompactHere(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                       const StreamsToWrite& to) {
  return shape.dtype == DType::kBf16 ? EncodeCompactAs<Bf16>(format, shape, raw, to)
                                     : EncodeCompactAs<Fp16>(format, shape, raw, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay::plane_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::plane_kernel {

HWY_EXPORT(EncodeCompactHere);

bool EncodeCompact(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                   const StreamsToWrite& to) {
  return HWY_DYNAMIC_DISPATCH(EncodeCompactHere)(format, shape, raw, to);
}

}  // namespace forebay::plane_kernel
#endif
