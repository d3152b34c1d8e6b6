// Rows of codes that stand for levels at uneven distances.

#include <algorithm>

#include "codec/plane_kernel/elements.h"
#include "codec/plane_kernel/units.h"
#include "codec/steps/level_quant.h"

// Compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/plane_kernel/levels.cc"
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

template <class T>
HWY_INLINE float SumOfSquares(const uint8_t* raw, size_t element, size_t count, float factor) {
  alignas(32) float partial[kSumLanes] = {};
  size_t i = 0;
#if FOREBAY_VECTORS
  constexpr size_t kPairs = kSumLanes / 2 / hn::MaxLanes(DF());
  const auto factors = hn::Set(DF(), factor);
  Pair sums[kPairs];
  for (Pair& sum : sums) sum = {hn::Zero(DF()), hn::Zero(DF())};
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (size_t p = 0; p < kPairs; ++p) {
      const Pair x = LoadPair<T>(raw, element + i + p * PairLanes());
      const auto even = hn::Mul(x.even, factors);
      const auto odd = hn::Mul(x.odd, factors);
      sums[p].even = hn::Add(sums[p].even, hn::Mul(even, even));
      sums[p].odd = hn::Add(sums[p].odd, hn::Mul(odd, odd));
    }
  }
  for (size_t p = 0; p < kPairs; ++p) {
    hn::StoreInterleaved2(sums[p].even, sums[p].odd, DF(), partial + p * PairLanes());
  }
#endif
  for (; i < count; ++i) {
    const float unit = MultiplyFp32(T::Value(LoadWord(raw, element + i)), factor);
    partial[i % kSumLanes] = AddFp32(partial[i % kSumLanes], MultiplyFp32(unit, unit));
  }
  return SumOfPartials(partial);
}

#if FOREBAY_VECTORS
template <int kBits>
HWY_INLINE VI32 LevelCodes(VF x, VF inverse, const LevelTable<kBits>& table) {
  const DI32 d;
  const auto scaled = hn::Mul(x, inverse);
  const auto magnitude = hn::Abs(scaled);
  auto code = hn::Set(d, table.kCount);
  for (int m = 0; m + 1 < table.kCount; ++m) {
    const auto beyond = hn::Ge(magnitude, hn::Set(DF(), table.threshold(m)));
    code = hn::Sub(code, hn::VecFromMask(d, hn::RebindMask(d, beyond)));
  }
  const auto below = hn::VecFromMask(d, hn::RebindMask(d, hn::Lt(scaled, hn::Zero(DF()))));
  return hn::Xor(code, hn::And(below, hn::Set(d, (1 << kBits) - 1)));
}
#endif

template <class T, int kBits>
HWY_INLINE bool LevelsAreSound(float scale, const LevelTable<kBits>& table) {
  return scale >= 0 && Fits<T>(MultiplyFp32(table.largest(), scale));
}

// Calls visit(first element, channels, index of the group, its codes) for each group along rows
// until it is false.
template <int kBits, class Byte, class Visit>
HWY_INLINE bool ForEachLevelGroup(const PlaneFormat& format, const PlaneShape& shape, Byte* codes,
                                  Visit visit) {
  const size_t group = format.group == 0 ? shape.dim : format.group;
  const size_t row_bytes = (size_t{shape.dim} * kBits + 7) / 8;
  size_t at = 0;
  for (uint32_t head = 0; head < shape.heads; ++head) {
    for (uint32_t token = 0; token < shape.tokens; ++token, codes += row_bytes) {
      const size_t row = shape.RowAt(token, head);
      for (size_t c = 0; c < shape.dim; c += group) {
        const size_t count = std::min<size_t>(group, shape.dim - c);
        if (!visit(row + c, count, at++, codes + c * kBits / 8)) return false;
      }
    }
  }
  return true;
}

struct LevelGroup {
  size_t element;
  size_t count;
  uint8_t* codes;
};

template <class T, int kBits>
HWY_INLINE void EncodeLevelRow(const uint8_t* raw, const LevelGroup& group, float inverse,
                               const LevelTable<kBits>& table) {
  PackRow<T, kBits>(
      raw, group.element, group.count,
      [&]([[maybe_unused]] auto x) {
#if FOREBAY_VECTORS
        const auto inverses = hn::Set(DF(), inverse);
        return CodePair{LevelCodes(x.even, inverses, table), LevelCodes(x.odd, inverses, table)};
#endif
      },
      [&](float x) { return LevelCode<kBits>(x, inverse, table); }, group.codes);
}

template <class T, int kBits>
bool EncodeLevels(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                  const StreamsToWrite& to) {
  constexpr LevelTable<kBits> kTable = LloydMaxLevels<kBits>();
  constexpr size_t kAtOnce = 16;  // what one group waits for is done for others meanwhile
  LevelGroup groups[kAtOnce];
  size_t size = 0;
  size_t first = 0;
  const auto encode = [&] {
    float inverse[kAtOnce];
    for (size_t g = 0; g < size; ++g) {
      const uint16_t amax = AmaxWord(raw, groups[g].element, groups[g].count);
      if (amax >= T::kInf) return false;
      const PowerOfTwo power = PowerToOne(T::Value(amax));
      const float sum = SumOfSquares<T>(raw, groups[g].element, groups[g].count, power.factor);
      const float scale = LevelScale(sum, groups[g].count, power, format.scale);
      if (!LevelsAreSound<T>(scale, kTable)) return false;
      StoreScale(scale, format.scale, to.scales, first + g);
      inverse[g] = InverseOfScale(scale);
    }
    for (size_t g = 0; g < size; ++g) EncodeLevelRow<T>(raw, groups[g], inverse[g], kTable);
    first += size;
    size = 0;
    return true;
  };
  const auto add = [&](size_t element, size_t count, size_t, uint8_t* codes) {
    groups[size++] = {element, count, codes};
    return size < kAtOnce || encode();
  };
  return ForEachLevelGroup<kBits>(format, shape, to.codes, add) && encode();
}

// The words of all codes.
template <class T, int kBits>
HWY_INLINE void LevelWords(float scale, const LevelTable<kBits>& table, uint16_t* words) {
  for (int m = 0; m < table.kCount; ++m) {
    const uint16_t above = T::Word(MultiplyFp32(table.level[m], scale));
    words[table.kCount + m] = above;
    words[table.kCount - 1 - m] = above | 0x8000;
  }
}

// Bytes that each hold two codes, from 2 * kBits packed bytes.
template <int kBits>
HWY_INLINE uint64_t LoadEightTwos(const uint8_t* packed) {
  uint32_t low;
  uint64_t high = 0;
  std::memcpy(&low, packed, sizeof(low));
  if constexpr (kBits == 3) {
    uint16_t two;
    std::memcpy(&two, packed + 4, sizeof(two));
    high = two;
  } else if constexpr (kBits == 4) {
    uint32_t four;
    std::memcpy(&four, packed + 4, sizeof(four));
    high = four;
  }
  return EightCodes<2 * kBits>(low | high << 32);
}

template <class T, int kBits>
HWY_INLINE void DecodeLevelRow(const uint8_t* codes, size_t count, float scale,
                               const LevelTable<kBits>& table, uint8_t* raw, size_t element) {
  alignas(32) uint16_t words[16] = {};
  LevelWords<T>(scale, table, words);
  size_t i = 0;
#if FOREBAY_VECTORS
  // The two bytes of each word are looked up apart.
  const hn::FixedTag<uint8_t, 16> d;
  const hn::FixedTag<uint64_t, 2> d64;
  alignas(16) uint8_t halves[2][16];
  for (size_t k = 0; k < 16; ++k) {
    halves[0][k] = static_cast<uint8_t>(words[k]);
    halves[1][k] = static_cast<uint8_t>(words[k] >> 8);
  }
  const auto low = hn::Load(d, halves[0]);
  const auto high = hn::Load(d, halves[1]);
  const auto mask = hn::Set(d, (1 << kBits) - 1);
  for (; i + 16 <= count; i += 16, codes += 2 * kBits) {
    const auto twos = hn::Set(d64, LoadEightTwos<kBits>(codes));
    const auto odd = hn::BitCast(d, hn::ShiftRight<kBits>(twos));
    const auto index =
        hn::InterleaveLower(d, hn::And(hn::BitCast(d, twos), mask), hn::And(odd, mask));
    const auto low_bytes = hn::TableLookupBytes(low, index);
    const auto high_bytes = hn::TableLookupBytes(high, index);
    uint8_t* const to = raw + 2 * (element + i);
    hn::StoreU(hn::InterleaveLower(d, low_bytes, high_bytes), d, to);
    hn::StoreU(hn::InterleaveUpper(d, low_bytes, high_bytes), d, to + 16);
  }
#endif
  for (size_t bit = 0; i < count; ++i, bit += kBits) {
    uint32_t bits = codes[bit / 8];
    if (bit % 8 + kBits > 8) bits |= static_cast<uint32_t>(codes[bit / 8 + 1]) << 8;
    StoreWord(words[bits >> bit % 8 & ((1u << kBits) - 1)], raw, element + i);
  }
}

template <class T, int kBits>
bool DecodeLevels(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                  uint8_t* raw) {
  constexpr LevelTable<kBits> kTable = LloydMaxLevels<kBits>();
  const auto decode = [&](size_t element, size_t count, size_t at, const uint8_t* codes) {
    const float scale = LoadScale(format.scale, from.scales, at);
    if (!LevelsAreSound<T>(scale, kTable)) return false;
    DecodeLevelRow<T>(codes, count, scale, kTable, raw, element);
    return true;
  };
  return ForEachLevelGroup<kBits>(format, shape, from.codes, decode);
}

template <class T>
bool EncodeLevelsAs(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                    const StreamsToWrite& to) {
  switch (format.kind) {
    case PlaneKind::kLloyd4:
      return EncodeLevels<T, 4>(format, shape, raw, to);
    case PlaneKind::kLloyd3:
      return EncodeLevels<T, 3>(format, shape, raw, to);
    default:
      return EncodeLevels<T, 2>(format, shape, raw, to);
  }
}

template <class T>
bool DecodeLevelsAs(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                    uint8_t* raw) {
  switch (format.kind) {
    case PlaneKind::kLloyd4:
      return DecodeLevels<T, 4>(format, shape, from, raw);
    case PlaneKind::kLloyd3:
      return DecodeLevels<T, 3>(format, shape, from, raw);
    default:
      return DecodeLevels<T, 2>(format, shape, from, raw);
  }
}

bool EncodeLevelsHere(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                      const StreamsToWrite& to) {
  return shape.dtype == DType::kBf16 ? EncodeLevelsAs<Bf16>(format, shape, raw, to)
                                     : EncodeLevelsAs<Fp16>(format, shape, raw, to);
}

bool DecodeLevelsHere(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                      uint8_t* raw) {
  return shape.dtype == DType::kBf16 ? DecodeLevelsAs<Bf16>(format, shape, from, raw)
                                     : DecodeLevelsAs<Fp16>(format, shape, from, raw);
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay::plane_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::plane_kernel {

HWY_EXPORT(EncodeLevelsHere);
HWY_EXPORT(DecodeLevelsHere);

bool EncodeLevels(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                  const StreamsToWrite& to) {
  return HWY_DYNAMIC_DISPATCH(EncodeLevelsHere)(format, shape, raw, to);
}

bool DecodeLevels(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                  uint8_t* raw) {
  return HWY_DYNAMIC_DISPATCH(DecodeLevelsHere)(format, shape, from, raw);
}

}  // namespace forebay::plane_kernel
#endif
