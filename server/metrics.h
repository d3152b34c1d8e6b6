#pragma once

#include "base/metrics.h"

namespace forebay {

// What one node counts; docs/operations.md has the catalogue for people. Written by the node's
// reactor alone.
struct ServerMetrics {
  explicit ServerMetrics(MetricRegistry& registry);

  Counter& sessions_opened;
  Counter& sessions_refused;
  Counter& namespaces_forgotten;
  Counter& hellos_refused;
  Counter& malformed_messages;
  Counter& permission_denied;

  Counter& lookups;
  Counter& lookup_pages;
  Counter& lookup_hit_pages;
  Counter& leases_granted;
  Counter& leases_refused;
  Counter& leases_expired;
  Counter& releases_invalid;

  Counter& get_hits;
  Counter& get_misses;
  Counter& get_late;
  Counter& get_refused;
  Counter& get_bytes;

  Counter& put_stored;
  Counter& put_present;
  Counter& put_full;
  Counter& put_corrupt;
  Counter& put_invalid;
  Counter& put_failed;
  Counter& put_bytes;
  Counter& put_timeouts;
  Counter& identity_conflicts;

  Counter& evicted_pages;
  Counter& evicted_bytes;
  Counter& bad_frames;
  Counter& bad_reports_unfounded;

  Gauge& sessions;
  Gauge& namespaces;
  Gauge& endpoints;
  Gauge& leases;
  Gauge& leased_bytes;
  Gauge& puts_in_flight;
  Gauge& get_bytes_in_flight;
  Gauge& subscriptions;
  Gauge& pages;
  Gauge& frames;
  Gauge& frame_bytes;
  Gauge& dram_capacity_bytes;
  Gauge& dram_used_bytes;
  Gauge& slots_free;
  Gauge& slots_filling;
  Gauge& slots_sealed;
  Gauge& slots_draining;
  Gauge& slots_quarantine;
  Gauge& slot_pins;
};

}  // namespace forebay
