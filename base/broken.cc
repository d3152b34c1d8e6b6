#include "base/broken.h"

#if defined(FOREBAY_BREAK_RUNTIME)

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace forebay {

bool GuardIsBroken(absl::string_view name) {
  // ",a,b,": so that a name is found whole.
  static const auto* broken = [] {
    const char* const chosen = std::getenv("FOREBAY_BROKEN");
    return new std::string(
        absl::StrCat(",", FOREBAY_BREAK_RUNTIME, ",", chosen == nullptr ? "" : chosen, ","));
  }();
  return broken->find(absl::StrCat(",", name, ",")) != std::string::npos;
}

}  // namespace forebay

#endif
