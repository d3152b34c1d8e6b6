#include "server/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(FlagsTest, TakesValuesInBothSpellings) {
  const auto flags =
      ParseDaemonFlags({"--config", "a.textproto", "--node=n1", "--log_level", "debug", "--check"});
  FB_ASSERT_OK(flags);
  EXPECT_EQ(flags->config, "a.textproto");
  EXPECT_EQ(flags->node, "n1");
  EXPECT_EQ(flags->log_level, "debug");
  EXPECT_TRUE(flags->check);
  EXPECT_FALSE(flags->help);
}

TEST(FlagsTest, AnUnknownFlagNamesTheOneThatWasMeant) {
  EXPECT_THAT(ParseDaemonFlags({"--confg", "x"}),
              HasStatus(kInvalid, HasSubstr("did you mean --config?")));
  EXPECT_THAT(ParseDaemonFlags({"--loglevel=debug"}),
              HasStatus(kInvalid, HasSubstr("did you mean --log_level?")));
  EXPECT_THAT(ParseDaemonFlags({"--xyzzy-plugh-abracadabra"}),
              HasStatus(kInvalid, ::testing::Not(HasSubstr("did you mean"))));
}

TEST(FlagsTest, RefusesWhatIsNoFlagAndWhatLacksItsValue) {
  EXPECT_THAT(ParseDaemonFlags({"pool.textproto"}), HasStatus(kInvalid, HasSubstr("--config")));
  EXPECT_THAT(ParseDaemonFlags({"--config"}), HasStatus(kInvalid, HasSubstr("needs a value")));
  EXPECT_THAT(ParseDaemonFlags({"--check=yes"}), HasStatus(kInvalid, HasSubstr("no value")));
}

TEST(FlagsTest, HelpNamesEveryFlag) {
  for (const char* name :
       {"--config", "--node", "--log_level", "--ready_file", "--check", "--version", "--help"}) {
    EXPECT_THAT(DaemonUsage(), HasSubstr(name));
  }
}

}  // namespace
}  // namespace forebay
