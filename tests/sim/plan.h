#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "transport/loopback/loopback_network.h"

namespace forebay::testing {

// What one simulated world is made of, drawn from its seed. Swarm testing: each seed turns on some
// of the faults, at rates of its own, so that rare mixtures come up too.
struct SimPlan {
  uint64_t seed = 0;
  Nanos duration = 0;  // of work under faults; calm and the last checks come after
  int node_count = 3;
  int client_count = 8;

  // Of each node. Small, so that most puts evict.
  uint64_t slab_bytes = 0;
  uint64_t slab_count = 0;
  std::string policy;
  uint32_t session_idle_ms = 0;
  uint32_t put_timeout_ms = 0;
  Nanos peer_timeout = 0;

  // Of clients.
  bool regions = false;  // clients share their nodes' host: locations, reads in place
  uint64_t slice_bytes = 0;
  uint32_t lease_ms_min = 1, lease_ms_max = 0;
  double clock_drift_max = 0;  // share; clocks of clients run fast or slow by up to this
  Nanos think_max = 0;
  double cancel_chance = 0;

  LoopbackFaults network;

  // Events a virtual second, over the whole world.
  double node_kills = 0, client_kills = 0, client_closes = 0, cuts = 0, pauses = 0, rots = 0;
  Nanos pause_max = 0;
  // For each message of its kind: a client that is wrong, or a node that mixes up what it holds.
  double misdirected_gets = 0;  // the answer is a sound frame of another page
  double mislabelled_puts = 0;  // a frame under another page's key
  double short_puts = 0;        // a frame of half the length, consistent in itself

  static SimPlan Draw(uint64_t seed, Nanos duration);
  std::string ToString() const;
};

}  // namespace forebay::testing
