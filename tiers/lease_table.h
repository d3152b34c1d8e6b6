#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "tiers/dram/dram_tier.h"
#include "tiers/eviction_policy.h"

namespace forebay {

// 0 is no lease.
using LeaseId = uint64_t;

// What a lease holds. The table never looks inside: whoever granted it drops the pins.
//
// Shape    slots: [pages.size()][slots_per_page], or empty where only pages are held. A part that
// is
//          absent has an invalid SlotRef.
struct LeaseHolding {
  std::vector<PageRef> pages;
  std::vector<SlotRef> slots;
  uint32_t slots_per_page = 0;
};

// What a release found.
enum class LeaseVerdict : uint8_t {
  kValid = 1,    // live until this moment, never expired
  kExpired = 2,  // its deadline passed first: what was read under it proves nothing
  kUnknown = 3,  // never granted to this session, ended before, or expired too long ago to remember
};

// Who was promised what until when. It does no I/O and reads no clock: each call says what time it
// is, and each answer says which pins must go. A lease is live before its deadline and expired from
// it on, whether or not Expire() has come round.
//
// An id is 64 bits of a keyed permutation of a counter: none is given twice, and nobody who has
// seen some can guess another. An id means nothing in a session that it was not granted to.
//
// Threads  one reactor. Nothing here locks.
class LeaseTable {
 public:
  struct Limits {
    uint32_t leases_per_session_max = 4096;
    Nanos ttl_max = 30 * kSecond;       // longer wishes are cut to this
    Nanos age_max = 600 * kSecond;      // from grant: no renewal reaches beyond
    size_t remembered_max = 64 * 1024;  // expired leases whose late release is told apart
  };

  explicit LeaseTable(const Limits& limits);

  // Lets `session` (a number of the daemon's own, never used twice) keep `holding` until now + ttl.
  //   INVALID_ARGUMENT    ttl < 1
  //   RESOURCE_EXHAUSTED  the session has as many leases as it may; `holding` is untouched
  absl::StatusOr<LeaseId> Grant(uint64_t session, LeaseHolding&& holding, Nanos now, Nanos ttl);

  struct Released {
    LeaseVerdict verdict = LeaseVerdict::kUnknown;
    LeaseHolding holding;  // no longer leased
  };
  // Ends the lease, or, while it is live, all but its first `keep_pages` pages. An expired lease
  // ends whole. The holding is handed out once, here or by Expire() or DropSession().
  Released Release(uint64_t session, LeaseId lease, uint32_t keep_pages, Nanos now);

  // Moves the deadline to now + ttl, but never back and never past the age limit; returns it.
  //   INVALID_ARGUMENT     ttl < 1
  //   FAILED_PRECONDITION  not a live lease of this session
  absl::StatusOr<Nanos> Renew(uint64_t session, LeaseId lease, Nanos now, Nanos ttl);

  // The holding of a live lease of this session; null otherwise. Valid until the next call that is
  // not const.
  const LeaseHolding* Find(uint64_t session, LeaseId lease, Nanos now) const;

  struct Expired {
    uint64_t session = 0;
    LeaseId lease = 0;
    LeaseHolding holding;
  };
  // Leases whose deadline is at or before `now`, earliest first, each exactly once.
  std::vector<Expired> Expire(Nanos now);
  // Ends all leases of a session: its holdings, in no order.
  std::vector<LeaseHolding> DropSession(uint64_t session);

  // When Expire() has work next; kForever for never.
  Nanos NextDeadline() const;
  size_t lease_count() const { return leases_.size(); }
  size_t LeaseCountOf(uint64_t session) const;

 private:
  struct Lease {
    uint64_t session = 0;
    Nanos granted = 0;
    Nanos deadline = 0;
    LeaseHolding holding;
  };
  using Leases = absl::flat_hash_map<LeaseId, Lease>;

  LeaseId NewId();
  Leases::iterator FindOwned(uint64_t session, LeaseId lease);
  LeaseHolding Take(Leases::iterator at);
  void Remember(LeaseId lease, uint64_t session);

  const Limits limits_;
  uint32_t round_keys_[27];  // of the permutation that makes ids
  uint64_t granted_count_ = 0;
  Leases leases_;
  absl::btree_set<std::pair<Nanos, LeaseId>> by_deadline_;
  absl::flat_hash_map<uint64_t, absl::btree_set<LeaseId>> by_session_;  // walked in order
  // Expired leases, oldest first, with their sessions.
  std::deque<LeaseId> remembered_order_;
  absl::flat_hash_map<LeaseId, uint64_t> remembered_;
};

}  // namespace forebay
