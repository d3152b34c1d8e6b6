#include "client/read_rule.h"

#include <algorithm>

namespace forebay {

ReadRule::ReadRule(const KvLayout& layout) : classes_(layout.Classes()) {
  for (const LayerSpec& layer : layout.layers) {
    if (layer.layer_class != LayerClass::kSlidingWindow) continue;
    // In 64 bits: engines say "no limit" with the largest number that there is.
    const uint64_t tokens = uint64_t{layer.window_tokens} + layout.page_tokens - 1;
    window_pages_ = std::max(window_pages_, tokens / layout.page_tokens);
  }
}

bool ReadRule::Needs(LayerClass c, uint32_t page, uint32_t page_count) const {
  switch (c) {
    case LayerClass::kFull:
      return true;
    case LayerClass::kSlidingWindow:
      return page + window_pages_ >= page_count;
    case LayerClass::kState:
      return uint64_t{page} + 1 == page_count;
  }
  return true;
}

uint32_t ReadRule::UsablePages(absl::Span<const ClassMask> complete) const {
  const bool full = (classes_ & ClassBit(LayerClass::kFull)) != 0;
  const bool sliding = (classes_ & ClassBit(LayerClass::kSlidingWindow)) != 0;
  const bool state = (classes_ & ClassBit(LayerClass::kState)) != 0;
  uint32_t usable = 0;
  uint64_t sliding_run = 0;  // pages with their sliding layers, up to and with this one
  for (uint32_t page = 0; page < complete.size(); ++page) {
    const auto has = [&](LayerClass c) { return (complete[page] & ClassBit(c)) != 0; };
    if (full && !has(LayerClass::kFull)) break;
    sliding_run = has(LayerClass::kSlidingWindow) ? sliding_run + 1 : 0;
    if (sliding && sliding_run < std::min<uint64_t>(uint64_t{page} + 1, window_pages_)) continue;
    if (state && !has(LayerClass::kState)) continue;
    usable = page + 1;
  }
  return usable;
}

}  // namespace forebay
