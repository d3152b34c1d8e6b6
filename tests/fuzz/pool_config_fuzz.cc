// Configuration text: every refusal says in which file, line by line; what is accepted can be
// printed and read again, and is the same.

#include <google/protobuf/text_format.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "proto/pool_config.h"
#include "tests/fuzz/fuzz_target.h"

namespace forebay::fuzz {
namespace {

constexpr absl::string_view kName = "fuzz.textproto";

void CheckRefusal(const absl::Status& refusal) {
  FB_CHECK(refusal.code() == absl::StatusCode::kInvalidArgument);
  FB_CHECK(!refusal.message().empty());
  // One fault a line: what a value holds does not look like another fault.
  const std::string prefix = absl::StrCat(kName, ":");
  for (const absl::string_view line : absl::StrSplit(refusal.message(), '\n')) {
    FB_CHECK(absl::StartsWith(line, prefix));
    FB_CHECK(line.size() > prefix.size() + 1);
  }
}

void CheckOne(absl::string_view text) {
  const absl::StatusOr<v1::PoolConfig> config = ParsePoolConfig(text, kName);
  if (!config.ok()) return CheckRefusal(config.status());
  FB_CHECK(FaultsOf(*config).empty());

  std::string printed;
  FB_CHECK(google::protobuf::TextFormat::PrintToString(*config, &printed));
  const absl::StatusOr<v1::PoolConfig> again = ParsePoolConfig(printed, "printed");
  FB_CHECK(again.ok());
  FB_CHECK(again->SerializeAsString() == config->SerializeAsString());

  // Addresses that were accepted are addresses.
  FB_CHECK(IsLoopback(ParseHostPort(config->control_address())->host));
}

}  // namespace

std::vector<std::string> Seeds() {
  return {
      "",
      "# a comment\nnode: \"node0\"\ncontrol_address: \"[::1]:0\"\nlog_level: \"debug\"\n",
      R"(node: "n-1.a_b" control_address: "localhost:7400"
         data_plane { tcp_address: "127.0.0.1:7470" local_socket: "/run/forebay/a.sock"
                      peer_timeout_ms: 5000 }
         dram { capacity_bytes: 1073741824 slab_bytes: 33554432 huge_pages: false populate: true }
         limits { sessions_max: 1 leases_per_session_max: 2 lease_ms_max: 30000
                  pinned_percent_max: 100 puts_per_session_max: 3 put_timeout_ms: 4
                  subscriptions_per_session_max: 5 namespaces_max: 6 session_idle_ms: 7 }
         eviction_policy: "lru" spin_us: 0 spin_us_max: 1000000)",
      R"(data_plane { tcp_address: "" local_socket: "" ucx_address: "10.7.0.3:7471"
                      ucx_devices: "mlx5_0:1" ucx_transports: "rc_x,self" ucx_gid_index: -1
                      insecure_fabric_acknowledged: true })",
      R"(tenants { name: "search" secret_file: "/etc/a" token: "0123456789abcdef" }
         tenants < name: 'chat' secret: "0123456789abcdef" token_file: "/etc/b"; >)",
      // Every kind of fault.
      R"(nod: 1 node: "a b" control_address: "0.0.0.0:7400" eviction_policy: "mru" spin_us: -1
         log_level: "loud" dram { capacity_bytes: 1 slab_bytes: 100001 slabs { deep: [1, 2] } }
         tenants { name: "a" secret: "short" } tenants { name: "a" } limits { sessions_max: 0 })",
      "node: \"a\\nb\"",
      "data_plane {",
  };
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::CheckOne(absl::string_view(reinterpret_cast<const char*>(data), bytes));
  return 0;
}
