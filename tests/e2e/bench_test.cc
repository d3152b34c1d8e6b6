// That each bench runs and says what it measured: figures that nobody can take any more are found
// missing only by the one who needs them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/testing/status_matchers.h"
#include "tests/e2e/pool_user.h"

namespace forebay::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Nanos kBenchLimit = 100 * kSecond;

absl::StatusOr<ProgramOutcome> Bench(std::vector<std::string> arguments) {
  const TemporaryFolder folder;
  arguments.insert(arguments.begin(), ProgramFolder() + "/forebay-bench");
  return RunProgram(folder, arguments, kBenchLimit, {{"FOREBAY_BIN", ProgramFolder()}});
}

TEST(BenchTest, EachFigureIsThereOnEachPathOfThisBuild) {
  const auto outcome = Bench({"all", "--smoke", "--json"});
  FB_ASSERT_OK(outcome);
  ASSERT_EQ(outcome->exit_code, 0) << outcome->output;
  std::vector<std::string> paths = {"local", "tcp"};
#if defined(FOREBAY_HAVE_UCX)
  paths.push_back("ucx");
#endif
  for (const std::string& path : paths) {
    for (const char* name :
         {"fetch", "publish", "lookup (probe)", "lookup (lease)", "fetch, 1 clients"}) {
      EXPECT_THAT(outcome->output, HasSubstr("{\"name\": \"" + std::string(name) +
                                             "\", \"path\": \"" + path + "\""));
    }
  }
  EXPECT_THAT(outcome->output, AllOf(HasSubstr("\"view\""), HasSubstr("\"index lookup\""),
                                     HasSubstr("\"encode k8v4\"")));
  for (const absl::string_view line : absl::StrSplit(outcome->output, '\n', absl::SkipEmpty())) {
    if (line[0] != '{') continue;  // a line of a log
    EXPECT_THAT(std::string(line), ContainsRegex("\"value\": [0-9.e+]*[1-9]")) << "no figure";
  }
}

// Of each codec and policy a row on the model of this checkout.
TEST(BenchTest, QualityHasARowOfEachCodecAndPolicy) {
  const auto outcome = Bench({"quality", "--smoke", "--json"});
  FB_ASSERT_OK(outcome);
  ASSERT_EQ(outcome->exit_code, 0) << outcome->output;
  for (const char* row :
       {"\"codec\": \"raw\"", "\"codec\": \"int4\"", "\"codec\": \"uniform_4.5b\"",
        "\"policy\": \"streaming\"", "\"policy\": \"h2o\"", "\"policy\": \"snapkv\"",
        "\"deciles\": [", "\"claim\": \"uniform_2.2b beside kivi2: KL\""}) {
    EXPECT_THAT(outcome->output, HasSubstr(row));
  }
}

TEST(BenchTest, RowsCanBeChosenAndAnUnknownOneIsAnError) {
  const auto outcome = Bench({"quality", "--smoke", "--check", "--only=int8,int9", "--json"});
  FB_ASSERT_OK(outcome);
  EXPECT_EQ(outcome->exit_code, 1);
  EXPECT_THAT(outcome->output,
              AllOf(HasSubstr("\"claim\": \"int8: KL\""), HasSubstr("no row is named int9"),
                    Not(HasSubstr("\"codec\": \"raw\""))));
}

TEST(BenchTest, AModelThatIsNotThereIsAnError) {
  const auto outcome = Bench({"quality", "--smoke", "--model=no/such.bin"});
  FB_ASSERT_OK(outcome);
  EXPECT_EQ(outcome->exit_code, 1);
  EXPECT_THAT(outcome->output, HasSubstr("no/such.bin"));
}

TEST(BenchTest, WhatItDoesNotKnowIsAnError) {
  const auto name = Bench({"fetsch"});
  FB_ASSERT_OK(name);
  EXPECT_EQ(name->exit_code, 2);
  EXPECT_THAT(name->output, HasSubstr("no bench 'fetsch'"));
  const auto path = Bench({"fetch", "--smoke", "--path=pigeon"});
  FB_ASSERT_OK(path);
  EXPECT_EQ(path->exit_code, 1);
  EXPECT_THAT(path->output, HasSubstr("pigeon"));
}

}  // namespace
}  // namespace forebay::testing
