#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/forebay/v1/config.pb.h"

// Reading and checking the daemon's configuration file, for the daemon and for `forebayctl config
// check`. What depends on the machine (default memory, socket folder) is server/config.h's.
namespace forebay {

// Parses textproto and checks it. `name` stands before line and column in messages.
//
// Errors   INVALID_ARGUMENT that names every fault, one a line: unknown fields, values of the wrong
//          type, and everything that FaultsOf finds.
absl::StatusOr<v1::PoolConfig> ParsePoolConfig(absl::string_view text, absl::string_view name);

// The same from a file. NOT_FOUND or PERMISSION_DENIED naming it.
absl::StatusOr<v1::PoolConfig> LoadPoolConfig(const std::string& path);

// Everything that is wrong with a configuration, each as "field: why". Empty: it can run, as far as
// anyone can tell without the machine.
std::vector<std::string> FaultsOf(const v1::PoolConfig& config);

// "host:port", "[::1]:port".
struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);
// localhost, 127.0.0.0/8 and ::1.
bool IsLoopback(absl::string_view host);

}  // namespace forebay
