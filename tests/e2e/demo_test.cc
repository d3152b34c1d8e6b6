// The main job as a newcomer sees it: the demo, with real daemons and real workers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/testing/status_matchers.h"
#include "tests/e2e/pool_user.h"

namespace forebay::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The worker's arithmetic takes ten times as long where each access is checked.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr Nanos kDemoLimit = 300 * kSecond;
#else
constexpr Nanos kDemoLimit = 50 * kSecond;
#endif

absl::StatusOr<ProgramOutcome> Demo(const TemporaryFolder& folder, const std::string& path,
                                    const std::string& programs, const std::string& generate) {
  return RunProgram(folder,
                    {"/bin/bash", FOREBAY_SOURCE_DIR "/examples/demo/demo.sh", "--path=" + path,
                     "--generate=" + generate},
                    kDemoLimit, {{"FOREBAY_BIN", programs}});
}

void ExpectDemoGood(const std::string& path) {
  const TemporaryFolder folder;
  const auto outcome = Demo(folder, path, ProgramFolder(), "32");
  FB_ASSERT_OK(outcome);
  EXPECT_EQ(outcome->exit_code, 0) << outcome->output;
  EXPECT_THAT(outcome->output,
              AllOf(HasSubstr("pool:    3 daemons at 127.0.0.1:"), HasSubstr("path: " + path),
                    HasSubstr("equal:   tokens and logits, bit for bit"),
                    HasSubstr("bytes over " + path + "\n"), HasSubstr("ms without the pool"),
                    HasSubstr("demo: 3 prompts, all equal")));
  int equal_count = 0;
  for (const absl::string_view line : absl::StrSplit(outcome->output, '\n')) {
    if (line == "equal:   tokens and logits, bit for bit") ++equal_count;
  }
  EXPECT_EQ(equal_count, 3) << outcome->output;
}

TEST(DemoTest, PrefillAndDecodeAgreeOverTheSameHost) { ExpectDemoGood("local"); }
TEST(DemoTest, PrefillAndDecodeAgreeOverTcp) { ExpectDemoGood("tcp"); }

// The programs under test, with `name` replaced by a script that runs the real one.
class DoctoredPrograms {
 public:
  DoctoredPrograms(const std::string& name, const std::string& script) {
    for (const char* program : {"forebayd", "forebayctl", "forebay-worker"}) {
      if (program == name) continue;
      std::filesystem::create_symlink(ProgramFolder() + "/" + program, folder_.File(program));
    }
    EXPECT_TRUE(WriteTextFile(folder_.File(name),
                              "#!/bin/bash\nreal=" + ProgramFolder() + "/" + name + "\n" + script)
                    .ok());
    EXPECT_EQ(chmod(folder_.File(name).c_str(), 0755), 0);
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

// Runs the real worker, then edits what the decode role says.
constexpr char kEditDecode[] = R"(
"$real" "$@" || exit
role= result=
for ((i = 1; i <= $#; ++i)); do
    next=$((i + 1))
    [ "${!i}" = --role ] && role=${!next}
    [ "${!i}" = --result ] && result=${!next}
done
[ "$role" != decode ] || sed -i "$FOREBAY_TEST_EDIT" "$result"
)";

// Negative controls: a demo that cannot fail shows nothing.
TEST(DemoTest, OneOtherTokenFailsIt) {
  const DoctoredPrograms programs(
      "forebay-worker",
      "FOREBAY_TEST_EDIT='s/^\\(tokens=.*,\\)[0-9]*$/\\1256/'\n" + std::string(kEditDecode));
  const TemporaryFolder folder;
  const auto outcome = Demo(folder, "local", programs.path(), "8");
  FB_ASSERT_OK(outcome);
  EXPECT_EQ(outcome->exit_code, 1);
  EXPECT_THAT(outcome->output, AllOf(HasSubstr("the tokens differ"), Not(HasSubstr("all equal"))));
}

TEST(DemoTest, OtherLogitsBehindEqualTokensFailIt) {
  const DoctoredPrograms programs(
      "forebay-worker",
      "FOREBAY_TEST_EDIT='s/^logits_hash=.*/logits_hash=0/'\n" + std::string(kEditDecode));
  const TemporaryFolder folder;
  const auto outcome = Demo(folder, "local", programs.path(), "8");
  FB_ASSERT_OK(outcome);
  EXPECT_EQ(outcome->exit_code, 1);
  EXPECT_THAT(outcome->output, HasSubstr("the logits are not"));
}

// Daemons that lose every put: the decode worker has nothing to fetch, and the demo says so.
TEST(DemoTest, DaemonsThatStoreNothingFailIt) {
#if !defined(FOREBAY_FAILPOINTS)
  GTEST_SKIP() << "built without failpoints";
#endif
  const DoctoredPrograms programs(
      "forebayd",
      "FOREBAY_FAILPOINTS_ARM=server.put.landed=error:UNAVAILABLE exec \"$real\" \"$@\"\n");
  const TemporaryFolder folder;
  const auto outcome = Demo(folder, "tcp", programs.path(), "8");
  FB_ASSERT_OK(outcome);
  EXPECT_EQ(outcome->exit_code, 1);
  EXPECT_THAT(outcome->output, HasSubstr("no page was fetched"));
}

// name=value lines of a worker's --result.
std::map<std::string, std::string> ResultOf(const std::string& file) {
  std::map<std::string, std::string> values;
  const absl::StatusOr<std::string> text = ReadTextFile(file);
  EXPECT_TRUE(text.ok()) << text.status();
  if (!text.ok()) return values;
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    values.insert(absl::StrSplit(line, absl::MaxSplits('=', 1)));
  }
  return values;
}

class SecondModelTest : public ::testing::TestWithParam<const char*> {};

// A model that this project did not train, of another shape and vocabulary.
TEST_P(SecondModelTest, PrefillAndDecodeAgree) {
  const std::string model = FOREBAY_SOURCE_DIR "/../shared/data/models/stories260K.bin";
  if (!std::filesystem::exists(model)) GTEST_SKIP() << model << " is not here";
  const std::string path = GetParam();
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<DaemonProcess>> daemons;
  std::vector<std::string> controls;
  for (const char* name : {"one", "two", "three"}) {
    DaemonProcess::Options options;
    options.name = name;
    auto daemon = DaemonProcess::Start(folder, options);
    FB_ASSERT_OK(daemon);
    controls.push_back((*daemon)->control());
    daemons.push_back(*std::move(daemon));
  }
  // A few sentences' worth of ids below the vocabulary of 512, after the model's BOS.
  std::vector<uint32_t> tokens = {1};
  for (uint32_t i = 1; i < 200; ++i) tokens.push_back(3 + (i * 37 + i * i * 11) % 500);
  const auto run = [&](const std::string& role, const std::string& more) {
    const auto outcome = RunProgram(
        folder,
        {ProgramFolder() + "/forebay-worker", "--model", model, "--daemons",
         absl::StrJoin(controls, ","), "--role", role, "--path", path, "--tokens",
         absl::StrJoin(tokens, ","), "--generate", "24", "--result", folder.File(role), more},
        kDemoLimit);
    EXPECT_TRUE(outcome.ok() && outcome->exit_code == 0)
        << (outcome.ok() ? outcome->output : outcome.status().ToString());
    return ResultOf(folder.File(role));
  };
  auto prefill = run("prefill", "--always-fetch");
  auto decode = run("decode", "--always-fetch");
  EXPECT_EQ(prefill["tokens"], decode["tokens"]);
  EXPECT_EQ(absl::StrSplit(prefill["tokens"], ',').begin()->empty(), false);
  EXPECT_EQ(prefill["logits_hash"], decode["logits_hash"]);
  EXPECT_EQ(prefill["published_pages"], "12");
  uint32_t fetched = 0;
  EXPECT_TRUE(absl::SimpleAtoi(decode["fetched_pages"], &fetched));
  EXPECT_GT(fetched, 0u);
  EXPECT_EQ(decode["path"], path);
}

INSTANTIATE_TEST_SUITE_P(Paths, SecondModelTest, ::testing::Values("local", "tcp"));

}  // namespace
}  // namespace forebay::testing
