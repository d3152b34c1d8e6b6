#include "base/clock.h"

#include <gtest/gtest.h>

#include "base/testing/manual_clock.h"

namespace forebay {
namespace {

TEST(ClockTest, SystemClockNeverGoesBack) {
  const SystemClock clock;
  Nanos last = clock.Now();
  EXPECT_GT(last, 0);
  for (int i = 0; i < 1000; ++i) {
    const Nanos now = clock.Now();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(ClockTest, ManualClockMovesOnlyWhenTold) {
  testing::ManualClock clock;
  const Nanos start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(kMillisecond);
  EXPECT_EQ(clock.Now(), start + kMillisecond);
  clock.Set(5);
  EXPECT_EQ(clock.Now(), 5);
}

}  // namespace
}  // namespace forebay
