#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

// What is compared, and how sure it is.
namespace forebay::bench {

// One prediction by a damaged cache, beside that by the exact one.
struct StepQuality {
  double kl = 0;             // KL(exact || damaged), nats
  double nll_reference = 0;  // of the token that did follow, nats
  double nll = 0;
  bool same_top = true;  // the first of the largest logits is the same
};

// Logits [vocabulary] of both; equal bits give a KL of exactly 0.
StepQuality CompareLogits(absl::Span<const float> reference, absl::Span<const float> logits,
                          uint32_t next_token);

// ||got - reference|| / ||reference|| over all that was added.
class RelativeError {
 public:
  void Add(absl::Span<const float> reference, absl::Span<const float> got);
  void Add(const RelativeError& other);
  double value() const;

 private:
  double error_ = 0;  // squares
  double norm_ = 0;
};

struct Interval {
  double low = 0;
  double high = 0;
};

// Where the mean of `values` lies with 95%: percentiles of resampled means. The same values give
// the same interval. Of a single value: that value.
Interval BootstrapMean(absl::Span<const double> values);

// Of f(mean of a) - f(mean of b), likewise; a[i] and b[i] are drawn together. Requires as many.
Interval BootstrapDifference(absl::Span<const double> a, absl::Span<const double> b,
                             double (*f)(double));

double Mean(absl::Span<const double> values);

}  // namespace forebay::bench
