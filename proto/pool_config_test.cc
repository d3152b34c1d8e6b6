#include "proto/pool_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// Protobuf's parser would recurse for each, until the stack ends.
TEST(PoolConfigTest, DeepNestingIsRefusedAndNamesItsLine) {
  std::string deep = "# {{{{\nnode: \"{{{{\"\n";
  for (int i = 0; i < 20'000; ++i) deep += "a{";
  EXPECT_THAT(ParsePoolConfig(deep, "f"), HasStatus(kInvalid, HasSubstr("f:3: messages nest")));
  std::string strings = "node: \"" + std::string(100, '{') + "\" # " + std::string(100, '<');
  EXPECT_THAT(ParsePoolConfig(strings, "f").status().message(), Not(HasSubstr("nest")));
}

TEST(PoolConfigTest, AnEmptyFileIsAConfiguration) {
  FB_EXPECT_OK(ParsePoolConfig("", "empty"));
  EXPECT_THAT(FaultsOf(v1::PoolConfig()), IsEmpty());
}

TEST(PoolConfigTest, NamesEveryUnknownFieldWithItsPlace) {
  const auto config = ParsePoolConfig("nod: \"a\"\nspin_us: 5\ndram { slabs: 4 }\n", "f");
  EXPECT_THAT(config, HasStatus(kInvalid, AllOf(HasSubstr("f:1:"), HasSubstr("\"nod\""),
                                                HasSubstr("f:3:"), HasSubstr("\"slabs\""))));
}

TEST(PoolConfigTest, NamesUnknownFieldsAndBadValuesTogether) {
  const auto config = ParsePoolConfig("nod: 1\nlimits { pinned_percent_max: 101 }\n", "f");
  EXPECT_THAT(config, HasStatus(kInvalid, AllOf(HasSubstr("\"nod\""),
                                                HasSubstr("limits.pinned_percent_max: 101"))));
}

TEST(PoolConfigTest, RefusesAValueOfTheWrongType) {
  EXPECT_THAT(ParsePoolConfig("spin_us: \"soon\"", "f"), HasStatus(kInvalid, HasSubstr("f:1:")));
  EXPECT_THAT(ParsePoolConfig("spin_us: -1", "f"), HasCode(kInvalid));
  EXPECT_THAT(ParsePoolConfig("dram {", "f"), HasCode(kInvalid));
}

TEST(PoolConfigTest, AValueWithALineFeedIsStillOneLine) {
  const auto config = ParsePoolConfig(R"(node: "a\nf: b")", "f");
  EXPECT_THAT(config, HasStatus(kInvalid, HasSubstr("f: node: \"a\\nf: b\": ")));
  EXPECT_THAT(config, HasStatus(kInvalid, Not(HasSubstr("\n"))));
}

TEST(PoolConfigTest, NamesEveryFaultAtOnce) {
  const auto config = ParsePoolConfig(
      R"(node: "a b" control_address: "0.0.0.0:7400" eviction_policy: "mru" log_level: "loud"
         dram { capacity_bytes: 1 slab_bytes: 100001 }
         limits { sessions_max: 0 lease_ms_max: 30001 }
         tenants { name: "a" secret: "short" })",
      "f");
  EXPECT_THAT(
      config,
      HasStatus(kInvalid,
                AllOf(HasSubstr("node:"), HasSubstr("control_address:"),
                      HasSubstr("eviction_policy:"), HasSubstr("log_level:"),
                      HasSubstr("dram.capacity_bytes:"), HasSubstr("dram.slab_bytes:"),
                      HasSubstr("limits.sessions_max:"), HasSubstr("limits.lease_ms_max:"))));
  EXPECT_THAT(config, HasStatus(kInvalid, AllOf(HasSubstr("tenants[0].secret: 5 bytes"),
                                                HasSubstr("tenants[0].token:"))));
}

TEST(PoolConfigTest, TheDataPlaneLeavesTheHostOnlyWhenThatIsAcknowledged) {
  const std::string plane = "tcp_address: \"10.0.0.1:7470\"";
  EXPECT_THAT(ParsePoolConfig("data_plane { " + plane + " }", "f"),
              HasStatus(kInvalid, HasSubstr("insecure_fabric_acknowledged")));
  FB_EXPECT_OK(
      ParsePoolConfig("data_plane { " + plane + " insecure_fabric_acknowledged: true }", "f"));
}

TEST(PoolConfigTest, TheControlPlaneNeverLeavesTheHost) {
  EXPECT_THAT(ParsePoolConfig("control_address: \"10.0.0.1:7400\" "
                              "data_plane { insecure_fabric_acknowledged: true }",
                              "f"),
              HasStatus(kInvalid, HasSubstr("control_address")));
}

TEST(PoolConfigTest, RefusesADaemonWithoutAnyDataPlane) {
  EXPECT_THAT(ParsePoolConfig("data_plane { tcp_address: \"\" local_socket: \"\" }", "f"),
              HasStatus(kInvalid, HasSubstr("turned off")));
}

TEST(PoolConfigTest, TenantsAreToldApart) {
  const std::string tenant = R"(tenants { name: "a" secret: "0123456789abcdef"
                                token: "fedcba9876543210" } )";
  FB_EXPECT_OK(ParsePoolConfig(tenant, "f"));
  EXPECT_THAT(
      ParsePoolConfig(tenant + tenant, "f"),
      HasStatus(kInvalid, AllOf(HasSubstr("tenants[1].name"), HasSubstr("tenants[1].token"))));
  EXPECT_THAT(ParsePoolConfig(R"(tenants { name: "a" secret: "0123456789abcdef" secret_file: "x"
                                 token_file: "y" })",
                              "f"),
              HasStatus(kInvalid, HasSubstr("say one of")));
}

TEST(PoolConfigTest, ParsesAddresses) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:7400")->port, 7400);
  EXPECT_EQ(ParseHostPort("[::1]:0")->host, "::1");
  for (const char* bad : {"", "7400", ":7400", "a:", "a:65536", "a:-1", "::1:5", "a:b"}) {
    EXPECT_THAT(ParseHostPort(bad), HasCode(kInvalid)) << bad;
  }
}

TEST(PoolConfigTest, KnowsLoopbackFromWhatLooksLikeIt) {
  EXPECT_TRUE(IsLoopback("127.8.9.1"));
  EXPECT_TRUE(IsLoopback("localhost"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("127.0.0.1.example.org"));
  EXPECT_FALSE(IsLoopback("128.0.0.1"));
  EXPECT_FALSE(IsLoopback("0.0.0.0"));
}

TEST(PoolConfigTest, SaysWhichFileIsNotThere) {
  EXPECT_THAT(LoadPoolConfig("/nonexistent/pool.textproto"),
              HasStatus(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/pool.textproto")));
}

}  // namespace
}  // namespace forebay
