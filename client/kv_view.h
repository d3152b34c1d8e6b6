#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/kv_layout.h"

namespace forebay {

// One layer of an engine's paged KV cache, described by address and strides: nothing is guessed
// from a shape. The element (block b, token t in the block, head h, channel c) of K is at
//   k + b * block_stride + t * token_stride + h * head_stride + c * element bytes
// and V likewise from `v`. Channels are contiguous. `h` counts the heads that the view holds: its
// head 0 is head `head_begin` of the model.
//
// Units    strides in bytes; `k`, `v` host memory (device memory comes with the CUDA transports).
struct LayerView {
  std::byte* k = nullptr;
  std::byte* v = nullptr;  // nullptr where v_dim is 0
  size_t k_block_stride = 0;
  size_t v_block_stride = 0;
  size_t k_token_stride = 0;
  size_t v_token_stride = 0;
  size_t k_head_stride = 0;
  size_t v_head_stride = 0;
};

// An engine's cache and which of its blocks hold one sequence.
//
// Shapes   layers: [layout.layers] (state layers: `k` + block * k_block_stride holds the state)
//          block_table: [blocks of the sequence] -> block number; token i of the sequence is in
//          block block_table[i / block_tokens], at row i % block_tokens
// Requires block_tokens divides page_tokens, or page_tokens divides block_tokens.
// Borrows  the memory, until the fetch or publish that uses it has ended.
struct KvView {
  std::vector<LayerView> layers;
  std::vector<uint32_t> block_table;
  uint32_t block_tokens = 0;
  uint32_t head_begin =
      0;  // the first KV head of the model that this view holds (a TP rank's share)
  uint32_t head_count = 0;  // heads that it holds; 0: all of them

  // INVALID_ARGUMENT that names what does not fit: block counts, missing layers, strides that
  // overlap.
  absl::Status Validate(const KvLayout& layout, uint32_t page_count) const;

  // The memory of one part of page `page` in the order of the part's raw bytes, in as few runs as
  // the strides allow. Replaces what was in `runs`.
  // Requires Validate(layout, page + 1) and a part that is held.
  void PartRuns(const KvLayout& layout, const PartSpec& part, uint32_t page,
                std::vector<MutableBytes>* runs) const;

  // The parts of a page that this view holds: those whose heads are all in its range.
  std::vector<uint16_t> PartsHeld(const KvLayout& layout) const;

  // One contiguous buffer [page_count][PageBytes()]: tests, tools, benchmarks. A page is in the
  // order of the parts that the layout has with heads_per_part = 0, so that without a cut through
  // the heads each part is one run.
  static KvView Contiguous(const KvLayout& layout, std::byte* memory, uint32_t page_count);
};

}  // namespace forebay
