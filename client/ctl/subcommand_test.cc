#include "client/ctl/subcommand.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/testing/status_matchers.h"

namespace forebay::ctl {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

struct Outcome {
  int code;
  std::string out, err;
};

Outcome RunWith(std::vector<std::string> args) {
  std::ostringstream out, err;
  const int code = Run(args, out, err);
  return {code, out.str(), err.str()};
}

TEST(SubcommandTest, HelpNamesEverySubcommand) {
  const Outcome outcome = RunWith({"--help"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* name : {"status", "namespaces", "lookup", "explain codec", "config check",
                           "config show", "metrics", "bench"}) {
    EXPECT_THAT(outcome.out, HasSubstr(name));
  }
}

TEST(SubcommandTest, NothingAtAllIsWrongUseAndShowsTheHelp) {
  const Outcome outcome = RunWith({});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("usage:"));
}

TEST(SubcommandTest, AMistypedSubcommandGetsTheNearest) {
  const Outcome outcome = RunWith({"statsu"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("did you mean 'status'?"));
}

TEST(SubcommandTest, AMistypedFlagGetsTheNearest) {
  const Outcome outcome = RunWith({"status", "--deamon", "127.0.0.1:1"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("did you mean '--daemon'?"));
}

TEST(SubcommandTest, ASubcommandsHelpNamesItsFlags) {
  const Outcome outcome = RunWith({"lookup", "--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("--namespace ID"));
  EXPECT_THAT(outcome.out, HasSubstr("--json"));
}

TEST(SubcommandTest, ADaemonThatIsNotThereIsNamed) {
  const Outcome outcome = RunWith({"--daemon", "127.0.0.1:1", "--deadline-ms", "2000", "status"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("127.0.0.1:1"));
}

TEST(SubcommandTest, AFlagWithoutItsValueSaysWhatItTakes) {
  const Outcome outcome = RunWith({"status", "--daemon"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--daemon needs a value"));
}

TEST(SubcommandTest, TokensThatAreNoNumbersAreNamed) {
  const Outcome outcome = RunWith({"lookup", "--namespace", "1", "1,2,x3"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("token 2 is 'x3'"));
}

TEST(SubcommandTest, ConfigCheckReportsEveryFaultAtOnce) {
  const std::string path = ::testing::TempDir() + "/faulty.textproto";
  std::ofstream(path) << "nod: \"x\"\nlog_level: \"loud\"\neviction_policy: \"oracle\"\n";
  const Outcome outcome = RunWith({"config", "check", path});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("nod"));
}

TEST(SubcommandTest, ConfigCheckSaysOk) {
  const std::string path = ::testing::TempDir() + "/sound.textproto";
  std::ofstream(path) << "node: \"x\"\n";
  const Outcome outcome = RunWith({"config", "check", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, path + ": ok\n");
}

TEST(FlagsTest, NumbersAreBounded) {
  const std::vector<Flag> known = {{"--pages", "N", "how many"}};
  const absl::StatusOr<Flags> flags = Flags::Parse({"--pages=70"}, known);
  FB_ASSERT_OK(flags);
  EXPECT_EQ(*flags->Number("--pages", 1, 1, 100), 70u);
  EXPECT_THAT(flags->Number("--pages", 1, 1, 64),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("from 1 to 64, not '70'")));
}

TEST(FlagsTest, ASwitchTakesNoValue) {
  const std::vector<Flag> known = {{"--json", "", ""}};
  EXPECT_THAT(Flags::Parse({"--json=1"}, known),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("takes no value")));
}

TEST(TextTest, BytesArePrintedForPeople) {
  EXPECT_EQ(HumanBytes(17), "17 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(3ull << 30), "3.0 GiB");
}

TEST(TextTest, JsonTextIsEscaped) { EXPECT_EQ(JsonQuote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\""); }

}  // namespace
}  // namespace forebay::ctl
