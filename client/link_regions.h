#pragma once

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
// Threads  constant; shared by the reactor and whoever reads in place.
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

 private:
  std::vector<Bytes> regions_;
};

}  // namespace forebay
