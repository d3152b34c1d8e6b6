#include "tests/bench/quality/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "tests/bench/report.h"

namespace forebay::bench {
namespace {

constexpr int kResamples = 2000;

// log sum exp of the logits.
double LogTotal(absl::Span<const float> logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  return highest + std::log(sum);
}

size_t Top(absl::Span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

StepQuality CompareLogits(absl::Span<const float> reference, absl::Span<const float> logits,
                          uint32_t next_token) {
  FB_CHECK(reference.size() == logits.size() && next_token < logits.size());
  const double total_reference = LogTotal(reference), total = LogTotal(logits);
  StepQuality step;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double log_p = reference[i] - total_reference;
    step.kl += std::exp(log_p) * (log_p - (logits[i] - total));
  }
  // Rounding alone can take a sum of nearly nothing below 0.
  step.kl = std::max(step.kl, 0.0);
  step.nll_reference = total_reference - reference[next_token];
  step.nll = total - logits[next_token];
  step.same_top = Top(reference) == Top(logits);
  return step;
}

void RelativeError::Add(absl::Span<const float> reference, absl::Span<const float> got) {
  FB_CHECK(reference.size() == got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = double{got[i]} - reference[i];
    error_ += error * error;
    norm_ += double{reference[i]} * reference[i];
  }
}

void RelativeError::Add(const RelativeError& other) {
  error_ += other.error_;
  norm_ += other.norm_;
}

double RelativeError::value() const { return norm_ > 0 ? std::sqrt(error_ / norm_) : 0; }

double Mean(absl::Span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Interval BootstrapMean(absl::Span<const double> values) {
  if (values.empty()) return {};
  SeededRandom random(values.size());
  std::vector<double> means(kResamples);
  std::vector<double> sample(values.size());
  for (double& mean : means) {
    for (double& value : sample) value = values[random.Below(values.size())];
    mean = Mean(sample);
  }
  return {Quantile(means, 0.025), Quantile(means, 0.975)};
}

Interval BootstrapDifference(absl::Span<const double> a, absl::Span<const double> b,
                             double (*f)(double)) {
  FB_CHECK(a.size() == b.size());
  if (a.empty()) return {};
  SeededRandom random(a.size());
  std::vector<double> differences(kResamples);
  std::vector<double> of_a(a.size()), of_b(b.size());
  for (double& difference : differences) {
    for (size_t i = 0; i < a.size(); ++i) {
      const size_t drawn = random.Below(a.size());
      of_a[i] = a[drawn];
      of_b[i] = b[drawn];
    }
    difference = f(Mean(of_a)) - f(Mean(of_b));
  }
  return {Quantile(differences, 0.025), Quantile(differences, 0.975)};
}

}  // namespace forebay::bench
