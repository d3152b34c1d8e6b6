#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/metrics.h"
#include "server/page_store.h"
#include "tiers/lease_table.h"

namespace forebay {

// The lease table and the pins that its promises stand on.
//
// A leased page is pinned in the index, so that it is no victim. Where the client was told where
// the frames rest, each of its slots is pinned in the tier too, and the release says whether every
// slot still holds the generation that was granted.
//
// Units    bytes of a page count once, however many leases hold it.
// Threads  one reactor.
class LeaseBook {
 public:
  LeaseBook(PageStore& store, ServerMetrics& metrics, const LeaseTable::Limits& limits,
            uint64_t leased_bytes_max)
      : store_(store), metrics_(metrics), table_(limits), leased_bytes_max_(leased_bytes_max) {}

  struct Granted {
    LeaseId lease = 0;
    uint32_t page_count = 0;     // leading pages that are leased; fewer where the limit is near
    std::vector<SlotRef> slots;  // [page_count][part_count] with `with_slots`, else empty
  };
  // RESOURCE_EXHAUSTED if not even one page may be leased, or no lease is left to the session.
  absl::StatusOr<Granted> Grant(uint64_t session, absl::Span<const PageRef> pages,
                                uint32_t part_count, uint64_t page_bytes, bool with_slots,
                                Nanos now, Nanos ttl);

  struct Released {
    absl::Status status;  // OK; FAILED_PRECONDITION: expired; NOT_FOUND: none of this session's
    bool valid = false;
  };
  Released Release(uint64_t session, LeaseId lease, uint32_t keep_pages, Nanos now);
  Released Renew(uint64_t session, LeaseId lease, Nanos now, Nanos ttl);

  // Drops the pins of leases that have ended. True if there were any.
  bool Expire(Nanos now);
  void DropSession(uint64_t session);

  Nanos NextDeadline() const { return table_.NextDeadline(); }
  uint64_t lease_count() const { return table_.lease_count(); }
  uint64_t leased_bytes() const { return leased_bytes_; }

 private:
  struct LeasedRow {
    uint32_t leases = 0;
    uint64_t bytes = 0;
  };

  uint32_t Fitting(absl::Span<const PageRef> pages, uint64_t page_bytes) const;
  void Pin(const LeaseHolding& holding, uint64_t page_bytes);
  void Unpin(const LeaseHolding& holding);
  bool HoldsAll(const LeaseHolding& holding) const;

  PageStore& store_;
  ServerMetrics& metrics_;
  LeaseTable table_;
  const uint64_t leased_bytes_max_;
  uint64_t leased_bytes_ = 0;
  absl::flat_hash_map<uint32_t, LeasedRow> rows_;
};

}  // namespace forebay
