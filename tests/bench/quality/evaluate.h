#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/quality/page_coder.h"
#include "tests/bench/quality/reference.h"

namespace forebay::bench {

struct LayerQuality {
  RelativeError key, value;
  RelativeError attention_exact;  // of attention's output, with all that is upstream exact
  RelativeError attention;        // as it adds up
};

// One text through one codec, against the exact cache.
struct SequenceQuality {
  std::vector<StepQuality> steps;  // of tokens from kPageTokens on: those that read a coded page
  std::vector<LayerQuality> layers;
  CodedBytes bytes;
  // Of kGreedyTokens, before the first that differs; a mean over the pages of a prefix.
  std::optional<double> same_greedy_tokens;
};

// Steps, bytes, and attention's errors as they add up: in a fraction of the time.
absl::StatusOr<SequenceQuality> EvaluateSteps(const examples::Checkpoint& model,
                                              const Reference& reference, const Codec& codec);

// Teacher-forced: each page is coded once it is full, the newest stays exact until then.
absl::StatusOr<SequenceQuality> Evaluate(const examples::Checkpoint& model,
                                         const Reference& reference, const Codec& codec);

}  // namespace forebay::bench
