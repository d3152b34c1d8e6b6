#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Catches what is logged while it lives.
class LogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe2(pipe_, O_CLOEXEC | O_NONBLOCK), 0);
    previous_fd_ = SetLogFd(pipe_[1]);
  }
  void TearDown() override {
    SetLogFd(previous_fd_);
    SetLogLevel(LogLevel::kInfo);
    close(pipe_[0]);
    close(pipe_[1]);
  }
  std::string Take() {
    std::string text(60'000, '\0');
    const ssize_t got = read(pipe_[0], text.data(), text.size());
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
  }

 private:
  int pipe_[2] = {-1, -1};
  int previous_fd_ = -1;
};

TEST_F(LogTest, ALineHasTimeLevelEventAndFields) {
  LogInfo("daemon.ready", {{"address", "tcp:127.0.0.1:7470"}, {"pages", 42}});
  EXPECT_THAT(Take(),
              MatchesRegex("[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:"
                           "[0-9][0-9]\\.[0-9][0-9][0-9]Z info daemon\\.ready "
                           "address=tcp:127\\.0\\.0\\.1:7470 pages=42\n"));
  LogWarning("w");
  EXPECT_THAT(Take(), EndsWith(" warning w\n"));
  LogError("e");
  EXPECT_THAT(Take(), EndsWith(" error e\n"));
}

// A peer that names itself with a line feed must not write a line of its own.
TEST_F(LogTest, ValuesThatCouldConfuseAreQuoted) {
  LogInfo("e", {{"a", ""}, {"b", "two words"}, {"c", "x=\"y\\"}, {"d", "1\n2\x01\xff"}});
  EXPECT_THAT(Take(), EndsWith(" a=\"\" b=\"two words\" c=\"x=\\\"y\\\\\" "
                               "d=\"1\\n2\\x01\\xff\"\n"));
}

TEST_F(LogTest, ALongValueIsCut) {
  LogInfo("e", {{"a", std::string(5000, 'x')}});
  const std::string line = Take();
  EXPECT_LT(line.size(), 600u);
  EXPECT_THAT(line, EndsWith("x...\"\n"));
}

TEST_F(LogTest, LowerLevelsAreLeftOut) {
  Log(LogLevel::kDebug, "quiet");
  EXPECT_EQ(Take(), "");
  SetLogLevel(LogLevel::kDebug);
  EXPECT_EQ(GetLogLevel(), LogLevel::kDebug);
  Log(LogLevel::kDebug, "loud");
  EXPECT_THAT(Take(), HasSubstr(" debug loud\n"));
  SetLogLevel(LogLevel::kError);
  LogWarning("quiet");
  EXPECT_EQ(Take(), "");
}

TEST_F(LogTest, LinesOfManyThreadsStayWhole) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) LogInfo("event", {{"value", "abcdefghij"}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = Take();
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 200u);
  for (const std::string& line : lines) {
    EXPECT_THAT(line, EndsWith("Z info event value=abcdefghij"));
    EXPECT_EQ(line.size(), lines[0].size());
  }
}

TEST_F(LogTest, ADescriptorThatCannotBeWrittenIsNoFault) {
  const int fd = SetLogFd(-1);
  LogInfo("lost");
  SetLogFd(fd);
  EXPECT_EQ(Take(), "");
}

TEST(LogLevelTest, ParsesItsNames) {
  EXPECT_EQ(ParseLogLevel("debug").value(), LogLevel::kDebug);
  EXPECT_EQ(ParseLogLevel("error").value(), LogLevel::kError);
  EXPECT_THAT(ParseLogLevel("loud"), HasCode(absl::StatusCode::kInvalidArgument));
}

TEST(LogLimiterTest, LetsABurstThroughThenOneAnInterval) {
  LogLimiter limiter(/*interval_ns=*/100, /*burst=*/2);
  EXPECT_TRUE(limiter.Allow(0));
  EXPECT_TRUE(limiter.Allow(0));
  EXPECT_FALSE(limiter.Allow(99));
  EXPECT_TRUE(limiter.Allow(100));
  EXPECT_FALSE(limiter.Allow(150));
  EXPECT_TRUE(limiter.Allow(200));
  EXPECT_EQ(limiter.suppressed(), 2u);
}

}  // namespace
}  // namespace forebay
