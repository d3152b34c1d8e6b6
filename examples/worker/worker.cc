#include "examples/worker/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/status_macros.h"

namespace forebay::examples {
namespace {

// Enough blocks that the sequence's own are scattered among others.
constexpr uint32_t kSpareBlocks = 16;

void AddToHash(const std::vector<float>& logits, RunningChecksum* hash) {
  hash->Update(AsBytes(logits.data(), logits.size() * sizeof(float)));
}

}  // namespace

absl::Status Worker::CheckPrompt(absl::Span<const uint32_t> prompt, uint32_t token_count) const {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  if (token_count == 0) return absl::InvalidArgumentError("0 tokens to generate");
  if (prompt.size() + token_count > model_.context_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a prompt of ", prompt.size(), " tokens and ", token_count,
                     " to generate do not fit the model's ", model_.context_tokens));
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] >= model_.vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("token ", i, " of the prompt is ", prompt[i],
                                                     "; the vocabulary has ", model_.vocabulary));
    }
  }
  return absl::OkStatus();
}

absl::Status Worker::OpenPool(Nanos deadline) {
  if (pool_ != nullptr) return absl::OkStatus();
  NamespaceSpec spec = model_.Namespace(page_tokens_, options_.cache);
  spec.quality = options_.quality;
  FB_ASSIGN_OR_RETURN(pool_, client_->OpenNamespace(std::move(spec), deadline).Wait());
  return absl::OkStatus();
}

double Worker::ComputeRate(PagedCache& cache) {
  if (tokens_per_second_ > 0) return tokens_per_second_;
  // One page's worth at the start of the sequence; whatever it writes is overwritten by the real
  // run.
  const SystemClock clock;
  const std::vector<uint32_t> tokens(page_tokens_, 1);
  Inference inference(model_, cache);
  const Nanos start = clock.Now();
  inference.Forward(tokens, 0);
  const Nanos taken = std::max<Nanos>(clock.Now() - start, 1);
  tokens_per_second_ = page_tokens_ * 1e9 / static_cast<double>(taken);
  return tokens_per_second_;
}

uint32_t Worker::FetchPrefix(const std::vector<PageKey>& keys, PagedCache& cache,
                             const GenerateOptions& options, GenerateResult* result) {
  LookupOptions lookup;
  lookup.deadline = options.deadline;
  absl::StatusOr<PrefixHit> hit = pool_->Lookup(keys, lookup).Wait();
  if (!hit.ok()) {
    result->pool_status = hit.status();
    return 0;
  }
  result->hit_pages = hit->page_count();
  if (hit->page_count() == 0) return 0;
  const double recompute_ns = hit->page_count() * page_tokens_ / ComputeRate(cache) * 1e9;
  if (!options.always_fetch && static_cast<double>(hit->fetch_estimate()) > recompute_ns) return 0;
  FetchOptions fetch_options;
  fetch_options.deadline = options.deadline;
  const FetchHandle fetch = pool_->Fetch(*hit, cache.View(), fetch_options);
  absl::StatusOr<FetchResult> fetched = fetch.Wait();
  if (!fetched.ok()) {
    result->pool_status = fetched.status();
    return 0;
  }
  result->fetch = *std::move(fetched);
  cache.Expand(result->fetch.page_count * page_tokens_);
  return result->fetch.page_count;
}

absl::StatusOr<GenerateResult> Worker::Generate(absl::Span<const uint32_t> prompt,
                                                const GenerateOptions& options) {
  FB_RETURN_IF_ERROR(CheckPrompt(prompt, options.token_count));
  GenerateResult result;
  const uint32_t total = static_cast<uint32_t>(prompt.size()) + options.token_count;
  PagedCache cache(model_, page_tokens_, (total + page_tokens_ - 1) / page_tokens_ + kSpareBlocks,
                   options_.cache);
  FB_CHECK(cache.Reserve(total));

  std::vector<PageKey> keys;
  if (client_ != nullptr) {
    result.pool_status = OpenPool(options.deadline);
    if (result.pool_status.ok()) keys = PageKeysOf(pool_->root(), prompt, page_tokens_);
  }
  result.prompt_pages = static_cast<uint32_t>(prompt.size()) / page_tokens_;

  const SystemClock clock;
  if (!keys.empty() && options.fetch) ComputeRate(cache);
  const Nanos start = clock.Now();
  uint32_t known_tokens = 0;
  if (!keys.empty() && options.fetch) {
    // The last token is always computed here: its logits are not in the cache.
    const size_t usable = (prompt.size() - 1) / page_tokens_;
    std::vector<PageKey> wanted(keys.begin(), keys.begin() + std::min(usable, keys.size()));
    if (!wanted.empty()) result.fetched_pages = FetchPrefix(wanted, cache, options, &result);
    known_tokens = result.fetched_pages * page_tokens_;
  }
  Inference inference(model_, cache);
  ForwardHooks hooks;
  hooks.cached = [&cache](uint32_t layer, uint32_t position, uint32_t token_count) {
    cache.Round(layer, position, token_count);
  };
  RunningChecksum hash;
  const std::vector<float>* logits =
      &inference.Forward(prompt.subspan(known_tokens), known_tokens, hooks);
  AddToHash(*logits, &hash);
  result.tokens.push_back(Inference::Greedy(*logits));
  result.first_token_ns = clock.Now() - start;

  Pending<PublishResult> publish;
  const bool publishing =
      options.publish && !keys.empty() && result.fetched_pages < result.prompt_pages;
  if (publishing) {
    PublishOptions publish_options;
    publish_options.deadline = options.deadline;
    publish_options.first_page = result.fetched_pages;
    publish = pool_->Publish(keys, cache.View(), publish_options);
  }
  uint32_t position = static_cast<uint32_t>(prompt.size());
  while (result.tokens.size() < options.token_count) {
    const uint32_t token = result.tokens.back();
    logits = &inference.Forward({&token, 1}, position++, hooks);
    AddToHash(*logits, &hash);
    result.tokens.push_back(Inference::Greedy(*logits));
  }
  result.logits_hash = hash.Digest();
  if (publishing) {
    absl::StatusOr<PublishResult> published = publish.Wait();
    if (published.ok()) {
      result.publish = *std::move(published);
    } else {
      result.pool_status = published.status();
    }
  }
  return result;
}

}  // namespace forebay::examples
