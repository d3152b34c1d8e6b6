#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/retention_mask.h"

// Which tokens of a prompt an engine may drop from its cache, from the attention that they got.
//
// Each planner keeps exactly the budget's number of tokens in each scope: the first `sinks`, the
// newest, and of the rest those of the largest attention; of equals the lower index. What is
// dropped is gone for every later query: text goes on much as before, a question about a dropped
// token has no answer.
//
// Errors   INVALID_ARGUMENT that names the field: a budget out of range, one too small for the
//          sinks and the newest tokens, an array of the wrong size, attention that is negative or
//          not finite.
// Threads  pure functions.
// Source   StreamingLLM (arXiv 2309.17453), H2O (arXiv 2306.14048), SnapKV (arXiv 2404.14469).
namespace forebay {

// How many tokens stay: a count, or a fraction of the prompt, rounded to the nearest number.
class RetentionBudget {
 public:
  static RetentionBudget Count(uint32_t tokens) { return RetentionBudget(tokens); }
  static RetentionBudget Fraction(double fraction) { return RetentionBudget(fraction); }
  // Of a prompt of `tokens`.
  absl::StatusOr<uint32_t> Of(uint32_t tokens) const;

 private:
  explicit RetentionBudget(std::variant<uint32_t, double> budget) : budget_(budget) {}

  std::variant<uint32_t, double> budget_;
};

// Attention that each token got: softmax probabilities, summed over queries, and over the query
// heads that share a KV head.
//
// Shape    values: [layers][heads][tokens], heads being KV heads
// Borrows  values.
struct AttentionMass {
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t tokens = 0;
  absl::Span<const float> values;

  absl::Span<const float> Of(uint32_t layer, uint32_t head) const {
    return values.subspan((size_t{layer} * heads + head) * tokens, tokens);
  }
};

enum class RetentionScope : uint8_t {
  kEachHead,  // each KV head keeps tokens of its own
  kAllHeads,  // one list a layer, by the sum over its heads
};

// StreamingLLM: sinks and a window of the newest tokens, whatever was attended to. One list, which
// holds for each layer.
struct StreamingOptions {
  RetentionBudget budget = RetentionBudget::Fraction(0.5);
  uint32_t sinks = 4;
};
absl::StatusOr<RetentionMask> PlanStreaming(uint32_t tokens, const StreamingOptions& options);

// H2O: the newest tokens, and those that got most attention from all queries so far. `mass` is
// accumulated over every query of the prompt. A mask for each layer.
struct HeavyHitterOptions {
  RetentionBudget budget = RetentionBudget::Fraction(0.5);
  uint32_t sinks = 4;
  double recent_share = 0.5;  // of what the sinks leave of the budget: for the newest tokens
  RetentionScope scope = RetentionScope::kEachHead;
};
absl::StatusOr<std::vector<RetentionMask>> PlanHeavyHitters(const AttentionMass& mass,
                                                            const HeavyHitterOptions& options);

// SnapKV: the window of the prompt's last tokens, and the tokens before it that this window's
// queries attend to. `mass` is accumulated over the queries of the window alone. It is pooled along
// the tokens before the window, so that neighbours of an attended token stay with it. A mask for
// each layer.
enum class MassPooling : uint8_t {
  kAverage,  // over kernel_tokens, those past the ends counting as 0
  kMax,
};
struct ObservationOptions {
  RetentionBudget budget = RetentionBudget::Fraction(0.5);
  uint32_t sinks = 4;
  uint32_t window_tokens = 32;
  uint32_t kernel_tokens = 7;  // odd; 1: no pooling
  MassPooling pooling = MassPooling::kMax;
  RetentionScope scope = RetentionScope::kEachHead;
};
absl::StatusOr<std::vector<RetentionMask>> PlanObservationWindow(const AttentionMass& mass,
                                                                 const ObservationOptions& options);

}  // namespace forebay
