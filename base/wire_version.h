#pragma once

#include <cstdint>

namespace forebay {

// Versions of the data plane. Peers take the highest that both speak, or refuse with
// FAILED_PRECONDITION that names both ranges. Each feature is named with its first version.
inline constexpr uint32_t kWireVersionFirst = 1;  // frames, lookup, lease, get, put, subscribe
inline constexpr uint32_t kWireVersionMin = 1;    // oldest that this build speaks
inline constexpr uint32_t kWireVersionMax = 1;    // newest that this build speaks

}  // namespace forebay
