// Columns of affine INT4 and INT2.

#include <algorithm>
#include <type_traits>

#include "codec/plane_kernel/elements.h"
#include "codec/plane_kernel/units.h"

// Compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/plane_kernel/affine_columns.cc"
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
// clang-format on

// The tokens of one group, for some heads.
struct ColumnGroup {
  size_t index;  // of how many that a head has
  size_t count;
  size_t token;
  size_t tokens;
  uint32_t head;
  size_t heads;
  size_t coded;  // tokens of all its groups
};

// Where a head's share of a group lies: element of its first token, tokens, scales, codes.
struct ColumnPlace {
  size_t first;
  size_t tokens;
  size_t scale;
  size_t code;
};

template <int kBits>
HWY_INLINE ColumnPlace PlaceOf(const PlaneShape& shape, const ColumnGroup& group, size_t head) {
  constexpr size_t kPerByte = 8 / kBits;
  // No group but the last one has another length, and lengths are whole bytes.
  const size_t byte_rows = (group.coded + kPerByte - 1) / kPerByte;
  const size_t row = group.head + head;
  return {shape.RowAt(static_cast<uint32_t>(group.token), static_cast<uint32_t>(row)), group.tokens,
          (row * group.count + group.index) * shape.dim,
          (row * byte_rows + group.token / kPerByte) * shape.dim};
}

// Channels that are taken together: as many as there is room for in the nearest cache.
constexpr size_t kChannelsAtOnce = 1024;

// Calls visit(group) for all groups, in the order of memory. False as soon as that does.
template <class Visit>
HWY_INLINE bool ForEachColumnGroup(const PlaneFormat& format, const PlaneShape& shape,
                                   Visit visit) {
  const size_t length = format.group == 0 ? shape.tokens : format.group;
  // A rest of few tokens is no group.
  const size_t coded = CodedTokens(format, shape);
  const size_t count = (coded + length - 1) / length;
  const size_t heads = shape.order == PlaneOrder::kHeadMajor
                           ? 1
                           : std::clamp<size_t>(kChannelsAtOnce / shape.dim, 1, shape.heads);
  for (uint32_t head = 0; head < shape.heads; head += static_cast<uint32_t>(heads)) {
    for (size_t g = 0; g < count; ++g) {
      const size_t token = g * length;
      const ColumnGroup group{g,     count,
                              token, std::min(length, coded - token),
                              head,  std::min<size_t>(heads, shape.heads - head),
                              coded};
      if (!visit(group)) return false;
    }
  }
  return true;
}

// One channel.
template <class T, int kBits>
bool EncodeColumn(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                  const ColumnPlace& place, size_t channel, const StreamsToWrite& to) {
  constexpr size_t kPerByte = 8 / kBits;
  const auto word = [&](size_t token) {
    return LoadWord(raw, place.first + channel + token * shape.row_stride());
  };
  OrderedRange range;
  for (size_t token = 0; token < place.tokens; ++token) range.Add(word(token));
  float min;
  float max;
  if (!ValuesOf<T>(range, min, max)) return false;
  const AffineGroup params = AffineGroupOfRange<kBits>(min, max, format.scale);
  if (!GroupIsSound<T, kBits>(params.scale, params.zero)) return false;
  StoreScale(params.scale, format.scale, to.scales, place.scale + channel);
  StoreScale(params.zero, format.scale, to.zeros, place.scale + channel);
  uint8_t* codes = to.codes + place.code + channel;
  for (size_t token = 0; token < place.tokens; token += kPerByte, codes += shape.dim) {
    uint32_t packed = 0;
    for (size_t k = 0; k < kPerByte && token + k < place.tokens; ++k) {
      const auto code = AffineCode<kBits>(T::Value(word(token + k)), params);
      packed |= static_cast<uint32_t>(code) << (kBits * k);
    }
    *codes = static_cast<uint8_t>(packed);
  }
  return true;
}

template <class T, int kBits>
bool DecodeColumn(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                  const ColumnPlace& place, size_t channel, uint8_t* raw) {
  constexpr size_t kPerByte = 8 / kBits;
  const uint8_t* const codes = from.codes + place.code + channel;
  const float scale = LoadScale(format.scale, from.scales, place.scale + channel);
  const float zero = LoadScale(format.scale, from.zeros, place.scale + channel);
  if (!GroupIsSound<T, kBits>(scale, zero)) return false;
  for (size_t token = 0; token < place.tokens; ++token) {
    const uint32_t byte = codes[token / kPerByte * shape.dim];
    const auto code =
        static_cast<uint8_t>(byte >> (kBits * (token % kPerByte)) & ((1u << kBits) - 1));
    StoreWord(T::Word(AffineValue(code, scale, zero)), raw,
              place.first + channel + token * shape.row_stride());
  }
  return true;
}

#if FOREBAY_VECTORS

HWY_INLINE void StoreScales(const Pair& x, ScaleFormat format, uint8_t* stream, size_t i) {
  if (format == ScaleFormat::kBf16) {
    StorePair<Bf16>(x, stream, i);
  } else {
    hn::StoreInterleaved2(x.even, x.odd, DF(), reinterpret_cast<float*>(stream) + i);
  }
}

HWY_INLINE Pair LoadScales(ScaleFormat format, const uint8_t* stream, size_t i) {
  if (format == ScaleFormat::kBf16) return LoadPair<Bf16>(stream, i);
  Pair pair;
  hn::LoadInterleaved2(DF(), reinterpret_cast<const float*>(stream) + i, pair.even, pair.odd);
  return pair;
}

// What PairLanes() channels share.
struct StripParams {
  Pair zero;
  Pair inverse;  // or the scale
};
constexpr size_t kStrips = kChannelsAtOnce / (2 * hn::MaxLanes(DF()));

// The parameters from the extremes, stored. False where a channel cannot be coded.
template <class T, int kBits>
HWY_INLINE bool StripParamsOf(const PlaneFormat& format, const WordRange& range, size_t at,
                              const StreamsToWrite& to, StripParams& params) {
  const DWords d;
  const auto lowest = Smallest(d, range.max, range.min);
  const auto highest = Largest(d, hn::BitCast(d, range.signed_max), range.min);
  const Pair min = PairOf<T>(hn::BitCast(DU32(), lowest));
  const Pair max = PairOf<T>(hn::BitCast(DU32(), highest));
  const auto finite = hn::And(hn::And(AllFit<T>(min.even), AllFit<T>(min.odd)),
                              hn::And(AllFit<T>(max.even), AllFit<T>(max.odd)));
  const AffineGroups even = ParamsOf<kBits>(min.even, max.even, format.scale);
  const AffineGroups odd = ParamsOf<kBits>(min.odd, max.odd, format.scale);
  if (!hn::AllTrue(DF(), finite) || !GroupsAreSound<T, kBits>(even.scale, even.zero) ||
      !GroupsAreSound<T, kBits>(odd.scale, odd.zero)) {
    return false;
  }
  StoreScales({even.scale, odd.scale}, format.scale, to.scales, at);
  StoreScales({even.zero, odd.zero}, format.scale, to.zeros, at);
  params = {{even.zero, odd.zero}, {even.inverse, odd.inverse}};
  return true;
}

// A row of the codes of one head, of `tokens` <= 8 / kBits tokens; `channels` is a multiple of
// PairLanes().
template <class T, int kBits>
HWY_INLINE void EncodeByteRow(const uint8_t* raw, size_t element, size_t stride, size_t tokens,
                              size_t channels, const StripParams* params, uint8_t* codes) {
  const size_t lanes = PairLanes();
  // Low halves: a byte of the even channel's codes, and one of the odd one's.
  const auto strip = [&](size_t c, const StripParams& its) {
    VU32 even = hn::Zero(DU32());
    VU32 odd = hn::Zero(DU32());
    const auto add = [&](size_t token, auto shift) {
      const Pair x = LoadPair<T>(raw, element + token * stride + c);
      const auto code_even = AffineCodes<T, kBits>(x.even, its.zero.even, its.inverse.even);
      const auto code_odd = AffineCodes<T, kBits>(x.odd, its.zero.odd, its.inverse.odd);
      even = hn::Add(even, hn::ShiftLeft<shift()>(code_even));
      odd = hn::Add(odd, hn::ShiftLeft<shift()>(code_odd));
    };
    add(0, std::integral_constant<int, 0>());
    if (tokens > 1) add(1, std::integral_constant<int, kBits>());
    if constexpr (kBits == 2) {
      if (tokens > 2) add(2, std::integral_constant<int, 4>());
      if (tokens > 3) add(3, std::integral_constant<int, 6>());
    }
    return hn::Add(even, hn::ShiftLeft<8>(odd));
  };
  size_t c = 0;
  for (; c + 2 * lanes <= channels; c += 2 * lanes, params += 2) {
    hn::StoreU(InOrder(strip(c, params[0]), strip(c + lanes, params[1])), D8(), codes + c);
  }
  if (c == channels) return;
  const auto last = strip(c, params[0]);
  hn::StoreU(hn::LowerHalf(DBytes(), InOrder(last, last)), DBytes(), codes + c);
}

// The channels of a head that fill vectors, and their strips.
HWY_INLINE size_t StripChannels(const PlaneShape& shape) {
  return shape.dim - shape.dim % PairLanes();
}

// Channels [begin, begin + channels) of the heads of a group, of no more strips than kStrips.
template <class T, int kBits>
bool EncodeStrips(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                  const ColumnGroup& group, size_t begin, size_t channels,
                  const StreamsToWrite& to) {
  constexpr size_t kPerByte = 8 / kBits;
  const size_t lanes = PairLanes();
  const size_t stride = shape.row_stride();
  WordRange range[kStrips];
  StripParams params[kStrips];
  const size_t strips = group.heads * channels / lanes;
  for (size_t s = 0; s < strips; ++s) range[s].Clear();
  for (size_t token = 0; token < group.tokens; token += kTokensAtOnce) {
    const size_t tokens = std::min(kTokensAtOnce, group.tokens - token);
    WordRange* its = range;
    for (size_t h = 0; h < group.heads; ++h) {
      const ColumnPlace place = PlaceOf<kBits>(shape, group, h);
      const size_t row = place.first + token * stride + begin;
      for (size_t c = 0; c < channels; c += lanes, ++its) {
        WordRange all = *its;
        for (size_t t = 0; t < tokens; ++t) {
          all.Add(hn::BitCast(DWords(), LoadWords(raw, row + t * stride + c)));
        }
        *its = all;
      }
      for (size_t t = 0; t < kTokensAtOnce; ++t) {
        Prefetch(raw, 2 * (row + (t + kTokensAtOnce) * stride), 2 * channels);
      }
    }
  }
  size_t s = 0;
  for (size_t h = 0; h < group.heads; ++h) {
    const size_t at = PlaceOf<kBits>(shape, group, h).scale + begin;
    for (size_t c = 0; c < channels; c += lanes, ++s) {
      if (!StripParamsOf<T, kBits>(format, range[s], at + c, to, params[s])) return false;
    }
  }
  for (size_t token = 0; token < group.tokens; token += kTokensAtOnce) {
    const size_t end = std::min(token + kTokensAtOnce, group.tokens);
    for (size_t h = 0; h < group.heads; ++h) {
      const ColumnPlace place = PlaceOf<kBits>(shape, group, h);
      for (size_t t = token; t < end; t += kPerByte) {
        EncodeByteRow<T, kBits>(raw, place.first + t * stride + begin, stride,
                                std::min(kPerByte, end - t), channels,
                                params + h * channels / lanes,
                                to.codes + place.code + t / kPerByte * shape.dim + begin);
      }
    }
  }
  return true;
}

// One row of codes of INT4: a code is a number before it is a value.
template <class T>
HWY_INLINE void DecodeByteRow4(const uint8_t* codes, size_t tokens, size_t channels,
                               const StripParams* params, uint8_t* raw, size_t element,
                               size_t stride) {
  const auto mask = hn::Set(DI32(), 0xf);
  for (size_t c = 0; c < channels; c += PairLanes(), ++params) {
    const Pair& scale = params->inverse;
    const Pair& zero = params->zero;
    const CodePair packed = LoadCodes(codes + c);
    StorePair<T>({AffineValues(hn::And(packed.even, mask), scale.even, zero.even),
                  AffineValues(hn::And(packed.odd, mask), scale.odd, zero.odd)},
                 raw, element + c);
    if (tokens == 1) continue;
    StorePair<T>({AffineValues(hn::ShiftRight<4>(packed.even), scale.even, zero.even),
                  AffineValues(hn::ShiftRight<4>(packed.odd), scale.odd, zero.odd)},
                 raw, element + stride + c);
  }
}

// What turns the element of code 0 into that of code 1, of code 2, and both that of code 3.
struct StripElements {
  hn::Vec<DWords> zero;
  hn::Vec<DWords> one;
  hn::Vec<DWords> two;
  hn::Vec<DWords> both;
};

template <class T>
HWY_INLINE StripElements ElementsOfStrip(const StripParams& params) {
  const auto value = [&](float code) {
    const auto codes = hn::Set(DF(), code);
    return hn::BitCast(DWords(),
                       WordsOf<T>({hn::Add(hn::Mul(codes, params.inverse.even), params.zero.even),
                                   hn::Add(hn::Mul(codes, params.inverse.odd), params.zero.odd)}));
  };
  const auto zero = value(0);
  const auto one = hn::Xor(value(1), zero);
  const auto two = hn::Xor(value(2), zero);
  return {zero, one, two, hn::Xor(hn::Xor(value(3), zero), hn::Xor(one, two))};
}

HWY_INLINE void DecodeByteRow2(const uint8_t* codes, size_t tokens, size_t channels,
                               const StripElements* elements, uint8_t* raw, size_t element,
                               size_t stride) {
  const DWords d;
  for (size_t c = 0; c < channels; c += PairLanes(), ++elements) {
    const StripElements& its = *elements;
    const auto packed = hn::PromoteTo(d, hn::LoadU(DBytes(), codes + c));
    const auto bit = [&](auto shift) {
      const auto top = hn::BitCast(DOrdered(), hn::ShiftLeft<shift()>(packed));
      return hn::BitCast(d, hn::BroadcastSignBit(top));
    };
    const auto decode = [&](size_t token, auto shift) {
      const auto low = bit(std::integral_constant<int, 15 - shift()>());
      const auto high = bit(std::integral_constant<int, 14 - shift()>());
      const auto of_low = hn::Xor(its.zero, hn::And(low, its.one));
      const auto of_high = hn::And(high, hn::Xor(its.two, hn::And(low, its.both)));
      StoreWords(hn::BitCast(DU32(), hn::Xor(of_low, of_high)), raw, element + token * stride + c);
    };
    decode(0, std::integral_constant<int, 0>());
    if (tokens > 1) decode(1, std::integral_constant<int, 2>());
    if (tokens > 2) decode(2, std::integral_constant<int, 4>());
    if (tokens > 3) decode(3, std::integral_constant<int, 6>());
  }
}

template <class T, int kBits>
bool DecodeStrips(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                  const ColumnGroup& group, size_t begin, size_t channels, uint8_t* raw) {
  constexpr size_t kPerByte = 8 / kBits;
  const size_t lanes = PairLanes();
  const size_t stride = shape.row_stride();
  StripParams params[kStrips];
  StripElements elements[kBits == 2 ? kStrips : 1];
  size_t s = 0;
  for (size_t h = 0; h < group.heads; ++h) {
    const size_t at = PlaceOf<kBits>(shape, group, h).scale + begin;
    for (size_t c = 0; c < channels; c += lanes, ++s) {
      params[s].inverse = LoadScales(format.scale, from.scales, at + c);
      params[s].zero = LoadScales(format.scale, from.zeros, at + c);
      if (!GroupsAreSound<T, kBits>(params[s].inverse.even, params[s].zero.even) ||
          !GroupsAreSound<T, kBits>(params[s].inverse.odd, params[s].zero.odd)) {
        return false;
      }
      if constexpr (kBits == 2) elements[s] = ElementsOfStrip<T>(params[s]);
    }
  }
  for (size_t token = 0; token < group.tokens; token += kTokensAtOnce) {
    const size_t end = std::min(token + kTokensAtOnce, group.tokens);
    for (size_t h = 0; h < group.heads; ++h) {
      const ColumnPlace place = PlaceOf<kBits>(shape, group, h);
      const size_t first_strip = h * channels / lanes;
      for (size_t t = token; t < end; t += kPerByte) {
        const uint8_t* const codes = from.codes + place.code + t / kPerByte * shape.dim + begin;
        const size_t element = place.first + t * stride + begin;
        const size_t tokens = std::min(kPerByte, end - t);
        if constexpr (kBits == 2) {
          DecodeByteRow2(codes, tokens, channels, elements + first_strip, raw, element, stride);
        } else {
          DecodeByteRow4<T>(codes, tokens, channels, params + first_strip, raw, element, stride);
        }
      }
    }
  }
  return true;
}

#endif  // FOREBAY_VECTORS

// Calls strips(group, begin, channels) for the channels that fill vectors, and single(place,
// channel) for each of those left over.
template <int kBits, class Strips, class Single>
HWY_INLINE bool ForEachColumn(const PlaneFormat& format, const PlaneShape& shape,
                              [[maybe_unused]] Strips strips, Single single) {
  return ForEachColumnGroup(format, shape, [&](const ColumnGroup& group) {
    size_t in_vectors = 0;
#if FOREBAY_VECTORS
    in_vectors = StripChannels(shape);
    for (size_t begin = 0; begin < in_vectors; begin += kChannelsAtOnce) {
      if (!strips(group, begin, std::min(kChannelsAtOnce, in_vectors - begin))) return false;
    }
#endif
    for (size_t h = 0; in_vectors < shape.dim && h < group.heads; ++h) {
      const ColumnPlace place = PlaceOf<kBits>(shape, group, h);
      for (size_t c = in_vectors; c < shape.dim; ++c) {
        if (!single(place, c)) return false;
      }
    }
    return true;
  });
}

template <class T, int kBits>
bool EncodeAffineColumns(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                         const StreamsToWrite& to) {
  return ForEachColumn<kBits>(
      format, shape,
      [&]([[maybe_unused]] const ColumnGroup& group, [[maybe_unused]] size_t begin,
          [[maybe_unused]] size_t channels) {
#if FOREBAY_VECTORS
        return EncodeStrips<T, kBits>(format, shape, raw, group, begin, channels, to);
#else
        return false;
#endif
      },
      [&](const ColumnPlace& place, size_t channel) {
        return EncodeColumn<T, kBits>(format, shape, raw, place, channel, to);
      });
}

template <class T, int kBits>
bool DecodeAffineColumns(const PlaneFormat& format, const PlaneShape& shape,
                         const StreamsToRead& from, uint8_t* raw) {
  return ForEachColumn<kBits>(
      format, shape,
      [&]([[maybe_unused]] const ColumnGroup& group, [[maybe_unused]] size_t begin,
          [[maybe_unused]] size_t channels) {
#if FOREBAY_VECTORS
        return DecodeStrips<T, kBits>(format, shape, from, group, begin, channels, raw);
#else
        return false;
#endif
      },
      [&](const ColumnPlace& place, size_t channel) {
        return DecodeColumn<T, kBits>(format, shape, from, place, channel, raw);
      });
}

template <class T>
bool EncodeAffineColumnsAs(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                           const StreamsToWrite& to) {
  return format.kind == PlaneKind::kInt4 ? EncodeAffineColumns<T, 4>(format, shape, raw, to)
                                         : EncodeAffineColumns<T, 2>(format, shape, raw, to);
}

template <class T>
bool DecodeAffineColumnsAs(const PlaneFormat& format, const PlaneShape& shape,
                           const StreamsToRead& from, uint8_t* raw) {
  return format.kind == PlaneKind::kInt4 ? DecodeAffineColumns<T, 4>(format, shape, from, raw)
                                         : DecodeAffineColumns<T, 2>(format, shape, from, raw);
}

bool EncodeAffineColumnsHere(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                             const StreamsToWrite& to) {
  return shape.dtype == DType::kBf16 ? EncodeAffineColumnsAs<Bf16>(format, shape, raw, to)
                                     : EncodeAffineColumnsAs<Fp16>(format, shape, raw, to);
}

bool DecodeAffineColumnsHere(const PlaneFormat& format, const PlaneShape& shape,
                             const StreamsToRead& from, uint8_t* raw) {
  return shape.dtype == DType::kBf16 ? DecodeAffineColumnsAs<Bf16>(format, shape, from, raw)
                                     : DecodeAffineColumnsAs<Fp16>(format, shape, from, raw);
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay::plane_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::plane_kernel {

HWY_EXPORT(EncodeAffineColumnsHere);
HWY_EXPORT(DecodeAffineColumnsHere);

bool EncodeAffineColumns(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                         const StreamsToWrite& to) {
  return HWY_DYNAMIC_DISPATCH(EncodeAffineColumnsHere)(format, shape, raw, to);
}

bool DecodeAffineColumns(const PlaneFormat& format, const PlaneShape& shape,
                         const StreamsToRead& from, uint8_t* raw) {
  return HWY_DYNAMIC_DISPATCH(DecodeAffineColumnsHere)(format, shape, from, raw);
}

}  // namespace forebay::plane_kernel
#endif
