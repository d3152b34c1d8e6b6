#include "proto/pool_config.h"

#include <errno.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/log.h"
#include "proto/wire.h"

namespace forebay {
namespace {

using Faults = std::vector<std::string>;

constexpr size_t kNameBytesMax = 64;
constexpr size_t kSecretBytesMin = 16;
constexpr size_t kSocketPathBytesMax = 107;  // sun_path, less its end
constexpr uint64_t kSlabBytesMin = 64 * 1024;
constexpr uint64_t kSlabAlignment = 4096;

// Gathers what the parser says. An unknown field is a warning to a parser that may skip them, and a
// fault to us: so one run names them all.
class FaultCollector final : public google::protobuf::io::ErrorCollector {
 public:
  FaultCollector(absl::string_view name, Faults* faults) : name_(name), faults_(faults) {}
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    faults_->push_back(absl::StrCat(name_, ":", line + 1, ":", column + 1, ": ", message));
  }
  void AddWarning(int line, google::protobuf::io::ColumnNumber column,
                  const std::string& message) override {
    AddError(line, column, message);
  }

 private:
  absl::string_view name_;
  Faults* faults_;
};

void CheckRange(absl::string_view field, uint64_t value, uint64_t min, uint64_t max,
                Faults* faults) {
  if (value >= min && value <= max) return;
  faults->push_back(absl::StrCat(field, ": ", value, " is not in [", min, ", ", max, "]"));
}

// An address that only loopback may have unless `may_leave_host`.
void CheckAddress(absl::string_view field, const std::string& address, bool may_leave_host,
                  absl::string_view otherwise, Faults* faults) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) {
    faults->push_back(absl::StrCat(field, ": ", parsed.status().message()));
  } else if (!may_leave_host && !IsLoopback(parsed->host)) {
    faults->push_back(
        absl::StrCat(field, ": ", address, " is not a loopback address: ", otherwise));
  }
}

void CheckDataPlane(const v1::DataPlane& plane, Faults* faults) {
  const bool acknowledged = plane.insecure_fabric_acknowledged();
  constexpr absl::string_view kOtherwise =
      "the data plane trusts whoever reaches it; say insecure_fabric_acknowledged: true if that is "
      "what you want";
  if (!plane.tcp_address().empty()) {
    CheckAddress("data_plane.tcp_address", plane.tcp_address(), acknowledged, kOtherwise, faults);
  }
  if (!plane.ucx_address().empty()) {
    CheckAddress("data_plane.ucx_address", plane.ucx_address(), acknowledged, kOtherwise, faults);
  }
  const absl::StatusOr<HostPort> ucx = ParseHostPort(plane.ucx_address());
  if (ucx.ok() && !IsLoopback(ucx->host) && plane.ucx_devices().empty()) {
    faults->push_back(
        "data_plane.ucx_devices: name the devices that UCX may use, e.g. \"mlx5_0:1\"");
  }
  const std::string& socket = plane.local_socket();
  if (socket.size() > kSocketPathBytesMax) {
    faults->push_back(absl::StrCat("data_plane.local_socket: a path of ", socket.size(),
                                   " bytes; the most is ", kSocketPathBytesMax));
  }
  if (!socket.empty() && socket[0] != '/' && socket[0] != '@') {
    faults->push_back(
        absl::StrCat("data_plane.local_socket: \"", socket, "\" is not an absolute path"));
  }
  const bool no_local = plane.has_local_socket() && socket.empty();
  if (plane.tcp_address().empty() && plane.ucx_address().empty() && no_local) {
    faults->push_back("data_plane: every way to the data is turned off");
  }
  CheckRange("data_plane.peer_timeout_ms", plane.peer_timeout_ms(), 100, 600'000, faults);
}

void CheckDram(const v1::Dram& dram, Faults* faults) {
  const uint64_t slab_bytes = dram.slab_bytes();
  CheckRange("dram.slab_bytes", slab_bytes, kSlabBytesMin, uint64_t{1} << 31, faults);
  if (slab_bytes % kSlabAlignment != 0) {
    faults->push_back(
        absl::StrCat("dram.slab_bytes: ", slab_bytes, " is not a multiple of ", kSlabAlignment));
  }
  if (dram.has_capacity_bytes() && dram.capacity_bytes() < slab_bytes) {
    faults->push_back(absl::StrCat("dram.capacity_bytes: ", dram.capacity_bytes(),
                                   " is less than one slab of ", slab_bytes));
  }
}

void CheckLimits(const v1::Limits& limits, Faults* faults) {
  constexpr uint64_t kMany = 1'000'000;
  constexpr uint64_t kLong = 86'400'000;  // a day
  CheckRange("limits.sessions_max", limits.sessions_max(), 1, kMany, faults);
  CheckRange("limits.leases_per_session_max", limits.leases_per_session_max(), 1, kMany, faults);
  CheckRange("limits.lease_ms_max", limits.lease_ms_max(), 1, wire::kLeaseMsMax, faults);
  CheckRange("limits.pinned_percent_max", limits.pinned_percent_max(), 1, 100, faults);
  CheckRange("limits.puts_per_session_max", limits.puts_per_session_max(), 1, kMany, faults);
  CheckRange("limits.put_timeout_ms", limits.put_timeout_ms(), 1, kLong, faults);
  CheckRange("limits.subscriptions_per_session_max", limits.subscriptions_per_session_max(), 1,
             kMany, faults);
  CheckRange("limits.namespaces_max", limits.namespaces_max(), 1, kMany, faults);
  CheckRange("limits.session_idle_ms", limits.session_idle_ms(), 1, kLong, faults);
}

// One of `value` and `file`; a value that is given here must be long enough to be a secret.
void CheckSecret(absl::string_view field, bool has_value, const std::string& value, bool has_file,
                 Faults* faults) {
  if (has_value == has_file) {
    faults->push_back(absl::StrCat(field, ": say one of ", field, " and ", field, "_file"));
  } else if (has_value && value.size() < kSecretBytesMin) {
    faults->push_back(
        absl::StrCat(field, ": ", value.size(), " bytes; at least ", kSecretBytesMin));
  }
}

void CheckTenants(const v1::PoolConfig& config, Faults* faults) {
  std::set<std::string> names;
  std::set<std::string> tokens;
  for (int i = 0; i < config.tenants_size(); ++i) {
    const v1::Tenant& tenant = config.tenants(i);
    const std::string field = absl::StrCat("tenants[", i, "]");
    if (tenant.name().empty() || tenant.name().size() > kNameBytesMax) {
      faults->push_back(absl::StrCat(field, ".name: 1 to ", kNameBytesMax, " bytes"));
    } else if (!names.insert(tenant.name()).second) {
      faults->push_back(absl::StrCat(field, ".name: \"", tenant.name(), "\" comes twice"));
    }
    CheckSecret(absl::StrCat(field, ".secret"), tenant.has_secret(), tenant.secret(),
                tenant.has_secret_file(), faults);
    CheckSecret(absl::StrCat(field, ".token"), tenant.has_token(), tenant.token(),
                tenant.has_token_file(), faults);
    if (tenant.has_token() && !tokens.insert(tenant.token()).second) {
      faults->push_back(absl::StrCat(field, ".token: another tenant has it too"));
    }
  }
}

void CheckNode(const std::string& node, Faults* faults) {
  const bool sound = !node.empty() && node.size() <= kNameBytesMax &&
                     std::all_of(node.begin(), node.end(), [](char c) {
                       return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
                     });
  if (!sound) {
    faults->push_back(absl::StrCat("node: \"", node, "\": 1 to ", kNameBytesMax,
                                   " letters, digits, dots, dashes and underscores"));
  }
}

absl::Status AsStatus(const Faults& faults) {
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
}

// Protobuf 3.21 skips unknown fields by recursion without a limit; PoolConfig itself nests twice.
constexpr int kNestingMax = 32;

// The line where messages nest deeper than kNestingMax; 0: none does.
int LineOfDeepNesting(absl::string_view text) {
  int line = 1;
  int depth = 0;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      quote = 0;  // a string ends with its line, if only by a fault
    } else if (quote != 0) {
      if (c == '\\') ++i;
      if (c == quote) quote = 0;
    } else if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '{' || c == '<' || c == '[') {
      if (++depth > kNestingMax) return line;
    } else if (c == '}' || c == '>' || c == ']') {
      --depth;
    }
  }
  return 0;
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is not host:port"));
  }
  HostPort parsed;
  absl::string_view host = address.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ':')) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\": an IPv6 address goes in brackets"));
  }
  uint32_t port = 0;
  if (host.empty() || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > UINT16_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\" is not host:port with a port of 0 to 65535"));
  }
  parsed.host = std::string(host);
  parsed.port = static_cast<uint16_t>(port);
  return parsed;
}

bool IsLoopback(absl::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  if (!absl::StartsWith(host, "127.")) return false;
  return std::all_of(host.begin(), host.end(),
                     [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
}

std::vector<std::string> FaultsOf(const v1::PoolConfig& config) {
  Faults faults;
  if (config.has_node()) CheckNode(config.node(), &faults);
  CheckAddress("control_address", config.control_address(), /*may_leave_host=*/false,
               "without TLS the control plane stays on this host", &faults);
  CheckDataPlane(config.data_plane(), &faults);
  CheckDram(config.dram(), &faults);
  CheckLimits(config.limits(), &faults);
  CheckTenants(config, &faults);
  if (config.eviction_policy() != "s3fifo" && config.eviction_policy() != "lru") {
    faults.push_back(
        absl::StrCat("eviction_policy: \"", config.eviction_policy(), "\" is none of s3fifo, lru"));
  }
  if (absl::StatusOr<LogLevel> level = ParseLogLevel(config.log_level()); !level.ok()) {
    faults.push_back(absl::StrCat("log_level: ", level.status().message()));
  }
  CheckRange("spin_us", config.spin_us(), 0, 1'000'000, &faults);
  CheckRange("spin_us_max", config.spin_us_max(), 0, 1'000'000, &faults);
  // A value may hold a line feed; what follows it is no fault of its own.
  for (std::string& fault : faults) absl::StrReplaceAll({{"\n", "\\n"}}, &fault);
  return faults;
}

absl::StatusOr<v1::PoolConfig> ParsePoolConfig(absl::string_view text, absl::string_view name) {
  if (const int line = LineOfDeepNesting(text); line > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ":", line, ": messages nest more than ", kNestingMax, " deep"));
  }
  Faults faults;
  FaultCollector collector(name, &faults);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  parser.AllowUnknownField(true);
  v1::PoolConfig config;
  if (!parser.ParseFromString(std::string(text), &config) && faults.empty()) {
    faults.push_back(absl::StrCat(name, ": not a textproto of PoolConfig"));
  }
  for (const std::string& fault : FaultsOf(config)) {
    faults.push_back(absl::StrCat(name, ": ", fault));
  }
  if (absl::Status status = AsStatus(faults); !status.ok()) return status;
  return config;
}

absl::StatusOr<v1::PoolConfig> LoadPoolConfig(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read the configuration ", path));
  }
  return ParsePoolConfig(text.str(), path);
}

}  // namespace forebay
