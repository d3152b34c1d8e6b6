#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "base/retention_mask.h"
#include "examples/llama/checkpoint.h"
#include "examples/llama/paged_cache.h"

namespace forebay::examples {

// Where a caller looks into a computation, or changes it; each may be empty. `position` is that of
// the first of the tokens that are spoken of, one after another.
struct ForwardHooks {
  // Before a layer reads the cache: an engine waits here for that layer's pages.
  std::function<void(uint32_t layer)> before_layer;
  // Keys and values of `token_count` tokens are in the cache, and nobody has read them.
  std::function<void(uint32_t layer, uint32_t position, uint32_t token_count)> cached;
  // The softmax of one query head of the token at `position` over it and all tokens before it.
  std::function<void(uint32_t layer, uint32_t position, uint32_t head,
                     absl::Span<const float> probabilities)>
      probabilities;
  // Queries and what attention made of them, both [token][dim].
  std::function<void(uint32_t layer, uint32_t position, absl::Span<const float> queries,
                     absl::Span<const float> outputs)>
      attended;
  // Logits after each token: [token][vocabulary]. Without it only the last token's are computed.
  std::function<void(uint32_t position, absl::Span<const float> logits)> logits;
  // A mask for each layer: what it drops is as if it were not there. Tokens past a mask's end stay.
  // Empty: all stay. Borrowed.
  absl::Span<const RetentionMask> masks;
};

// Attention of one layer for `queries` [token][dim] of the tokens from `position` on, into
// `outputs` of that shape, over whatever the cache holds. Of the hooks only masks and probabilities
// count. A head that sees no token at all gives not-a-number.
void Attend(const Checkpoint& model, PagedCache& cache, uint32_t layer, uint32_t position,
            absl::Span<const float> queries, const ForwardHooks& hooks, absl::Span<float> outputs);

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

  // Computes `tokens` at positions [position, position + tokens.size()), writes their keys and
  // values into the cache, and returns the logits after the last one: [vocabulary]. Requires room
  // in the cache and, for every layer, all earlier tokens in it.
  const std::vector<float>& Forward(absl::Span<const uint32_t> tokens, uint32_t position,
                                    const ForwardHooks& hooks = {});

  // The token with the largest logit; the first of equals.
  static uint32_t Greedy(const std::vector<float>& logits);

 private:
  void Chunk(absl::Span<const uint32_t> tokens, uint32_t position, const ForwardHooks& hooks,
             bool last);

  const Checkpoint& model_;
  PagedCache& cache_;
  // Activations of one chunk: [tokens of the chunk][…].
  std::vector<float> x_, normed_, q_, attended_, projected_, gate_, up_;
  std::vector<float> logits_;      // after the last token
  std::vector<float> all_logits_;  // after each token of a chunk, for the hook
};

}  // namespace forebay::examples
