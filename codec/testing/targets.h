#pragma once

#include <hwy/targets.h>

#include <vector>

namespace forebay::testing {

// Calls `run` with the target's name for each instruction set that this build has code for and this
// processor can run, the widest first; plain code is the last. Dispatch is as before afterwards.
template <typename Run>
void EveryTarget(Run run) {
  // Asked once: under a hypervisor CPUID is slow.
  static const auto* targets = new std::vector<int64_t>(hwy::SupportedAndGeneratedTargets());
  int64_t all = 0;
  for (const int64_t target : *targets) {
    hwy::GetChosenTarget().Update(target);
    run(hwy::TargetName(target));
    all |= target;
  }
  hwy::GetChosenTarget().Update(all);
}

}  // namespace forebay::testing
