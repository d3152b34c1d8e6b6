#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/page_key.h"
#include "client/daemon_link.h"
#include "proto/wire.h"

namespace forebay {

// What one daemon granted to one lookup message.
struct LeaseGrant {
  uint16_t daemon = 0;
  uint64_t epoch = 0;                          // of its link
  uint64_t lease = 0;                          // 0: none (a probe)
  Nanos deadline = 0;                          // when the holder stops to believe in it
  uint32_t page_count = 0;                     // leading pages of the message that stay leased
  std::shared_ptr<const LinkRegions> regions;  // where its locations point
};

// The usable prefix that a lookup found: what PrefixHit hands out.
//
// Threads  constant once the lookup has ended, apart from `released`.
struct Hit {
  uint64_t ns = 0;
  std::vector<PageKey> keys;       // of the usable pages
  std::vector<uint16_t> daemons;   // per page
  std::vector<uint32_t> grant_of;  // per page: index into `grants`
  std::vector<LeaseGrant> grants;
  // [page_count][parts] where any were granted, else empty. frame_bytes 0: not there.
  std::vector<wire::SlotLocation> locations;
  uint32_t parts = 0;
  Nanos fetch_estimate = 0;
  std::atomic<bool> released{false};  // true: the leases are given back, or about to be

  uint32_t page_count() const { return static_cast<uint32_t>(keys.size()); }
  // nullptr where the location is not known.
  const wire::SlotLocation* LocationOf(uint32_t page, uint16_t part) const {
    if (locations.empty()) return nullptr;
    const wire::SlotLocation& location = locations[size_t{page} * parts + part];
    return location.frame_bytes == 0 ? nullptr : &location;
  }
};

// The frame at `location`, or nothing where it does not lie within a region.
inline Bytes FrameAt(const LinkRegions& mapped, const wire::SlotLocation& location) {
  if (location.region >= mapped.regions().size()) return {};
  const Bytes region = mapped.regions()[location.region];
  if (location.frame_bytes < kFrameHeaderBytes || location.offset > region.size() ||
      location.frame_bytes > region.size() - location.offset) {
    return {};
  }
  return region.subspan(location.offset, location.frame_bytes);
}

}  // namespace forebay
