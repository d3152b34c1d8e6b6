#include "client/retention/retention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

absl::Status CheckMass(const AttentionMass& mass) {
  const size_t wanted = size_t{mass.layers} * mass.heads * mass.tokens;
  if (mass.values.size() != wanted || mass.heads == 0) {
    return absl::InvalidArgumentError(absl::StrCat("attention mass of ", mass.values.size(),
                                                   " values, not ", mass.layers, " x ", mass.heads,
                                                   " x ", mass.tokens));
  }
  for (size_t i = 0; i < wanted; ++i) {
    if (std::isfinite(mass.values[i]) && mass.values[i] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("attention mass ", mass.values[i], " of layer ", i / mass.tokens / mass.heads,
                     ", head ", i / mass.tokens % mass.heads, ", token ", i % mass.tokens));
  }
  return absl::OkStatus();
}

// Those that stay whatever they got. Both may be longer than the prompt.
struct Fixed {
  uint32_t sinks;
  uint32_t recent;
};

absl::Status CheckFixed(uint32_t tokens, uint32_t kept, const Fixed& fixed) {
  const uint64_t needed = std::min<uint64_t>(uint64_t{fixed.sinks} + fixed.recent, tokens);
  if (needed <= kept) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a budget of ", kept, " tokens for ", fixed.sinks,
                                                 " sinks and the newest ", fixed.recent));
}

// Keeps `kept` tokens of `scope`. Requires CheckFixed.
void KeepByRank(absl::Span<const float> score, uint32_t kept, const Fixed& fixed, uint32_t scope,
                RetentionMask* mask) {
  const uint32_t tokens = mask->tokens;
  const uint32_t begin = std::min(fixed.sinks, tokens);
  const uint32_t end = std::max(begin, tokens - std::min(fixed.recent, tokens));
  for (uint32_t token = 0; token < begin; ++token) mask->Keep(scope, token);
  for (uint32_t token = end; token < tokens; ++token) mask->Keep(scope, token);
  std::vector<uint32_t> rank(end - begin);
  std::iota(rank.begin(), rank.end(), begin);
  const auto chosen = rank.begin() + (kept - begin - (tokens - end));
  std::nth_element(rank.begin(), chosen, rank.end(), [&](uint32_t a, uint32_t b) {
    return score[a] != score[b] ? score[a] > score[b] : a < b;
  });
  for (auto token = rank.begin(); token != chosen; ++token) mask->Keep(scope, *token);
}

// The scores that one scope ranks by.
std::vector<float> ScopeMass(const AttentionMass& mass, RetentionScope scope, uint32_t layer,
                             uint32_t head) {
  if (scope == RetentionScope::kEachHead) {
    const absl::Span<const float> of_head = mass.Of(layer, head);
    return {of_head.begin(), of_head.end()};
  }
  std::vector<float> sum(mass.tokens);
  for (uint32_t h = 0; h < mass.heads; ++h) {
    for (uint32_t token = 0; token < mass.tokens; ++token) sum[token] += mass.Of(layer, h)[token];
  }
  return sum;
}

using Score = std::function<std::vector<float>(std::vector<float>)>;

std::vector<RetentionMask> PlanByMass(const AttentionMass& mass, RetentionScope scope,
                                      uint32_t kept, const Fixed& fixed, const Score& score) {
  const uint32_t scopes = scope == RetentionScope::kEachHead ? mass.heads : 1;
  std::vector<RetentionMask> masks(mass.layers, RetentionMask::DropAll(mass.tokens, scopes));
  for (uint32_t layer = 0; layer < mass.layers; ++layer) {
    for (uint32_t s = 0; s < scopes; ++s) {
      KeepByRank(score(ScopeMass(mass, scope, layer, s)), kept, fixed, s, &masks[layer]);
    }
  }
  return masks;
}

// Pools values [0, end); the rest are no part of it.
std::vector<float> Pool(const std::vector<float>& values, uint32_t end, uint32_t kernel,
                        MassPooling pooling) {
  std::vector<float> pooled(values.size());
  const uint32_t reach = kernel / 2;
  for (uint32_t i = 0; i < end; ++i) {
    const auto first = values.begin() + (i < reach ? 0 : i - reach);
    const auto last = values.begin() + std::min<uint64_t>(end, uint64_t{i} + reach + 1);
    pooled[i] = pooling == MassPooling::kMax
                    ? *std::max_element(first, last)
                    : std::accumulate(first, last, 0.0f) / static_cast<float>(kernel);
  }
  return pooled;
}

}  // namespace

absl::StatusOr<uint32_t> RetentionBudget::Of(uint32_t tokens) const {
  if (const uint32_t* count = std::get_if<uint32_t>(&budget_)) {
    if (*count <= tokens) return *count;
    return absl::InvalidArgumentError(
        absl::StrCat("a budget of ", *count, " tokens for a prompt of ", tokens));
  }
  const double fraction = std::get<double>(budget_);
  if (!(fraction >= 0 && fraction <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("a budget of the fraction ", fraction));
  }
  return static_cast<uint32_t>(std::llround(fraction * tokens));
}

absl::StatusOr<RetentionMask> PlanStreaming(uint32_t tokens, const StreamingOptions& options) {
  FB_ASSIGN_OR_RETURN(const uint32_t kept, options.budget.Of(tokens));
  FB_RETURN_IF_ERROR(CheckFixed(tokens, kept, {options.sinks, 0}));
  RetentionMask mask = RetentionMask::DropAll(tokens, 1);
  const uint32_t sinks = std::min(options.sinks, kept);
  for (uint32_t token = 0; token < sinks; ++token) mask.Keep(0, token);
  for (uint32_t token = tokens - (kept - sinks); token < tokens; ++token) mask.Keep(0, token);
  return mask;
}

absl::StatusOr<std::vector<RetentionMask>> PlanHeavyHitters(const AttentionMass& mass,
                                                            const HeavyHitterOptions& options) {
  FB_RETURN_IF_ERROR(CheckMass(mass));
  if (!(options.recent_share >= 0 && options.recent_share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("a recent share of ", options.recent_share));
  }
  FB_ASSIGN_OR_RETURN(const uint32_t kept, options.budget.Of(mass.tokens));
  const uint32_t left = kept - std::min(options.sinks, kept);
  const Fixed fixed{options.sinks, static_cast<uint32_t>(options.recent_share * left)};
  FB_RETURN_IF_ERROR(CheckFixed(mass.tokens, kept, fixed));
  return PlanByMass(mass, options.scope, kept, fixed,
                    [](std::vector<float> values) { return values; });
}

absl::StatusOr<std::vector<RetentionMask>> PlanObservationWindow(
    const AttentionMass& mass, const ObservationOptions& options) {
  FB_RETURN_IF_ERROR(CheckMass(mass));
  if (options.kernel_tokens % 2 == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a kernel of ", options.kernel_tokens, " tokens; it must be odd"));
  }
  FB_ASSIGN_OR_RETURN(const uint32_t kept, options.budget.Of(mass.tokens));
  const Fixed fixed{options.sinks, options.window_tokens};
  FB_RETURN_IF_ERROR(CheckFixed(mass.tokens, kept, fixed));
  const uint32_t before = mass.tokens - std::min(options.window_tokens, mass.tokens);
  return PlanByMass(mass, options.scope, kept, fixed, [&](const std::vector<float>& values) {
    return Pool(values, before, options.kernel_tokens, options.pooling);
  });
}

}  // namespace forebay
