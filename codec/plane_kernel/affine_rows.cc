// Rows of affine INT4 and INT2.

#include <algorithm>

#include "codec/plane_kernel/elements.h"
#include "codec/plane_kernel/units.h"

// Compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/plane_kernel/affine_rows.cc"
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
#include "codec/plane_kernel/tables.inc"
// clang-format on

// The zeros and the inverses of the scales of groups.
struct RowParams {
  HWY_ALIGN float zero[kGroupsAtOnce];
  HWY_ALIGN float inverse[kGroupsAtOnce];
};

// The parameters of `size` groups, whose scales and zeros are stored from the `first` on. False
// where one cannot be coded.
template <class T, int kBits>
HWY_INLINE bool AffineParams(const uint8_t* raw, const RowGroup* groups, size_t size,
                             ScaleFormat format, const StreamsToWrite& to, size_t first,
                             RowParams& params) {
  bool codable = true;
#if FOREBAY_VECTORS
  GroupWords least;
  GroupWords most;
  RangeOfGroups(raw, groups, size, least, most);
  for (size_t g = 0; g < size; g += hn::Lanes(DF())) {
    const auto min = NumbersOf<T>(least.word + g);
    const auto max = NumbersOf<T>(most.word + g);
    const AffineGroups shared = ParamsOf<kBits>(min, max, format);
    codable &= hn::AllTrue(DF(), hn::And(AllFit<T>(min), AllFit<T>(max)));
    codable &= GroupsAreSound<T, kBits>(shared.scale, shared.zero);
    hn::Store(shared.zero, DF(), params.zero + g);
    hn::Store(shared.inverse, DF(), params.inverse + g);
    StoreScaleLanes(shared.scale, format, to.scales, first + g, size - g);
    StoreScaleLanes(shared.zero, format, to.zeros, first + g, size - g);
  }
#else
  for (size_t g = 0; g < size; ++g) {
    OrderedRange range;
    for (size_t i = 0; i < groups[g].count; ++i) range.Add(LoadWord(raw, groups[g].element + i));
    float min;
    float max;
    if (!ValuesOf<T>(range, min, max)) return false;
    const AffineGroup shared = AffineGroupOfRange<kBits>(min, max, format);
    codable &= GroupIsSound<T, kBits>(shared.scale, shared.zero);
    params.zero[g] = shared.zero;
    params.inverse[g] = shared.inverse;
    StoreScale(shared.scale, format, to.scales, first + g);
    StoreScale(shared.zero, format, to.zeros, first + g);
  }
#endif
  return codable;
}

#if FOREBAY_VECTORS
// The codes of 2 * PairLanes() elements, packed.
template <class T, int kBits>
HWY_INLINE void EncodeTwoPairs(const uint8_t* raw, size_t element, VF zero, VF inverse,
                               uint8_t* to) {
  const auto two_codes = [&](size_t at) {
    const Pair x = LoadPair<T>(raw, at);
    const auto even = AffineCodes<T, kBits>(x.even, zero, inverse);
    const auto odd = AffineCodes<T, kBits>(x.odd, zero, inverse);
    return hn::Add(even, hn::ShiftLeft<kBits>(odd));
  };
  const DWords d;
  const auto bytes = hn::BitCast(d, InOrder(two_codes(element), two_codes(element + PairLanes())));
  if constexpr (kBits == 4) {
    hn::StoreU(hn::DemoteTo(DBytes(), hn::BitCast(DOrdered(), bytes)), DBytes(), to);
  } else {
    const auto fours = hn::BitCast(DU32(), bytes);
    const auto all = hn::And(hn::Or(fours, hn::ShiftRight<12>(fours)), hn::Set(DU32(), 0xff));
    hn::StoreU(hn::DemoteTo(DHalfBytes(), hn::BitCast(DI32(), all)), DHalfBytes(), to);
  }
}
#endif

template <class T, int kBits>
HWY_INLINE void EncodeAffineRow(const uint8_t* raw, const RowGroup& group, float its_zero,
                                float its_inverse, uint8_t* codes) {
  constexpr size_t kPerByte = 8 / kBits;
#if FOREBAY_VECTORS
  const size_t lanes = 2 * PairLanes();
  const auto zero = hn::Set(DF(), its_zero);
  const auto inverse = hn::Set(DF(), its_inverse);
  size_t i = 0;
  for (; i + lanes <= group.count; i += lanes) {
    EncodeTwoPairs<T, kBits>(raw, group.element + i, zero, inverse, codes + i / kPerByte);
  }
  if (i == group.count) return;
  const size_t rest = group.count - i;
  // What is not there is in the group's range, as a code has to be.
  HWY_ALIGN uint8_t words[2 * HWY_MAX_BYTES];
  HWY_ALIGN uint8_t last[HWY_MAX_BYTES];
  const uint16_t first = LoadWord(raw, group.element);
  for (size_t k = rest; k < lanes; ++k) StoreWord(first, words, k);
  std::memcpy(words, raw + 2 * (group.element + i), 2 * rest);
  EncodeTwoPairs<T, kBits>(words, 0, zero, inverse, last);
  if (rest % kPerByte != 0) last[rest / kPerByte] &= (1u << kBits * (rest % kPerByte)) - 1;
  std::memcpy(codes + i / kPerByte, last, (rest + kPerByte - 1) / kPerByte);
#else
  AffineGroup params;
  params.zero = its_zero;
  params.inverse = its_inverse;
  for (size_t i = 0; i < group.count; i += kPerByte) {
    uint8_t some[kPerByte] = {};
    for (size_t k = 0; k < kPerByte && i + k < group.count; ++k) {
      some[k] = AffineCode<kBits>(T::Value(LoadWord(raw, group.element + i + k)), params);
    }
    codes[i / kPerByte] = PackedByte<kBits>(some);
  }
#endif
}

template <class T, int kBits>
bool EncodeAffineRows(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                      const StreamsToWrite& to) {
  return ForEachRowGroup(
      format, shape, raw, kBits, [&](const RowGroup* groups, size_t size, size_t first, uint32_t) {
        RowParams params;
        if (!AffineParams<T, kBits>(raw, groups, size, format.scale, to, first, params)) {
          return false;
        }
        for (size_t g = 0; g < size; ++g) {
          EncodeAffineRow<T, kBits>(raw, groups[g], params.zero[g], params.inverse[g],
                                    to.codes + groups[g].code_at);
        }
        return true;
      });
}

#if FOREBAY_VECTORS
// The four elements of each of `size` INT2 groups, one after the other.
template <class T>
HWY_INLINE void ElementsOfCodes(const GroupNumbers& scale, const GroupNumbers& zero, size_t size,
                                uint16_t* words) {
  for (size_t g = 0; g < size; g += hn::Lanes(DF())) {
    const auto scales = hn::Load(DF(), scale.number + g);
    const auto zeros = hn::Load(DF(), zero.number + g);
    const auto value = [&](float code) {
      return hn::Add(hn::Mul(hn::Set(DF(), code), scales), zeros);
    };
    const VU32 low = WordsOf<T>({value(0), value(1)});
    const VU32 high = WordsOf<T>({value(2), value(3)});
    const auto first = hn::InterleaveLower(DU32(), low, high);
    const auto second = hn::InterleaveUpper(DU32(), low, high);
    auto* const to = reinterpret_cast<uint8_t*>(words + 4 * g);
    if constexpr (kTwoBlocks) {
      StoreWords(hn::ConcatLowerLower(DU32(), second, first), to, 0);
      StoreWords(hn::ConcatUpperUpper(DU32(), second, first), to, PairLanes());
    } else {
      StoreWords(first, to, 0);
      StoreWords(second, to, PairLanes());
    }
  }
}
#endif

template <class T, int kBits>
bool DecodeAffineRows(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                      uint8_t* raw) {
  return ForEachRowGroup(
      format, shape, raw, kBits, [&](const RowGroup* groups, size_t size, size_t first, uint32_t) {
#if FOREBAY_VECTORS
        GroupNumbers scale;
        GroupNumbers zero;
        LoadScaleBatch(format.scale, from.scales, first, size, scale);
        LoadScaleBatch(format.scale, from.zeros, first, size, zero);
        for (size_t g = 0; g < size; g += hn::Lanes(DF())) {
          if (!GroupsAreSound<T, kBits>(hn::Load(DF(), scale.number + g),
                                        hn::Load(DF(), zero.number + g))) {
            return false;
          }
        }
        // Four INT2 groups have 16 elements between them.
        constexpr size_t kGroupsOfTable = kBits == 2 ? 4 : 1;
        HWY_ALIGN uint16_t words[kGroupsAtOnce * 4];
        if constexpr (kBits == 2) ElementsOfCodes<T>(scale, zero, size, words);
        for (size_t g = 0; g < size;) {
          const ByteTables tables =
              kBits == 2 ? TablesOf(words + 4 * g)
                         : TablesOf(LinearTable<T>(scale.number[g], zero.number[g]).word);
          for (size_t end = std::min(g + kGroupsOfTable, size); g < end; ++g) {
            DecodeByTables<kBits>(tables, static_cast<uint8_t>(4 * (g % kGroupsOfTable)),
                                  from.codes + groups[g].code_at, groups[g].count, raw,
                                  groups[g].element);
          }
        }
#else
        for (size_t g = 0; g < size; ++g) {
          const float scale = LoadScale(format.scale, from.scales, first + g);
          const float zero = LoadScale(format.scale, from.zeros, first + g);
          if (!GroupIsSound<T, kBits>(scale, zero)) return false;
          const uint8_t* const codes = from.codes + groups[g].code_at;
          for (size_t i = 0; i < groups[g].count; ++i) {
            const float value = AffineValue(CodeAt<kBits>(codes, i), scale, zero);
            StoreWord(T::Word(value), raw, groups[g].element + i);
          }
        }
#endif
        return true;
      });
}

template <class T>
bool EncodeAffineRowsAs(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                        const StreamsToWrite& to) {
  return format.kind == PlaneKind::kInt4 ? EncodeAffineRows<T, 4>(format, shape, raw, to)
                                         : EncodeAffineRows<T, 2>(format, shape, raw, to);
}

template <class T>
bool DecodeAffineRowsAs(const PlaneFormat& format, const PlaneShape& shape,
                        const StreamsToRead& from, uint8_t* raw) {
  return format.kind == PlaneKind::kInt4 ? DecodeAffineRows<T, 4>(format, shape, from, raw)
                                         : DecodeAffineRows<T, 2>(format, shape, from, raw);
}

bool EncodeAffineRowsHere(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                          const StreamsToWrite& to) {
  return shape.dtype == DType::kBf16 ? EncodeAffineRowsAs<Bf16>(format, shape, raw, to)
                                     : EncodeAffineRowsAs<Fp16>(format, shape, raw, to);
}

bool DecodeAffineRowsHere(const PlaneFormat& format, const PlaneShape& shape,
                          const StreamsToRead& from, uint8_t* raw) {
  return shape.dtype == DType::kBf16 ? DecodeAffineRowsAs<Bf16>(format, shape, from, raw)
                                     : DecodeAffineRowsAs<Fp16>(format, shape, from, raw);
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay::plane_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::plane_kernel {

HWY_EXPORT(EncodeAffineRowsHere);
HWY_EXPORT(DecodeAffineRowsHere);

bool EncodeAffineRows(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                      const StreamsToWrite& to) {
  return HWY_DYNAMIC_DISPATCH(EncodeAffineRowsHere)(format, shape, raw, to);
}

bool DecodeAffineRows(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                      uint8_t* raw) {
  return HWY_DYNAMIC_DISPATCH(DecodeAffineRowsHere)(format, shape, from, raw);
}

}  // namespace forebay::plane_kernel
#endif
