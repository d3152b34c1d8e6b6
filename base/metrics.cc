#include "base/metrics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace forebay {
namespace {

enum Kind : int { kCounter = 1, kGauge = 2, kHistogram = 3 };

constexpr absl::string_view kKindNames[] = {"", "counter", "gauge", "histogram"};

// [a-zA-Z_:][a-zA-Z0-9_:]*, less the colon, which Prometheus keeps for recording rules.
bool IsMetricName(absl::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

void AppendEscaped(std::string& out, absl::string_view text, bool quote) {
  for (const char c : text) {
    if (c == '\\') {
      out.append("\\\\");
    } else if (c == '\n') {
      out.append("\\n");
    } else if (c == '"' && quote) {
      out.append("\\\"");
    } else {
      out.push_back(c);
    }
  }
}

// `name="value",…` without braces.
std::string LabelText(const std::vector<MetricRegistry::Label>& labels) {
  std::string text;
  for (const MetricRegistry::Label& label : labels) {
    absl::StrAppend(&text, text.empty() ? "" : ",", label.name, "=\"");
    AppendEscaped(text, label.value, /*quote=*/true);
    text.push_back('"');
  }
  return text;
}

void AppendSample(std::string& out, absl::string_view name, absl::string_view labels,
                  const absl::AlphaNum& value) {
  absl::StrAppend(&out, name);
  if (!labels.empty()) absl::StrAppend(&out, "{", labels, "}");
  absl::StrAppend(&out, " ", value, "\n");
}

// What the series of one set of labels add up to.
struct Sum {
  uint64_t counter = 0;
  int64_t gauge = 0;
  std::array<uint64_t, Histogram::kBucketCount> buckets{};
  uint64_t histogram_sum = 0;
};

// The largest value of bucket `i`: a bucket holds whole numbers below 2^i.
uint64_t BucketBound(int i) { return (uint64_t{1} << i) - 1; }

void AppendHistogram(std::string& out, const std::string& name, const std::string& labels,
                     const Sum& sum) {
  const std::string prefix = labels.empty() ? "" : absl::StrCat(labels, ",");
  // The count is the sum of the buckets as they were read, so that the text agrees with itself
  // while the reactor adds.
  uint64_t count = 0;
  for (int i = 0; i < Histogram::kBucketCount; ++i) {
    count += sum.buckets[i];
    const bool last = i + 1 == Histogram::kBucketCount;
    AppendSample(out, absl::StrCat(name, "_bucket"),
                 absl::StrCat(prefix, "le=\"", last ? "+Inf" : absl::StrCat(BucketBound(i)), "\""),
                 count);
  }
  AppendSample(out, absl::StrCat(name, "_sum"), labels, sum.histogram_sum);
  AppendSample(out, absl::StrCat(name, "_count"), labels, count);
}

}  // namespace

void Histogram::Add(uint64_t value) {
  const int bucket = std::min(static_cast<int>(std::bit_width(value)), kBucketCount - 1);
  buckets_[bucket].Add();
  count_.Add();
  sum_.Add(value);
}

uint64_t Histogram::Quantile(double q) const {
  uint64_t total = 0;
  for (const Counter& bucket : buckets_) total += bucket.value();
  if (total == 0) return 0;
  const double clamped = std::clamp(q, 0.0, 1.0);
  const uint64_t rank =
      std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(clamped * static_cast<double>(total))));
  uint64_t seen = 0;
  for (int i = 0; i < kBucketCount; ++i) {
    seen += buckets_[i].value();
    if (seen >= rank) return BucketBound(i);
  }
  return BucketBound(kBucketCount - 1);
}

MetricRegistry::Family& MetricRegistry::FamilyOf(absl::string_view name, absl::string_view help,
                                                 int kind) {
  FB_CHECK(IsMetricName(name));
  for (Family& family : families_) {
    if (family.name != name) continue;
    FB_CHECK(family.kind == kind);
    return family;
  }
  Family& family = families_.emplace_back();
  family.name = std::string(name);
  family.help = std::string(help);
  family.kind = kind;
  return family;
}

MetricRegistry::Series& MetricRegistry::AddSeries(absl::string_view name, absl::string_view help,
                                                  int kind, absl::Span<const Label> labels) {
  for (const Label& label : labels) FB_CHECK(IsMetricName(label.name));
  absl::MutexLock lock(&mutex_);
  Series& series = FamilyOf(name, help, kind).series.emplace_back();
  series.labels.assign(labels.begin(), labels.end());
  return series;
}

Counter& MetricRegistry::AddCounter(absl::string_view name, absl::string_view help,
                                    absl::Span<const Label> labels) {
  return AddSeries(name, help, kCounter, labels).counter;
}

Gauge& MetricRegistry::AddGauge(absl::string_view name, absl::string_view help,
                                absl::Span<const Label> labels) {
  return AddSeries(name, help, kGauge, labels).gauge;
}

Histogram& MetricRegistry::AddHistogram(absl::string_view name, absl::string_view help,
                                        absl::Span<const Label> labels) {
  return AddSeries(name, help, kHistogram, labels).histogram;
}

std::string MetricRegistry::Text() const {
  absl::MutexLock lock(&mutex_);
  std::vector<const Family*> sorted;
  for (const Family& family : families_) sorted.push_back(&family);
  std::sort(sorted.begin(), sorted.end(),
            [](const Family* a, const Family* b) { return a->name < b->name; });
  std::string out;
  for (const Family* family : sorted) {
    absl::StrAppend(&out, "# HELP ", family->name, " ");
    AppendEscaped(out, family->help, /*quote=*/false);
    absl::StrAppend(&out, "\n# TYPE ", family->name, " ", kKindNames[family->kind], "\n");
    // Each reactor has a series of its own; those with equal labels are one to the reader.
    std::map<std::string, Sum> sums;
    for (const Series& series : family->series) {
      Sum& sum = sums[LabelText(series.labels)];
      sum.counter += series.counter.value();
      sum.gauge += series.gauge.value();
      for (int i = 0; i < Histogram::kBucketCount; ++i) {
        sum.buckets[i] += series.histogram.bucket(i);
      }
      sum.histogram_sum += series.histogram.sum();
    }
    for (const auto& [labels, sum] : sums) {
      if (family->kind == kCounter) AppendSample(out, family->name, labels, sum.counter);
      if (family->kind == kGauge) AppendSample(out, family->name, labels, sum.gauge);
      if (family->kind == kHistogram) AppendHistogram(out, family->name, labels, sum);
    }
  }
  return out;
}

std::vector<std::string> MetricRegistry::Names() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const Family& family : families_) names.push_back(family.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace forebay
