#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace forebay {

// A page in the index: its row, and the row's generation, so that a stale one is recognised.
struct PageRef {
  uint32_t row = UINT32_MAX;
  uint32_t generation = 0;
  bool valid() const { return row != UINT32_MAX; }
  friend bool operator==(const PageRef&, const PageRef&) = default;
};

// Decides which page goes first. The index tells it what happens to rows; it never sees bytes.
// Only leaves (rows without resident children) that are not pinned are candidates: the index says
// which rows these are.
//
// Threads  one reactor.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // A new row, not yet a candidate. `key_hash` lets a policy remember pages that it evicted.
  virtual void OnInsert(uint32_t row, uint64_t key_hash, Nanos now) = 0;
  virtual void OnTouch(uint32_t row, Nanos now) = 0;
  // `evicted`: it goes because PickVictim named it. The row may be inserted again, for another
  // page.
  virtual void OnRemove(uint32_t row, bool evicted) = 0;
  // The row became, or is no longer, a candidate. Called only when that changes.
  virtual void SetCandidate(uint32_t row, bool candidate) = 0;
  // A candidate, or UINT32_MAX when there is none. The index removes it next; if it does not, the
  // same row is named again as long as nothing else happens.
  virtual uint32_t PickVictim() = 0;
};

// "lru" or "s3fifo". INVALID_ARGUMENT naming the known ones.
absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(absl::string_view name);

// The candidate that was inserted or touched longest ago, exactly.
std::unique_ptr<EvictionPolicy> MakeLruPolicy();

// S3-FIFO: a small queue in which new pages prove themselves, a main queue with second chances, and
// a memory of what left the small one.
// Source   Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
std::unique_ptr<EvictionPolicy> MakeS3FifoPolicy();

}  // namespace forebay
