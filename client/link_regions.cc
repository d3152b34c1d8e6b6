#include "client/link_regions.h"

#include <sys/mman.h>

#include "base/log.h"

namespace forebay {
namespace {

// What one fault maps (fault_around_bytes); a smaller frame gains nothing.
constexpr size_t kGranuleBytes = 64 << 10;

}  // namespace

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
    const size_t words = region.size() / kGranuleBytes / 64 + 1;
    mapped->mapped_in_.push_back(std::make_unique<std::atomic<uint64_t>[]>(words));
  }
  return mapped;
}

void LinkRegions::MapIn(size_t region, Bytes frame) const {
  if (frame.empty()) return;
  const Bytes memory = regions_[region];
  const auto offset = static_cast<size_t>(frame.data() - memory.data());
  size_t granule = (offset + kGranuleBytes - 1) / kGranuleBytes;
  const size_t end = (offset + frame.size()) / kGranuleBytes;
  const auto is_mapped = [&](size_t i) {
    const uint64_t bit = uint64_t{1} << (i % 64);
    return (mapped_in_[region][i / 64].fetch_or(bit, std::memory_order_relaxed) & bit) != 0;
  };
  while (granule < end) {
    // One read maps all of a granule. MADV_POPULATE_READ, which asks for each page apart, took
    // three times as long: 160 us a MiB, where the copy itself takes 60 to 80.
    if (!is_mapped(granule)) {
      static_cast<void>(
          *static_cast<const volatile std::byte*>(memory.data() + granule * kGranuleBytes));
    }
    ++granule;
  }
  // A fault maps the granule of its address, which is ours only where the mapping is so aligned.
  static_cast<void>(*static_cast<const volatile std::byte*>(frame.data() + frame.size() - 1));
}

LinkRegions::~LinkRegions() {
  for (Bytes region : regions_) munmap(const_cast<std::byte*>(region.data()), region.size());
}

}  // namespace forebay
