// The scripts of the root: that bash can read them, and that the count of cases which ends
// ./forebay test is right.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace forebay::tidy {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::string output;
};

Outcome RunShell(const std::string& command) {
  Outcome outcome;
  FILE* const pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  while (const size_t got = fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, got);
  }
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

TEST(ScriptsTest, BashReadsThem) {
  for (const char* script : {"forebay", ".ci/run"}) {
    const Outcome outcome = RunShell(absl::StrCat("bash -n '" FOREBAY_SOURCE_DIR "/", script, "'"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  }
}

TEST(ScriptsTest, AnUnknownCommandIsAnsweredWithTheKnownOnes) {
  const Outcome outcome = RunShell("'" FOREBAY_SOURCE_DIR "/forebay' no-such-command </dev/null");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("usage: ./forebay COMMAND"));
}

// What one run of ctest left behind.
class CountCasesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
  }
  // `entries`: name and status of each test of ctest.
  void WriteRun(const std::vector<std::pair<std::string, std::string>>& entries) {
    std::string text = "<testsuite>";
    for (const auto& [name, status] : entries) {
      absl::StrAppend(&text, "<testcase name=\"", name, "\" status=\"", status, "\"/>");
    }
    Write("ctest.junit", text + "</testsuite>");
  }
  Outcome Count() {
    return RunShell(absl::StrCat("python3 '" FOREBAY_SOURCE_DIR "/tests/count_cases.py' '",
                                 folder_.string(), "'"));
  }

 private:
  std::filesystem::path folder_;
};

constexpr char kTwoPassed[] =
    "<testsuites><testsuite><testcase name=\"A\" status=\"run\" result=\"completed\"/>"
    "<testcase name=\"B\" status=\"run\" result=\"completed\"/></testsuite></testsuites>";
constexpr char kOneOfEach[] =
    "<testsuites><testsuite><testcase name=\"A\" status=\"run\" result=\"completed\"/>"
    "<testcase name=\"B\" status=\"run\" result=\"completed\"><failure message=\"x\"/></testcase>"
    "<testcase name=\"C\" status=\"run\" result=\"skipped\"/>"
    "<testcase name=\"D\" status=\"notrun\" result=\"suppressed\"/></testsuite></testsuites>";

TEST_F(CountCasesTest, AddsUpProgramsAndScripts) {
  Write("base_a_test.xml", kTwoPassed);
  Write("base_a_test_1.xml", kTwoPassed);  // the same program, run a second time
  WriteRun({{"base.a_test", "run"}, {"e2e.script", "run"}});
  const Outcome outcome = Count();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, EndsWith("5 passed, 0 failed\n"));
}

TEST_F(CountCasesTest, AFailedCaseIsCountedOnce) {
  Write("base_a_test.xml", kOneOfEach);
  WriteRun({{"base.a_test", "fail"}});
  const Outcome outcome = Count();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.output, EndsWith("1 passed, 1 failed, 1 skipped\n"));
}

// A program that crashed wrote nothing, or wrote only what had passed by then.
TEST_F(CountCasesTest, ACrashIsAFailure) {
  Write("base_b_test.xml", kTwoPassed);
  WriteRun({{"base.a_test", "fail"}, {"base.b_test", "fail"}});
  const Outcome outcome = Count();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.output, EndsWith("2 passed, 2 failed\n"));
}

TEST_F(CountCasesTest, NothingRunIsAFailure) {
  WriteRun({});
  EXPECT_EQ(Count().exit_code, 1);
}

}  // namespace
}  // namespace forebay::tidy
