#include "tiers/lease_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/broken.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

// Speck64/128 (Beaulieu et al., 2013): a block cipher of 64 bits is a permutation, so ids cannot
// repeat, and without the key the next one cannot be told. The key never leaves the process and ids
// are bound to sessions, so nothing here rests on more than that.
constexpr int kRounds = 27;

void SpeckRound(uint32_t& x, uint32_t& y, uint32_t key) {
  x = (std::rotr(x, 8) + y) ^ key;
  y = std::rotl(y, 3) ^ x;
}

// `now` + `ttl`, but never past the end of time.
Nanos After(Nanos now, Nanos ttl) { return ttl > kForever - now ? kForever : now + ttl; }

// Splits off what lies behind the first `keep_pages` pages.
LeaseHolding TakeTail(LeaseHolding& holding, size_t keep_pages) {
  LeaseHolding tail;
  tail.slots_per_page = holding.slots_per_page;
  tail.pages.assign(holding.pages.begin() + keep_pages, holding.pages.end());
  holding.pages.resize(keep_pages);
  if (!holding.slots.empty()) {
    const size_t keep_slots = keep_pages * holding.slots_per_page;
    tail.slots.assign(holding.slots.begin() + keep_slots, holding.slots.end());
    holding.slots.resize(keep_slots);
  }
  return tail;
}

}  // namespace

LeaseTable::LeaseTable(const Limits& limits) : limits_(limits) {
  static_assert(sizeof(round_keys_) / sizeof(round_keys_[0]) == kRounds);
  FB_CHECK(limits.ttl_max > 0);
  FB_CHECK(limits.age_max > 0);
  const Uint128Bytes key = RandomId();
  uint32_t words[4];
  std::memcpy(words, key.data(), sizeof(words));
  uint32_t k = words[0];
  uint32_t l[3] = {words[1], words[2], words[3]};
  for (uint32_t i = 0; i < kRounds; ++i) {
    round_keys_[i] = k;
    SpeckRound(l[i % 3], k, i);
  }
}

LeaseId LeaseTable::NewId() {
  LeaseId id = 0;
  while (id == 0) {  // One counter value of 2^64 maps to 0.
    const uint64_t count = ++granted_count_;
    uint32_t x = static_cast<uint32_t>(count >> 32);
    uint32_t y = static_cast<uint32_t>(count);
    for (const uint32_t key : round_keys_) SpeckRound(x, y, key);
    id = (uint64_t{x} << 32) | y;
  }
  return id;
}

absl::StatusOr<LeaseId> LeaseTable::Grant(uint64_t session, LeaseHolding&& holding, Nanos now,
                                          Nanos ttl) {
  FB_CHECK(holding.slots.empty() ||
           holding.slots.size() == holding.pages.size() * holding.slots_per_page);
  if (ttl < 1) return absl::InvalidArgumentError(absl::StrCat("lease of ", ttl, " ns"));
  if (LeaseCountOf(session) >= limits_.leases_per_session_max) {
    return absl::ResourceExhaustedError(absl::StrCat("session holds ", LeaseCountOf(session),
                                                     " leases, as many as it may: release some"));
  }
  const LeaseId id = NewId();
  Lease lease;
  lease.session = session;
  lease.granted = now;
  lease.deadline = After(now, std::min({ttl, limits_.ttl_max, limits_.age_max}));
  lease.holding = std::move(holding);
  by_deadline_.emplace(lease.deadline, id);
  by_session_[session].insert(id);
  leases_.emplace(id, std::move(lease));
  return id;
}

LeaseTable::Leases::iterator LeaseTable::FindOwned(uint64_t session, LeaseId lease) {
  const auto at = leases_.find(lease);
  return at != leases_.end() && at->second.session == session ? at : leases_.end();
}

// Removes the lease from every table.
LeaseHolding LeaseTable::Take(Leases::iterator at) {
  LeaseHolding holding = std::move(at->second.holding);
  by_deadline_.erase({at->second.deadline, at->first});
  const auto owner = by_session_.find(at->second.session);
  owner->second.erase(at->first);
  if (owner->second.empty()) by_session_.erase(owner);
  leases_.erase(at);
  return holding;
}

LeaseTable::Released LeaseTable::Release(uint64_t session, LeaseId lease, uint32_t keep_pages,
                                         Nanos now) {
  const LeaseVerdict late =
      FB_BROKEN("skip_lease_check") ? LeaseVerdict::kValid : LeaseVerdict::kExpired;
  const auto at = FindOwned(session, lease);
  if (at == leases_.end()) {
    const auto remembered = remembered_.find(lease);
    const bool expired = remembered != remembered_.end() && remembered->second == session;
    return {expired ? late : LeaseVerdict::kUnknown, {}};
  }
  if (now >= at->second.deadline) {
    Remember(lease, session);
    return {late, Take(at)};
  }
  if (keep_pages == 0) return {LeaseVerdict::kValid, Take(at)};
  LeaseHolding& holding = at->second.holding;
  if (keep_pages >= holding.pages.size()) return {LeaseVerdict::kValid, {}};
  return {LeaseVerdict::kValid, TakeTail(holding, keep_pages)};
}

absl::StatusOr<Nanos> LeaseTable::Renew(uint64_t session, LeaseId lease, Nanos now, Nanos ttl) {
  if (ttl < 1) return absl::InvalidArgumentError(absl::StrCat("renewal of ", ttl, " ns"));
  const auto at = FindOwned(session, lease);
  if (at == leases_.end() || now >= at->second.deadline) {
    return absl::FailedPreconditionError("no live lease of this session has this id");
  }
  Lease& live = at->second;
  const Nanos wished = After(now, std::min(ttl, limits_.ttl_max));
  const Nanos deadline =
      std::max(live.deadline, std::min(wished, After(live.granted, limits_.age_max)));
  if (deadline != live.deadline) {
    by_deadline_.erase({live.deadline, lease});
    by_deadline_.emplace(deadline, lease);
    live.deadline = deadline;
  }
  return deadline;
}

const LeaseHolding* LeaseTable::Find(uint64_t session, LeaseId lease, Nanos now) const {
  const auto at = leases_.find(lease);
  if (at == leases_.end() || at->second.session != session) return nullptr;
  return now < at->second.deadline ? &at->second.holding : nullptr;
}

std::vector<LeaseTable::Expired> LeaseTable::Expire(Nanos now) {
  std::vector<Expired> expired;
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) {
    const LeaseId lease = by_deadline_.begin()->second;
    const auto at = leases_.find(lease);
    const uint64_t session = at->second.session;
    Remember(lease, session);
    expired.push_back({session, lease, Take(at)});
  }
  return expired;
}

std::vector<LeaseHolding> LeaseTable::DropSession(uint64_t session) {
  std::vector<LeaseHolding> holdings;
  const auto owned = by_session_.find(session);
  if (owned == by_session_.end()) return holdings;
  const std::vector<LeaseId> ids(owned->second.begin(), owned->second.end());
  holdings.reserve(ids.size());
  for (const LeaseId id : ids) holdings.push_back(Take(leases_.find(id)));
  return holdings;
}

void LeaseTable::Remember(LeaseId lease, uint64_t session) {
  if (limits_.remembered_max == 0) return;
  if (remembered_order_.size() == limits_.remembered_max) {
    remembered_.erase(remembered_order_.front());
    remembered_order_.pop_front();
  }
  remembered_order_.push_back(lease);
  remembered_.emplace(lease, session);
}

Nanos LeaseTable::NextDeadline() const {
  return by_deadline_.empty() ? kForever : by_deadline_.begin()->first;
}

size_t LeaseTable::LeaseCountOf(uint64_t session) const {
  const auto at = by_session_.find(session);
  return at == by_session_.end() ? 0 : at->second.size();
}

}  // namespace forebay
