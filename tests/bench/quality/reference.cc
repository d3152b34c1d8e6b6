#include "tests/bench/quality/reference.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "codec/steps/float_formats.h"
#include "tests/bench/quality/page_coder.h"

namespace forebay::bench {
namespace {

using examples::Checkpoint;
using examples::ForwardHooks;
using examples::Inference;
using examples::PagedCache;

// Models of bytes know no begin of text; those with a tokenizer have it at 1.
uint32_t FirstToken(const Checkpoint& model) { return model.vocabulary == 256 ? ' ' : 1; }

uint32_t Draw(absl::Span<const float> logits, absl::Span<const uint32_t> forbidden,
              SeededRandom* random) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool allowed = std::find(forbidden.begin(), forbidden.end(), i) == forbidden.end();
    weights[i] = allowed ? std::exp(logits[i] - highest) : 0;
    sum += weights[i];
  }
  double left = static_cast<double>(random->Next() >> 11) * 0x1.0p-53 * sum;
  size_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    last = i;
    left -= weights[i];
    if (left < 0) break;
  }
  return static_cast<uint32_t>(last);
}

void Append(absl::Span<const float> values, std::vector<float>* to) {
  to->insert(to->end(), values.begin(), values.end());
}

}  // namespace

PagedCache MakeCache(const Checkpoint& model, uint32_t tokens) {
  PagedCache cache(model, kPageTokens, (tokens + kPageTokens - 1) / kPageTokens);
  FB_CHECK(cache.Reserve(tokens));
  return cache;
}

ForwardHooks Bf16Hooks(const Checkpoint& model, PagedCache& cache) {
  ForwardHooks hooks;
  hooks.cached = [&model, &cache](uint32_t layer, uint32_t position, uint32_t token_count) {
    for (uint32_t token = position; token < position + token_count; ++token) {
      for (float* row : {cache.Key(layer, token), cache.Value(layer, token)}) {
        for (uint32_t i = 0; i < model.kv_dim(); ++i) row[i] = Bf16ToFp32(Fp32ToBf16(row[i]));
      }
    }
  };
  return hooks;
}

std::vector<uint32_t> SampleText(const Checkpoint& model, uint32_t tokens, uint64_t seed,
                                 absl::Span<const uint32_t> forbidden) {
  PagedCache cache = MakeCache(model, tokens);
  Inference inference(model, cache);
  const ForwardHooks hooks = Bf16Hooks(model, cache);
  SeededRandom random(seed);
  std::vector<uint32_t> text = {FirstToken(model)};
  while (text.size() < tokens) {
    const auto& logits =
        inference.Forward({&text.back(), 1}, static_cast<uint32_t>(text.size() - 1), hooks);
    text.push_back(Draw(logits, forbidden, &random));
  }
  return text;
}

Reference ComputeReference(const Checkpoint& model, std::vector<uint32_t> tokens, bool greedy) {
  FB_CHECK(tokens.size() % kPageTokens == 0 && tokens.size() >= 2 * kPageTokens);
  const auto token_count = static_cast<uint32_t>(tokens.size());
  Reference reference{std::move(tokens), MakeCache(model, token_count), {}, {}, {}, {}};
  reference.queries.resize(model.layer_count);
  reference.outputs.resize(model.layer_count);
  ForwardHooks hooks = Bf16Hooks(model, reference.cache);
  hooks.attended = [&](uint32_t layer, uint32_t, absl::Span<const float> queries,
                       absl::Span<const float> outputs) {
    Append(queries, &reference.queries[layer]);
    Append(outputs, &reference.outputs[layer]);
  };
  hooks.logits = [&](uint32_t, absl::Span<const float> logits) {
    Append(logits, &reference.logits);
  };
  Inference(model, reference.cache).Forward(reference.tokens, 0, hooks);
  for (uint32_t at = kPageTokens; greedy && at < token_count; at += kPageTokens) {
    reference.greedy.push_back(ContinueGreedily(model, reference.cache, at, reference.tokens[at]));
  }
  return reference;
}

std::vector<uint32_t> ContinueGreedily(const Checkpoint& model, PagedCache cache, uint32_t position,
                                       uint32_t token) {
  Inference inference(model, cache);
  const ForwardHooks hooks = Bf16Hooks(model, cache);
  std::vector<uint32_t> greedy;
  while (greedy.size() < kGreedyTokens) {
    token = Inference::Greedy(inference.Forward({&token, 1}, position++, hooks));
    greedy.push_back(token);
  }
  return greedy;
}

}  // namespace forebay::bench
