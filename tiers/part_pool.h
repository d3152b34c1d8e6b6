#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "tiers/chunked_array.h"
#include "tiers/dram/dram_tier.h"

namespace forebay {

// Where a part of a page rests. Absent while `slot` is UINT32_MAX.
struct StoredPart {
  uint64_t generation = 0;
  uint32_t slot = UINT32_MAX;
  uint32_t frame_bytes = 0;
};
static_assert(sizeof(StoredPart) == 16);

// Part tables of pages that all have the same number of parts: no allocation a page, no slack.
//
// Threads  one reactor.
class PartPool {
 public:
  // How many parts of each class are not here yet.
  using Missing = std::array<uint16_t, kLayerClassCount>;

  explicit PartPool(uint32_t part_count)
      : part_count_(part_count),
        chunk_log2_(static_cast<int>(std::bit_width(TablesAChunk(part_count))) - 1) {}

  // A table of absent parts.
  uint32_t Take() {
    if (free_.empty()) {
      const uint32_t table = table_count_++;
      if ((size_t{table} >> chunk_log2_) == chunks_.size()) {
        chunks_.push_back(std::make_unique<StoredPart[]>(size_t{part_count_} << chunk_log2_));
      }
      missing_.GrowTo(size_t{table} + 1);
      return table;
    }
    const uint32_t table = free_.back();
    free_.pop_back();
    std::fill_n(Parts(table).begin(), part_count_, StoredPart{});
    return table;
  }
  void GiveBack(uint32_t table) { free_.push_back(table); }

  // Shape [part_count]
  absl::Span<StoredPart> Parts(uint32_t table) {
    const size_t in_chunk = table & ((size_t{1} << chunk_log2_) - 1);
    return {&chunks_[table >> chunk_log2_][in_chunk * part_count_], part_count_};
  }
  Missing& MissingOf(uint32_t table) { return missing_[table]; }

  size_t memory_bytes() const {
    return (chunks_.size() * part_count_ * sizeof(StoredPart) << chunk_log2_) +
           missing_.memory_bytes();
  }

 private:
  static constexpr size_t kChunkBytes = 64 * 1024;
  static size_t TablesAChunk(uint32_t part_count) {
    return std::max<size_t>(1, kChunkBytes / (sizeof(StoredPart) * part_count));
  }

  const uint32_t part_count_;
  const int chunk_log2_;
  uint32_t table_count_ = 0;
  std::vector<std::unique_ptr<StoredPart[]>> chunks_;
  ChunkedArray<Missing> missing_;
  std::vector<uint32_t> free_;
};

}  // namespace forebay
