#pragma once

#include "base/clock.h"

namespace forebay::testing {

// A clock that stands still until it is told.
class ManualClock final : public Clock {
 public:
  Nanos Now() const override { return now_; }
  void Advance(Nanos by) { now_ += by; }
  void Set(Nanos now) { now_ = now; }

 private:
  Nanos now_ = kSecond;
};

}  // namespace forebay::testing
