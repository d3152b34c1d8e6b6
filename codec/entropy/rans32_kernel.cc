#include "codec/entropy/rans32_kernel.h"

#include <array>
#include <bit>
#include <cstring>

// This file is compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/entropy/rans32_kernel.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#ifndef FOREBAY_RANS32_ONCE
#define FOREBAY_RANS32_ONCE
namespace forebay::rans32 {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kRowBytesMax = kLanes * kWordBytes;

// Which lane each lane takes its value from, for each mask of kN lanes.
template <size_t kN>
struct Shuffles {
  // Lane i takes the word that is its own: as many words in as mask bits are set below it.
  uint8_t expand[size_t{1} << kN][kN];
  // The lanes whose bit is clear, in order, against the upper end.
  uint8_t compact[size_t{1} << kN][kN];
};

template <size_t kN>
constexpr Shuffles<kN> MakeShuffles() {
  Shuffles<kN> shuffles{};
  for (size_t mask = 0; mask < size_t{1} << kN; ++mask) {
    size_t taken = 0;
    for (size_t lane = 0; lane < kN; ++lane) {
      shuffles.expand[mask][lane] = static_cast<uint8_t>(taken);
      taken += (mask >> lane) & 1;
    }
    size_t to = kN;
    for (size_t lane = kN; lane-- > 0;) {
      if (((mask >> lane) & 1) == 0) shuffles.compact[mask][--to] = static_cast<uint8_t>(lane);
    }
  }
  return shuffles;
}

template <size_t kN>
inline constexpr Shuffles<kN> kShuffles = MakeShuffles<kN>();

// One row is one symbol of each lane; only the last row of a run has fewer than kLanes. `bases` are
// those of the row, or null.
inline uint16_t* EncodeRow(const EncodeTable* tables, const uint16_t* bases, const uint8_t* symbols,
                           size_t lanes, uint32_t* states, uint16_t* words) {
  for (size_t lane = lanes; lane-- > 0;) {
    const size_t table = bases == nullptr ? 0 : bases[lane] / 256;
    const uint32_t range = tables[table].entries[symbols[lane]].range;
    const uint32_t frequency = range & 0xffff;
    if (frequency == 0) return nullptr;
    uint32_t x = states[lane];
    if (x >> (32 - kProbabilityBits) >= frequency) {
      *--words = static_cast<uint16_t>(x);
      x >>= 16;
    }
    states[lane] = (x / frequency << kProbabilityBits) + x % frequency + (range >> 16);
  }
  return words;
}

// False where a word is missing.
inline bool DecodeRow(const DecodeTable* tables, const uint16_t* bases, Lanes& block,
                      uint8_t* symbols, size_t lanes) {
  for (size_t lane = 0; lane < lanes; ++lane) {
    const size_t table = bases == nullptr ? 0 : bases[lane] / 256;
    uint32_t x = block.states[lane];
    const uint32_t slot = tables[table].slots[x & (kSlots - 1)];
    symbols[lane] = static_cast<uint8_t>(slot);
    x = (slot >> 20) * (x >> kProbabilityBits) + ((slot >> 8) & (kSlots - 1));
    if (x < kStateMin) {
      if (block.end - block.words < static_cast<ptrdiff_t>(kWordBytes)) return false;
      uint16_t word;
      std::memcpy(&word, block.words, sizeof(word));
      x = x << 16 | word;
      block.words += kWordBytes;
    }
    block.states[lane] = x;
  }
  return true;
}

// The bases of row after row, in either direction.
class ClassRows {
 public:
  ClassRows(const Classes& classes, size_t at)
      : bases_(classes.bases), period_(classes.period), at_(at % classes.period) {}
  const uint16_t* row() const { return bases_ == nullptr ? nullptr : bases_ + at_; }
  void Next() {
    at_ += kLanes;
    if (at_ == period_) at_ = 0;
  }
  void Previous() { at_ = (at_ == 0 ? period_ : at_) - kLanes; }

 private:
  const uint16_t* bases_;
  size_t period_;
  size_t at_;
};

}  // namespace
}  // namespace forebay::rans32
#endif  // FOREBAY_RANS32_ONCE

HWY_BEFORE_NAMESPACE();
namespace forebay::rans32::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE

// Plain code, where vectors are emulated or have no size at compile time.
const uint16_t* EncodeRows(const EncodeTable* tables, ClassRows classes, const uint8_t* symbols,
                           size_t rows, uint32_t* states, uint16_t* words) {
  for (size_t row = rows; row-- > 0 && words != nullptr;) {
    classes.Previous();
    words = EncodeRow(tables, classes.row(), symbols + row * kLanes, kLanes, states, words);
  }
  return words;
}

size_t DecodeRows(const DecodeTable* tables, ClassRows classes, Lanes& lanes, const uint8_t* limit,
                  uint8_t* symbols, size_t rows) {
  for (size_t row = 0; row < rows; ++row) {
    if (lanes.words > limit) return row;
    Lanes unbounded = lanes;
    unbounded.end = limit + kRowBytesMax;
    DecodeRow(tables, classes.row(), unbounded, symbols + row * kLanes, kLanes);
    lanes.words = unbounded.words;
    std::memcpy(lanes.states, unbounded.states, sizeof(lanes.states));
    classes.Next();
  }
  return rows;
}

size_t DecodeRowsOfTwo(const DecodeTable&, Lanes*, uint8_t* const*, size_t) { return 0; }

#else

namespace hn = hwy::HWY_NAMESPACE;

// Eight lanes at most: a table of the 2^16 masks of sixteen would not stay in the cache.
using D32 = hn::CappedTag<uint32_t, 8>;
using D16 = hn::Rebind<uint16_t, D32>;
using D8 = hn::Rebind<uint8_t, D32>;
using DI32 = hn::RebindToSigned<D32>;
using V32 = hn::VFromD<D32>;
constexpr size_t kN = hn::MaxLanes(D32());
constexpr size_t kVectors = kLanes / kN;
constexpr D32 d32;
constexpr D16 d16;
constexpr D8 d8;
constexpr DI32 di32;

// A vector's share of an encoder's table.
struct Entries {
  V32 range;
  V32 reciprocal;
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

// By hand, not by the gather instruction. That is microcode on AMD, about as many steps again, and
// gcc gives several of them one destination, whose old value each waits for. Measured on Zen 3, in
// symbols/s: decoding 0.8 G with gathers, 1.4 G without the wait, 1.7 G by hand.
HWY_INLINE V32 Lookup(const uint32_t* table, V32 index) {
  const __m128i low = _mm256_castsi256_si128(index.raw);
  const __m128i high = _mm256_extracti128_si256(index.raw, 1);
  const auto i01 = static_cast<uint64_t>(_mm_cvtsi128_si64(low));
  const auto i23 = static_cast<uint64_t>(_mm_extract_epi64(low, 1));
  const auto i45 = static_cast<uint64_t>(_mm_cvtsi128_si64(high));
  const auto i67 = static_cast<uint64_t>(_mm_extract_epi64(high, 1));
  const auto at = [table](uint64_t i) { return static_cast<int>(table[i]); };
  __m128i a = _mm_cvtsi32_si128(at(static_cast<uint32_t>(i01)));
  a = _mm_insert_epi32(a, at(i01 >> 32), 1);
  a = _mm_insert_epi32(a, at(static_cast<uint32_t>(i23)), 2);
  a = _mm_insert_epi32(a, at(i23 >> 32), 3);
  __m128i b = _mm_cvtsi32_si128(at(static_cast<uint32_t>(i45)));
  b = _mm_insert_epi32(b, at(i45 >> 32), 1);
  b = _mm_insert_epi32(b, at(static_cast<uint32_t>(i67)), 2);
  b = _mm_insert_epi32(b, at(i67 >> 32), 3);
  return V32{_mm256_set_m128i(b, a)};
}

template <bool kClassed>
HWY_INLINE Entries LookupEntries(const EncodeTable* tables, const uint16_t* bases,
                                 const uint8_t* symbols) {
  // By bytes, which are those of all tables: each one's entries end with it.
  static_assert(sizeof(EncodeTable) == 256 * sizeof(EncodeEntry));
  const auto* const entries = reinterpret_cast<const std::byte*>(tables);
  const auto two = [entries, bases, symbols](size_t i) {
    long long first;
    long long second;
    const size_t at0 = kClassed ? size_t{bases[i]} + symbols[i] : symbols[i];
    const size_t at1 = kClassed ? size_t{bases[i + 1]} + symbols[i + 1] : symbols[i + 1];
    std::memcpy(&first, entries + at0 * sizeof(EncodeEntry), sizeof(first));
    std::memcpy(&second, entries + at1 * sizeof(EncodeEntry), sizeof(second));
    return _mm_insert_epi64(_mm_cvtsi64_si128(first), second, 1);
  };
  const __m256 even = _mm256_castsi256_ps(_mm256_set_m128i(two(4), two(0)));
  const __m256 odd = _mm256_castsi256_ps(_mm256_set_m128i(two(6), two(2)));
  return {V32{_mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0x88))},
          V32{_mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0xdd))}};
}

// The low bytes of a row, in order.
HWY_INLINE void StoreLowBytes(const V32* row, uint8_t* to) {
  const __m256i low = _mm256_set1_epi32(0xff);
  const __m256i a =
      _mm256_packus_epi32(_mm256_and_si256(row[0].raw, low), _mm256_and_si256(row[1].raw, low));
  const __m256i b =
      _mm256_packus_epi32(_mm256_and_si256(row[2].raw, low), _mm256_and_si256(row[3].raw, low));
  // Packing keeps to the halves of the vector.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order));
}

#else

HWY_INLINE V32 Lookup(const uint32_t* table, V32 index) {
  return hn::GatherIndex(d32, table, hn::BitCast(di32, index));
}

template <bool kClassed>
HWY_INLINE Entries LookupEntries(const EncodeTable* tables, const uint16_t* bases,
                                 const uint8_t* symbols) {
  auto entry = hn::PromoteTo(d32, hn::LoadU(d8, symbols));
  if (kClassed) entry = hn::Add(entry, hn::PromoteTo(d32, hn::LoadU(d16, bases)));
  const auto index = hn::BitCast(di32, hn::ShiftLeft<1>(entry));
  return {hn::GatherIndex(d32, &tables->entries[0].range, index),
          hn::GatherIndex(d32, &tables->entries[0].reciprocal, index)};
}

HWY_INLINE void StoreLowBytes(const V32* row, uint8_t* to) {
  for (size_t v = 0; v < kVectors; ++v) {
    hn::StoreU(hn::U8FromU32(hn::And(row[v], hn::Set(d32, 0xff))), d8, to + v * kN);
  }
}

#endif

HWY_INLINE V32 Shuffled(V32 v, const uint8_t* lanes) {
  return hn::TableLookupLanes(v, hn::IndicesFromVec(d32, hn::PromoteTo(d32, hn::LoadU(d8, lanes))));
}

HWY_INLINE V32 OddToEven(V32 v) {
  return hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(hn::RepartitionToWide<D32>(), v)));
}

template <class Mask>
HWY_INLINE size_t BitsOf(Mask mask) {
  uint8_t bits[8] = {};
  hn::StoreMaskBits(d32, mask, bits);
  return bits[0];
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

// Sixteen lanes, whose words are put in place by the processor and not by a table.
using W32 = hn::CappedTag<uint32_t, 16>;
using W16 = hn::Rebind<uint16_t, W32>;
using VW = hn::VFromD<W32>;
constexpr W32 w32;
constexpr W16 w16;
constexpr size_t kWide = 16;
constexpr size_t kWides = kLanes / kWide;

template <bool kClassed>
const uint16_t* EncodeRowsAs(const EncodeTable* tables, ClassRows classes, const uint8_t* symbols,
                             size_t rows, uint32_t* states, uint16_t* words) {
  VW x[kWides];
  for (size_t v = 0; v < kWides; ++v) x[v] = hn::LoadU(w32, states + v * kWide);
  VW least = hn::Set(w32, kSlots);
  for (size_t row = rows; row-- > 0;) {
    classes.Previous();
    for (size_t v = kWides; v-- > 0;) {
      const uint16_t* const bases = kClassed ? classes.row() + v * kWide : nullptr;
      const uint8_t* const from = symbols + row * kLanes + v * kWide;
      const Entries low = LookupEntries<kClassed>(tables, bases, from);
      const Entries high =
          LookupEntries<kClassed>(tables, kClassed ? bases + kN : bases, from + kN);
      const VW range = hn::Combine(w32, high.range, low.range);
      const VW reciprocal = hn::Combine(w32, high.reciprocal, low.reciprocal);
      const VW frequency = hn::And(range, hn::Set(w32, 0xffff));
      least = hn::Min(least, frequency);
      const auto spills = hn::Not(hn::Lt(hn::ShiftRight<32 - kProbabilityBits>(x[v]), frequency));
      const auto count = static_cast<unsigned>(std::popcount(uint32_t{spills.raw}));
      const VW packed{_mm512_maskz_compress_epi32(spills.raw, x[v].raw)};
      words -= count;
      // Those above are written already.
      _mm256_mask_storeu_epi16(words, static_cast<__mmask16>((1u << count) - 1),
                               hn::TruncateTo(w16, packed).raw);
      const VW state = hn::IfThenElse(spills, hn::ShiftRight<16>(x[v]), x[v]);
      // The quotient by the reciprocal is right or one too small.
      const auto odd_to_even = [](VW of) HWY_ATTR {
        return hn::BitCast(w32, hn::ShiftRight<32>(hn::BitCast(hn::RepartitionToWide<W32>(), of)));
      };
      const VW even = hn::BitCast(w32, hn::ShiftRight<32>(hn::MulEven(state, reciprocal)));
      const VW odd = hn::BitCast(w32, hn::MulEven(odd_to_even(state), odd_to_even(reciprocal)));
      const VW quotient = hn::OddEven(odd, even);
      const VW rest = hn::Sub(state, hn::Mul(quotient, frequency));
      const VW fix =
          hn::IfThenZeroElse(hn::Lt(rest, frequency), hn::Sub(hn::Set(w32, kSlots), frequency));
      x[v] = hn::Add(hn::Add(hn::ShiftLeft<kProbabilityBits>(quotient), rest),
                     hn::Add(hn::ShiftRight<16>(range), fix));
    }
  }
  for (size_t v = 0; v < kWides; ++v) hn::StoreU(x[v], w32, states + v * kWide);
  return hn::AllFalse(w32, hn::Eq(least, hn::Zero(w32))) ? words : nullptr;
}

// A block in registers.
struct WideLanes {
  explicit WideLanes(const Lanes& lanes) : words(lanes.words) {
    for (size_t v = 0; v < kWides; ++v) x[v] = hn::LoadU(w32, lanes.states + v * kWide);
  }
  void Store(Lanes& lanes) const {
    lanes.words = words;
    for (size_t v = 0; v < kWides; ++v) hn::StoreU(x[v], w32, lanes.states + v * kWide);
  }

  const uint8_t* words;
  VW x[kWides];
};

template <bool kClassed>
HWY_INLINE void DecodeWideRow(const uint32_t* table, const uint16_t* bases, WideLanes& lanes,
                              uint8_t* symbols) {
  for (size_t v = 0; v < kWides; ++v) {
    const VW x = lanes.x[v];
    VW index = hn::And(x, hn::Set(w32, kSlots - 1));
    if (kClassed) {
      const VW base = hn::PromoteTo(w32, hn::LoadU(w16, bases + v * kWide));
      index = hn::Add(index, hn::ShiftLeft<kProbabilityBits - 8>(base));
    }
    const VW slot = hn::Combine(w32, Lookup(table, hn::UpperHalf(d32, index)),
                                Lookup(table, hn::LowerHalf(d32, index)));
    _mm512_mask_cvtepi32_storeu_epi8(symbols + v * kWide, 0xffff, slot.raw);
    const VW offset = hn::And(hn::ShiftRight<8>(slot), hn::Set(w32, kSlots - 1));
    const VW state =
        hn::Add(hn::Mul(hn::ShiftRight<20>(slot), hn::ShiftRight<kProbabilityBits>(x)), offset);
    const auto low = hn::Lt(state, hn::Set(w32, kStateMin));
    const VW next =
        hn::PromoteTo(w32, hn::LoadU(w16, reinterpret_cast<const uint16_t*>(lanes.words)));
    const VW fed{_mm512_maskz_expand_epi32(low.raw, next.raw)};
    lanes.x[v] = hn::Or(hn::IfThenElse(low, hn::ShiftLeft<16>(state), state), fed);
    lanes.words += kWordBytes * static_cast<size_t>(std::popcount(uint32_t{low.raw}));
  }
}

template <bool kClassed>
size_t DecodeRowsAs(const DecodeTable* tables, ClassRows classes, Lanes& lanes,
                    const uint8_t* limit, uint8_t* symbols, size_t rows) {
  WideLanes wide(lanes);
  size_t row = 0;
  for (; row < rows && wide.words <= limit; ++row) {
    DecodeWideRow<kClassed>(tables->slots, classes.row(), wide, symbols + row * kLanes);
    classes.Next();
  }
  wide.Store(lanes);
  return row;
}

// A row waits for its lookups and its product: while one block waits the other works.
size_t DecodeRowsOfTwo(const DecodeTable& table, Lanes* two, uint8_t* const* symbols, size_t rows) {
  WideLanes a(two[0]);
  WideLanes b(two[1]);
  const uint8_t* const limit_a = two[0].end - kRowBytesMax;
  const uint8_t* const limit_b = two[1].end - kRowBytesMax;
  uint8_t* const to_a = symbols[0];
  uint8_t* const to_b = symbols[1];
  size_t row = 0;
  for (; row < rows && a.words <= limit_a && b.words <= limit_b; ++row) {
    DecodeWideRow<false>(table.slots, nullptr, a, to_a + row * kLanes);
    DecodeWideRow<false>(table.slots, nullptr, b, to_b + row * kLanes);
  }
  a.Store(two[0]);
  b.Store(two[1]);
  return row;
}

#else

template <bool kClassed>
const uint16_t* EncodeRowsAs(const EncodeTable* tables, ClassRows classes, const uint8_t* symbols,
                             size_t rows, uint32_t* states, uint16_t* words) {
  V32 x[kVectors];
  for (size_t v = 0; v < kVectors; ++v) x[v] = hn::LoadU(d32, states + v * kN);
  V32 least = hn::Set(d32, kSlots);
  for (size_t row = rows; row-- > 0;) {
    classes.Previous();
    for (size_t v = kVectors; v-- > 0;) {
      const uint16_t* const bases = kClassed ? classes.row() + v * kN : nullptr;
      const auto [range, reciprocal] =
          LookupEntries<kClassed>(tables, bases, symbols + row * kLanes + v * kN);
      const V32 frequency = hn::And(range, hn::Set(d32, 0xffff));
      least = hn::Min(least, frequency);
      // Both sides are small, so that signed comparison, which x86 has, will do.
      const auto fits = hn::RebindMask(
          d32, hn::Gt(hn::BitCast(di32, frequency),
                      hn::BitCast(di32, hn::ShiftRight<32 - kProbabilityBits>(x[v]))));
      const size_t bits = BitsOf(fits);
      hn::StoreU(hn::TruncateTo(d16, Shuffled(x[v], kShuffles<kN>.compact[bits])), d16, words - kN);
      words -= kN - static_cast<size_t>(std::popcount(bits));
      const V32 state = hn::IfThenElse(fits, x[v], hn::ShiftRight<16>(x[v]));
      // The quotient by the reciprocal is right or one too small.
      const auto even = hn::ShiftRight<32>(hn::MulEven(state, reciprocal));
      const auto odd = hn::MulEven(OddToEven(state), OddToEven(reciprocal));
      const V32 quotient = hn::OddEven(hn::BitCast(d32, odd), hn::BitCast(d32, even));
      const V32 rest = hn::Sub(state, hn::Mul(quotient, frequency));
      const auto exact =
          hn::RebindMask(d32, hn::Gt(hn::BitCast(di32, frequency), hn::BitCast(di32, rest)));
      const V32 fix = hn::IfThenZeroElse(exact, hn::Sub(hn::Set(d32, kSlots), frequency));
      x[v] = hn::Add(hn::Add(hn::ShiftLeft<kProbabilityBits>(quotient), rest),
                     hn::Add(hn::ShiftRight<16>(range), fix));
    }
  }
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(x[v], d32, states + v * kN);
  return hn::AllFalse(d32, hn::Eq(least, hn::Zero(d32))) ? words : nullptr;
}

template <bool kClassed>
size_t DecodeRowsAs(const DecodeTable* tables, ClassRows classes, Lanes& lanes,
                    const uint8_t* limit, uint8_t* symbols, size_t rows) {
  V32 x[kVectors];
  for (size_t v = 0; v < kVectors; ++v) x[v] = hn::LoadU(d32, lanes.states + v * kN);
  const uint8_t* words = lanes.words;
  size_t row = 0;
  // A row takes no more than the slack, so that it is enough to look now and then.
  for (; row < rows && words <= limit; ++row) {
    V32 slots[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      V32 index = hn::And(x[v], hn::Set(d32, kSlots - 1));
      if (kClassed) {
        const V32 bases = hn::PromoteTo(d32, hn::LoadU(d16, classes.row() + v * kN));
        index = hn::Add(index, hn::ShiftLeft<kProbabilityBits - 8>(bases));
      }
      const V32 slot = Lookup(tables->slots, index);
      slots[v] = slot;
      const V32 offset = hn::And(hn::ShiftRight<8>(slot), hn::Set(d32, kSlots - 1));
      const V32 state = hn::Add(
          hn::Mul(hn::ShiftRight<20>(slot), hn::ShiftRight<kProbabilityBits>(x[v])), offset);
      const auto low = hn::Eq(hn::ShiftRight<16>(state), hn::Zero(d32));
      const size_t bits = BitsOf(low);
      const V32 next = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(words)));
      const V32 fed = hn::Or(hn::ShiftLeft<16>(state), Shuffled(next, kShuffles<kN>.expand[bits]));
      x[v] = hn::IfThenElse(low, fed, state);
      words += kWordBytes * static_cast<size_t>(std::popcount(bits));
    }
    StoreLowBytes(slots, symbols + row * kLanes);
    classes.Next();
  }
  lanes.words = words;
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(x[v], d32, lanes.states + v * kN);
  return row;
}

// Too few registers for two blocks.
size_t DecodeRowsOfTwo(const DecodeTable&, Lanes*, uint8_t* const*, size_t) { return 0; }

#endif

const uint16_t* EncodeRows(const EncodeTable* tables, ClassRows classes, const uint8_t* symbols,
                           size_t rows, uint32_t* states, uint16_t* words) {
  return classes.row() == nullptr
             ? EncodeRowsAs<false>(tables, classes, symbols, rows, states, words)
             : EncodeRowsAs<true>(tables, classes, symbols, rows, states, words);
}

size_t DecodeRows(const DecodeTable* tables, ClassRows classes, Lanes& lanes, const uint8_t* limit,
                  uint8_t* symbols, size_t rows) {
  return classes.row() == nullptr
             ? DecodeRowsAs<false>(tables, classes, lanes, limit, symbols, rows)
             : DecodeRowsAs<true>(tables, classes, lanes, limit, symbols, rows);
}

#endif

}  // namespace
}  // namespace forebay::rans32::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::rans32 {
namespace {
HWY_EXPORT(EncodeRows);
HWY_EXPORT(DecodeRows);
HWY_EXPORT(DecodeRowsOfTwo);
}  // namespace

const uint16_t* Encode(const EncodeTable* tables, const Classes& classes, size_t at,
                       const uint8_t* symbols, size_t count, uint32_t states[kLanes],
                       uint16_t* words_end) {
  const size_t rows = count / kLanes;
  const ClassRows end(classes, at + rows * kLanes);
  uint16_t* const words =
      EncodeRow(tables, end.row(), symbols + rows * kLanes, count % kLanes, states, words_end);
  if (words == nullptr) return nullptr;
  return HWY_DYNAMIC_DISPATCH(EncodeRows)(tables, end, symbols, rows, states, words);
}

bool Decode(const DecodeTable* tables, const Classes& classes, size_t at, Lanes& lanes,
            uint8_t* symbols, size_t count) {
  const size_t rows = count / kLanes;
  // Rows that may read kRowBytesMax without reaching the end.
  size_t done = 0;
  if (lanes.end - lanes.words >= static_cast<ptrdiff_t>(kRowBytesMax)) {
    done = HWY_DYNAMIC_DISPATCH(DecodeRows)(tables, ClassRows(classes, at), lanes,
                                            lanes.end - kRowBytesMax, symbols, rows);
  }
  if (done < rows) {
    // The others read from a copy, with zeros behind it.
    uint8_t copy[2 * kRowBytesMax] = {};
    const auto left = static_cast<size_t>(lanes.end - lanes.words);
    std::memcpy(copy, lanes.words, left);
    Lanes tail = lanes;
    tail.words = copy;
    const size_t tail_rows =
        HWY_DYNAMIC_DISPATCH(DecodeRows)(tables, ClassRows(classes, at + done * kLanes), tail,
                                         copy + left, symbols + done * kLanes, rows - done);
    if (done + tail_rows < rows || tail.words > copy + left) return false;
    lanes.words += tail.words - copy;
    std::memcpy(lanes.states, tail.states, sizeof(lanes.states));
  }
  return DecodeRow(tables, ClassRows(classes, at + rows * kLanes).row(), lanes,
                   symbols + rows * kLanes, count % kLanes);
}

bool DecodeTwo(const DecodeTable& table, Lanes* two, uint8_t* const* symbols, size_t count) {
  size_t done = 0;
  if (two[0].end - two[0].words >= static_cast<ptrdiff_t>(kRowBytesMax) &&
      two[1].end - two[1].words >= static_cast<ptrdiff_t>(kRowBytesMax)) {
    done = kLanes * HWY_DYNAMIC_DISPATCH(DecodeRowsOfTwo)(table, two, symbols, count / kLanes);
  }
  return Decode(&table, {}, done, two[0], symbols[0] + done, count - done) &&
         Decode(&table, {}, done, two[1], symbols[1] + done, count - done);
}

}  // namespace forebay::rans32
#endif  // HWY_ONCE
