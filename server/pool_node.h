#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/reactor.h"
#include "base/sha256.h"
#include "proto/control.h"
#include "tiers/dram/dram_tier.h"
#include "tiers/page_index.h"
#include "transport/transport.h"

// The heart of one daemon: sessions, leases, lookups, gets, puts and subscriptions over any number
// of transports, with no I/O and no clock of its own. This header is the guide to the folder.
//
//   session.h           what the node knows of clients and endpoints
//   page_store.h        tier and index together: allocation under eviction, pins, publication
//   put_op.h, get_op.h  bytes in, bytes out
//   lookup_op.h         lookups, leases, offers, reports
//   subscription.h      who waits for which page
//   config.h            the daemon's configuration; forebayd.cc is the daemon; rpc/ its gRPC
//   services
//
// forebayd runs a node on a reactor with real transports; a simulation runs many in one thread.
namespace forebay {

// Bounds of what clients may hold. Each is a refusal with a clear status, never a growth without
// end.
struct NodeLimits {
  uint32_t sessions_max = 1024;
  uint32_t leases_per_session_max = 4096;
  uint32_t lease_ms_max = 30'000;
  uint32_t pinned_percent_max = 80;  // of the capacity: leases, and apart from them sends
  uint32_t puts_per_session_max = 1024;
  uint32_t put_timeout_ms = 30'000;
  uint32_t subscriptions_per_session_max = 1024;
  uint32_t namespaces_max = 4096;
  uint32_t session_idle_ms = 60'000;
  uint32_t hello_timeout_ms = 10'000;       // an endpoint that has not said Hello by then is closed
  uint64_t get_window_bytes = 64ull << 20;  // sent and not yet taken, per endpoint
  uint64_t get_message_bytes = 4ull << 20;  // of one GetData, so that arrival streams
  uint32_t get_message_items = 64;
};

// Somebody whose clients are told apart by a token.
struct TenantOptions {
  std::string name;
  std::string secret;         // under which the tenant's root keys are derived
  Sha256Digest token_hash{};  // SHA-256 of the token; unused where there are no tokens
};

struct PoolNodeOptions {
  std::string node = "node";
  DramTier::Options dram;
  NodeLimits limits;
  std::string eviction_policy = "s3fifo";
  std::vector<TenantOptions> tenants;  // none: everybody is "default"
  std::string host_id;                 // equal for processes that share a kernel and its namespaces
  double weight = 1.0;                 // of this node in placement
};

// The name and the secret of the tenant of a daemon without tenants. The secret is none.
inline constexpr absl::string_view kDefaultTenant = "default";
inline constexpr absl::string_view kDefaultTenantSecret = "forebay.default.tenant";

// What the node says of itself.
struct NodeStatus {
  std::string node;
  bool serving = false;
  Uint128Bytes boot_epoch{};
  Nanos uptime = 0;
  std::vector<std::string> data_addresses;
  uint64_t capacity_bytes = 0, used_bytes = 0;
  PageIndex::Counts pages;
  SlotCounts slots;
  uint64_t slot_count = 0;  // counted apart from `slots`, whose total() it always is
  uint64_t sessions = 0, endpoints = 0, leases = 0, leased_bytes = 0;
  uint64_t puts_in_flight = 0, get_bytes_in_flight = 0, subscriptions = 0;
  bool huge_pages = false;
  std::string eviction_policy;
};

struct NamespaceSnapshot {
  uint32_t namespace_id = 0;
  NamespaceSpec spec;
  PageIndex::Counts pages;
  uint64_t sessions = 0, lookups = 0, lookup_pages = 0, hit_pages = 0;
};

// Owns     its memory, index and sessions.
// Borrows  the clock, the registry and the transports. Destroy the transports before the node: they
//          may hold its memory until then.
// Threads  one reactor, which also polls the transports. Nothing here locks.
class PoolNode final : public Pollable {
 public:
  // RESOURCE_EXHAUSTED if the memory is not to be had; INVALID_ARGUMENT for an unknown policy.
  static absl::StatusOr<std::unique_ptr<PoolNode>> Create(PoolNodeOptions options,
                                                          const Clock& clock,
                                                          MetricRegistry& registry);
  ~PoolNode() override;

  // A transport is attached in two steps, since it wants its handler first:
  //   TransportHandler& handler = node->NewHandler();
  //   auto transport = std::make_unique<SomeTransport>(handler, …);
  //   node->Attach(handler, *transport);
  TransportHandler& NewHandler();
  void Attach(TransportHandler& handler, Transport& transport);

  // What OpenSession tells clients, best first.
  void SetDataAddresses(std::vector<std::string> addresses);

  // Opens a session of `tenant`, which the caller has authenticated.
  //   INVALID_ARGUMENT     the spec is wrong; names every fault
  //   FAILED_PRECONDITION  no common wire version; names both ranges
  //   RESOURCE_EXHAUSTED   no session or no namespace to give
  //   UNAUTHENTICATED      a tenant that is not configured
  //   UNAVAILABLE          shutting down
  absl::StatusOr<OpenSessionReply> OpenSession(absl::string_view tenant,
                                               const OpenSessionRequest& request);

  // For people and tests.
  NodeStatus Status() const;
  std::vector<NamespaceSnapshot> Namespaces() const;
  // Brings gauges up to date; Poll does so now and then.
  void RefreshGauges();

  // No new sessions, endpoints or operations; what is under way may end until `grace` from now,
  // then every endpoint is closed.
  void BeginShutdown(Nanos grace);
  // True when, after BeginShutdown, no endpoint is left.
  bool drained() const;

  bool Poll(Nanos now) override;
  bool PrepareToSleep(std::vector<int>& fds) override;
  Nanos NextDeadline() const override;

  const DramTier& dram() const;
  // The slabs that a same-host transport exports, in the order that SlotLocation::region counts.
  DramTier& dram();
  const PageIndex& index() const;
  const PoolNodeOptions& options() const;

 private:
  struct State;
  explicit PoolNode(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace forebay
