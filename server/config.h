#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/forebay/v1/config.pb.h"
#include "server/pool_node.h"

// From a configuration that was read and checked (proto/pool_config.h) to one that runs here.
namespace forebay {

// What the defaults of a configuration depend on.
struct MachineFacts {
  std::string host_name;
  uint64_t memory_bytes = 0;  // of the machine or the cgroup, whichever is less
  uint32_t uid = 0;
  std::string runtime_dir;  // $XDG_RUNTIME_DIR, or empty

  static MachineFacts Read();
};

// Writes every default into the configuration, except the socket's path, which depends on the port
// that the control plane gets.
void FillDefaults(const MachineFacts& machine, v1::PoolConfig* config);

// Where the same-host data plane listens when the configuration does not say: /run/forebay as root,
// else $XDG_RUNTIME_DIR/forebay, else /tmp/forebay-UID; NODE-PORT.sock in it.
std::string DefaultSocketPath(const MachineFacts& machine, const std::string& node, uint16_t port);

// The node's options, with secrets and tokens read from their files.
//
// Errors   INVALID_ARGUMENT that names every file that cannot be read or holds too little, one a
// line
absl::StatusOr<PoolNodeOptions> NodeOptionsOf(const v1::PoolConfig& config);

// The configuration as textproto, with "(set)" in the place of secrets and tokens.
std::string ShowConfig(const v1::PoolConfig& config);

}  // namespace forebay
