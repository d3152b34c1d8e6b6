#include "codec/lossless/channel_kernel.h"

#include <algorithm>
#include <cstring>

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

}  // namespace
}  // namespace forebay::exponent_split::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::exponent_split {
namespace {
HWY_EXPORT(RaiseMaximaHere);
HWY_EXPORT(MirrorHere);
}  // namespace

void RaiseMaxima(const uint8_t* bytes, size_t count, size_t at, uint8_t* maxima, size_t period) {
  HWY_DYNAMIC_DISPATCH(RaiseMaximaHere)(bytes, count, at, maxima, period);
}

void Mirror(const uint8_t* ceilings, size_t period, size_t at, uint8_t* bytes, size_t count) {
  HWY_DYNAMIC_DISPATCH(MirrorHere)(ceilings, period, at, bytes, count);
}

void CountBytes(const uint8_t* bytes, size_t count, uint64_t* counts) {
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

}  // namespace forebay::exponent_split
#endif  // HWY_ONCE
