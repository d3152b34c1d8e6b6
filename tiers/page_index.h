#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/kv_layout.h"
#include "base/page_key.h"
#include "tiers/dram/dram_tier.h"
#include "tiers/eviction_policy.h"

namespace forebay {

// What a namespace's layout means to the index, computed once.
struct PageShape {
  uint32_t part_count = 0;
  ClassMask classes = 0;               // classes that the layout has
  std::vector<LayerClass> part_class;  // [part_count]

  static PageShape Of(const KvLayout& layout);
};

// Which pages are here, who their parents are, and where each part of them rests.
//
// A page is named by (namespace, key): a key alone never crosses namespaces. It becomes known with
// its first part and complete with its last; lookups see only complete classes. Eviction takes
// leaves (pages without resident children) before their parents, so that what stays is a usable
// prefix.
//
// Threads  one reactor. Nothing here locks.
class PageIndex {
 public:
  // `policy` decides which leaf goes first.
  explicit PageIndex(std::unique_ptr<EvictionPolicy> policy);
  ~PageIndex();

  // Registers a namespace's shape. Ids are small and never reused.
  uint32_t AddNamespace(PageShape shape);
  // Forgets one that has no pages.
  void RemoveNamespace(uint32_t ns);
  // The pages of any of these namespaces that no pin holds. Walks the whole index.
  std::vector<PageRef> UnpinnedPagesOf(const absl::flat_hash_set<uint32_t>& namespaces) const;

  // A page's place in the index; stale after the page is removed.
  PageRef Find(uint32_t ns, const PageKey& key) const;
  // Finds or adds the page. `parent`: the key of the page before it; it need not be here.
  // `page_index`: its place in the chain. The first page has no parent that matters. A parent
  // counts as one only if its place is one less, so that no lie about keys makes a ring that never
  // leaves.
  PageRef FindOrAdd(uint32_t ns, const PageKey& key, const PageKey& parent, uint32_t page_index,
                    Nanos now);
  // Puts a sealed slot into the page.
  //   ALREADY_EXISTS       the part is here: the first wins
  //   INVALID_ARGUMENT     the page has no such part
  //   FAILED_PRECONDITION  the page is gone
  absl::Status SetPart(PageRef page, uint32_t part, SlotRef slot, uint32_t frame_bytes);
  // An invalid SlotRef where the part is not here.
  SlotRef Part(PageRef page, uint32_t part) const;
  ClassMask CompleteClasses(PageRef page) const;
  bool Complete(PageRef page) const;
  // Whether the page is still the one that the reference was made for.
  bool Holds(PageRef page) const;
  // Of a page that Holds().
  const PageKey& KeyOf(PageRef page) const;
  uint32_t NamespaceOf(PageRef page) const;
  uint32_t PlaceOf(PageRef page) const;  // its page_index

  // Per key, the complete classes, up to and without the first page that lacks a complete full
  // class (or, in a layout without full layers, the first absent page). The number of these pages.
  // `pages` gets their refs. Does not touch the policy. How many of them a reader can use is the
  // client's to say: its chain may be spread over several daemons.
  uint32_t LeadingClasses(uint32_t ns, absl::Span<const PageKey> keys, std::vector<PageRef>* pages,
                          std::vector<ClassMask>* classes) const;

  // Tells the policy that the page was used.
  void Touch(PageRef page, Nanos now);
  // A pinned page is no victim. Counted; Unpin without a Pin aborts. A page that is removed and
  // comes back has no pins.
  void Pin(PageRef page);
  void Unpin(PageRef page);
  // The page that should go next: an unpinned leaf. Invalid when there is none.
  PageRef Victim();
  // Forgets the page; its slots are the caller's to retire.
  std::vector<SlotRef> Remove(PageRef page);
  // Forgets one part (found bad): the page is incomplete again. Invalid if it was not here.
  SlotRef RemovePart(PageRef page, uint32_t part);

  struct Counts {
    uint64_t pages = 0, complete_pages = 0, frames = 0, frame_bytes = 0;
  };
  Counts counts() const;
  Counts CountsOf(uint32_t ns) const;
  // Of the index itself, without the policy: for metrics.
  uint64_t memory_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace forebay
