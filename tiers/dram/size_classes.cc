#include "tiers/dram/size_classes.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace forebay {
namespace {

constexpr uint64_t kHeaderBytes = 64;
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kWholePagesFrom = 128 * 1024;  // where rounding to pages costs 3% at most
constexpr uint64_t kStepsPerOctave = 8;

uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

SizeClasses::SizeClasses(uint64_t slab_bytes) {
  FB_CHECK(slab_bytes > 0);
  FB_CHECK(slab_bytes % kPageBytes == 0);
  const uint64_t slot_bytes_min =
      std::max(2 * kHeaderBytes, RoundUp(slab_bytes / kSlotsPerSlabMax, kAlignment));
  uint64_t payload = slot_bytes_min - kHeaderBytes;
  while (true) {
    const uint64_t wanted = payload + kHeaderBytes;
    const uint64_t align = wanted < kWholePagesFrom ? kAlignment : kPageBytes;
    uint64_t slot_bytes = RoundUp(wanted, align);
    if (slot_bytes >= slab_bytes) break;
    const uint64_t slots = slab_bytes / slot_bytes;
    // Sizes of which a slab holds equally many are one class: the largest of them.
    if (slots < 2 * kStepsPerOctave) slot_bytes = slab_bytes / slots / align * align;
    if (classes_.empty() || slot_bytes > classes_.back().slot_bytes) {
      classes_.push_back({slot_bytes, static_cast<uint32_t>(slots)});
    }
    payload += std::max(kAlignment, std::bit_floor(payload) / kStepsPerOctave);
  }
  if (classes_.empty() || classes_.back().slot_bytes < slab_bytes) {
    classes_.push_back({slab_bytes, 1});
  }
}

uint32_t SizeClasses::ClassOf(uint64_t frame_bytes) const {
  const auto at =
      std::lower_bound(classes_.begin(), classes_.end(), frame_bytes,
                       [](const Class& c, uint64_t bytes) { return c.slot_bytes < bytes; });
  FB_CHECK(at != classes_.end());
  return static_cast<uint32_t>(at - classes_.begin());
}

}  // namespace forebay
