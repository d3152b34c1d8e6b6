#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tests/bench/quality/row.h"

// What the report's rows have to show, and whether they do.
namespace forebay::bench {

struct Claim {
  std::string model;
  std::string what;  // "uniform_4.5b beside kivi4: KL"
  double ours = 0;
  double bound = 0;  // a constant, or the other row's figure
  bool more_is_better = false;
  // Where the difference of both means lies with 95%, when pages of steps (of same64: texts) are
  // drawn anew, the same for both.
  std::optional<Interval> difference;

  // No worse than the bound; as good counts.
  bool holds() const { return more_is_better ? ours >= bound : ours <= bound; }
  // Other texts could have said the opposite.
  bool in_doubt() const {
    return difference.has_value() && difference->low <= 0 && difference->high >= 0;
  }
};

// Of the rows of one model, those that are there:
//   lossless exactly 0, in a ratio of 1.45 with rANS and 1.3 at a fixed rate; mean KL of int8 at
//   most 3e-3, k8v4 6e-3, int4 4e-2; the uniform-step codec at 4.5 and 2.2 bits no worse than KIVI
//   at 5 and 3 bits in any column (KIVI's groups across heads, where a head is narrower than one).
// A perplexity ratio is the better the nearer it is to 1, from either side. Needles count by the
// mean over depths.
std::vector<Claim> CheckClaims(absl::Span<const QualityRow> rows);

std::string ClaimLine(const Claim& claim);
// One JSON object, without a line feed.
std::string ToJson(const Claim& claim);

}  // namespace forebay::bench
