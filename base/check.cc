#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace forebay {

void CheckFailed(const char* file, int line, const char* condition) {
  // stdio is enough: the process is about to end, and nothing here may allocate or take a lock of
  // ours.
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace forebay
