#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/namespace_spec.h"
#include "base/page_key.h"
#include "base/random.h"

// The control plane's one act on the way of every client, in base types: opening a session. gRPC
// carries it between processes (client/rpc, server/rpc); a simulation calls the node directly.
namespace forebay {

struct OpenSessionRequest {
  NamespaceSpec spec;  // spec.tenant is ignored: the daemon knows who is asking
  uint32_t wire_version_min = 0;
  uint32_t wire_version_max = 0;
  std::string client_name;  // for people, at most 256 bytes
};

struct OpenSessionReply {
  Uint128Bytes session{};
  Uint128Bytes boot_epoch{};
  PageKey root;  // of the namespace: HMAC under the tenant's secret
  uint32_t namespace_id = 0;
  uint32_t wire_version = 0;                // the highest that both speak
  std::vector<std::string> data_addresses;  // best first: "local:…", "ucx:…", "tcp:…"
  std::string host_id;                      // equal for processes that share a kernel
  double weight = 1.0;                      // of this node in placement
};

// Errors   INVALID_ARGUMENT naming what is wrong with the spec; FAILED_PRECONDITION naming both
//          version ranges; RESOURCE_EXHAUSTED when the daemon has no session to give; UNAVAILABLE.
using OpenSessionDone = std::function<void(absl::StatusOr<OpenSessionReply>)>;

// How a client reaches a daemon's control plane.
//
// Threads  Open() on the client's reactor; `done` may come from any thread, or before Open returns.
class SessionOpener {
 public:
  virtual ~SessionOpener() = default;
  // Calls `done` once, by `deadline`.
  virtual void Open(absl::string_view control_address, const OpenSessionRequest& request,
                    Nanos deadline, OpenSessionDone done) = 0;
};

}  // namespace forebay
