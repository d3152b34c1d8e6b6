#include "tests/integration/client_world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace forebay::testing {

void DirectOpener::Open(absl::string_view control_address, const OpenSessionRequest& request,
                        Nanos /*deadline*/, OpenSessionDone done) {
  PoolNode* node = world_.node(control_address);
  if (node == nullptr) {
    done(absl::UnavailableError(absl::StrCat("nobody answers at ", control_address)));
    return;
  }
  done(node->OpenSession(tenant_, request));
}

WorldClient::WorldClient(ClientWorld& the_world, const std::string& name, const std::string& tenant,
                         ClientCoreOptions options)
    : world(the_world), opener(the_world, tenant) {
  options.name = name;
  core = std::make_unique<ClientCore>(
      world.clock, opener, std::move(options),
      [this, name](absl::string_view scheme,
                   TransportHandler& handler) -> absl::StatusOr<std::unique_ptr<Transport>> {
        if (scheme != "loopback") return absl::UnimplementedError("not in this world");
        return world.network.MakeTransport(name, handler);
      },
      registry, [] {});
  world.cores.push_back(core.get());
}

WorldClient::~WorldClient() {
  core->BeginShutdown();
  EXPECT_TRUE(world.RunUntil([this] { return core->idle(); }));
  std::erase(world.cores, core.get());
}

absl::StatusOr<ClientCore::Opened> WorldClient::Open(const NamespaceSpec& spec, Nanos deadline) {
  absl::StatusOr<ClientCore::Opened> result = absl::UnknownError("open");
  bool done = false;
  core->OpenNamespace(spec, deadline, [&](absl::StatusOr<ClientCore::Opened> opened) {
    result = std::move(opened);
    done = true;
  });
  EXPECT_TRUE(world.RunUntil([&] { return done; }));
  if (result.ok()) {
    ns = result->ns;
    root = result->root;
  }
  return result;
}

absl::StatusOr<std::shared_ptr<Hit>> WorldClient::Lookup(const std::vector<PageKey>& keys,
                                                         LookupOptions options) {
  absl::StatusOr<std::shared_ptr<Hit>> result = absl::UnknownError("lookup");
  bool done = false;
  core->Lookup(ns, keys, options, [&](absl::StatusOr<std::shared_ptr<Hit>> hit) {
    result = std::move(hit);
    done = true;
  });
  EXPECT_TRUE(world.RunUntil([&] { return done; }));
  return result;
}

absl::StatusOr<FetchResult> WorldClient::Fetch(const std::shared_ptr<Hit>& hit, const KvView& view,
                                               FetchOptions options) {
  absl::StatusOr<FetchResult> result = absl::UnknownError("fetch");
  bool done = false;
  core->Fetch(ns, hit, view, options, nullptr, [&](absl::StatusOr<FetchResult> fetched) {
    result = std::move(fetched);
    done = true;
  });
  EXPECT_TRUE(world.RunUntil([&] { return done; }));
  return result;
}

absl::StatusOr<PublishResult> WorldClient::Publish(const std::vector<PageKey>& keys,
                                                   const KvView& view, PublishOptions options) {
  absl::StatusOr<PublishResult> result = absl::UnknownError("publish");
  bool done = false;
  core->Publish(ns, keys, view, options, [&](absl::StatusOr<PublishResult> published) {
    result = std::move(published);
    done = true;
  });
  EXPECT_TRUE(world.RunUntil([&] { return done; }));
  return result;
}

absl::StatusOr<bool> WorldClient::Release(const std::shared_ptr<Hit>& hit) {
  absl::StatusOr<bool> result = absl::UnknownError("release");
  bool done = false;
  core->Release(hit, [&](absl::StatusOr<bool> valid) {
    result = valid;
    done = true;
  });
  EXPECT_TRUE(world.RunUntil([&] { return done; }));
  return result;
}

uint32_t WorldClient::Pages(const std::vector<PageKey>& keys) {
  const absl::StatusOr<std::shared_ptr<Hit>> hit = Lookup(keys);
  EXPECT_TRUE(hit.ok()) << hit.status();
  if (!hit.ok()) return UINT32_MAX;
  const uint32_t pages = (*hit)->page_count();
  core->Drop(ns, (*hit)->grants);
  return pages;
}

ClientWorld::ClientWorld(int node_count, uint64_t seed, LoopbackFaults faults)
    : network(seed, clock, faults), nodes_(static_cast<size_t>(node_count)) {
  node_options.dram.capacity_bytes = 16 << 20;
  node_options.dram.slab_bytes = 1 << 20;
  node_options.dram.huge_pages = false;
  node_options.eviction_policy = "lru";
  for (int i = 0; i < node_count; ++i) StartNode(i);
}

ClientWorld::~ClientWorld() {
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) KillNode(i);
}

std::string ClientWorld::ControlOf(int i) { return absl::StrCat("node", i, ":1"); }

void ClientWorld::StartNode(int i) {
  const std::string name = absl::StrCat("node", i);
  Node& node = nodes_[static_cast<size_t>(i)];
  FB_CHECK(node.node == nullptr);
  node.registry = std::make_unique<MetricRegistry>();
  PoolNodeOptions options = node_options;
  options.node = name;
  absl::StatusOr<std::unique_ptr<PoolNode>> made =
      PoolNode::Create(std::move(options), clock, *node.registry);
  FB_CHECK(made.ok());
  node.node = *std::move(made);
  TransportHandler& handler = node.node->NewHandler();
  node.transport = network.MakeTransport(name, handler);
  node.node->Attach(handler, *node.transport);
  const absl::StatusOr<std::string> address =
      node.transport->Listen(absl::StrCat("loopback:", name));
  FB_CHECK(address.ok());
  node.node->SetDataAddresses({*address});
}

void ClientWorld::KillNode(int i, LoopbackDeath death) {
  Node& node = nodes_[static_cast<size_t>(i)];
  network.KillNode(absl::StrCat("node", i), death);
  node.transport.reset();
  node.node.reset();
  node.registry.reset();
}

PoolNode* ClientWorld::node(absl::string_view control_address) {
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
    if (ControlOf(i) == control_address) return nodes_[static_cast<size_t>(i)].node.get();
  }
  return nullptr;
}

std::unique_ptr<WorldClient> ClientWorld::NewClient(const std::string& name,
                                                    const std::string& tenant,
                                                    ClientCoreOptions options) {
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
    options.daemons.push_back({ControlOf(i), 1.0});
  }
  return std::make_unique<WorldClient>(*this, name, tenant, std::move(options));
}

bool ClientWorld::RunUntil(const std::function<bool()>& done, Nanos limit) {
  const Nanos until = clock.Now() + limit;
  while (!done()) {
    bool worked = network.Step();
    Nanos next = network.NextDeadline();
    for (Node& node : nodes_) {
      if (node.node == nullptr) continue;
      worked |= node.node->Poll(clock.Now());
      next = std::min(next, node.node->NextDeadline());
    }
    for (ClientCore* core : cores) {
      worked |= core->Poll(clock.Now());
      next = std::min(next, core->NextDeadline());
    }
    if (worked) continue;
    if (clock.Now() >= until) return done();
    clock.Set(std::min(until, std::max(next, clock.Now() + kMicrosecond)));
  }
  return true;
}

void ClientWorld::RunFor(Nanos time) {
  RunUntil([] { return false; }, time);
}

EngineMemory::EngineMemory(const KvLayout& layout, uint32_t page_count)
    : bytes(layout.PageBytes() * page_count),
      view(KvView::Contiguous(layout, bytes.data(), page_count)) {}

void EngineMemory::Fill(uint64_t seed) {
  SeededRandom random(seed);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
}

std::vector<uint32_t> Tokens(uint32_t count, uint32_t first) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = first + i;
  return tokens;
}

NamespaceSpec SpecOf(const KvLayout& layout, const std::string& model) {
  NamespaceSpec spec;
  spec.model = model;
  spec.model_revision = "1";
  spec.layout = layout;
  spec.position_encoding = "rope:theta=10000";
  return spec;
}

}  // namespace forebay::testing
