#pragma once

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
  // `key_hash` lets a policy remember pages that it evicted.
  virtual void OnInsert(uint32_t row, uint64_t key_hash, Nanos now) = 0;
  virtual void OnTouch(uint32_t row, Nanos now) = 0;
  virtual void OnRemove(uint32_t row, bool evicted) = 0;
  // The row became, or is no longer, a candidate.
  virtual void SetCandidate(uint32_t row, bool candidate) = 0;
  // A candidate, or UINT32_MAX when there is none. The index removes it next.
  virtual uint32_t PickVictim() = 0;
};

// "lru" or "s3fifo". INVALID_ARGUMENT naming the known ones.
absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(absl::string_view name);

}  // namespace forebay
