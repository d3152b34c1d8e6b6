#include "server/lease_book.h"

#include <utility>

#include "base/broken.h"
#include "base/check.h"
#include "base/failpoint.h"
#include "base/status_macros.h"

namespace forebay {

absl::StatusOr<LeaseBook::Granted> LeaseBook::Grant(uint64_t session,
                                                    absl::Span<const PageRef> pages,
                                                    uint32_t part_count, uint64_t page_bytes,
                                                    bool with_slots, Nanos now, Nanos ttl) {
  FB_FAILPOINT("server.lease.grant");
  const uint32_t page_count = Fitting(pages, page_bytes);
  if (page_count < pages.size()) metrics_.leases_refused.Add();
  if (page_count == 0) {
    return absl::ResourceExhaustedError("leases hold as many bytes as they may");
  }
  LeaseHolding holding;
  holding.pages.assign(pages.begin(), pages.begin() + page_count);
  holding.slots_per_page = part_count;
  if (with_slots) {
    holding.slots.reserve(size_t{page_count} * part_count);
    for (const PageRef& page : holding.pages) {
      for (uint32_t part = 0; part < part_count; ++part) {
        holding.slots.push_back(store_.index().Part(page, part));
      }
    }
  }
  Granted granted;
  granted.page_count = page_count;
  granted.slots = holding.slots;
  Pin(holding, page_bytes);
  absl::StatusOr<LeaseId> lease = table_.Grant(session, std::move(holding), now, ttl);
  if (!lease.ok()) {
    Unpin(holding);  // A refused Grant leaves it as it was.
    metrics_.leases_refused.Add();
    return lease.status();
  }
  metrics_.leases_granted.Add();
  granted.lease = *lease;
  return granted;
}

uint32_t LeaseBook::Fitting(absl::Span<const PageRef> pages, uint64_t page_bytes) const {
  uint64_t bytes = leased_bytes_;
  uint32_t count = 0;
  for (const PageRef& page : pages) {
    if (!rows_.contains(page.row)) bytes += page_bytes;
    if (bytes > leased_bytes_max_) break;
    ++count;
  }
  return count;
}

void LeaseBook::Pin(const LeaseHolding& holding, uint64_t page_bytes) {
  for (const PageRef& page : holding.pages) {
    LeasedRow& row = rows_[page.row];
    if (row.leases++ == 0) {
      row.bytes = page_bytes;
      leased_bytes_ += page_bytes;
    }
    if (!FB_BROKEN("evict_pinned")) store_.index().Pin(page);
  }
  if (FB_BROKEN("evict_pinned")) return;
  for (const SlotRef& slot : holding.slots) {
    if (slot.valid()) FB_CHECK(store_.tier().Pin(slot).ok());
  }
}

void LeaseBook::Unpin(const LeaseHolding& holding) {
  for (const PageRef& page : holding.pages) {
    const auto row = rows_.find(page.row);
    FB_CHECK(row != rows_.end());
    if (--row->second.leases == 0) {
      leased_bytes_ -= row->second.bytes;
      rows_.erase(row);
    }
    if (!FB_BROKEN("evict_pinned")) store_.index().Unpin(page);
  }
  if (FB_BROKEN("evict_pinned")) return;
  for (const SlotRef& slot : holding.slots) {
    if (slot.valid()) store_.tier().Unpin(slot);
  }
}

bool LeaseBook::HoldsAll(const LeaseHolding& holding) const {
  for (const SlotRef& slot : holding.slots) {
    if (slot.valid() && !store_.tier().Holds(slot)) return false;
  }
  return true;
}

LeaseBook::Released LeaseBook::Release(uint64_t session, LeaseId lease, uint32_t keep_pages,
                                       Nanos now) {
  // The word "valid" is about every page that was granted, also those that stay leased.
  const LeaseHolding* live = table_.Find(session, lease, now);
  const bool held = live != nullptr && HoldsAll(*live);
  LeaseTable::Released released = table_.Release(session, lease, keep_pages, now);
  Unpin(released.holding);
  Released answer;
  switch (released.verdict) {
    case LeaseVerdict::kValid:
      answer.valid = held || FB_BROKEN("skip_lease_check");
      break;
    case LeaseVerdict::kExpired:
      answer.status = absl::FailedPreconditionError("the lease had expired");
      break;
    case LeaseVerdict::kUnknown:
      answer.status = absl::NotFoundError("no lease of this session has this id");
      break;
  }
  if (!answer.valid) metrics_.releases_invalid.Add();
  return answer;
}

LeaseBook::Released LeaseBook::Renew(uint64_t session, LeaseId lease, Nanos now, Nanos ttl) {
  Released answer;
  const absl::StatusOr<Nanos> deadline = table_.Renew(session, lease, now, ttl);
  answer.status = deadline.status();
  if (deadline.ok()) {
    const LeaseHolding* live = table_.Find(session, lease, now);
    answer.valid = live != nullptr && HoldsAll(*live);
  }
  if (!answer.valid) metrics_.releases_invalid.Add();
  return answer;
}

bool LeaseBook::Expire(Nanos now) {
  const std::vector<LeaseTable::Expired> expired = table_.Expire(now);
  for (const LeaseTable::Expired& lease : expired) Unpin(lease.holding);
  metrics_.leases_expired.Add(expired.size());
  return !expired.empty();
}

void LeaseBook::DropSession(uint64_t session) {
  for (const LeaseHolding& holding : table_.DropSession(session)) Unpin(holding);
}

}  // namespace forebay
