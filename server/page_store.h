#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/frame_header.h"
#include "base/page_key.h"
#include "server/metrics.h"
#include "tiers/dram/dram_tier.h"
#include "tiers/page_index.h"

namespace forebay {

// A frame that a get holds: neither its page nor its slot goes before Unpin.
struct PinnedFrame {
  PageRef page;
  SlotRef slot;
  Bytes frame;
};

// The tier and the index as one: what must always happen to both together.
//
// Borrows  both.
// Threads  one reactor. Nothing here locks.
class PageStore {
 public:
  PageStore(DramTier& tier, PageIndex& index, ServerMetrics& metrics)
      : tier_(tier), index_(index), metrics_(metrics) {}

  // A FILLING slot, evicting unpinned leaves while there is none, if it `may_evict`.
  //   RESOURCE_EXHAUSTED  everything is pinned, or so much would have to go that it is not worth it
  //   INVALID_ARGUMENT    more than a slab
  absl::StatusOr<SlotRef> Allocate(size_t frame_bytes, bool may_evict);

  // Pages that found no room a moment ago. Their children must not evict: of a chain that is larger
  // than the pool, the end would else push out the beginning, without which it is worth nothing.
  void NoteRefused(uint32_t ns, const PageKey& key, Nanos now);
  bool RefusedLately(uint32_t ns, const PageKey& key, Nanos now) const;

  // The stored frame of a part, pinned; nothing where it is not here.
  std::optional<PinnedFrame> PinFrame(PageRef page, uint32_t part);
  void Unpin(const PinnedFrame& pinned);

  // The header of a stored part.
  std::optional<FrameHeader> HeaderOf(PageRef page, uint32_t part) const;

  // Writes the header in front of the payload that lies in `slot`, seals it, and makes it the
  // page's part. ALREADY_EXISTS: the first wins; the slot is retired. Any other failure: the slot
  // is given back. Either way the slot is no longer the caller's.
  absl::Status Publish(PageRef page, uint32_t part, SlotRef slot, const FrameHeader& header);
  // Gives a FILLING slot back. Only when no write into it can be under way.
  void Discard(SlotRef slot);

  // The page that a put is about to fill: found or added, and no victim until ClosePage. A page
  // counts as its parent's child from now on, so the parent is no victim either.
  PageRef OpenPage(uint32_t ns, const PageKey& key, const PageKey& parent, uint32_t page_index,
                   Nanos now);
  // Once for each OpenPage. Forgets the page if nobody put anything into it.
  void ClosePage(PageRef page, uint32_t part_count);

  // Drops every page of these namespaces that nobody holds, and forgets those of them that are
  // empty then: their ids must not be used again. Walks the whole index. The ids forgotten.
  absl::flat_hash_set<uint32_t> ForgetNamespaces(const absl::flat_hash_set<uint32_t>& namespaces);

  // Drops one part (found bad) from index and tier.
  void DropPart(PageRef page, uint32_t part);

  DramTier& tier() { return tier_; }
  PageIndex& index() { return index_; }

 private:
  void Evict(PageRef page);

  DramTier& tier_;
  PageIndex& index_;
  ServerMetrics& metrics_;
  uint64_t evicted_bytes_ = 0;                         // in the allocation under way
  absl::flat_hash_map<uint32_t, uint32_t> open_rows_;  // row -> puts that fill it
  absl::flat_hash_map<std::pair<uint32_t, PageKey>, Nanos> refused_at_;
  std::deque<std::pair<uint32_t, PageKey>> refused_order_;
};

}  // namespace forebay
