#pragma once

#include "absl/strings/string_view.h"

namespace forebay {

// Of this build, from the project's CMakeLists.txt.
inline constexpr absl::string_view kVersion = FOREBAY_VERSION;

}  // namespace forebay
