#include "tests/bench/quality/evaluate.h"

#include <algorithm>

#include "base/status_macros.h"

namespace forebay::bench {
namespace {

using examples::Checkpoint;
using examples::ForwardHooks;
using examples::Inference;
using examples::PagedCache;

// Queries of the exact run over a cache that is coded page by page: each layer's own damage, and
// what follows greedily after each coded prefix.
absl::Status EvaluateLayers(const Checkpoint& model, const Reference& reference,
                            const PageCoder& coder, SequenceQuality* quality) {
  const size_t page_values = size_t{kPageTokens} * model.dim;
  PagedCache cache = reference.cache;
  PageDamage damage;
  std::vector<float> outputs(page_values);
  std::vector<double> same_greedy;
  for (uint32_t page = 0; page < reference.tokens.size() / kPageTokens; ++page) {
    for (uint32_t layer = 0; layer < model.layer_count && page > 0; ++layer) {
      const auto of_page = [&](const std::vector<float>& values) {
        return absl::MakeSpan(values).subspan(page * page_values, page_values);
      };
      Attend(model, cache, layer, page * kPageTokens, of_page(reference.queries[layer]), {},
             absl::MakeSpan(outputs));
      quality->layers[layer].attention_exact.Add(of_page(reference.outputs[layer]), outputs);
    }
    FB_RETURN_IF_ERROR(coder.Code(cache, page, &damage));
    if (page >= reference.greedy.size()) continue;
    const uint32_t next = (page + 1) * kPageTokens;
    const auto got = ContinueGreedily(model, cache, next, reference.tokens[next]);
    const auto& due = reference.greedy[page];
    same_greedy.push_back(static_cast<double>(
        std::mismatch(got.begin(), got.end(), due.begin()).first - got.begin()));
  }
  quality->same_greedy_tokens = Mean(same_greedy);
  quality->bytes = damage.bytes;
  for (uint32_t layer = 0; layer < model.layer_count; ++layer) {
    quality->layers[layer].key = damage.keys[layer];
    quality->layers[layer].value = damage.values[layer];
  }
  return absl::OkStatus();
}

absl::Status EvaluateSteps(const Checkpoint& model, const Reference& reference,
                           const PageCoder& coder, PageDamage* damage, SequenceQuality* quality) {
  const auto token_count = static_cast<uint32_t>(reference.tokens.size());
  PagedCache cache = MakeCache(model, token_count);
  Inference inference(model, cache);
  ForwardHooks hooks = Bf16Hooks(model, cache);
  hooks.attended = [&](uint32_t layer, uint32_t position, absl::Span<const float>,
                       absl::Span<const float> outputs) {
    if (position < kPageTokens) return;
    quality->layers[layer].attention.Add(absl::MakeSpan(reference.outputs[layer])
                                             .subspan(size_t{position} * model.dim, outputs.size()),
                                         outputs);
  };
  hooks.logits = [&](uint32_t position, absl::Span<const float> logits) {
    const size_t vocabulary = model.vocabulary;
    for (size_t t = position; t < position + logits.size() / vocabulary; ++t) {
      if (t < kPageTokens || t + 1 == token_count) continue;
      quality->steps.push_back(CompareLogits(
          absl::MakeSpan(reference.logits).subspan(t * vocabulary, vocabulary),
          logits.subspan((t - position) * vocabulary, vocabulary), reference.tokens[t + 1]));
    }
  };
  for (uint32_t page = 0; page < token_count / kPageTokens; ++page) {
    const uint32_t at = page * kPageTokens;
    inference.Forward(absl::MakeSpan(reference.tokens).subspan(at, kPageTokens), at, hooks);
    FB_RETURN_IF_ERROR(coder.Code(cache, page, damage));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SequenceQuality> EvaluateSteps(const Checkpoint& model, const Reference& reference,
                                              const Codec& codec) {
  SequenceQuality quality;
  quality.layers.resize(model.layer_count);
  PageDamage damage;
  FB_RETURN_IF_ERROR(EvaluateSteps(model, reference, PageCoder(model, codec), &damage, &quality));
  quality.bytes = damage.bytes;
  return quality;
}

absl::StatusOr<SequenceQuality> Evaluate(const Checkpoint& model, const Reference& reference,
                                         const Codec& codec) {
  const PageCoder coder(model, codec);
  SequenceQuality quality;
  quality.layers.resize(model.layer_count);
  FB_RETURN_IF_ERROR(EvaluateLayers(model, reference, coder, &quality));
  FB_RETURN_IF_ERROR(EvaluateSteps(model, reference, coder, nullptr, &quality));
  return quality;
}

}  // namespace forebay::bench
