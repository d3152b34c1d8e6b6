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

// By hand, not by the gather instruction. That is microcode on AMD, and on Intel, where its leaks
// are mended, as slow: 15.6 ns for sixteen lanes of a Skylake. Broadcasts take a load and no more,
// blends any vector port, where inserting would all be the work of one.
HWY_INLINE V32 Lookup(const uint32_t* table, V32 index) {
  alignas(32) uint32_t at[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(at), index.raw);
  asm("" : "+m"(at));  // through memory, indeed
  const auto all = [table, &at](size_t i) {
    return _mm256_set1_epi32(static_cast<int>(table[at[i]]));
  };
  const __m256i a = _mm256_blend_epi32(all(0), all(1), 0x02);
  const __m256i b = _mm256_blend_epi32(all(2), all(3), 0x08);
  const __m256i c = _mm256_blend_epi32(all(4), all(5), 0x20);
  const __m256i d = _mm256_blend_epi32(all(6), all(7), 0x80);
  return V32{
      _mm256_blend_epi32(_mm256_blend_epi32(a, b, 0x0c), _mm256_blend_epi32(c, d, 0xc0), 0xf0)};
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

// Gone through a register of its own: else the compiler copies states two vectors at a time, and
// one instruction of 512 bits slows the clock of a Skylake by a quarter for milliseconds.
HWY_INLINE V32 Alone(V32 v) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  asm("" : "+x"(v.raw));
#endif
  return v;
}

HWY_INLINE void LoadStates(const uint32_t* states, V32* x) {
  for (size_t v = 0; v < kVectors; ++v) x[v] = Alone(hn::LoadU(d32, states + v * kN));
}

HWY_INLINE void StoreStates(const V32* x, uint32_t* states) {
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(Alone(x[v]), d32, states + v * kN);
}

template <bool kClassed>
const uint16_t* EncodeRowsAs(const EncodeTable* tables, ClassRows classes, const uint8_t* symbols,
                             size_t rows, uint32_t* states, uint16_t* words) {
  V32 x[kVectors];
  LoadStates(states, x);
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
  StoreStates(x, states);
  return hn::AllFalse(d32, hn::Eq(least, hn::Zero(d32))) ? words : nullptr;
}

// A block in registers.
struct VectorLanes {
  explicit VectorLanes(const Lanes& lanes) : words(lanes.words) { LoadStates(lanes.states, x); }
  void Store(Lanes& lanes) const {
    lanes.words = words;
    StoreStates(x, lanes.states);
  }

  const uint8_t* words;
  V32 x[kVectors];
};

// Gives lanes below kStateMin their words; the bytes that those were.
HWY_INLINE size_t Refill(V32 state, const uint8_t* words, V32& x) {
  const V32 next = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(words)));
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // The processor puts them in place, not a table.
  const __mmask8 low = _mm256_cmplt_epu32_mask(state.raw, _mm256_set1_epi32(kStateMin));
  const __m256i shifted = _mm256_mask_slli_epi32(state.raw, low, state.raw, 16);
  x = V32{_mm256_or_si256(shifted, _mm256_maskz_expand_epi32(low, next.raw))};
  return kWordBytes * static_cast<size_t>(std::popcount(uint32_t{low}));
#else
  const auto low = hn::Eq(hn::ShiftRight<16>(state), hn::Zero(d32));
  const size_t bits = BitsOf(low);
  const V32 fed = hn::Or(hn::ShiftLeft<16>(state), Shuffled(next, kShuffles<kN>.expand[bits]));
  x = hn::IfThenElse(low, fed, state);
  return kWordBytes * static_cast<size_t>(std::popcount(bits));
#endif
}

template <bool kClassed>
HWY_INLINE void DecodeVectors(const uint32_t* table, const uint16_t* bases, VectorLanes& lanes,
                              uint8_t* symbols) {
  V32 slots[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    const V32 x = lanes.x[v];
    V32 index = hn::And(x, hn::Set(d32, kSlots - 1));
    if (kClassed) {
      const V32 base = hn::PromoteTo(d32, hn::LoadU(d16, bases + v * kN));
      index = hn::Add(index, hn::ShiftLeft<kProbabilityBits - 8>(base));
    }
    const V32 slot = Lookup(table, index);
    slots[v] = slot;
    const V32 offset = hn::And(hn::ShiftRight<8>(slot), hn::Set(d32, kSlots - 1));
    const V32 state =
        hn::Add(hn::Mul(hn::ShiftRight<20>(slot), hn::ShiftRight<kProbabilityBits>(x)), offset);
    lanes.words += Refill(state, lanes.words, lanes.x[v]);
  }
  StoreLowBytes(slots, symbols);
}

template <bool kClassed>
size_t DecodeRowsAs(const DecodeTable* tables, ClassRows classes, Lanes& lanes,
                    const uint8_t* limit, uint8_t* symbols, size_t rows) {
  VectorLanes vectors(lanes);
  size_t row = 0;
  for (; row < rows && vectors.words <= limit; ++row) {
    DecodeVectors<kClassed>(tables->slots, classes.row(), vectors, symbols + row * kLanes);
    classes.Next();
  }
  vectors.Store(lanes);
  return row;
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

// A row waits for its lookups and its product: while one block waits the other works.
//
// Of 256 bits, though there are 512: the first such instruction, whichever it is, costs a Skylake
// a quarter of its clock for all that follows. What bounds this is the four instructions a cycle,
// of which a symbol takes six: two loads and a blend for its lookup, three for its state.
size_t DecodeRowsOfTwo(const DecodeTable& table, Lanes* two, uint8_t* const* symbols, size_t rows) {
  VectorLanes a(two[0]);
  VectorLanes b(two[1]);
  const uint8_t* const limit_a = two[0].end - kRowBytesMax;
  const uint8_t* const limit_b = two[1].end - kRowBytesMax;
  uint8_t* const to_a = symbols[0];
  uint8_t* const to_b = symbols[1];
  size_t row = 0;
  for (; row < rows && a.words <= limit_a && b.words <= limit_b; ++row) {
    DecodeVectors<false>(table.slots, nullptr, a, to_a + row * kLanes);
    DecodeVectors<false>(table.slots, nullptr, b, to_b + row * kLanes);
  }
  a.Store(two[0]);
  b.Store(two[1]);
  return row;
}

#else

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
