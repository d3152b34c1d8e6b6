#pragma once

#include <cstdint>
#include <vector>

#include "client/kv_view.h"
#include "examples/llama/checkpoint.h"

namespace forebay::examples {

// A paged KV cache as engines have it: fixed blocks of tokens, handed out in no particular order,
// and a block table for each sequence.
//
// Shapes   per layer, K and V: [block_count][block_tokens][kv_heads][head_dim], fp32 or bf16
//
// A bf16 cache computes with fp32 copies of what it holds: after rows were written through Key() or
// Value(), Round() rounds both, before anything reads them; after a fetch, Expand() copies back.
class PagedCache {
 public:
  PagedCache(const Checkpoint& model, uint32_t block_tokens, uint32_t block_count,
             DType dtype = DType::kFp32);

  DType dtype() const { return dtype_; }
  // Nothing of an fp32 cache.
  void Round(uint32_t layer, uint32_t token, uint32_t token_count);
  void Expand(uint32_t token_count);

  // Adds blocks to the sequence until it has room for `token_count` tokens. False when the cache is
  // full.
  bool Reserve(uint32_t token_count);
  uint32_t token_capacity() const {
    return static_cast<uint32_t>(block_table_.size()) * block_tokens_;
  }

  float* Key(uint32_t layer, uint32_t token) { return Row(keys_[layer], token); }
  float* Value(uint32_t layer, uint32_t token) { return Row(values_[layer], token); }

  // What the pool's client needs to read or write the sequence's pages in place.
  KvView View();

 private:
  float* Row(std::vector<float>& plane, uint32_t token) { return plane.data() + RowAt(token); }

  size_t RowAt(uint32_t token) const {
    const uint64_t block = block_table_[token / block_tokens_];
    return (block * block_tokens_ + token % block_tokens_) * kv_dim_;
  }

  DType dtype_;
  uint32_t block_tokens_;
  uint32_t kv_dim_;
  uint32_t head_dim_;
  std::vector<std::vector<float>> keys_;                        // [layer]
  std::vector<std::vector<float>> values_;                      // [layer]
  std::vector<std::vector<uint16_t>> bf16_keys_, bf16_values_;  // likewise; of a bf16 cache
  std::vector<uint32_t> free_blocks_;
  std::vector<uint32_t> block_table_;
};

}  // namespace forebay::examples
