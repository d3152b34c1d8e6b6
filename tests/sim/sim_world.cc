#include "tests/sim/sim_world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace forebay::testing {

SimWorld::SimWorld(const SimPlan& the_plan, Recorder& the_recorder)
    : plan(the_plan),
      recorder(the_recorder),
      random(the_plan.seed),
      network(the_plan.seed, clock, the_plan.network),
      ledger(MakeSimNamespaces()),
      nodes_(static_cast<size_t>(the_plan.node_count)) {
  for (size_t i = 0; i < nodes_.size(); ++i) StartNode(i);
}

SimWorld::~SimWorld() {
  for (SimNode& node : nodes_) {
    node.transport.reset();
    node.node.reset();
  }
}

std::string SimWorld::ControlOf(size_t i) { return absl::StrCat("node", i, ":1"); }

void SimWorld::StartNode(size_t i) {
  SimNode& node = nodes_[i];
  FB_CHECK(node.node == nullptr);
  node.name = absl::StrCat("node", i);
  ++node.incarnation;
  node.started_at = clock.Now();
  node.newest.clear();
  node.rotten.clear();
  node.namespace_ids.clear();
  node.registry = std::make_unique<MetricRegistry>();
  PoolNodeOptions options;
  options.node = node.name;
  options.dram.slab_bytes = plan.slab_bytes;
  options.dram.capacity_bytes = plan.slab_bytes * plan.slab_count;
  options.dram.huge_pages = false;
  options.eviction_policy = plan.policy;
  options.limits.session_idle_ms = plan.session_idle_ms;
  options.limits.put_timeout_ms = plan.put_timeout_ms;
  for (const char* tenant : {"alpha", "beta"}) {
    options.tenants.push_back({tenant, SecretOfTenant(tenant), Sha256Digest{}});
  }
  absl::StatusOr<std::unique_ptr<PoolNode>> made =
      PoolNode::Create(std::move(options), clock, *node.registry);
  FB_CHECK(made.ok());
  node.node = *std::move(made);
  TransportOptions transport;
  transport.peer_timeout = plan.peer_timeout;
  transport.keepalive_interval = plan.peer_timeout / 4;
  TransportHooks hooks;
  // Who is of this host is the client's to say: its name.
  hooks.describe = [this](EndpointId, PeerDescription& peer) { peer.same_host = plan.regions; };
  hooks.on_violation = [this, i](const std::string& what) {
    Violation("borrowed memory", absl::StrCat(nodes_[i].name, ": ", what));
  };
  TransportHandler& handler = node.node->NewHandler();
  node.transport = std::make_unique<WatchedTransport>(network, node.name, handler, transport, clock,
                                                      nullptr, std::move(hooks));
  node.node->Attach(handler, *node.transport);
  // A start has an address of its own, so that nobody takes one for another.
  const absl::StatusOr<std::string> address =
      node.transport->Listen(absl::StrCat("loopback:", node.name, ".", node.incarnation));
  FB_CHECK(address.ok());
  node.node->SetDataAddresses({*address});
  Event("node.start", i, node.incarnation);
}

void SimWorld::KillNode(size_t i) {
  SimNode& node = nodes_[i];
  if (node.node == nullptr) return;
  Event("node.kill", i, node.incarnation);
  network.KillNode(node.name);
  node.transport.reset();
  node.node.reset();
  node.registry.reset();
}

void SimWorld::OpenSession(const std::string& client, const SimNamespace& ns,
                           absl::string_view control, const OpenSessionRequest& request,
                           OpenSessionDone done) {
  const auto delay = [this] {
    return static_cast<Nanos>(random.Below(static_cast<uint64_t>(plan.network.delay_ns_max) * 2));
  };
  After(delay(), [this, client, &ns, control = std::string(control), request,
                  done = std::move(done), back = delay()] {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      SimNode& node = nodes_[i];
      if (ControlOf(i) != control) continue;
      absl::StatusOr<OpenSessionReply> reply = absl::UnavailableError("nobody answers");
      if (node.node != nullptr && !cuts_.contains({client, node.name})) {
        reply = node.node->OpenSession(ns.tenant, request);
      }
      if (reply.ok()) {
        node.namespace_ids[ns.name] = reply->namespace_id;
        if (reply->root != ns.root) {
          Violation("identity", absl::StrCat(ns.name, " was given another root than its own"));
        }
      }
      After(back, [done, reply] { done(reply); });
    }
  });
}

std::vector<Bytes> SimWorld::RegionsAt(absl::string_view data_address) const {
  std::vector<Bytes> regions;
  for (const SimNode& node : nodes_) {
    if (node.node == nullptr ||
        data_address != absl::StrCat("loopback:", node.name, ".", node.incarnation)) {
      continue;
    }
    for (const DramTier::Slab& slab : node.node->dram().slabs()) regions.emplace_back(slab.memory);
  }
  return regions;
}

void SimWorld::Cut(const std::string& a, const std::string& b) {
  network.Cut(a, b);
  cuts_.emplace(a, b);
  cuts_.emplace(b, a);
}

void SimWorld::MendAll() {
  network.MendAll();
  cuts_.clear();
}

void SimWorld::After(Nanos delay, std::function<void()> task) {
  tasks_.emplace(clock.Now() + delay, std::move(task));
}

bool SimWorld::PollNode(SimNode& node) {
  if (node.node == nullptr) return false;
  bool worked = node.transport->Poll(clock.Now());
  worked |= node.node->Poll(clock.Now());
  return worked;
}

bool SimWorld::RunTasks() {
  bool any = false;
  while (!tasks_.empty() && tasks_.begin()->first <= clock.Now()) {
    const std::function<void()> task = std::move(tasks_.begin()->second);
    tasks_.erase(tasks_.begin());
    task();
    any = true;
  }
  return any;
}

void SimWorld::Turn(Nanos until) {
  bool worked = RunTasks();
  std::vector<size_t> order(nodes_.size() + actors_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  const std::vector<SimActor*> actors = actors_;
  for (const size_t i : order) {
    if (i < nodes_.size()) {
      worked |= PollNode(nodes_[i]);
    } else {
      worked |= actors[i - nodes_.size()]->Poll();
    }
  }
  if (worked) {
    clock.Advance(static_cast<Nanos>(1 + random.Below(3 * kMicrosecond)));
    return;
  }
  Nanos next = tasks_.empty() ? kForever : tasks_.begin()->first;
  for (const SimNode& node : nodes_) {
    if (node.node == nullptr) continue;
    next = std::min({next, node.node->NextDeadline(), node.transport->NextDeadline()});
  }
  for (const SimActor* actor : actors_) next = std::min(next, actor->NextDeadline());
  clock.Set(std::max(clock.Now(), std::min(until, std::max(next, clock.Now() + kMicrosecond))));
}

void SimWorld::RunFor(Nanos time) {
  const Nanos until = clock.Now() + time;
  while (clock.Now() < until) Turn(until);
}

}  // namespace forebay::testing
