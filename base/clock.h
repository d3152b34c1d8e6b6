#pragma once

#include <cstdint>

namespace forebay {

// Nanoseconds. Points in time are nanoseconds since an arbitrary origin, the same for one Clock.
using Nanos = int64_t;

inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;
inline constexpr Nanos kForever = INT64_MAX;

// Where the core reads the time. It never reads a system clock itself, so that a simulation can own
// the time of every node.
//
// Threads  Now() may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos Now() const = 0;
};

// CLOCK_BOOTTIME: it counts suspend, so that a lease cannot outlive a machine that slept.
class SystemClock final : public Clock {
 public:
  Nanos Now() const override;
};

}  // namespace forebay
