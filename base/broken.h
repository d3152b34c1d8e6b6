#pragma once

#include "absl/strings/string_view.h"

namespace forebay {

// Guards that can be broken on purpose, so that a harness can prove that it would notice.
//
// In an ordinary build FB_BROKEN is the constant false, and what hangs on it is compiled out. With
// -DFOREBAY_BREAK=all it asks whether FOREBAY_BROKEN in the environment (names separated by commas)
// has the name; with -DFOREBAY_BREAK=NAME that one guard is broken besides.
//
// tests/sim/negative_controls.sh lists every name and breaks one after another.
#if defined(FOREBAY_BREAK_RUNTIME)
inline constexpr bool kGuardsCanBreak = true;
// Threads  any.
bool GuardIsBroken(absl::string_view name);
#define FB_BROKEN(name) (::forebay::GuardIsBroken(name))
#else
inline constexpr bool kGuardsCanBreak = false;
#define FB_BROKEN(name) false
#endif

}  // namespace forebay
