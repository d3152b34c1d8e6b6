#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/reactor.h"
#include "server/pool_node.h"

namespace forebay {

struct ControlServerOptions {
  std::string address = "127.0.0.1:7400";  // port 0 takes a free one
  std::string version;                     // of the program, for people
  Nanos call_timeout = 10 * kSecond;       // of a call that brings no deadline of its own
};

// The control plane of one daemon: the gRPC services forebay.v1.Pool and forebay.v1.Admin.
//
// Each call is parsed on a thread of gRPC's, runs on the node's reactor, and is answered within its
// deadline even if the reactor is stuck. A client's token (metadata "forebay-token") names its
// tenant; a daemon without tenants takes everybody for "default".
//
// Limits   messages of 4 MiB, metadata of 8 KiB.
// Borrows  the node, the reactor and the registry.
// Threads  Start and Shutdown from one; calls come on gRPC's.
class ControlServer {
 public:
  // ALREADY_EXISTS where somebody listens at the address, else UNAVAILABLE; both name it.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(ControlServerOptions options,
                                                              PoolNode& node, Reactor& reactor,
                                                              MetricRegistry& registry);
  ~ControlServer();

  // "host:port" with the real port.
  const std::string& address() const;
  uint16_t port() const;

  // What ShowConfig answers; no secrets in it. From any thread.
  void SetConfigText(std::string text);

  // Takes no more calls; those under way may end within `grace`. The reactor must still turn.
  void Shutdown(Nanos grace);

 private:
  struct State;
  explicit ControlServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace forebay
