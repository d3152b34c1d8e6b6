#include "server/daemon.h"

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "server/make_transport.h"
#include "server/version.h"

namespace forebay {
namespace {

// How long sends and puts that are under way may take to end after a signal.
constexpr Nanos kDrainGrace = 5 * kSecond;
// How long calls of the control plane may take to end then.
constexpr Nanos kControlGrace = kSecond;

TransportOptions BaseOptions(const v1::PoolConfig& config) {
  TransportOptions options;
  options.peer_timeout = config.data_plane().peer_timeout_ms() * kMillisecond;
  options.keepalive_interval = options.peer_timeout / 5;
  return options;
}

}  // namespace

Daemon::Daemon(v1::PoolConfig config, MachineFacts machine)
    : config_(std::move(config)), machine_(std::move(machine)) {}

Daemon::~Daemon() {
  // Calls of the control plane post to the reactor: it goes after them.
  control_.reset();
  transports_.clear();
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(v1::PoolConfig config,
                                                      const MachineFacts& machine) {
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(config), machine));
  FB_RETURN_IF_ERROR(daemon->Init());
  return daemon;
}

absl::Status Daemon::Init() {
  FB_ASSIGN_OR_RETURN(PoolNodeOptions options, NodeOptionsOf(config_));
  Reactor::Options reactor_options;
  reactor_options.spin_ns = config_.spin_us() * kMicrosecond;
  reactor_options.spin_ns_max = config_.spin_us_max() * kMicrosecond;
  reactor_ = std::make_unique<Reactor>(clock_, reactor_options);

  FB_ASSIGN_OR_RETURN(node_, PoolNode::Create(std::move(options), clock_, registry_));
  ControlServerOptions control;
  control.address = config_.control_address();
  control.version = std::string(kVersion);
  FB_ASSIGN_OR_RETURN(control_, ControlServer::Start(control, *node_, *reactor_, registry_));

  FB_RETURN_IF_ERROR(AddLocal());
  FB_RETURN_IF_ERROR(AddUcx());
  FB_RETURN_IF_ERROR(AddTcp());
  node_->SetDataAddresses(data_addresses_);
  reactor_->Add(*node_);
  control_->SetConfigText(ShowConfig(config_));
  return absl::OkStatus();
}

absl::Status Daemon::Listen(absl::string_view field, std::unique_ptr<Transport> transport,
                            TransportHandler& handler, const std::string& address) {
  node_->Attach(handler, *transport);
  absl::StatusOr<std::string> bound = transport->Listen(address);
  if (!bound.ok()) {
    return absl::Status(bound.status().code(), absl::StrCat("data_plane.", field, " ", address,
                                                            ": ", bound.status().message()));
  }
  data_addresses_.push_back(*std::move(bound));
  reactor_->Add(*transport);
  transports_.push_back(std::move(transport));
  return absl::OkStatus();
}

absl::Status Daemon::AddLocal() {
  v1::DataPlane* plane = config_.mutable_data_plane();
  if (plane->has_local_socket() && plane->local_socket().empty()) return absl::OkStatus();
  if (!plane->has_local_socket()) {
    plane->set_local_socket(DefaultSocketPath(machine_, config_.node(), control_->port()));
  }
  std::vector<ExportedSlab> slabs;
  for (const DramTier::Slab& slab : node_->dram().slabs()) slabs.push_back({slab.fd, slab.memory});
  TransportHandler& handler = node_->NewHandler();
  FB_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                      MakeLocalTransport(clock_, handler, BaseOptions(config_), slabs));
  return Listen("local_socket", std::move(transport), handler,
                absl::StrCat("local:", plane->local_socket()));
}

absl::Status Daemon::AddTcp() {
  const std::string& address = config_.data_plane().tcp_address();
  if (address.empty()) return absl::OkStatus();
  TransportHandler& handler = node_->NewHandler();
  FB_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                      MakeTcpTransport(clock_, handler, BaseOptions(config_)));
  return Listen("tcp_address", std::move(transport), handler, absl::StrCat("tcp:", address));
}

absl::Status Daemon::AddUcx() {
  const v1::DataPlane& plane = config_.data_plane();
  if (plane.ucx_address().empty()) return absl::OkStatus();
  TransportHandler& handler = node_->NewHandler();
  FB_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                      MakeUcxTransport(clock_, handler, BaseOptions(config_), plane.ucx_devices(),
                                       plane.ucx_transports(), plane.ucx_gid_index()));
  return Listen("ucx_address", std::move(transport), handler,
                absl::StrCat("ucx:", plane.ucx_address()));
}

void Daemon::Run(StopSignals& stop) {
  reactor_->Add(stop);
  reactor_->RunUntil([&stop] { return stop.count() > 0; });
  Drain(stop);
  reactor_->Remove(stop);
}

void Daemon::Drain(StopSignals& stop) {
  LogInfo("daemon.stopping", {{"node", config_.node()}});
  if (absl::Status status = NotifySupervisor("STOPPING=1"); !status.ok()) {
    LogWarning("daemon.notify_failed", {{"why", status.message()}});
  }
  node_->BeginShutdown(kDrainGrace);
  // Shutdown waits for calls, and calls wait for this reactor: so it has a thread of its own.
  std::atomic<bool> control_ended{false};
  std::thread ender([&] {
    control_->Shutdown(kControlGrace);
    control_ended = true;
    reactor_->Wake();
  });
  const Nanos latest = clock_.Now() + kDrainGrace + kSecond;
  reactor_->RunUntil([&] { return stop.count() > 1 || (control_ended && node_->drained()); },
                     latest);
  ender.join();
  LogInfo("daemon.stopped", {{"node", config_.node()}, {"drained", node_->drained() ? 1 : 0}});
}

}  // namespace forebay
