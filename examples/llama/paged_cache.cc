#include "examples/llama/paged_cache.h"

#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace forebay::examples {
namespace {

// To the nearest, ties to even; not-a-number stays one.
uint16_t Fp32ToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float Bf16ToFp32(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

}  // namespace

PagedCache::PagedCache(const Checkpoint& model, uint32_t block_tokens, uint32_t block_count,
                       DType dtype)
    : dtype_(dtype),
      block_tokens_(block_tokens),
      kv_dim_(model.kv_dim()),
      head_dim_(model.head_dim()) {
  FB_CHECK(dtype == DType::kFp32 || dtype == DType::kBf16);
  // Not-a-number everywhere: a token that nobody computed or fetched cannot go unnoticed.
  const size_t values = size_t{block_count} * block_tokens * kv_dim_;
  const float unwritten = std::numeric_limits<float>::quiet_NaN();
  keys_.assign(model.layer_count, std::vector<float>(values, unwritten));
  values_.assign(model.layer_count, std::vector<float>(values, unwritten));
  if (dtype == DType::kBf16) {
    bf16_keys_.assign(model.layer_count, std::vector<uint16_t>(values, Fp32ToBf16(unwritten)));
    bf16_values_ = bf16_keys_;
  }
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

void PagedCache::Round(uint32_t layer, uint32_t token, uint32_t token_count) {
  if (dtype_ != DType::kBf16) return;
  for (uint32_t t = token; t < token + token_count; ++t) {
    const size_t at = RowAt(t);
    for (size_t i = at; i < at + kv_dim_; ++i) {
      bf16_keys_[layer][i] = Fp32ToBf16(keys_[layer][i]);
      bf16_values_[layer][i] = Fp32ToBf16(values_[layer][i]);
      keys_[layer][i] = Bf16ToFp32(bf16_keys_[layer][i]);
      values_[layer][i] = Bf16ToFp32(bf16_values_[layer][i]);
    }
  }
}

void PagedCache::Expand(uint32_t token_count) {
  if (dtype_ != DType::kBf16) return;
  for (size_t layer = 0; layer < keys_.size(); ++layer) {
    for (uint32_t t = 0; t < token_count; ++t) {
      const size_t at = RowAt(t);
      for (size_t i = at; i < at + kv_dim_; ++i) {
        keys_[layer][i] = Bf16ToFp32(bf16_keys_[layer][i]);
        values_[layer][i] = Bf16ToFp32(bf16_values_[layer][i]);
      }
    }
  }
}

KvView PagedCache::View() {
  KvView view;
  view.block_tokens = block_tokens_;
  view.block_table = block_table_;
  for (size_t layer = 0; layer < keys_.size(); ++layer) {
    const bool halves = dtype_ == DType::kBf16;
    const auto place = [&](auto& fp32, auto& bf16) {
      return halves ? reinterpret_cast<std::byte*>(bf16[layer].data())
                    : reinterpret_cast<std::byte*>(fp32[layer].data());
    };
    const size_t element = DTypeBytes(dtype_);
    LayerView layer_view;
    layer_view.k = place(keys_, bf16_keys_);
    layer_view.v = place(values_, bf16_values_);
    layer_view.k_token_stride = layer_view.v_token_stride = kv_dim_ * element;
    layer_view.k_block_stride = layer_view.v_block_stride =
        layer_view.k_token_stride * block_tokens_;
    layer_view.k_head_stride = layer_view.v_head_stride = head_dim_ * element;
    view.layers.push_back(layer_view);
  }
  return view;
}

}  // namespace forebay::examples
