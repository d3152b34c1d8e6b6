#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/testing/status_matchers.h"
#include "proto/pool_config.h"
#include "tiers/eviction_policy.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

MachineFacts Machine() {
  MachineFacts machine;
  machine.host_name = "rack7";
  machine.memory_bytes = uint64_t{16} << 30;
  machine.uid = 1000;
  return machine;
}

TEST(ConfigTest, EveryDefaultIsSpelledOut) {
  v1::PoolConfig config;
  FillDefaults(Machine(), &config);
  const std::string shown = ShowConfig(config);
  EXPECT_THAT(shown, HasSubstr("node: \"rack7\""));
  EXPECT_THAT(shown, HasSubstr("control_address: \"127.0.0.1:7400\""));
  EXPECT_THAT(shown, HasSubstr("tcp_address: \"127.0.0.1:7470\""));
  EXPECT_THAT(shown, HasSubstr("capacity_bytes: 2147483648"));
  EXPECT_THAT(shown, HasSubstr("huge_pages: true"));
  EXPECT_THAT(shown, HasSubstr("lease_ms_max: 30000"));
  EXPECT_THAT(shown, HasSubstr("eviction_policy: \"s3fifo\""));
  EXPECT_THAT(FaultsOf(config), ::testing::IsEmpty());
  // And it is a configuration itself.
  FB_EXPECT_OK(ParsePoolConfig(shown, "shown"));
}

TEST(ConfigTest, WhatIsSaidStays) {
  v1::PoolConfig config = *ParsePoolConfig(
      R"(node: "a" dram { capacity_bytes: 67108864 } data_plane { tcp_address: "" })", "f");
  FillDefaults(Machine(), &config);
  EXPECT_EQ(config.node(), "a");
  EXPECT_EQ(config.dram().capacity_bytes(), 67'108'864u);
  EXPECT_TRUE(config.data_plane().has_tcp_address());
  EXPECT_EQ(config.data_plane().tcp_address(), "");
}

TEST(ConfigTest, TheDefaultPoolIsAShareOfMemoryInWholeSlabs) {
  MachineFacts machine = Machine();
  const auto capacity = [&](uint64_t memory_bytes) {
    machine.memory_bytes = memory_bytes;
    v1::PoolConfig config;
    FillDefaults(machine, &config);
    return config.dram().capacity_bytes();
  };
  const uint64_t slab_bytes = v1::Dram().slab_bytes();
  EXPECT_EQ(capacity(uint64_t{1} << 40), uint64_t{4} << 30);
  EXPECT_EQ(capacity(uint64_t{1} << 30), uint64_t{128} << 20);
  EXPECT_EQ(capacity(1), slab_bytes);
  EXPECT_EQ(capacity((uint64_t{1} << 30) + 12345) % slab_bytes, 0u);
}

TEST(ConfigTest, TheSocketLiesWhereItsUserMayWrite) {
  MachineFacts machine = Machine();
  EXPECT_EQ(DefaultSocketPath(machine, "a", 7400), "/tmp/forebay-1000/a-7400.sock");
  machine.runtime_dir = "/run/user/1000";
  EXPECT_EQ(DefaultSocketPath(machine, "a", 7400), "/run/user/1000/forebay/a-7400.sock");
  machine.uid = 0;
  EXPECT_EQ(DefaultSocketPath(machine, "a", 7400), "/run/forebay/a-7400.sock");
}

TEST(ConfigTest, TheMachineTellsOfItself) {
  const MachineFacts machine = MachineFacts::Read();
  EXPECT_FALSE(machine.host_name.empty());
  EXPECT_GT(machine.memory_bytes, uint64_t{1} << 26);
  EXPECT_LT(machine.memory_bytes, uint64_t{1} << 50);
}

TEST(ConfigTest, NodeOptionsAreTheConfigurations) {
  v1::PoolConfig config = *ParsePoolConfig(
      R"(node: "a" eviction_policy: "lru" limits { puts_per_session_max: 7 session_idle_ms: 9 }
         tenants { name: "t" secret: "0123456789abcdef" token: "fedcba9876543210" })",
      "f");
  FillDefaults(Machine(), &config);
  const absl::StatusOr<PoolNodeOptions> options = NodeOptionsOf(config);
  FB_ASSERT_OK(options);
  EXPECT_EQ(options->node, "a");
  EXPECT_EQ(options->eviction_policy, "lru");
  EXPECT_EQ(options->limits.puts_per_session_max, 7u);
  EXPECT_EQ(options->limits.session_idle_ms, 9u);
  EXPECT_EQ(options->limits.sessions_max, 1024u);
  ASSERT_EQ(options->tenants.size(), 1u);
  EXPECT_EQ(options->tenants[0].secret, "0123456789abcdef");
  EXPECT_THAT(ShowConfig(config), AllOf(HasSubstr("(set)"), Not(HasSubstr("0123456789abcdef")),
                                        Not(HasSubstr("fedcba9876543210"))));
}

TEST(ConfigTest, SecretsComeFromFilesAndEveryFaultOfThemIsNamed) {
  const std::string folder = ::testing::TempDir();
  const std::string good = folder + "/good";
  const std::string small = folder + "/small";
  std::ofstream(good) << "a secret of many bytes\n";
  std::ofstream(small) << "few\n";
  v1::PoolConfig config;
  v1::Tenant* a = config.add_tenants();
  a->set_name("a");
  a->set_secret_file(good);
  a->set_token_file(small);
  v1::Tenant* b = config.add_tenants();
  b->set_name("b");
  b->set_secret_file(folder + "/none");
  b->set_token("0123456789abcdef");
  FillDefaults(Machine(), &config);
  EXPECT_THAT(NodeOptionsOf(config),
              HasStatus(absl::StatusCode::kInvalidArgument,
                        AllOf(HasSubstr("tenant a: "), HasSubstr("holds 3 bytes"),
                              HasSubstr("tenant b: cannot read"))));
  a->set_token_file(good);
  b->set_secret_file(good);
  const absl::StatusOr<PoolNodeOptions> options = NodeOptionsOf(config);
  FB_ASSERT_OK(options);
  EXPECT_EQ(options->tenants[0].secret, "a secret of many bytes");
}

TEST(ConfigTest, EveryPolicyThatAConfigurationMayNameExists) {
  for (const char* name : {"s3fifo", "lru"}) FB_EXPECT_OK(MakeEvictionPolicy(name));
}

TEST(ConfigTest, TheSamplesInDeployAreConfigurations) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FOREBAY_SOURCE_DIR "/deploy")) {
    if (entry.path().extension() != ".textproto") continue;
    FB_EXPECT_OK(LoadPoolConfig(entry.path().string()));
    ++count;
  }
  EXPECT_GE(count, 3);
}

}  // namespace
}  // namespace forebay
