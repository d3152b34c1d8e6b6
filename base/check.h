#pragma once

#include "absl/strings/string_view.h"

namespace forebay {

// Prints file, line and the failed condition on stderr, and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace forebay

// For what only a bug in this program can cause. Aborts in release builds too: going on could serve
// a wrong page. Never for input from a peer, a user or a device: those get an absl::Status.
#define FB_CHECK(condition)                                   \
  do {                                                        \
    if (!(condition)) [[unlikely]] {                          \
      ::forebay::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                         \
  } while (false)
