// forebayctl against live daemons, as an operator and a script use it.

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/testing/status_matchers.h"
#include "tests/e2e/pool_user.h"

namespace forebay::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Nanos kLimit = 30 * kSecond;
constexpr char kFirstToken[] = "token-of-the-first-tenant";
constexpr char kSecondToken[] = "token-of-the-second-tenant";

using Json = google::protobuf::Struct;

// One JSON object, by protobuf's own parser.
absl::StatusOr<Json> ParseJson(const std::string& text) {
  Json json;
  const auto status = google::protobuf::util::JsonStringToMessage(text, &json);
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(status.message()), ": ", text));
  }
  return json;
}

class CtlTest : public ::testing::Test {
 protected:
  absl::StatusOr<ProgramOutcome> Ctl(std::vector<std::string> words,
                                     const std::map<std::string, std::string>& environment = {}) {
    words.insert(words.begin(), ProgramFolder() + "/forebayctl");
    return RunProgram(folder_, std::move(words), kLimit, environment);
  }
  // The output of a run that must end well, JSON or text.
  std::string Good(std::vector<std::string> words) {
    const auto outcome = Ctl(std::move(words));
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    if (!outcome.ok()) return "";
    EXPECT_EQ(outcome->exit_code, 0) << outcome->output;
    return outcome->output;
  }
  Json GoodJson(std::vector<std::string> words) {
    words.push_back("--json");
    const auto json = ParseJson(Good(std::move(words)));
    EXPECT_TRUE(json.ok()) << json.status();
    return json.ok() ? *json : Json();
  }
  void StartDaemon(const std::string& more = "") {
    DaemonProcess::Options options;
    options.extra_config = more;
    auto daemon = DaemonProcess::Start(folder_, options);
    FB_ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
  }
  const std::string& control() const { return daemon_->control(); }

  TemporaryFolder folder_;
  std::unique_ptr<DaemonProcess> daemon_;
};

std::string Text(const Json& json, const std::string& name) {
  const auto found = json.fields().find(name);
  return found == json.fields().end() ? "(absent)" : found->second.string_value();
}
double Number(const Json& json, const std::string& name) {
  const auto found = json.fields().find(name);
  return found == json.fields().end() ? -1 : found->second.number_value();
}

TEST_F(CtlTest, TellsWhatALiveDaemonHolds) {
  StartDaemon();
  FB_ASSERT_OK(RoundTrip(control()));
  EXPECT_THAT(Good({"status", "--daemon", control()}),
              AllOf(HasSubstr("node        daemon"), HasSubstr("serving"), HasSubstr("8 complete"),
                    HasSubstr("0 filling")));
  const Json status = GoodJson({"status", "--daemon", control()});
  EXPECT_EQ(Text(status, "node"), "daemon");
  EXPECT_EQ(Text(status, "complete_pages"), "8");  // 64-bit numbers are text in JSON
  EXPECT_EQ(Text(status, "boot_epoch_hex").size(), 32u);

  EXPECT_THAT(Good({"namespaces", "--daemon", control()}),
              AllOf(HasSubstr("round-trip"), HasSubstr("tenant default")));
  const Json namespaces = GoodJson({"namespaces", "--daemon", control()});
  ASSERT_EQ(namespaces.fields().at("namespaces").list_value().values_size(), 1);
  EXPECT_EQ(
      Text(namespaces.fields().at("namespaces").list_value().values(0).struct_value(), "model"),
      "round-trip");

  EXPECT_THAT(Good({"config", "show", "--daemon", control()}),
              AllOf(HasSubstr("capacity_bytes: 134217728"), HasSubstr("eviction_policy")));
  EXPECT_THAT(Text(GoodJson({"config", "show", "--daemon", control()}), "textproto"),
              HasSubstr("capacity_bytes: 134217728"));

  EXPECT_THAT(Good({"metrics", "--daemon", control()}),
              AllOf(HasSubstr("# TYPE forebay_pages gauge"), HasSubstr("forebay_pages 8\n")));
  EXPECT_EQ(Number(GoodJson({"metrics", "forebay_pages", "--daemon", control()}), "forebay_pages"),
            8);

  EXPECT_THAT(Good({"bench", "--pages", "4", "--daemon", control()}),
              AllOf(HasSubstr("publish"), HasSubstr("each byte compared")));
  for (const std::string path : {"local", "tcp"}) {
    const Json bench = GoodJson({"bench", "--pages", "4", "--path", path, "--daemon", control()});
    EXPECT_EQ(Text(bench, "path"), path);
    EXPECT_GT(Number(bench, "fetch_gb_s"), 0);
    EXPECT_EQ(Text(bench, "evidence"), "measured");
  }
}

TEST_F(CtlTest, LooksUpWhatAPrefillWorkerPublished) {
  StartDaemon();
  const std::string prompt = FOREBAY_SOURCE_DIR "/examples/demo/prompts/";
  const auto text = RunProgram(folder_, {"/bin/ls", prompt}, kLimit);
  FB_ASSERT_OK(text);
  const std::string file = prompt + text->output.substr(0, text->output.find('\n'));
  const auto bytes = ReadTextFile(file);
  FB_ASSERT_OK(bytes);
  const auto worker = RunProgram(folder_,
                                 {ProgramFolder() + "/forebay-worker", "--model",
                                  FOREBAY_SOURCE_DIR "/examples/models/forebay_tiny.bin",
                                  "--daemons", control(), "--prompt-file", file, "--generate", "1"},
                                 kLimit);
  FB_ASSERT_OK(worker);
  ASSERT_EQ(worker->exit_code, 0) << worker->output;
  const size_t pages = bytes->size() / 16;

  const Json namespaces = GoodJson({"namespaces", "--daemon", control()});
  ASSERT_EQ(namespaces.fields().at("namespaces").list_value().values_size(), 1);
  const std::string id = absl::StrCat(Number(
      namespaces.fields().at("namespaces").list_value().values(0).struct_value(), "namespace_id"));
  const auto expect_hit = [&](std::vector<std::string> words, size_t token_count) {
    words.insert(words.end(), {"--daemon", control(), "--namespace", id});
    const Json lookup = GoodJson(words);
    EXPECT_EQ(Number(lookup, "tokens"), static_cast<double>(token_count));
    EXPECT_EQ(Number(lookup, "pages"), static_cast<double>(token_count / 16));
    EXPECT_EQ(Number(lookup, "hit_pages"), static_cast<double>(token_count / 16));
  };
  expect_hit({"lookup", "--bytes", "--file", file}, bytes->size());
  std::vector<int> ids;
  for (const char c : *bytes) ids.push_back(static_cast<uint8_t>(c));
  FB_ASSERT_OK(WriteTextFile(folder_.File("ids"), absl::StrJoin(ids, "\n")));
  expect_hit({"lookup", "--file", folder_.File("ids")}, bytes->size());
  ids.resize(40);
  expect_hit({"lookup", absl::StrJoin(ids, ",")}, 40);
  EXPECT_THAT(Good({"lookup", "--bytes", "--file", file, "--namespace", id, "--daemon", control()}),
              HasSubstr(absl::StrCat(pages, " of ", pages, " full pages are in the pool")));
  // One other token in the second page.
  ids[20] ^= 1;
  const Json other =
      GoodJson({"lookup", absl::StrJoin(ids, ","), "--namespace", id, "--daemon", control()});
  EXPECT_EQ(Number(other, "hit_pages"), 1);
}

TEST_F(CtlTest, ErrorsSayWhatIsWrong) {
  StartDaemon();
  const auto wrong = Ctl({"lookup", "1,2,3", "--namespace", "77", "--daemon", control()});
  FB_ASSERT_OK(wrong);
  EXPECT_EQ(wrong->exit_code, 1);
  EXPECT_THAT(wrong->output, AllOf(HasSubstr("no namespace 77"), HasSubstr("namespaces")));
  const auto no_token = Ctl({"lookup", "1,x", "--namespace", "1", "--daemon", control()});
  FB_ASSERT_OK(no_token);
  EXPECT_EQ(no_token->exit_code, 2);
  EXPECT_THAT(no_token->output, HasSubstr("'x'"));

  const std::string address = control();
  daemon_.reset();
  for (const char* subcommand : {"status", "namespaces", "metrics"}) {
    const auto down = Ctl({subcommand, "--daemon", address, "--deadline-ms", "2000"});
    FB_ASSERT_OK(down);
    EXPECT_EQ(down->exit_code, 1);
    EXPECT_THAT(down->output, HasSubstr(address));
  }
}

// A tool finds its daemon though the environment names a proxy.
TEST_F(CtlTest, IgnoresAProxyOfTheEnvironment) {
  StartDaemon();
  const auto outcome = Ctl({"status", "--daemon", control(), "--deadline-ms", "5000"},
                           {{"http_proxy", "http://127.0.0.1:9"}, {"no_proxy", ""}});
  FB_ASSERT_OK(outcome);
  EXPECT_EQ(outcome->exit_code, 0) << outcome->output;
}

TEST_F(CtlTest, TenantsNeverSeeEachOthersPages) {
  StartDaemon(absl::StrCat("tenants { name: \"first\" secret: \"secret-of-the-first\" token: \"",
                           kFirstToken, "\" }\n",
                           "tenants { name: \"second\" secret: \"secret-of-the-second\" token: \"",
                           kSecondToken, "\" }\n"));
  PoolUser::Options options;
  options.daemons = {control()};
  options.token = "not-a-token-of-anybody";
  options.deadline = 5 * kSecond;
  EXPECT_THAT(PoolUser::Open(options).status(), HasCode(absl::StatusCode::kUnauthenticated));
  options.token = "";
  EXPECT_THAT(PoolUser::Open(options).status(), HasCode(absl::StatusCode::kUnauthenticated));

  options.token = kFirstToken;
  auto first = PoolUser::Open(options);
  FB_ASSERT_OK(first);
  options.token = kSecondToken;
  auto second = PoolUser::Open(options);
  FB_ASSERT_OK(second);
  EXPECT_NE(first->ns().root(), second->ns().root());
  const std::vector<uint32_t> tokens = FreshTokens(8 * 16);
  const auto first_keys = PageKeysOf(first->ns().root(), tokens, 16);
  const auto published = first->Publish(first_keys, 20 * kSecond);
  FB_ASSERT_OK(published);
  ASSERT_EQ(published->pages_stored, 8u);
  // The same prompt, and even the very keys of the other.
  for (const auto& keys : {PageKeysOf(second->ns().root(), tokens, 16), first_keys}) {
    const auto read = second->Fetch(keys, 20 * kSecond);
    FB_ASSERT_OK(read);
    EXPECT_EQ(read->hit_pages, 0u);
  }
  const auto own = first->Fetch(first_keys, 20 * kSecond);
  FB_ASSERT_OK(own);
  EXPECT_EQ(own->fetch.page_count, 8u);

  // The tool presents tokens too, and shows no secret.
  const auto wrong = Ctl({"bench", "--pages", "2", "--daemon", control(), "--token",
                          "not-a-token-of-anybody", "--deadline-ms", "3000"});
  FB_ASSERT_OK(wrong);
  EXPECT_EQ(wrong->exit_code, 1);
  EXPECT_THAT(wrong->output, HasSubstr("token"));
  Good({"bench", "--pages", "2", "--daemon", control(), "--token", kFirstToken});
  EXPECT_THAT(Good({"config", "show", "--daemon", control(), "--token", kFirstToken}),
              AllOf(Not(HasSubstr("secret-of-the")), Not(HasSubstr("token-of-the"))));
}

}  // namespace
}  // namespace forebay::testing
