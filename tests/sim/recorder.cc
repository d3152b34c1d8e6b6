#include "tests/sim/recorder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace forebay::testing {
namespace {

constexpr uint64_t kPrime = 0x100000001b3ull;  // FNV-1a
constexpr size_t kViolationsKept = 20;

}  // namespace

void Recorder::Event(Nanos now, const char* kind, uint64_t actor, uint64_t a, uint64_t b) {
  last_[events_++ % kKept] = {now, kind, actor, a, b};
  for (const char* c = kind; *c != 0; ++c) hash_ = (hash_ ^ static_cast<uint8_t>(*c)) * kPrime;
  for (const uint64_t value : {static_cast<uint64_t>(now), actor, a, b}) {
    hash_ = (hash_ ^ value) * kPrime;
    hash_ ^= hash_ >> 29;
  }
}

void Recorder::Violation(Nanos now, absl::string_view rule, absl::string_view what) {
  Event(now, "VIOLATION", violations_.size());
  if (violations_.size() >= kViolationsKept) return;
  violations_.push_back(
      absl::StrFormat("%.6f s  %s: %s", static_cast<double>(now) / kSecond, rule, what));
}

std::string Recorder::Last() const {
  std::string text;
  for (uint64_t i = events_ < kKept ? 0 : events_ - kKept; i < events_; ++i) {
    const Entry& entry = last_[i % kKept];
    absl::StrAppend(&text, absl::StrFormat("  %12.6f  %-16s %3d  %d %d\n",
                                           static_cast<double>(entry.now) / kSecond, entry.kind,
                                           entry.actor, entry.a, entry.b));
  }
  return text;
}

}  // namespace forebay::testing
