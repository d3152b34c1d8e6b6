#include "examples/llama/paged_cache.h"

#include <limits>
#include <utility>

#include "base/random.h"

namespace forebay::examples {

PagedCache::PagedCache(const Checkpoint& model, uint32_t block_tokens, uint32_t block_count)
    : block_tokens_(block_tokens), kv_dim_(model.kv_dim()), head_dim_(model.head_dim()) {
  // Not-a-number everywhere: a token that nobody computed or fetched cannot go unnoticed.
  const size_t values = size_t{block_count} * block_tokens * kv_dim_;
  const float unwritten = std::numeric_limits<float>::quiet_NaN();
  keys_.assign(model.layer_count, std::vector<float>(values, unwritten));
  values_.assign(model.layer_count, std::vector<float>(values, unwritten));
  for (uint32_t block = 0; block < block_count; ++block) free_blocks_.push_back(block);
  // A cache that has run for a while hands blocks out in no order; so does this one, from the
  // start.
  SeededRandom random(block_count);
  for (uint32_t i = block_count; i > 1; --i) {
    std::swap(free_blocks_[i - 1], free_blocks_[random.Below(i)]);
  }
}

bool PagedCache::Reserve(uint32_t token_count) {
  while (token_capacity() < token_count) {
    if (free_blocks_.empty()) return false;
    block_table_.push_back(free_blocks_.back());
    free_blocks_.pop_back();
  }
  return true;
}

KvView PagedCache::View() {
  KvView view;
  view.block_tokens = block_tokens_;
  view.block_table = block_table_;
  for (size_t layer = 0; layer < keys_.size(); ++layer) {
    LayerView layer_view;
    layer_view.k = reinterpret_cast<std::byte*>(keys_[layer].data());
    layer_view.v = reinterpret_cast<std::byte*>(values_[layer].data());
    layer_view.k_token_stride = layer_view.v_token_stride = kv_dim_ * sizeof(float);
    layer_view.k_block_stride = layer_view.v_block_stride =
        layer_view.k_token_stride * block_tokens_;
    layer_view.k_head_stride = layer_view.v_head_stride = head_dim_ * sizeof(float);
    view.layers.push_back(layer_view);
  }
  return view;
}

}  // namespace forebay::examples
