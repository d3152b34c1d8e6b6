#include "base/failpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

constexpr char kPoint[] = "base.test.point";

TEST(FailpointTest, AnUnarmedPointPasses) {
  FB_EXPECT_OK(failpoint::Evaluate(kPoint));
  failpoint::ScopedArm other("base.test.other", absl::UnavailableError("x"));
  FB_EXPECT_OK(failpoint::Evaluate(kPoint));
}

TEST(FailpointTest, AScopedArmActsUntilItsEnd) {
  {
    failpoint::ScopedArm arm(kPoint, absl::DataLossError("armed by a test"));
    EXPECT_THAT(failpoint::Evaluate(kPoint),
                HasStatus(absl::StatusCode::kDataLoss, HasSubstr("armed by a test")));
  }
  FB_EXPECT_OK(failpoint::Evaluate(kPoint));
}

TEST(FailpointTest, SkipsThenActsSoManyTimes) {
  failpoint::ScopedArm arm(
      kPoint,
      failpoint::Action{.status = absl::AbortedError("x"), .skip_count = 2, .act_count = 1});
  FB_EXPECT_OK(failpoint::Evaluate(kPoint));
  FB_EXPECT_OK(failpoint::Evaluate(kPoint));
  EXPECT_THAT(failpoint::Evaluate(kPoint), HasCode(absl::StatusCode::kAborted));
  FB_EXPECT_OK(failpoint::Evaluate(kPoint));
  EXPECT_EQ(failpoint::HitCount(kPoint), 4u);
}

// A sweep arms a point so that it never acts, and learns how often it is reached.
TEST(FailpointTest, CountsSinceItWasLastArmed) {
  failpoint::Arm(kPoint, failpoint::Action{.act_count = 0});
  for (int i = 0; i < 3; ++i) FB_EXPECT_OK(failpoint::Evaluate(kPoint));
  failpoint::Disarm(kPoint);
  FB_EXPECT_OK(failpoint::Evaluate(kPoint));
  EXPECT_EQ(failpoint::HitCount(kPoint), 3u);
  failpoint::Arm(kPoint, failpoint::Action{.act_count = 0});
  EXPECT_EQ(failpoint::HitCount(kPoint), 0u);
  failpoint::Disarm(kPoint);
  failpoint::Disarm(kPoint);
  EXPECT_EQ(failpoint::HitCount("base.test.never"), 0u);
}

TEST(FailpointTest, AnErrorWithoutAStatusIsAnErrorStill) {
  failpoint::ScopedArm arm(kPoint, failpoint::Action{});
  EXPECT_THAT(failpoint::Evaluate(kPoint), HasCode(absl::StatusCode::kInternal));
}

#if defined(FOREBAY_FAILPOINTS)
absl::Status FailsWhenArmed() {
  FB_FAILPOINT("base.test.macro");
  return absl::OkStatus();
}

TEST(FailpointTest, MacrosReturnTheStatusOrTellOfIt) {
  FB_EXPECT_OK(FailsWhenArmed());
  EXPECT_FALSE(FB_FAILPOINT_HIT("base.test.hit"));
  failpoint::ScopedArm arm("base.test.macro", absl::UnavailableError("x"));
  failpoint::ScopedArm hit("base.test.hit", absl::UnavailableError("x"));
  EXPECT_THAT(FailsWhenArmed(), HasCode(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(FB_FAILPOINT_HIT("base.test.hit"));
}
#endif

TEST(FailpointTest, ArmsFromText) {
  FB_ASSERT_OK(failpoint::ArmFromText("base.a.x=error:RESOURCE_EXHAUSTED:1; base.b.x=sleep:0;"));
  FB_EXPECT_OK(failpoint::Evaluate("base.a.x"));
  EXPECT_THAT(failpoint::Evaluate("base.a.x"),
              HasStatus(absl::StatusCode::kResourceExhausted, HasSubstr("base.a.x")));
  FB_EXPECT_OK(failpoint::Evaluate("base.b.x"));
  failpoint::Disarm("base.a.x");
  failpoint::Disarm("base.b.x");
  FB_EXPECT_OK(failpoint::ArmFromText(""));
}

// One fault arms nothing: a test that misspells its second point must not run with the first alone.
TEST(FailpointTest, RefusesTextWithAFaultWhole) {
  for (const char* text :
       {"base.ok.x=error:INTERNAL;nonsense", "base.ok.x=error:INTERNAL;=kill",
        "base.ok.x=error:INTERNAL;b=", "base.ok.x=error:INTERNAL;b=explode",
        "base.ok.x=error:INTERNAL;b=error", "base.ok.x=error:INTERNAL;b=error:NO_SUCH_CODE",
        "base.ok.x=error:INTERNAL;b=error:OK", "base.ok.x=error:INTERNAL;b=error:INTERNAL:x",
        "base.ok.x=error:INTERNAL;b=error:INTERNAL:1:2", "base.ok.x=error:INTERNAL;b=sleep:-1",
        "base.ok.x=error:INTERNAL;b=kill:1:2", "base.ok.x=error:INTERNAL;b=sleep"}) {
    EXPECT_THAT(failpoint::ArmFromText(text), HasCode(absl::StatusCode::kInvalidArgument)) << text;
    FB_EXPECT_OK(failpoint::Evaluate("base.ok.x")) << text;
  }
}

TEST(FailpointTest, SleepsAtLeastAsLongAsTold) {
  const SystemClock clock;
  failpoint::ScopedArm arm(
      kPoint, failpoint::Action{.kind = failpoint::Action::Kind::kSleep, .sleep_ns = kMillisecond});
  const Nanos start = clock.Now();
  FB_EXPECT_OK(failpoint::Evaluate(kPoint));
  EXPECT_GE(clock.Now() - start, kMillisecond);
}

TEST(FailpointTest, KillEndsTheProcessAtTheHitThatIsDue) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool armed = failpoint::ArmFromText("base.test.point=kill:1").ok();
    if (!armed || !failpoint::Evaluate(kPoint).ok()) _exit(1);
    static_cast<void>(failpoint::Evaluate(kPoint).ok());
    _exit(2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

TEST(FailpointTest, StopHoldsTheProcessUntilItIsContinued) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    failpoint::Arm(kPoint, failpoint::Action{.kind = failpoint::Action::Kind::kStop});
    _exit(failpoint::Evaluate(kPoint).ok() ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status)) << status;
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

}  // namespace
}  // namespace forebay
