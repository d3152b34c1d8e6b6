#include "client/link_regions.h"

#include <sys/mman.h>

#include "base/log.h"

namespace forebay {

std::shared_ptr<const LinkRegions> LinkRegions::MapAgain(const std::vector<Bytes>& shared) {
  auto mapped = std::make_shared<LinkRegions>();
  for (Bytes region : shared) {
    // mremap of an old size of 0 maps the same shared pages at another place, with the same
    // protection, and leaves the old mapping alone (mremap(2)).
    void* const from = const_cast<std::byte*>(region.data());
    void* const at = mremap(from, 0, region.size(), MREMAP_MAYMOVE);
    if (at == MAP_FAILED) {
      LogWarning("client.map_regions_failed", {{"region_bytes", region.size()}});
      return std::make_shared<LinkRegions>();
    }
    mapped->regions_.push_back(AsBytes(at, region.size()));
  }
  return mapped;
}

LinkRegions::~LinkRegions() {
  for (Bytes region : regions_) munmap(const_cast<std::byte*>(region.data()), region.size());
}

}  // namespace forebay
