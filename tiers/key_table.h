#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/page_key.h"

namespace forebay {

// From (namespace, key) to a row number: open addressing that knows hashes and rows, never keys.
//
// It is cut into shards that grow one by one, so that growth stops no reactor for long: with ten
// million rows a shard of ten thousand moves at a time. A bucket is eight bytes. Hashing is seeded
// and takes in the whole key: keys come from clients, and one who chooses them must not be able to
// make them collide.
//
// Threads  one reactor.
class KeyTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  KeyTable();

  uint64_t HashOf(uint32_t ns, const PageKey& key) const;

  // Starts to load what Find(hash) will read.
  void Prefetch(uint64_t hash) const {
    const Shard& shard = ShardOf(hash);
    if (shard.mask != 0) __builtin_prefetch(&shard.buckets[TagOf(hash) & shard.mask]);
  }

  // The row with this hash for which `matches(row)` is true; kNone if there is none.
  template <typename Matches>
  uint32_t Find(uint64_t hash, Matches matches) const {
    const Shard& shard = ShardOf(hash);
    if (shard.mask == 0) return kNone;
    const uint32_t tag = TagOf(hash);
    for (uint32_t i = tag & shard.mask;; i = (i + 1) & shard.mask) {
      const Bucket& bucket = shard.buckets[i];
      if (bucket.row == kNone) return kNone;
      if (bucket.tag == tag && matches(bucket.row)) return bucket.row;
    }
  }

  // Requires that the row is not there.
  void Insert(uint64_t hash, uint32_t row);
  // Requires that the row is there.
  void Erase(uint64_t hash, uint32_t row);

  size_t memory_bytes() const;

 private:
  struct Bucket {
    uint32_t tag = 0;
    uint32_t row = kNone;
  };
  struct Shard {
    std::unique_ptr<Bucket[]> buckets;
    uint32_t mask = 0;  // bucket count - 1; 0 while there are none
    uint32_t used = 0;
  };
  static constexpr int kShardLog2 = 10;

  // The shard comes from the top of the hash and the tag from its bottom: they share no bits.
  static uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash); }
  const Shard& ShardOf(uint64_t hash) const { return shards_[hash >> (64 - kShardLog2)]; }
  Shard& ShardOf(uint64_t hash) { return shards_[hash >> (64 - kShardLog2)]; }
  static void Place(Shard& shard, Bucket bucket);
  static void Grow(Shard& shard);

  uint64_t seeds_[4];
  std::vector<Shard> shards_;
};

}  // namespace forebay
