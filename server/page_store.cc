#include "server/page_store.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/broken.h"
#include "base/check.h"
#include "base/failpoint.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

// One allocation evicts at most this many slabs' worth of frames. Where every victim lies in
// another size class, freeing a whole slab could otherwise cost the whole pool.
constexpr uint64_t kEvictSlabsMax = 8;

// How many refused pages are remembered, and how long: as long as one publisher may take for a
// chain.
constexpr size_t kRefusedMax = 4096;
constexpr Nanos kRefusedFor = kSecond;

}  // namespace

absl::StatusOr<SlotRef> PageStore::Allocate(size_t frame_bytes, bool may_evict) {
  FB_FAILPOINT("server.store.allocate");
  absl::StatusOr<SlotRef> slot = tier_.Allocate(frame_bytes);
  if (!may_evict || !absl::IsResourceExhausted(slot.status())) return slot;

  const uint64_t slab_bytes = tier_.slabs().empty() ? 0 : tier_.slabs()[0].memory.size();
  const uint64_t evict_bytes_max = kEvictSlabsMax * slab_bytes;
  evicted_bytes_ = 0;
  while (absl::IsResourceExhausted(slot.status()) && evicted_bytes_ <= evict_bytes_max) {
    const PageRef victim = index_.Victim();
    if (!victim.valid()) break;
    Evict(victim);
    slot = tier_.Allocate(frame_bytes);
  }
  return slot;
}

void PageStore::NoteRefused(uint32_t ns, const PageKey& key, Nanos now) {
  const auto [entry, added] = refused_at_.insert_or_assign({ns, key}, now);
  if (!added) return;
  refused_order_.push_back(entry->first);
  if (refused_order_.size() <= kRefusedMax) return;
  refused_at_.erase(refused_order_.front());
  refused_order_.pop_front();
}

bool PageStore::RefusedLately(uint32_t ns, const PageKey& key, Nanos now) const {
  if (refused_at_.empty()) return false;
  const auto found = refused_at_.find({ns, key});
  return found != refused_at_.end() && now - found->second < kRefusedFor;
}

void PageStore::Evict(PageRef page) {
  for (const SlotRef& slot : index_.Remove(page)) {
    const absl::StatusOr<Bytes> frame = tier_.Read(slot);
    if (frame.ok()) {
      evicted_bytes_ += frame->size();
      metrics_.evicted_bytes.Add(frame->size());
    }
    FB_CHECK(tier_.Retire(slot).ok());
  }
  metrics_.evicted_pages.Add();
}

std::optional<PinnedFrame> PageStore::PinFrame(PageRef page, uint32_t part) {
  if (!page.valid()) return std::nullopt;
  const SlotRef slot = index_.Part(page, part);
  if (!slot.valid()) return std::nullopt;
  absl::StatusOr<Bytes> frame = tier_.Read(slot);
  if (!frame.ok()) return std::nullopt;
  if (FB_BROKEN("evict_pinned")) return PinnedFrame{page, slot, *frame};
  if (!tier_.Pin(slot).ok()) return std::nullopt;
  index_.Pin(page);
  return PinnedFrame{page, slot, *frame};
}

void PageStore::Unpin(const PinnedFrame& pinned) {
  if (FB_BROKEN("evict_pinned")) return;
  index_.Unpin(pinned.page);
  tier_.Unpin(pinned.slot);
}

std::optional<FrameHeader> PageStore::HeaderOf(PageRef page, uint32_t part) const {
  const SlotRef slot = index_.Part(page, part);
  if (!slot.valid()) return std::nullopt;
  const absl::StatusOr<Bytes> frame = tier_.Read(slot);
  if (!frame.ok() || frame->size() < kFrameHeaderBytes) return std::nullopt;
  FrameHeader header;
  std::memcpy(&header, frame->data(), sizeof(header));
  return header;
}

absl::Status PageStore::Publish(PageRef page, uint32_t part, SlotRef slot,
                                const FrameHeader& header) {
  const auto publish = [&]() -> absl::Status {
    FB_FAILPOINT("server.put.before_seal");
    const MutableBytes frame = tier_.FillMemory(slot);
    FB_CHECK(frame.size() == kFrameHeaderBytes + header.payload_bytes);
    std::memcpy(frame.data(), &header, sizeof(header));
    return tier_.Seal(slot);
  };
  if (absl::Status status = publish(); !status.ok()) {
    Discard(slot);
    return status;
  }
  const uint32_t frame_bytes = static_cast<uint32_t>(kFrameHeaderBytes + header.payload_bytes);
  absl::Status status = index_.SetPart(page, part, slot, frame_bytes);
  if (!status.ok()) FB_CHECK(tier_.Retire(slot).ok());
  return status;
}

void PageStore::Discard(SlotRef slot) {
  FB_CHECK(tier_.Abort(slot).ok());
  FB_CHECK(tier_.Fence(slot).ok());
}

absl::flat_hash_set<uint32_t> PageStore::ForgetNamespaces(
    const absl::flat_hash_set<uint32_t>& namespaces) {
  for (const PageRef page : index_.UnpinnedPagesOf(namespaces)) Evict(page);
  absl::flat_hash_set<uint32_t> forgotten;
  for (const uint32_t ns : namespaces) {
    if (index_.CountsOf(ns).pages > 0) continue;
    index_.RemoveNamespace(ns);
    forgotten.insert(ns);
  }
  return forgotten;
}

void PageStore::DropPart(PageRef page, uint32_t part) {
  const SlotRef slot = index_.RemovePart(page, part);
  if (slot.valid()) FB_CHECK(tier_.Retire(slot).ok());
}

PageRef PageStore::OpenPage(uint32_t ns, const PageKey& key, const PageKey& parent,
                            uint32_t page_index, Nanos now) {
  const PageRef page = index_.FindOrAdd(ns, key, parent, page_index, now);
  index_.Pin(page);
  ++open_rows_[page.row];
  return page;
}

void PageStore::ClosePage(PageRef page, uint32_t part_count) {
  index_.Unpin(page);
  const auto open = open_rows_.find(page.row);
  FB_CHECK(open != open_rows_.end());
  if (--open->second > 0) return;
  open_rows_.erase(open);
  for (uint32_t part = 0; part < part_count; ++part) {
    if (index_.Part(page, part).valid()) return;
  }
  index_.Remove(page);
}

}  // namespace forebay
