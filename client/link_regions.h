#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"

namespace forebay {

// The memory that a daemon shares over one connection, as this client sees it.
//
// Transports unmap a peer's memory when its connection ends. An engine that reads a page in place
// at that moment must not be killed for it, so the client keeps mappings of its own, which live as
// long as a connection or a hit refers to them. Bytes read from them after the connection ended are
// never believed: the lease is void.
//
// Owns     its mappings.
// Threads  any: constant but for a note of what was mapped in, which is atomic.
class LinkRegions {
 public:
  // Maps the same memory again. Regions that cannot be mapped again give no regions at all: then
  // pages come by Get.
  static std::shared_ptr<const LinkRegions> MapAgain(const std::vector<Bytes>& shared);

  LinkRegions() = default;
  ~LinkRegions();
  LinkRegions(const LinkRegions&) = delete;
  LinkRegions& operator=(const LinkRegions&) = delete;

  const std::vector<Bytes>& regions() const { return regions_; }
  bool empty() const { return regions_.empty(); }

  // Maps the memory of `frame`, a stored frame in region `region`, in at once where that was not
  // done before: the first copy of a page then takes no page faults on its way. Only memory of
  // stored frames is asked for, since asking for a hole would make the daemon's memory grow.
  void MapIn(size_t region, Bytes frame) const;

 private:
  std::vector<Bytes> regions_;
  // A bit for each whole granule of each region that has been mapped in.
  mutable std::vector<std::unique_ptr<std::atomic<uint64_t>[]>> mapped_in_;
};

}  // namespace forebay
