#include "tests/integration/real_node.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "proto/host_id.h"
#include "server/make_transport.h"

namespace forebay::testing {

PoolNodeOptions RealNode::SmallNode() {
  PoolNodeOptions options;
  options.dram.capacity_bytes = 256 << 20;
  options.dram.slab_bytes = 16 << 20;
  options.dram.huge_pages = false;
  options.eviction_policy = "lru";
  return options;
}

std::string RealNode::ListenLocal() {
  std::vector<ExportedSlab> slabs;
  for (const DramTier::Slab& slab : node_->dram().slabs()) slabs.push_back({slab.fd, slab.memory});
  static std::atomic<int> count{0};
  TransportHandler& handler = node_->NewHandler();
  auto local = MakeLocalTransport(clock_, handler, TransportOptions(), slabs);
  FB_CHECK(local.ok());
  // An abstract name: nothing to clean up.
  const auto address =
      (*local)->Listen(absl::StrCat("local:@forebay-test-", getpid(), "-", count.fetch_add(1)));
  FB_CHECK(address.ok());
  node_->Attach(handler, **local);
  transports_.push_back(*std::move(local));
  return *address;
}

RealNode::RealNode(PoolNodeOptions options, Paths paths) {
  options.host_id = OwnHostId();
  reactor_ = std::make_unique<Reactor>(clock_, Reactor::Options());
  absl::StatusOr<std::unique_ptr<PoolNode>> node =
      PoolNode::Create(std::move(options), clock_, registry_);
  FB_CHECK(node.ok());
  node_ = *std::move(node);

  std::vector<std::string> addresses;
  if (paths == Paths::kLocalAndTcp) addresses.push_back(ListenLocal());

  TransportHandler& tcp_handler = node_->NewHandler();
  auto tcp = MakeTcpTransport(clock_, tcp_handler, TransportOptions());
  FB_CHECK(tcp.ok());
  const auto tcp_address = (*tcp)->Listen("tcp:127.0.0.1:0");
  FB_CHECK(tcp_address.ok());
  addresses.push_back(*tcp_address);
  node_->Attach(tcp_handler, **tcp);
  transports_.push_back(*std::move(tcp));

  node_->SetDataAddresses(addresses);
  for (const auto& transport : transports_) reactor_->Add(*transport);
  reactor_->Add(*node_);
  thread_ = std::thread([this] { reactor_->RunUntil([] { return false; }); });
  ControlServerOptions control;
  control.address = "127.0.0.1:0";
  auto server = ControlServer::Start(std::move(control), *node_, *reactor_, registry_);
  FB_CHECK(server.ok());
  control_ = *std::move(server);
}

RealNode::~RealNode() {
  control_->Shutdown(/*grace=*/0);
  reactor_->Stop();
  thread_.join();
  control_.reset();
  for (const auto& transport : transports_) reactor_->Remove(*transport);
  reactor_->Remove(*node_);
  transports_.clear();
}

}  // namespace forebay::testing
