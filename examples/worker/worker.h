#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool_client.h"
#include "examples/llama/checkpoint.h"
#include "examples/llama/inference.h"
#include "examples/llama/paged_cache.h"

namespace forebay::examples {

// An inference worker that uses the pool as an engine would: it looks a prompt's prefix up, fetches
// what is there into its own paged cache layer by layer, computes the rest, and publishes what it
// computed. Without a pool (client == nullptr) it computes everything.
struct GenerateOptions {
  uint32_t token_count = 32;  // to generate, greedily
  bool fetch = true;          // use pages of the pool
  bool publish = true;        // give the prompt's full pages to the pool
  bool always_fetch = false;  // fetch even where recomputing is estimated to be faster
  Nanos deadline = 5 * kSecond;
};

struct GenerateResult {
  std::vector<uint32_t> tokens;  // generated
  uint64_t logits_hash = 0;    // over the bits of every step's logits: equal only if all are equal
  Nanos first_token_ns = 0;    // from the prompt to the first generated token
  uint32_t prompt_pages = 0;   // full pages of the prompt
  uint32_t hit_pages = 0;      // of these, in the pool
  uint32_t fetched_pages = 0;  // of these, fetched and used
  FetchResult fetch;
  PublishResult publish;
  absl::Status pool_status;  // why the pool was of no use, where it was not
};

class Worker {
 public:
  struct Options {
    DType cache = DType::kFp32;  // or kBf16, of which codecs make less
    uint32_t page_tokens = 16;
    QualityContract quality;  // of what it publishes, and accepts
  };

  // Borrows both; `client` may be null.
  Worker(const Checkpoint& model, PoolClient* client, const Options& options)
      : model_(model), client_(client), options_(options), page_tokens_(options.page_tokens) {}
  Worker(const Checkpoint& model, PoolClient* client) : Worker(model, client, Options()) {}

  // INVALID_ARGUMENT for an empty or too long prompt, or a token beyond the vocabulary. A pool that
  // fails is no error: see `pool_status`.
  absl::StatusOr<GenerateResult> Generate(absl::Span<const uint32_t> prompt,
                                          const GenerateOptions& options);

 private:
  absl::Status CheckPrompt(absl::Span<const uint32_t> prompt, uint32_t token_count) const;
  absl::Status OpenPool(Nanos deadline);
  uint32_t FetchPrefix(const std::vector<PageKey>& keys, PagedCache& cache,
                       const GenerateOptions& options, GenerateResult* result);
  // Tokens a second that this machine computes, from what it has done so far.
  double ComputeRate(PagedCache& cache);

  const Checkpoint& model_;
  PoolClient* client_;
  const Options options_;
  const uint32_t page_tokens_;
  std::shared_ptr<PoolNamespace> pool_;
  double tokens_per_second_ = 0;
};

}  // namespace forebay::examples
