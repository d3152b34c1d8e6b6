#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace forebay {

// Equal slabs, each a sealed memfd, mapped writable before it was sealed.
//
// Huge pages: MFD_HUGETLB while the kernel has any to give, else MADV_HUGEPAGE.
//
// Owns     the descriptors and the mappings, until it is destroyed.
class SlabMemory {
 public:
  struct Options {
    uint64_t slab_bytes = 0;  // a multiple of 4096
    uint64_t slab_count = 0;
    bool huge_pages = false;
    bool populate = false;
  };
  struct Slab {
    int fd = -1;
    MutableBytes memory;
  };

  // Once. RESOURCE_EXHAUSTED naming the limit in the way; UNIMPLEMENTED before Linux 5.1, which has
  // no F_SEAL_FUTURE_WRITE.
  absl::Status Map(const Options& options);

  SlabMemory() = default;
  ~SlabMemory();
  SlabMemory(const SlabMemory&) = delete;
  SlabMemory& operator=(const SlabMemory&) = delete;

  const std::vector<Slab>& slabs() const { return slabs_; }
  // Whether every slab rests on huge pages: seen, not only asked for.
  bool huge_pages_granted() const { return huge_pages_granted_; }

 private:
  absl::Status MapSlab(const Options& options, bool hugetlb);

  std::vector<Slab> slabs_;
  bool huge_pages_granted_ = false;
};

}  // namespace forebay
