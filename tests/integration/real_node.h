#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/reactor.h"
#include "server/pool_node.h"
#include "server/rpc/control_server.h"
#include "transport/transport.h"

namespace forebay::testing {

// A daemon without a process: a node on a reactor thread, with its gRPC control plane and the local
// and tcp transports, all on free addresses of this host.
class RealNode {
 public:
  enum class Paths { kLocalAndTcp, kTcp };
  explicit RealNode(PoolNodeOptions options = SmallNode(), Paths paths = Paths::kLocalAndTcp);
  ~RealNode();
  static PoolNodeOptions SmallNode();

  const std::string& control() const { return control_->address(); }
  const PoolNode& node() const { return *node_; }

 private:
  std::string ListenLocal();

  const SystemClock clock_;
  MetricRegistry registry_;
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<PoolNode> node_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::unique_ptr<ControlServer> control_;
  std::thread thread_;
};

}  // namespace forebay::testing
