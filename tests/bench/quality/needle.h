#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/quality/page_coder.h"
#include "tests/bench/quality/retention_policy.h"

namespace forebay::bench {

// 0: the oldest place; all of them are in pages that are full before the question.
inline constexpr std::array<double, 5> kNeedleDepths = {0, 0.25, 0.5, 0.75, 0.9};
// Of the answers that the exact cache gives, the share that is still right, by depth.
using NeedleShares = std::array<double, kNeedleDepths.size()>;

// Questions about a value that stands somewhere in the text before (examples/tiny_model/README.md):
// what no perplexity shows. An answer is right when all of its four digits are.
class NeedleTest {
 public:
  // Whether the model answers such questions at all.
  static bool Suits(const examples::Checkpoint& model);

  // Requires Suits(model). Borrows it.
  NeedleTest(const examples::Checkpoint& model, uint32_t cases_a_depth);

  // The full pages of the context are coded; what follows them is computed over these.
  absl::StatusOr<NeedleShares> Through(const Codec& codec) const;

  // Tokens are dropped either before the question is asked, as a pool has to, or after the prompt
  // has been read to its end and the first digit is out, as an engine can.
  enum class Moment : uint8_t { kBeforeQuestion, kAfterQuestion };
  absl::StatusOr<NeedleShares> Under(const RetentionPolicy& policy, double fraction,
                                     Moment moment) const;

  uint32_t case_count() const { return static_cast<uint32_t>(cases_.size()); }

 private:
  struct Case {
    size_t depth;                  // of kNeedleDepths
    std::vector<uint32_t> tokens;  // the context and the answer
    Prefix prefix;                 // masses by Moment
  };

  // Right answers over `cache`, which holds the first `begin` tokens.
  bool Answers(const Case& c, examples::PagedCache cache, uint32_t begin,
               absl::Span<const RetentionMask> masks) const;
  template <typename Answer>
  absl::StatusOr<NeedleShares> Count(Answer answer) const;

  const examples::Checkpoint& model_;
  std::vector<Case> cases_;  // those that the exact cache answers
};

}  // namespace forebay::bench
