#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "examples/llama/checkpoint.h"
#include "examples/llama/paged_cache.h"

namespace forebay::examples {

// A small honest Llama: RMSNorm, rotary embedding on interleaved pairs, grouped-query attention
// over a paged cache, SwiGLU. fp32 throughout.
//
// Every sum is taken in one fixed order, however many tokens are computed at once: so a token's
// keys, values and logits depend on the tokens before it alone, bit for bit, and not on how the
// prompt was cut, nor on which process computed which part of it.
class Inference {
 public:
  // Borrows both.
  Inference(const Checkpoint& model, PagedCache& cache);

  // Called before a layer reads the cache: an engine waits here for that layer's pages.
  using LayerHook = std::function<void(uint32_t layer)>;

  // Computes `tokens` at positions [position, position + tokens.size()), writes their keys and
  // values into the cache, and returns the logits after the last one: [vocabulary]. Requires room
  // in the cache and, for every layer, all earlier tokens in it.
  const std::vector<float>& Forward(absl::Span<const uint32_t> tokens, uint32_t position,
                                    const LayerHook& before_layer = nullptr);

  // The token with the largest logit; the first of equals.
  static uint32_t Greedy(const std::vector<float>& logits);

 private:
  void Attend(uint32_t layer, uint32_t position, uint32_t token_count);
  void Chunk(absl::Span<const uint32_t> tokens, uint32_t position, const LayerHook& before_layer,
             bool last);

  const Checkpoint& model_;
  PagedCache& cache_;
  // Activations of one chunk: [tokens of the chunk][…].
  std::vector<float> x_, normed_, q_, attended_, projected_, gate_, up_;
  std::vector<float> scores_;
  std::vector<float> logits_;
};

}  // namespace forebay::examples
