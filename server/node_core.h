#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/log.h"
#include "server/lease_book.h"
#include "server/metrics.h"
#include "server/page_store.h"
#include "server/pool_node.h"
#include "server/subscription.h"
#include "tiers/dram/dram_tier.h"
#include "tiers/page_index.h"

namespace forebay {

// What the operations of one node share. Lives in PoolNode; no operation outlives it.
struct NodeCore {
  NodeCore(PoolNodeOptions node_options, const Clock& node_clock, MetricRegistry& registry,
           std::unique_ptr<DramTier> dram, std::unique_ptr<EvictionPolicy> policy);

  PageIndex& index() { return page_index; }
  // Makes the node take a turn at `when` at the latest.
  void WakeBy(Nanos when) { wake_at = std::min(wake_at, when); }
  // Memory for bytes that nobody wants: written by many landings at once, read by none.
  MutableBytes scratch() { return {scratch_memory.get(), kScratchBytes}; }

  const Clock& clock;
  const PoolNodeOptions options;
  ServerMetrics metrics;
  const std::unique_ptr<DramTier> tier;
  PageIndex page_index;
  PageStore store;
  const uint64_t pinned_bytes_max;
  LeaseBook leases;
  SubscriptionTable subscriptions;
  LogLimiter log_limiter;  // for lines that a peer can cause

  uint64_t next_token = 1;        // of sends and landings, over all endpoints
  uint64_t get_pinned_bytes = 0;  // frames that gets hold
  uint64_t puts_in_flight = 0;
  Nanos wake_at = kForever;

  static constexpr size_t kScratchBytes = 256 * 1024;
  const std::unique_ptr<std::byte[]> scratch_memory = std::make_unique<std::byte[]>(kScratchBytes);
};

}  // namespace forebay
