#include "base/check.h"

#include <gtest/gtest.h>

namespace forebay {
namespace {

TEST(CheckTest, PassesWhatHoldsAndEvaluatesItOnce) {
  int evaluated = 0;
  FB_CHECK(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckDeathTest, AbortsWithFileLineAndCondition) {
  EXPECT_DEATH(FB_CHECK(1 + 1 == 3), "check_test.cc:[0-9]+: check failed: 1 \\+ 1 == 3");
}

}  // namespace
}  // namespace forebay
