#include "tests/sim/plan.h"

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace forebay::testing {
namespace {

// `rate` in one world of three; else nothing.
double Sometimes(SeededRandom& random, double rate) {
  if (!random.Chance(1.0 / 3)) return 0;
  return rate * (0.25 + static_cast<double>(random.Below(1000)) / 1000);
}

void DrawFaults(SeededRandom& random, SimPlan& plan) {
  plan.node_kills = Sometimes(random, 1.0);
  plan.client_kills = Sometimes(random, 2.0);
  plan.client_closes = Sometimes(random, 2.0);
  plan.cuts = Sometimes(random, 2.0);
  plan.pauses = random.Chance(0.5) ? 8.0 : 0;
  plan.pause_max = (random.Chance(0.5) ? 150 : 1500) * kMillisecond;
  plan.rots = Sometimes(random, 40.0);
  plan.misdirected_gets = Sometimes(random, 0.1);
  plan.mislabelled_puts = Sometimes(random, 0.1);
  plan.short_puts = Sometimes(random, 0.1);
  plan.clock_drift_max = random.Chance(0.3) ? 0.009 : 0;
  plan.cancel_chance = Sometimes(random, 0.1);
}

void DrawNetwork(SeededRandom& random, LoopbackFaults& network) {
  network.delay_ns_min = 5 * kMicrosecond;
  constexpr Nanos kDelays[] = {100 * kMicrosecond, kMillisecond, 8 * kMillisecond};
  network.delay_ns_max = kDelays[random.Below(3)];
  network.reorder = random.Chance(0.7);
  network.fragment_bytes_max = random.Chance(0.5) ? 64 * 1024 : 1500;
  network.eager_bytes_max = random.Chance(0.5) ? 8 * 1024 : 0;
  network.corrupt_chance = Sometimes(random, 0.02);
  network.duplicate_chance = Sometimes(random, 0.05);
  network.sent_early_chance = random.Chance(0.5) ? 0.5 : 0;
}

}  // namespace

SimPlan SimPlan::Draw(uint64_t seed, Nanos duration) {
  SeededRandom random(seed * 0x9e3779b97f4a7c15ull + 1);
  SimPlan plan;
  plan.seed = seed;
  plan.duration = duration;
  plan.slab_bytes = 32 << 10;
  plan.slab_count = 3 + random.Below(6);
  plan.policy = random.Chance(0.5) ? "s3fifo" : "lru";
  plan.session_idle_ms = static_cast<uint32_t>(200 + random.Below(800));
  plan.put_timeout_ms = static_cast<uint32_t>(300 + random.Below(1000));
  plan.peer_timeout = static_cast<Nanos>(200 + random.Below(800)) * kMillisecond;
  plan.regions = random.Chance(0.7);
  plan.slice_bytes = random.Chance(0.5) ? 2 << 20 : 256;
  plan.lease_ms_max = random.Chance(0.5) ? 60 : 800;
  plan.think_max = (random.Chance(0.5) ? 2 : 20) * kMillisecond;
  DrawNetwork(random, plan.network);
  DrawFaults(random, plan);
  return plan;
}

std::string SimPlan::ToString() const {
  std::string text =
      absl::StrCat("seed ", seed, ": slabs ", slab_count, ", ", policy, ", leases to ",
                   lease_ms_max, " ms, delay to ", network.delay_ns_max / kMicrosecond, " us");
  const auto add = [&text](absl::string_view name, double rate) {
    if (rate > 0) absl::StrAppend(&text, ", ", name, " ", rate);
  };
  add("regions", regions ? 1 : 0);
  add("small slices", slice_bytes < 1024 ? 1 : 0);
  add("drift", clock_drift_max);
  add("corruption", network.corrupt_chance);
  add("duplicates", network.duplicate_chance);
  add("node kills", node_kills);
  add("client kills", client_kills);
  add("client closes", client_closes);
  add("cuts", cuts);
  add("pauses", pauses);
  add("rots", rots);
  add("misdirected gets", misdirected_gets);
  add("mislabelled puts", mislabelled_puts);
  add("short puts", short_puts);
  add("cancels", cancel_chance);
  return text;
}

}  // namespace forebay::testing
