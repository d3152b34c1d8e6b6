#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/reactor.h"
#include "proto/forebay/v1/config.pb.h"
#include "server/config.h"
#include "server/pool_node.h"
#include "server/rpc/control_server.h"
#include "server/supervisor.h"
#include "transport/transport.h"

namespace forebay {

// One forebayd: a node, its reactor, its transports and its control plane, from a configuration.
//
// Threads  the one that makes it runs it; gRPC has its own.
class Daemon {
 public:
  // Binds everything. Requires FillDefaults. Errors name the address or the limit in the way.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(v1::PoolConfig config,
                                                       const MachineFacts& machine);
  ~Daemon();

  // Serves until `stop` has heard a signal; then lets what is under way end, and closes. A second
  // signal ends it at once.
  void Run(StopSignals& stop);

  const std::string& control_address() const { return control_->address(); }
  const std::vector<std::string>& data_addresses() const { return data_addresses_; }

 private:
  Daemon(v1::PoolConfig config, MachineFacts machine);
  absl::Status Init();
  absl::Status AddLocal();
  absl::Status AddTcp();
  absl::Status AddUcx();
  absl::Status Listen(absl::string_view field, std::unique_ptr<Transport> transport,
                      TransportHandler& handler, const std::string& address);
  void Drain(StopSignals& stop);

  v1::PoolConfig config_;
  const MachineFacts machine_;
  SystemClock clock_;
  MetricRegistry registry_;
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<PoolNode> node_;
  // Destroyed before the node, whose memory they may hold, and after the control server.
  std::vector<std::unique_ptr<Transport>> transports_;
  std::unique_ptr<ControlServer> control_;
  std::vector<std::string> data_addresses_;
};

}  // namespace forebay
