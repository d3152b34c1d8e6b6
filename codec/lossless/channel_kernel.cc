#include "codec/lossless/channel_kernel.h"

#include <algorithm>
#include <cstring>
#include <numeric>

// This file is compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/lossless/channel_kernel.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace forebay::exponent_split::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::CappedTag<uint8_t, 32>;
constexpr D8 d8;

// Calls vector(byte, channel) for as many bytes as fit into the period, one(byte, channel) for the
// rest.
template <class Vector, class One>
HWY_INLINE void ForEach(size_t count, size_t at, size_t period, Vector vector, One one) {
  const size_t lanes = hn::Lanes(d8);
  size_t channel = at % period;
  size_t i = 0;
  while (i < count) {
    const size_t end = std::min(count, i + period - channel);
    for (; i + lanes <= end; i += lanes, channel += lanes) vector(i, channel);
    for (; i < end; ++i, ++channel) one(i, channel);
    if (channel == period) channel = 0;
  }
}

void RaiseMaximaHere(const uint8_t* bytes, size_t count, size_t at, uint8_t* maxima,
                     size_t period) {
  ForEach(
      count, at, period,
      [=](size_t i, size_t channel) HWY_ATTR {
        const auto larger = hn::Max(hn::LoadU(d8, bytes + i), hn::LoadU(d8, maxima + channel));
        hn::StoreU(larger, d8, maxima + channel);
      },
      [=](size_t i, size_t channel) { maxima[channel] = std::max(maxima[channel], bytes[i]); });
}

void MirrorHere(const uint8_t* ceilings, size_t period, size_t at, uint8_t* bytes, size_t count) {
  ForEach(
      count, at, period,
      [=](size_t i, size_t channel) HWY_ATTR {
        const auto ceiling = hn::LoadU(d8, ceilings + channel);
        hn::StoreU(hn::Sub(ceiling, hn::LoadU(d8, bytes + i)), d8, bytes + i);
      },
      [=](size_t i, size_t channel) {
        bytes[i] = static_cast<uint8_t>(ceilings[channel] - bytes[i]);
      });
}

#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE

void CountKnownHere(const uint8_t*, size_t, const uint8_t*, size_t, uint64_t*) {}
size_t CountLanes() { return SIZE_MAX; }

#else

// One more in each lane that has the symbol.
HWY_INLINE hn::VFromD<D8> Counted(hn::VFromD<D8> found, hn::VFromD<D8> bytes,
                                  hn::VFromD<D8> symbol) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  // Not into a mask of AVX-512, which is slow to come back.
  return hn::VFromD<D8>{_mm256_sub_epi8(found.raw, _mm256_cmpeq_epi8(bytes.raw, symbol.raw))};
#else
  return hn::Sub(found, hn::VecFromMask(d8, hn::Eq(bytes, symbol)));
#endif
}

// Adds how often each of `symbols` occurs in whole vectors of `bytes`.
void CountKnownHere(const uint8_t* bytes, size_t count, const uint8_t* symbols, size_t symbol_count,
                    uint64_t* counts) {
  // Vectors of 64 bytes would slow the clock of all that follows.
  constexpr hn::Repartition<uint64_t, D8> sums_of;
  const size_t lanes = hn::Lanes(d8);
  constexpr size_t kAtOnce = 4;  // symbols for each load
  for (size_t s = 0; s < symbol_count; s += kAtOnce) {
    const size_t last = symbol_count - 1;
    const auto symbol0 = hn::Set(d8, symbols[s]);
    const auto symbol1 = hn::Set(d8, symbols[std::min(s + 1, last)]);
    const auto symbol2 = hn::Set(d8, symbols[std::min(s + 2, last)]);
    const auto symbol3 = hn::Set(d8, symbols[std::min(s + 3, last)]);
    const auto zero = hn::Zero(d8);
    uint64_t sums[kAtOnce] = {};
    for (size_t i = 0; i < count;) {
      // A lane of a byte counts no further.
      const size_t end = std::min(count, i + 255 * lanes);
      auto found0 = zero, found1 = zero, found2 = zero, found3 = zero;
      for (; i < end; i += lanes) {
        const auto of_bytes = hn::LoadU(d8, bytes + i);
        found0 = Counted(found0, of_bytes, symbol0);
        found1 = Counted(found1, of_bytes, symbol1);
        found2 = Counted(found2, of_bytes, symbol2);
        found3 = Counted(found3, of_bytes, symbol3);
      }
      sums[0] += hn::GetLane(hn::SumOfLanes(sums_of, hn::SumsOf8(found0)));
      sums[1] += hn::GetLane(hn::SumOfLanes(sums_of, hn::SumsOf8(found1)));
      sums[2] += hn::GetLane(hn::SumOfLanes(sums_of, hn::SumsOf8(found2)));
      sums[3] += hn::GetLane(hn::SumOfLanes(sums_of, hn::SumsOf8(found3)));
    }
    for (size_t k = 0; k < kAtOnce && s + k <= last; ++k) counts[symbols[s + k]] += sums[k];
  }
}

// A multiple of this many bytes is counted.
size_t CountLanes() { return hn::Lanes(d8); }

#endif

}  // namespace
}  // namespace forebay::exponent_split::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::exponent_split {
namespace {
HWY_EXPORT(RaiseMaximaHere);
HWY_EXPORT(MirrorHere);
HWY_EXPORT(CountKnownHere);
HWY_EXPORT(CountLanes);
}  // namespace

void RaiseMaxima(const uint8_t* bytes, size_t count, size_t at, uint8_t* maxima, size_t period) {
  HWY_DYNAMIC_DISPATCH(RaiseMaximaHere)(bytes, count, at, maxima, period);
}

void Mirror(const uint8_t* ceilings, size_t period, size_t at, uint8_t* bytes, size_t count) {
  HWY_DYNAMIC_DISPATCH(MirrorHere)(ceilings, period, at, bytes, count);
}

namespace {

void CountOneByOne(const uint8_t* bytes, size_t count, uint64_t* counts) {
  // Neighbours are often equal: counting them in different places spares the wait for the first.
  constexpr size_t kPlaces = 4;
  constexpr size_t kAtOnceMax = size_t{1} << 31;  // so that a place cannot overflow
  while (count > 0) {
    const size_t now = std::min(count, kAtOnceMax);
    uint32_t places[kPlaces][256] = {};
    size_t i = 0;
    for (; i + 8 <= now; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, bytes + i, sizeof(eight));
      for (size_t b = 0; b < 8; ++b) ++places[b % kPlaces][eight >> (8 * b) & 0xff];
    }
    for (; i < now; ++i) ++places[0][bytes[i]];
    for (size_t byte = 0; byte < 256; ++byte) {
      for (const auto& place : places) counts[byte] += place[byte];
    }
    bytes += now;
    count -= now;
  }
}

}  // namespace

// Few exponents occur, so that comparing with each of them is faster than a table in memory.
void CountBytes(const uint8_t* bytes, size_t count, uint64_t* counts) {
  constexpr size_t kKnownMax = 40;
  constexpr int kNear = 2;  // exponents that are to be expected next
  uint8_t known[256];
  size_t known_count = 0;
  int since = kNear;
  for (int s = -2 * kNear; s < 256 + kNear; ++s) {
    since = counts[s & 0xff] > 0 ? -kNear : since + 1;
    // Of a window of 2 * kNear + 1 around s - kNear.
    if (since <= kNear && s >= kNear) known[known_count++] = static_cast<uint8_t>(s - kNear);
  }
  const size_t lanes = HWY_DYNAMIC_DISPATCH(CountLanes)();
  const size_t whole = count / lanes * lanes;
  if (known_count == 0 || known_count > kKnownMax || whole == 0) {
    return CountOneByOne(bytes, count, counts);
  }
  uint64_t found[256] = {};
  HWY_DYNAMIC_DISPATCH(CountKnownHere)(bytes, whole, known, known_count, found);
  if (std::accumulate(found, found + 256, uint64_t{0}) != whole) {
    return CountOneByOne(bytes, count, counts);
  }
  for (size_t i = 0; i < known_count; ++i) counts[known[i]] += found[known[i]];
  if (whole < count) CountOneByOne(bytes + whole, count - whole, counts);
}

}  // namespace forebay::exponent_split
#endif  // HWY_ONCE
