#include "base/clock.h"

#include <ctime>

#include "base/check.h"

namespace forebay {

Nanos SystemClock::Now() const {
  timespec now;
  FB_CHECK(clock_gettime(CLOCK_BOOTTIME, &now) == 0);
  return static_cast<Nanos>(now.tv_sec) * kSecond + now.tv_nsec;
}

}  // namespace forebay
