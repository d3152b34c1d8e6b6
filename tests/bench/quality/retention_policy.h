#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/retention/retention.h"
#include "examples/llama/checkpoint.h"
#include "tests/bench/quality/evaluate.h"
#include "tests/bench/quality/reference.h"

namespace forebay::bench {

// Attention that the first `tokens` of a text got from the queries among them.
class MassRecorder {
 public:
  static constexpr uint32_t kWindowTokens = 32;

  MassRecorder(const examples::Checkpoint& model, uint32_t tokens);
  // As ForwardHooks::probabilities has it.
  void Add(uint32_t layer, uint32_t position, uint32_t head, absl::Span<const float> values);

  uint32_t tokens() const { return tokens_; }
  AttentionMass all() const { return {layers_, kv_heads_, tokens_, all_}; }
  // From the queries of the last kWindowTokens alone.
  AttentionMass window() const { return {layers_, kv_heads_, tokens_, window_}; }

 private:
  uint32_t layers_, kv_heads_, share_, tokens_;
  std::vector<float> all_, window_;
};

// A prefix as the exact cache holds it, with what planners ask for at each of some lengths.
struct Prefix {
  examples::PagedCache cache;
  std::vector<MassRecorder> masses;
};
// `lengths` ascend; the cache has room for all of `tokens`.
Prefix ComputePrefix(const examples::Checkpoint& model, absl::Span<const uint32_t> tokens,
                     absl::Span<const uint32_t> lengths);

struct RetentionPolicy {
  std::string name;
  // A mask for each layer that keeps the fraction of the tokens.
  std::function<absl::StatusOr<std::vector<RetentionMask>>(const MassRecorder&, double fraction)>
      plan;
};
const std::vector<RetentionPolicy>& RetentionPolicies();

// Of a text whose first half was dropped down to the masks: the tokens after it, teacher-forced.
// Only `steps` is filled.
SequenceQuality EvaluateMasks(const examples::Checkpoint& model, const Reference& reference,
                              const Prefix& prefix, absl::Span<const RetentionMask> masks);

}  // namespace forebay::bench
