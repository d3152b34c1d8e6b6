#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/metrics.h"
#include "base/testing/manual_clock.h"
#include "client/client_core.h"
#include "proto/control.h"
#include "server/pool_node.h"
#include "transport/loopback/loopback_network.h"
#include "transport/loopback/loopback_transport.h"

// Daemons and clients as they are, in one thread, over a loopback network in virtual time.
namespace forebay::testing {

class ClientWorld;

// Reaches the nodes of a world directly, as one tenant.
class DirectOpener final : public SessionOpener {
 public:
  DirectOpener(ClientWorld& world, std::string tenant)
      : world_(world), tenant_(std::move(tenant)) {}
  void Open(absl::string_view control_address, const OpenSessionRequest& request, Nanos deadline,
            OpenSessionDone done) override;

 private:
  ClientWorld& world_;
  std::string tenant_;
};

// One client of a world.
struct WorldClient {
  WorldClient(ClientWorld& world, const std::string& name, const std::string& tenant,
              ClientCoreOptions options);
  ~WorldClient();

  // Each runs the world until the call has ended, and fails the test where it does not end.
  absl::StatusOr<ClientCore::Opened> Open(const NamespaceSpec& spec, Nanos deadline = kSecond);
  absl::StatusOr<std::shared_ptr<Hit>> Lookup(const std::vector<PageKey>& keys,
                                              LookupOptions options = {});
  absl::StatusOr<FetchResult> Fetch(const std::shared_ptr<Hit>& hit, const KvView& view,
                                    FetchOptions options = {});
  absl::StatusOr<PublishResult> Publish(const std::vector<PageKey>& keys, const KvView& view,
                                        PublishOptions options = {});
  absl::StatusOr<bool> Release(const std::shared_ptr<Hit>& hit);
  // Pages that a lookup finds; a failed lookup fails the test.
  uint32_t Pages(const std::vector<PageKey>& keys);

  ClientWorld& world;
  MetricRegistry registry;
  DirectOpener opener;
  std::unique_ptr<ClientCore> core;
  uint64_t ns = 0;  // the latest that was opened
  PageKey root;
};

class ClientWorld {
 public:
  explicit ClientWorld(int node_count, uint64_t seed = 1, LoopbackFaults faults = {});
  ~ClientWorld();

  // The control address of node `i`.
  static std::string ControlOf(int i);
  void StartNode(int i);
  void KillNode(int i, LoopbackDeath death = LoopbackDeath::kReset);
  PoolNode* node(absl::string_view control_address);
  PoolNode& node(int i) { return *nodes_[i].node; }

  std::unique_ptr<WorldClient> NewClient(const std::string& name,
                                         const std::string& tenant = std::string(kDefaultTenant),
                                         ClientCoreOptions options = {});

  bool RunUntil(const std::function<bool()>& done, Nanos limit = 60 * kSecond);
  void RunFor(Nanos time);

  ManualClock clock;
  LoopbackNetwork network;
  PoolNodeOptions node_options;  // of nodes that are started later
  std::vector<ClientCore*> cores;

 private:
  struct Node {
    std::unique_ptr<MetricRegistry> registry;
    std::unique_ptr<PoolNode> node;
    std::unique_ptr<LoopbackTransport> transport;
  };
  std::vector<Node> nodes_;
};

// Memory of one engine for `page_count` pages of a layout, and a view of it.
struct EngineMemory {
  EngineMemory(const KvLayout& layout, uint32_t page_count);
  // Other bytes for every `seed`.
  void Fill(uint64_t seed);

  std::vector<std::byte> bytes;
  KvView view;
};

std::vector<uint32_t> Tokens(uint32_t count, uint32_t first = 0);
NamespaceSpec SpecOf(const KvLayout& layout, const std::string& model = "model");

}  // namespace forebay::testing
