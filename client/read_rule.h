#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "base/kv_layout.h"

namespace forebay {

// What a reader needs who goes on after the first n pages of a chain, by the class of layers: of
// full attention every page, of a sliding window those that hold its last tokens, of a fixed state
// the last page alone.
//
// Threads  immutable.
class ReadRule {
 public:
  explicit ReadRule(const KvLayout& layout);

  // Whether the layers of class `c` of page `page` are needed by who goes on after `page_count`.
  bool Needs(LayerClass c, uint32_t page, uint32_t page_count) const;

  // The largest n such that all that n pages need is there. `complete`: for each of the leading
  // pages, the classes of which every part is there; later pages are not there at all.
  uint32_t UsablePages(absl::Span<const ClassMask> complete) const;

 private:
  const ClassMask classes_;    // that the layout has
  uint64_t window_pages_ = 0;  // pages that hold the widest window; 0 without sliding layers
};

}  // namespace forebay
