#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// Named points at which a test can make the product fail, stop or die.
//
//   FB_FAILPOINT("tiers.dram.map");            returns the armed status from this function
//   FB_FAILPOINT_HIT("server.get.before_send") true when armed: for functions without a status
//
// Names are folder.noun.verb, unique, and listed in docs/operations.md; a test checks that.
// Compiled out unless FOREBAY_FAILPOINTS.
namespace forebay::failpoint {

// What an armed point does.
struct Action {
  enum class Kind : uint8_t { kError, kKill, kStop, kSleep };
  Kind kind = Kind::kError;
  absl::Status status = {};  // kError
  int64_t sleep_ns = 0;      // kSleep
  uint64_t skip_count = 0;   // hits that pass before it acts
  uint64_t act_count = UINT64_MAX;
};

void Arm(absl::string_view name, Action action);
void Disarm(absl::string_view name);
// Arms from "name=error:CODE[:skip]", "name=kill[:skip]", "name=stop[:skip]", "name=sleep:MS"
// joined by ";": for FOREBAY_FAILPOINTS_ARM in the environment of a test daemon.
absl::Status ArmFromText(absl::string_view text);
// OK unless `name` is armed with an error that is due. Cheap when nothing is armed.
absl::Status Evaluate(const char* name);
// How often `name` was reached since it was last armed, whether it acted or not; points that are
// not armed are not counted.
uint64_t HitCount(absl::string_view name);

class ScopedArm {
 public:
  ScopedArm(absl::string_view name, absl::Status status);
  ScopedArm(absl::string_view name, Action action);
  ~ScopedArm();
  ScopedArm(const ScopedArm&) = delete;
  ScopedArm& operator=(const ScopedArm&) = delete;

 private:
  std::string name_;
};

}  // namespace forebay::failpoint

#if defined(FOREBAY_FAILPOINTS)
#define FB_FAILPOINT(name)                                               \
  do {                                                                   \
    ::absl::Status fb_failpoint_ = ::forebay::failpoint::Evaluate(name); \
    if (!fb_failpoint_.ok()) [[unlikely]]                                \
      return fb_failpoint_;                                              \
  } while (false)
#define FB_FAILPOINT_HIT(name) (!::forebay::failpoint::Evaluate(name).ok())
#else
#define FB_FAILPOINT(name) static_cast<void>(0)
#define FB_FAILPOINT_HIT(name) false
#endif
