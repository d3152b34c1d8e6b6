#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "examples/llama/checkpoint.h"
#include "examples/llama/inference.h"
#include "examples/llama/paged_cache.h"

// What the exact cache gives: keys and values rounded to bf16 as they are written, nothing else.
namespace forebay::bench {

inline constexpr uint32_t kGreedyTokens = 64;

// A cache with room for `tokens`.
examples::PagedCache MakeCache(const examples::Checkpoint& model, uint32_t tokens);

// Hooks that make `cache` one of bf16. Borrows both.
examples::ForwardHooks Bf16Hooks(const examples::Checkpoint& model, examples::PagedCache& cache);

// Text that the model writes itself, at temperature 1, with the exact cache. `forbidden` tokens are
// never drawn. The same seed gives the same text.
std::vector<uint32_t> SampleText(const examples::Checkpoint& model, uint32_t tokens, uint64_t seed,
                                 absl::Span<const uint32_t> forbidden);

// A text as the exact cache computes it.
struct Reference {
  std::vector<uint32_t> tokens;
  examples::PagedCache cache;
  std::vector<float> logits;                // [token][vocabulary]
  std::vector<std::vector<float>> queries;  // [layer][token][dim]
  std::vector<std::vector<float>> outputs;  // of attention, likewise
  // What follows greedily after each page but the last, and the first token of the next one; empty
  // where nobody asked.
  std::vector<std::vector<uint32_t>> greedy;
};

// Requires whole pages of tokens, at least two.
Reference ComputeReference(const examples::Checkpoint& model, std::vector<uint32_t> tokens,
                           bool greedy = true);

// kGreedyTokens tokens after `token`, which stands at `position` behind what `cache` holds.
// Requires room for them.
std::vector<uint32_t> ContinueGreedily(const examples::Checkpoint& model,
                                       examples::PagedCache cache, uint32_t position,
                                       uint32_t token);

}  // namespace forebay::bench
