#include "codec/lossless/exponent_split_kernel.h"

#include <algorithm>
#include <bit>
#include <cstring>

// This file is compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/lossless/exponent_split_kernel.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#ifndef FOREBAY_EXPONENT_SPLIT_ONCE
#define FOREBAY_EXPONENT_SPLIT_ONCE
namespace forebay::exponent_split {
namespace {

static_assert(std::endian::native == std::endian::little);

// The format, element by element: what vectors leave over, and the whole where there are none.

inline uint32_t Turned(const uint8_t* raw, size_t i) {
  uint16_t word;
  std::memcpy(&word, raw + 2 * i, sizeof(word));
  return static_cast<uint16_t>(word << 1 | word >> 15);
}

inline void StoreTurned(uint32_t turned, uint8_t* raw, size_t i) {
  const auto word = static_cast<uint16_t>(turned >> 1 | turned << 15);
  std::memcpy(raw + 2 * i, &word, sizeof(word));
}

// Field `i` of `bits` bits.
inline void PutField(uint8_t* stream, size_t i, size_t bits, uint32_t value) {
  const size_t shift = i * bits % 8;
  uint8_t& byte = stream[i * bits / 8];
  if (shift == 0) byte = 0;
  byte = static_cast<uint8_t>(byte | value << shift);
}
inline uint32_t Field(const uint8_t* stream, size_t i, size_t bits) {
  return stream[i * bits / 8] >> (i * bits % 8) & ((1u << bits) - 1);
}

// One more than the code; zero without one.
inline uint32_t CodeOf(const Codebook& codebook, uint32_t key) {
  for (size_t g = 0; g < codebook.group_count; ++g) {
    const uint32_t index = key ^ codebook.group_bases[g];
    if (index < 16) return codebook.group_codes[g][index];
  }
  return 0;
}

template <Kind kKind>
inline size_t EncodeFrom(size_t i, const Codebook& codebook, const uint8_t* raw, size_t count,
                         const ChunkToWrite& to, size_t escapes) {
  for (; i < count; ++i) {
    const uint32_t turned = Turned(raw, i);
    const uint32_t key = kKind == Kind::kBf16 ? turned >> 8 : turned >> 11;
    const uint32_t found = CodeOf(codebook, key);
    const uint32_t code = found == 0 ? 0 : found - 1;
    if (found == 0) {
      to.escape_positions[escapes] = static_cast<uint16_t>(i);
      to.escape_keys[escapes++] = static_cast<uint8_t>(key);
    }
    if (kKind == Kind::kBf16) {
      PutField(to.nibbles, i, 4, code);
    } else {
      PutField(to.nibbles, i, 4, code << 1 | (turned >> 10 & 1));
      PutField(to.crumbs, i, 2, turned >> 8 & 3);
    }
    to.rest[i] = static_cast<uint8_t>(turned);
  }
  return escapes;
}

template <Kind kKind>
inline void DecodeFrom(size_t i, const Codebook& codebook, const ChunkToRead& from, size_t count,
                       uint8_t* raw) {
  for (; i < count; ++i) {
    const uint32_t nibble = Field(from.nibbles, i, 4);
    uint32_t turned = from.rest[i];
    if (kKind == Kind::kBf16) {
      turned |= static_cast<uint32_t>(codebook.keys[nibble]) << 8;
    } else {
      turned |= static_cast<uint32_t>(codebook.keys[nibble >> 1]) << 11 | (nibble & 1) << 10 |
                Field(from.crumbs, i, 2) << 8;
    }
    StoreTurned(turned, raw, i);
  }
}

inline void SplitFrom(size_t i, const uint8_t* raw, size_t count, uint8_t* keys, uint8_t* rest) {
  for (; i < count; ++i) {
    const uint32_t turned = Turned(raw, i);
    keys[i] = static_cast<uint8_t>(turned >> 8);
    rest[i] = static_cast<uint8_t>(turned);
  }
}

inline void JoinFrom(size_t i, const uint8_t* keys, const uint8_t* rest, size_t count,
                     uint8_t* raw) {
  for (; i < count; ++i) StoreTurned(static_cast<uint32_t>(keys[i]) << 8 | rest[i], raw, i);
}

}  // namespace
}  // namespace forebay::exponent_split
#endif  // FOREBAY_EXPONENT_SPLIT_ONCE

HWY_BEFORE_NAMESPACE();
namespace forebay::exponent_split::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE

template <Kind kKind>
size_t Encode(const Codebook& codebook, const uint8_t* raw, size_t count, const ChunkToWrite& to) {
  return EncodeFrom<kKind>(0, codebook, raw, count, to, 0);
}

template <Kind kKind>
void Decode(const Codebook& codebook, const ChunkToRead& from, size_t count, uint8_t* raw) {
  DecodeFrom<kKind>(0, codebook, from, count, raw);
}

void Split(const uint8_t* raw, size_t count, uint8_t* keys, uint8_t* rest) {
  SplitFrom(0, raw, count, keys, rest);
}

void Join(const uint8_t* keys, const uint8_t* rest, size_t count, uint8_t* raw) {
  JoinFrom(0, keys, rest, count, raw);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::CappedTag<uint8_t, 32>;
using D16 = hn::RepartitionToWide<D8>;
using D32 = hn::RepartitionToWide<D16>;
using V8 = hn::VFromD<D8>;
using V16 = hn::VFromD<D16>;
constexpr D8 d8;
constexpr D16 d16;
constexpr D32 d32;
constexpr size_t kN = hn::MaxLanes(D8());  // elements of a vector of bytes

struct Planes {
  V8 keys;
  V8 rest;
};

// Memory is slow to answer, and what the processor guesses of a walk comes late. That many bytes
// behind the end nothing is read.
constexpr size_t kAheadBytes = 2048;
HWY_INLINE void PrefetchAhead(const uint8_t* at, size_t bytes) {
  constexpr size_t kLine = 64;
  const auto ahead = reinterpret_cast<uintptr_t>(at) + kAheadBytes;
  for (size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(reinterpret_cast<void*>(ahead + i));
}

HWY_INLINE Planes LoadPlanes(const uint8_t* raw) {
  const V16 a = hn::BitCast(d16, hn::LoadU(d8, raw));
  const V16 b = hn::BitCast(d16, hn::LoadU(d8, raw + kN));
  const V8 turned_a = hn::BitCast(d8, hn::Or(hn::ShiftLeft<1>(a), hn::ShiftRight<15>(a)));
  const V8 turned_b = hn::BitCast(d8, hn::Or(hn::ShiftLeft<1>(b), hn::ShiftRight<15>(b)));
  return {hn::ConcatOdd(d8, turned_b, turned_a), hn::ConcatEven(d8, turned_b, turned_a)};
}

HWY_INLINE void StorePlanes(V8 keys, V8 rest, uint8_t* raw) {
  V16 a = hn::ZipLower(d16, rest, keys);
  V16 b = hn::ZipUpper(d16, rest, keys);
#if HWY_MAX_BYTES > 16
  // Wide vectors zip within their halves.
  const V16 low = hn::ConcatLowerLower(d16, b, a);
  b = hn::ConcatUpperUpper(d16, b, a);
  a = low;
#endif
  a = hn::Or(hn::ShiftRight<1>(a), hn::ShiftLeft<15>(a));
  b = hn::Or(hn::ShiftRight<1>(b), hn::ShiftLeft<15>(b));
  hn::StoreU(hn::BitCast(d8, a), d8, raw);
  hn::StoreU(hn::BitCast(d8, b), d8, raw + kN);
}

// Fields of kBits bits, a byte each, into half as many bytes of two fields.
template <int kBits>
HWY_INLINE V8 Packed(V8 first, V8 second) {
  const V16 a = hn::BitCast(d16, first);
  const V16 b = hn::BitCast(d16, second);
  return hn::ConcatEven(d8, hn::BitCast(d8, hn::Or(b, hn::ShiftRight<8 - kBits>(b))),
                        hn::BitCast(d8, hn::Or(a, hn::ShiftRight<8 - kBits>(a))));
}

// kN fields of four bits, from kN / 2 bytes.
HWY_INLINE V8 Nibbles(const uint8_t* from) {
  const V16 pairs = hn::PromoteTo(d16, hn::LoadU(hn::Half<D8>(), from));
  return hn::BitCast(d8, hn::And(hn::Or(pairs, hn::ShiftLeft<4>(pairs)), hn::Set(d16, 0x0f0f)));
}

// kN fields of two bits, from kN / 4 bytes.
HWY_INLINE V8 Crumbs(const uint8_t* from) {
  const auto fours = hn::PromoteTo(d32, hn::LoadU(hn::Rebind<uint8_t, D32>(), from));
  const auto twos = hn::Or(fours, hn::ShiftLeft<12>(fours));
  return hn::BitCast(d8, hn::And(hn::Or(twos, hn::ShiftLeft<6>(twos)), hn::Set(d32, 0x03030303)));
}

// The codes of keys, zero where there is none.
struct Codes {
  V8 codes;
  hn::Mask<D8> missing;
};

// Whether keys are base, base + 1 and so on, as those of most planes: a code is a difference then.
bool IsRun(const Codebook& codebook, size_t size) {
  return codebook.keys[size - 1] - codebook.keys[0] + size_t{1} == size;
}

template <Kind kKind, bool kRun>
HWY_INLINE Codes CodesOf(const Codebook& codebook, V8 keys) {
  if constexpr (kRun) {
    const V8 code = hn::Sub(keys, hn::Set(d8, codebook.keys[0]));
    const auto last = hn::Set(d8, kKind == Kind::kBf16 ? 15 : 7);
    const auto has_code = hn::Eq(hn::Min(code, last), code);
    return {hn::IfThenElseZero(has_code, code), hn::Not(has_code)};
  }
  V8 found = hn::Zero(d8);  // one more than the codes
  for (size_t g = 0; g < codebook.group_count; ++g) {
    const V8 index = hn::Xor(keys, hn::Set(d8, codebook.group_bases[g]));
    // Below 16 it stays, everything else gets the top bit, which looks up a zero.
    const V8 bounded = hn::And(hn::SaturatedAdd(index, hn::Set(d8, 0x70)), hn::Set(d8, 0x8f));
    found = hn::Or(found,
                   hn::TableLookupBytesOr0(hn::LoadDup128(d8, codebook.group_codes[g]), bounded));
  }
  return {hn::SaturatedSub(found, hn::Set(d8, 1)), hn::Eq(found, hn::Zero(d8))};
}

template <class Mask>
HWY_NOINLINE size_t AddEscapes(Mask is_escape, V8 keys, size_t at, const ChunkToWrite& to,
                               size_t escapes) {
  uint64_t bits = 0;
  hn::StoreMaskBits(d8, is_escape, reinterpret_cast<uint8_t*>(&bits));
  uint8_t key[kN];
  hn::StoreU(keys, d8, key);
  for (; bits != 0; bits &= bits - 1) {
    const auto i = static_cast<size_t>(std::countr_zero(bits));
    to.escape_positions[escapes] = static_cast<uint16_t>(at + i);
    to.escape_keys[escapes++] = key[i];
  }
  return escapes;
}

template <Kind kKind, bool kRun>
size_t EncodeBy(const Codebook& codebook, const uint8_t* raw, size_t count,
                const ChunkToWrite& to) {
  size_t escapes = 0;
  size_t i = 0;
  for (; i + 4 * kN <= count; i += 4 * kN) {
    PrefetchAhead(raw + 2 * i, 8 * kN);
    PrefetchAhead(to.rest + i, 4 * kN);
    PrefetchAhead(to.nibbles + i / 2, 2 * kN);
    V8 nibbles[4];
    V8 crumbs[4];
    for (size_t v = 0; v < 4; ++v) {
      const size_t at = i + v * kN;
      const Planes planes = LoadPlanes(raw + 2 * at);
      hn::StoreU(planes.rest, d8, to.rest + at);
      V8 keys = planes.keys;
      if (kKind == Kind::kFp16) {
        const V16 wide = hn::BitCast(d16, planes.keys);
        keys = hn::And(hn::BitCast(d8, hn::ShiftRight<3>(wide)), hn::Set(d8, 0x1f));
      }
      const Codes found = CodesOf<kKind, kRun>(codebook, keys);
      if (!hn::AllFalse(d8, found.missing)) {
        escapes = AddEscapes(found.missing, keys, at, to, escapes);
      }
      nibbles[v] = found.codes;
      if (kKind == Kind::kFp16) {
        const V16 bit = hn::ShiftRight<2>(hn::BitCast(d16, planes.keys));
        nibbles[v] =
            hn::Or(hn::Add(nibbles[v], nibbles[v]), hn::And(hn::BitCast(d8, bit), hn::Set(d8, 1)));
        crumbs[v] = hn::And(planes.keys, hn::Set(d8, 3));
      }
    }
    hn::StoreU(Packed<4>(nibbles[0], nibbles[1]), d8, to.nibbles + i / 2);
    hn::StoreU(Packed<4>(nibbles[2], nibbles[3]), d8, to.nibbles + i / 2 + kN);
    if (kKind == Kind::kFp16) {
      const V8 low = Packed<2>(crumbs[0], crumbs[1]);
      const V8 high = Packed<2>(crumbs[2], crumbs[3]);
      hn::StoreU(Packed<4>(low, high), d8, to.crumbs + i / 4);
    }
  }
  return EncodeFrom<kKind>(i, codebook, raw, count, to, escapes);
}

template <Kind kKind>
size_t Encode(const Codebook& codebook, const uint8_t* raw, size_t count, const ChunkToWrite& to) {
  return IsRun(codebook, kKind == Kind::kBf16 ? 16 : 8)
             ? EncodeBy<kKind, true>(codebook, raw, count, to)
             : EncodeBy<kKind, false>(codebook, raw, count, to);
}

template <Kind kKind>
void Decode(const Codebook& codebook, const ChunkToRead& from, size_t count, uint8_t* raw) {
  const V8 book = hn::LoadDup128(d8, codebook.keys);
  size_t i = 0;
  for (; i + kN <= count; i += kN) {
    PrefetchAhead(raw + 2 * i, 2 * kN);
    PrefetchAhead(from.rest + i, kN);
    V8 keys = Nibbles(from.nibbles + i / 2);
    if (kKind == Kind::kBf16) {
      keys = hn::TableLookupBytes(book, keys);
    } else {
      const V16 wide = hn::BitCast(d16, keys);
      const V8 code = hn::And(hn::BitCast(d8, hn::ShiftRight<1>(wide)), hn::Set(d8, 7));
      const V8 bit = hn::And(keys, hn::Set(d8, 1));
      const V8 key = hn::TableLookupBytes(book, code);
      // No key is above 31, so that nothing is shifted into the neighbour.
      const V16 high =
          hn::Or(hn::ShiftLeft<3>(hn::BitCast(d16, key)), hn::ShiftLeft<2>(hn::BitCast(d16, bit)));
      keys = hn::Or(hn::BitCast(d8, high), Crumbs(from.crumbs + i / 4));
    }
    StorePlanes(keys, hn::LoadU(d8, from.rest + i), raw + 2 * i);
  }
  DecodeFrom<kKind>(i, codebook, from, count, raw);
}

void Split(const uint8_t* raw, size_t count, uint8_t* keys, uint8_t* rest) {
  size_t i = 0;
  for (; i + kN <= count; i += kN) {
    PrefetchAhead(raw + 2 * i, 2 * kN);
    const Planes planes = LoadPlanes(raw + 2 * i);
    hn::StoreU(planes.keys, d8, keys + i);
    hn::StoreU(planes.rest, d8, rest + i);
  }
  SplitFrom(i, raw, count, keys, rest);
}

void Join(const uint8_t* keys, const uint8_t* rest, size_t count, uint8_t* raw) {
  size_t i = 0;
  for (; i + kN <= count; i += kN) {
    PrefetchAhead(raw + 2 * i, 2 * kN);
    PrefetchAhead(rest + i, kN);
    StorePlanes(hn::LoadU(d8, keys + i), hn::LoadU(d8, rest + i), raw + 2 * i);
  }
  JoinFrom(i, keys, rest, count, raw);
}

#endif

size_t EncodeBf16(const Codebook& codebook, const uint8_t* raw, size_t count,
                  const ChunkToWrite& to) {
  return Encode<Kind::kBf16>(codebook, raw, count, to);
}
size_t EncodeFp16(const Codebook& codebook, const uint8_t* raw, size_t count,
                  const ChunkToWrite& to) {
  return Encode<Kind::kFp16>(codebook, raw, count, to);
}
void DecodeBf16(const Codebook& codebook, const ChunkToRead& from, size_t count, uint8_t* raw) {
  Decode<Kind::kBf16>(codebook, from, count, raw);
}
void DecodeFp16(const Codebook& codebook, const ChunkToRead& from, size_t count, uint8_t* raw) {
  Decode<Kind::kFp16>(codebook, from, count, raw);
}

}  // namespace
}  // namespace forebay::exponent_split::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::exponent_split {
namespace {
HWY_EXPORT(EncodeBf16);
HWY_EXPORT(EncodeFp16);
HWY_EXPORT(DecodeBf16);
HWY_EXPORT(DecodeFp16);
HWY_EXPORT(Split);
HWY_EXPORT(Join);
}  // namespace

size_t EncodeChunk(Kind kind, const Codebook& codebook, const uint8_t* raw, size_t count,
                   const ChunkToWrite& to) {
  if (kind == Kind::kBf16) return HWY_DYNAMIC_DISPATCH(EncodeBf16)(codebook, raw, count, to);
  return HWY_DYNAMIC_DISPATCH(EncodeFp16)(codebook, raw, count, to);
}

void DecodeChunk(Kind kind, const Codebook& codebook, const ChunkToRead& from, size_t count,
                 uint8_t* raw) {
  if (kind == Kind::kBf16) return HWY_DYNAMIC_DISPATCH(DecodeBf16)(codebook, from, count, raw);
  return HWY_DYNAMIC_DISPATCH(DecodeFp16)(codebook, from, count, raw);
}

void SplitPlanes(const uint8_t* raw, size_t count, uint8_t* keys, uint8_t* rest) {
  HWY_DYNAMIC_DISPATCH(Split)(raw, count, keys, rest);
}

void JoinPlanes(const uint8_t* keys, const uint8_t* rest, size_t count, uint8_t* raw) {
  HWY_DYNAMIC_DISPATCH(Join)(keys, rest, count, raw);
}

void CountKeys(const uint8_t* raw, size_t count, uint64_t* counts) {
  // Neighbours are often equal: counting them in different places spares the wait for the first.
  constexpr size_t kPlaces = 4;
  constexpr size_t kAtOnceMax = size_t{1} << 31;  // so that a place cannot overflow
  while (count > 0) {
    const size_t now = std::min(count, kAtOnceMax);
    uint32_t places[kPlaces][256] = {};
    size_t i = 0;
    for (; i + kPlaces <= now; i += kPlaces) {
      uint64_t words;
      std::memcpy(&words, raw + 2 * i, sizeof(words));
      for (size_t w = 0; w < kPlaces; ++w) ++places[w][words >> (16 * w + 7) & 0xff];
    }
    for (; i < now; ++i) ++places[0][Turned(raw, i) >> 8];
    for (const auto& place : places) {
      for (size_t key = 0; key < 256; ++key) counts[key] += place[key];
    }
    raw += 2 * now;
    count -= now;
  }
}

}  // namespace forebay::exponent_split
#endif  // HWY_ONCE
