#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/sim/plan.h"
#include "tests/sim/recorder.h"

namespace forebay::testing {

// Runs the world of one plan from its start to its last check:
//   1. work under faults, for plan.duration of virtual time, audited as it goes;
//   2. calm: faults end, everybody comes back, and a publish and a fetch must succeed;
//   3. all clients go; once leases and sessions are over, no node may hold anything for anybody.
// The recorder has what broke. The hash is a function of the plan alone, within one build.
//
// Killed clients are never destroyed, since a process that dies runs no destructor either: run many
// worlds in processes of their own.
uint64_t RunSimulation(const SimPlan& plan, Recorder& recorder);

}  // namespace forebay::testing
