#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace forebay {

// A number that only grows. Written by one reactor, read by any thread.
class Counter {
 public:
  void Add(uint64_t n = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// A number that goes up and down. Written by one reactor, read by any thread.
class Gauge {
 public:
  void Set(int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void Add(int64_t n) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

// Counts of values by powers of two: bucket i holds values in [2^(i-1), 2^i). Written by one
// reactor.
class Histogram {
 public:
  static constexpr int kBucketCount = 48;
  void Add(uint64_t value);
  uint64_t count() const { return count_.value(); }
  uint64_t sum() const { return sum_.value(); }
  uint64_t bucket(int i) const { return buckets_[i].value(); }
  // Largest value of the bucket in which the `q` quantile (0 to 1) falls; 0 when empty.
  uint64_t Quantile(double q) const;

 private:
  Counter buckets_[kBucketCount];
  Counter count_;
  Counter sum_;
};

// Names and holds the metrics of one daemon or client. Names: forebay_<noun>_<unit>[_total].
//
// A name may be added many times: each reactor writes a series of its own, and Text() sums those
// whose labels are equal. Adding one name as two kinds is a bug (FB_CHECK).
//
// Threads  Add… takes a lock: at start, not on a hot path. The returned references live as long as
//          the registry. Text() from any thread.
class MetricRegistry {
 public:
  struct Label {
    std::string name = {};
    std::string value = {};
  };

  Counter& AddCounter(absl::string_view name, absl::string_view help,
                      absl::Span<const Label> labels = {});
  Gauge& AddGauge(absl::string_view name, absl::string_view help,
                  absl::Span<const Label> labels = {});
  Histogram& AddHistogram(absl::string_view name, absl::string_view help,
                          absl::Span<const Label> labels = {});

  // The Prometheus text exposition format, version 0.0.4, sorted by name.
  std::string Text() const;
  // Every registered name, sorted, once each: compared with docs/operations.md by a test.
  std::vector<std::string> Names() const;

 private:
  struct Series {
    std::vector<Label> labels;
    Counter counter;
    Gauge gauge;
    Histogram histogram;
  };
  struct Family {
    std::string name;
    std::string help;
    int kind = 0;
    std::deque<Series> series;
  };

  Family& FamilyOf(absl::string_view name, absl::string_view help, int kind)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Series& AddSeries(absl::string_view name, absl::string_view help, int kind,
                    absl::Span<const Label> labels) ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  std::deque<Family> families_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forebay
