#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace forebay::testing {

// What happened in a world: a hash of all of it, the last of it for people, and what broke a rule.
class Recorder {
 public:
  // `kind` must live on: a literal.
  void Event(Nanos now, const char* kind, uint64_t actor, uint64_t a = 0, uint64_t b = 0);
  void Violation(Nanos now, absl::string_view rule, absl::string_view what);

  uint64_t hash() const { return hash_; }
  uint64_t events() const { return events_; }
  const std::vector<std::string>& violations() const { return violations_; }
  // The last events, oldest first, one a line.
  std::string Last() const;

  // Accepted pages, and other sums for the summary.
  uint64_t pages_checked = 0, views_checked = 0, pages_stored = 0, misses = 0;

 private:
  struct Entry {
    Nanos now = 0;
    const char* kind = "";
    uint64_t actor = 0, a = 0, b = 0;
  };
  static constexpr size_t kKept = 80;

  uint64_t hash_ = 0xcbf29ce484222325ull;
  uint64_t events_ = 0;
  std::array<Entry, kKept> last_{};
  std::vector<std::string> violations_;
};

}  // namespace forebay::testing
