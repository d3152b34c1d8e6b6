#include "tiers/key_table.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace forebay {
namespace {

constexpr uint32_t kBucketsMin = 8;

// Both halves of the product, folded: every bit of either factor reaches every bit of the answer.
uint64_t MultiplyFold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

KeyTable::KeyTable() : shards_(size_t{1} << kShardLog2) {
  for (int i = 0; i < 4; i += 2) {
    const Uint128Bytes id = RandomId();
    std::memcpy(&seeds_[i], id.data(), sizeof(id));
  }
}

uint64_t KeyTable::HashOf(uint32_t ns, const PageKey& key) const {
  uint64_t words[4];
  std::memcpy(words, key.bytes.data(), sizeof(words));
  const uint64_t low = MultiplyFold(words[0] ^ seeds_[0], words[1] ^ seeds_[1]);
  const uint64_t high = MultiplyFold(words[2] ^ seeds_[2], words[3] ^ seeds_[3]);
  // Not among the words: a key of one namespace could be made to meet a key of another.
  const uint64_t of_ns = ns * 0x9e3779b97f4a7c15ull;
  return MultiplyFold(low ^ seeds_[2], high ^ seeds_[0] ^ of_ns);
}

void KeyTable::Place(Shard& shard, Bucket bucket) {
  uint32_t i = bucket.tag & shard.mask;
  while (shard.buckets[i].row != kNone) i = (i + 1) & shard.mask;
  shard.buckets[i] = bucket;
}

void KeyTable::Grow(Shard& shard) {
  const uint32_t old_count = shard.mask == 0 ? 0 : shard.mask + 1;
  const uint32_t new_count = old_count == 0 ? kBucketsMin : 2 * old_count;
  const std::unique_ptr<Bucket[]> old = std::move(shard.buckets);
  shard.buckets = std::make_unique<Bucket[]>(new_count);
  shard.mask = new_count - 1;
  for (uint32_t i = 0; i < old_count; ++i) {
    if (old[i].row != kNone) Place(shard, old[i]);
  }
}

void KeyTable::Insert(uint64_t hash, uint32_t row) {
  Shard& shard = ShardOf(hash);
  // At three quarters a hit probes 2.5 buckets on average, mostly within one cache line.
  if (shard.mask == 0 || uint64_t{shard.used + 1} * 4 > uint64_t{shard.mask + 1} * 3) Grow(shard);
  Place(shard, {TagOf(hash), row});
  ++shard.used;
}

// Moves later buckets back into the hole instead of leaving a tombstone, so that a table which
// lives for months with steady turnover probes no longer than a new one.
void KeyTable::Erase(uint64_t hash, uint32_t row) {
  Shard& shard = ShardOf(hash);
  FB_CHECK(shard.mask != 0);
  const uint32_t mask = shard.mask;
  uint32_t hole = TagOf(hash) & mask;
  while (shard.buckets[hole].row != row) {
    FB_CHECK(shard.buckets[hole].row != kNone);
    hole = (hole + 1) & mask;
  }
  for (uint32_t i = (hole + 1) & mask; shard.buckets[i].row != kNone; i = (i + 1) & mask) {
    const uint32_t home = shard.buckets[i].tag & mask;
    // It may move if its home is not behind the hole, on the way round from the hole to it.
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    shard.buckets[hole] = shard.buckets[i];
    hole = i;
  }
  shard.buckets[hole] = Bucket{};
  --shard.used;
}

size_t KeyTable::memory_bytes() const {
  size_t bytes = shards_.size() * sizeof(Shard);
  for (const Shard& shard : shards_) {
    if (shard.mask != 0) bytes += (size_t{shard.mask} + 1) * sizeof(Bucket);
  }
  return bytes;
}

}  // namespace forebay
