#include "server/pool_node.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "server/node_core.h"
#include "server/node_handler.h"
#include "server/session_table.h"

namespace forebay {
namespace {

// Timers of endpoints and sessions are looked at no more often than this: none of them is finer.
constexpr Nanos kSweepInterval = kMillisecond;

LeaseTable::Limits LeaseLimits(const NodeLimits& limits) {
  LeaseTable::Limits lease_limits;
  lease_limits.leases_per_session_max = limits.leases_per_session_max;
  lease_limits.ttl_max = limits.lease_ms_max * kMillisecond;
  return lease_limits;
}

}  // namespace

NodeCore::NodeCore(PoolNodeOptions node_options, const Clock& node_clock, MetricRegistry& registry,
                   std::unique_ptr<DramTier> dram, std::unique_ptr<EvictionPolicy> policy)
    : clock(node_clock),
      options(std::move(node_options)),
      metrics(registry),
      tier(std::move(dram)),
      page_index(std::move(policy)),
      store(*tier, page_index, metrics),
      pinned_bytes_max(tier->capacity_bytes() / 100 * options.limits.pinned_percent_max),
      leases(store, metrics, LeaseLimits(options.limits), pinned_bytes_max) {}

struct PoolNode::State {
  explicit State(PoolNodeOptions options, const Clock& clock, MetricRegistry& registry,
                 std::unique_ptr<DramTier> dram, std::unique_ptr<EvictionPolicy> policy)
      : core(std::move(options), clock, registry, std::move(dram), std::move(policy)),
        sessions(core),
        started_at(clock.Now()) {}

  size_t EndpointCount() const {
    size_t count = 0;
    for (const NodeHandler& handler : handlers) count += handler.endpoint_count();
    return count;
  }
  bool Sweep(Nanos now);

  NodeCore core;
  SessionTable sessions;
  std::deque<NodeHandler> handlers;  // never moved: transports hold references
  std::vector<std::string> data_addresses;
  const Nanos started_at;
  Nanos last_sweep = 0;
  bool serving = true;
  Nanos close_all_at = kForever;
};

absl::StatusOr<std::unique_ptr<PoolNode>> PoolNode::Create(PoolNodeOptions options,
                                                           const Clock& clock,
                                                           MetricRegistry& registry) {
  FB_ASSIGN_OR_RETURN(std::unique_ptr<EvictionPolicy> policy,
                      MakeEvictionPolicy(options.eviction_policy));
  FB_ASSIGN_OR_RETURN(std::unique_ptr<DramTier> dram, DramTier::Create(options.dram));
  auto state = std::make_unique<State>(std::move(options), clock, registry, std::move(dram),
                                       std::move(policy));
  return std::unique_ptr<PoolNode>(new PoolNode(std::move(state)));
}

PoolNode::PoolNode(std::unique_ptr<State> state) : state_(std::move(state)) {}
PoolNode::~PoolNode() = default;

TransportHandler& PoolNode::NewHandler() {
  return state_->handlers.emplace_back(state_->core, state_->sessions);
}

void PoolNode::Attach(TransportHandler& handler, Transport& transport) {
  for (NodeHandler& known : state_->handlers) {
    if (&known == &handler) {
      known.set_transport(&transport);
      return;
    }
  }
  FB_CHECK(!"a handler that this node did not make");
}

void PoolNode::SetDataAddresses(std::vector<std::string> addresses) {
  state_->data_addresses = std::move(addresses);
}

absl::StatusOr<OpenSessionReply> PoolNode::OpenSession(absl::string_view tenant,
                                                       const OpenSessionRequest& request) {
  absl::StatusOr<OpenSessionReply> reply =
      state_->serving ? state_->sessions.Open(tenant, request)
                      : absl::UnavailableError("this daemon is shutting down");
  if (!reply.ok()) {
    state_->core.metrics.sessions_refused.Add();
    return reply;
  }
  reply->data_addresses = state_->data_addresses;
  return reply;
}

NodeStatus PoolNode::Status() const {
  const State& state = *state_;
  const DramTier& tier = *state.core.tier;
  NodeStatus status;
  status.node = state.core.options.node;
  status.serving = state.serving;
  status.boot_epoch = tier.boot_epoch();
  status.uptime = state.core.clock.Now() - state.started_at;
  status.data_addresses = state.data_addresses;
  status.capacity_bytes = tier.capacity_bytes();
  status.used_bytes = tier.used_bytes();
  status.pages = state.core.page_index.counts();
  status.slots = tier.counts();
  status.slot_count = tier.slot_count();
  status.sessions = state.sessions.session_count();
  status.endpoints = state.EndpointCount();
  status.leases = state.core.leases.lease_count();
  status.leased_bytes = state.core.leases.leased_bytes();
  status.puts_in_flight = state.core.puts_in_flight;
  status.get_bytes_in_flight = state.core.get_pinned_bytes;
  status.subscriptions = state.core.subscriptions.count();
  status.huge_pages = tier.huge_pages_granted();
  status.eviction_policy = state.core.options.eviction_policy;
  return status;
}

std::vector<NamespaceSnapshot> PoolNode::Namespaces() const {
  std::vector<NamespaceSnapshot> snapshots;
  for (const auto& ns : state_->sessions.namespaces()) {
    NamespaceSnapshot& snapshot = snapshots.emplace_back();
    snapshot.namespace_id = ns->id;
    snapshot.spec = ns->spec;
    snapshot.pages = state_->core.page_index.CountsOf(ns->id);
    snapshot.sessions = ns->sessions;
    snapshot.lookups = ns->lookups;
    snapshot.lookup_pages = ns->lookup_pages;
    snapshot.hit_pages = ns->hit_pages;
  }
  return snapshots;
}

void PoolNode::RefreshGauges() {
  const NodeStatus status = Status();
  const ServerMetrics& metrics = state_->core.metrics;
  const auto set = [](Gauge& gauge, uint64_t value) { gauge.Set(static_cast<int64_t>(value)); };
  set(metrics.sessions, status.sessions);
  set(metrics.namespaces, state_->sessions.namespaces().size());
  set(metrics.endpoints, status.endpoints);
  set(metrics.leases, status.leases);
  set(metrics.leased_bytes, status.leased_bytes);
  set(metrics.puts_in_flight, status.puts_in_flight);
  set(metrics.get_bytes_in_flight, status.get_bytes_in_flight);
  set(metrics.subscriptions, status.subscriptions);
  set(metrics.pages, status.pages.pages);
  set(metrics.frames, status.pages.frames);
  set(metrics.frame_bytes, status.pages.frame_bytes);
  set(metrics.dram_capacity_bytes, status.capacity_bytes);
  set(metrics.dram_used_bytes, status.used_bytes);
  set(metrics.slots_free, status.slots.free);
  set(metrics.slots_filling, status.slots.filling);
  set(metrics.slots_sealed, status.slots.sealed);
  set(metrics.slots_draining, status.slots.draining);
  set(metrics.slots_quarantine, status.slots.quarantine);
  set(metrics.slot_pins, status.slots.pins);
}

void PoolNode::BeginShutdown(Nanos grace) {
  if (!state_->serving) return;
  state_->serving = false;
  state_->close_all_at = state_->core.clock.Now() + grace;
  for (NodeHandler& handler : state_->handlers) handler.Drain();
}

bool PoolNode::drained() const { return !state_->serving && state_->EndpointCount() == 0; }

bool PoolNode::State::Sweep(Nanos now) {
  last_sweep = now;
  core.wake_at = kForever;
  bool any = sessions.ExpireIdle(now);
  Nanos next = sessions.NextDeadline();
  for (NodeHandler& handler : handlers) next = std::min(next, handler.Sweep(now));
  core.WakeBy(next);
  return any;
}

bool PoolNode::Poll(Nanos now) {
  State& state = *state_;
  bool any = false;
  if (now >= state.core.leases.NextDeadline()) any |= state.core.leases.Expire(now);
  if (now >= state.core.subscriptions.NextDeadline()) any |= state.core.subscriptions.Expire(now);
  if (now >= state.core.wake_at && now >= state.last_sweep + kSweepInterval) {
    any |= state.Sweep(now);
  }
  if (!state.serving) {
    for (NodeHandler& handler : state.handlers) handler.CloseDrained(now >= state.close_all_at);
  }
  return any;
}

bool PoolNode::PrepareToSleep(std::vector<int>&) { return true; }

Nanos PoolNode::NextDeadline() const {
  const State& state = *state_;
  Nanos next = std::min(state.core.leases.NextDeadline(), state.core.subscriptions.NextDeadline());
  if (state.core.wake_at != kForever) {
    next = std::min(next, std::max(state.core.wake_at, state.last_sweep + kSweepInterval));
  }
  if (!state.serving && state.EndpointCount() > 0) next = std::min(next, state.close_all_at);
  return next;
}

const DramTier& PoolNode::dram() const { return *state_->core.tier; }
DramTier& PoolNode::dram() { return *state_->core.tier; }
const PageIndex& PoolNode::index() const { return state_->core.page_index; }
const PoolNodeOptions& PoolNode::options() const { return state_->core.options; }

}  // namespace forebay
