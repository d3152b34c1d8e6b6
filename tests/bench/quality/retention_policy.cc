#include "tests/bench/quality/retention_policy.h"

#include <algorithm>

#include "base/status_macros.h"

namespace forebay::bench {

using examples::Checkpoint;
using examples::ForwardHooks;
using examples::Inference;
using examples::PagedCache;

MassRecorder::MassRecorder(const Checkpoint& model, uint32_t tokens)
    : layers_(model.layer_count),
      kv_heads_(model.kv_head_count),
      share_(model.head_count / model.kv_head_count),
      tokens_(tokens),
      all_(size_t{layers_} * kv_heads_ * tokens),
      window_(all_.size()) {}

void MassRecorder::Add(uint32_t layer, uint32_t position, uint32_t head,
                       absl::Span<const float> values) {
  if (position >= tokens_) return;
  const size_t row = (size_t{layer} * kv_heads_ + head / share_) * tokens_;
  const bool in_window = position + kWindowTokens >= tokens_;
  for (size_t i = 0; i < values.size(); ++i) {
    all_[row + i] += values[i];
    if (in_window) window_[row + i] += values[i];
  }
}

Prefix ComputePrefix(const Checkpoint& model, absl::Span<const uint32_t> tokens,
                     absl::Span<const uint32_t> lengths) {
  Prefix prefix{MakeCache(model, static_cast<uint32_t>(tokens.size())), {}};
  for (const uint32_t length : lengths) prefix.masses.emplace_back(model, length);
  ForwardHooks hooks = Bf16Hooks(model, prefix.cache);
  hooks.probabilities = [&](uint32_t layer, uint32_t position, uint32_t head,
                            absl::Span<const float> values) {
    for (MassRecorder& mass : prefix.masses) mass.Add(layer, position, head, values);
  };
  Inference(model, prefix.cache).Forward(tokens.first(lengths.back()), 0, hooks);
  return prefix;
}

const std::vector<RetentionPolicy>& RetentionPolicies() {
  using Masks = absl::StatusOr<std::vector<RetentionMask>>;
  static const auto* policies = new std::vector<RetentionPolicy>{
      {"streaming",
       [](const MassRecorder& mass, double fraction) -> Masks {
         FB_ASSIGN_OR_RETURN(const RetentionMask mask,
                             PlanStreaming(mass.tokens(), {RetentionBudget::Fraction(fraction)}));
         return std::vector<RetentionMask>(mass.all().layers, mask);
       }},
      {"h2o",
       [](const MassRecorder& mass, double fraction) {
         return PlanHeavyHitters(mass.all(), {RetentionBudget::Fraction(fraction)});
       }},
      {"snapkv", [](const MassRecorder& mass, double fraction) {
         ObservationOptions options;
         options.budget = RetentionBudget::Fraction(fraction);
         const auto half = static_cast<uint32_t>(fraction * mass.tokens() / 2);
         options.window_tokens = std::min(MassRecorder::kWindowTokens, half);
         return PlanObservationWindow(mass.window(), options);
       }}};
  return *policies;
}

SequenceQuality EvaluateMasks(const Checkpoint& model, const Reference& reference,
                              const Prefix& prefix, absl::Span<const RetentionMask> masks) {
  const uint32_t begin = masks[0].tokens;
  const size_t vocabulary = model.vocabulary;
  PagedCache cache = prefix.cache;
  SequenceQuality quality;
  ForwardHooks hooks = Bf16Hooks(model, cache);
  hooks.masks = masks;
  hooks.logits = [&](uint32_t position, absl::Span<const float> logits) {
    for (size_t t = position; t < position + logits.size() / vocabulary; ++t) {
      if (t + 1 == reference.tokens.size()) continue;
      quality.steps.push_back(CompareLogits(
          absl::MakeSpan(reference.logits).subspan(t * vocabulary, vocabulary),
          logits.subspan((t - position) * vocabulary, vocabulary), reference.tokens[t + 1]));
    }
  };
  Inference(model, cache).Forward(absl::MakeSpan(reference.tokens).subspan(begin), begin, hooks);
  return quality;
}

}  // namespace forebay::bench
