#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/check.h"

namespace forebay {

Uint128Bytes RandomId() {
  Uint128Bytes id;
  size_t filled = 0;
  while (filled < id.size()) {
    const ssize_t got = getrandom(id.data() + filled, id.size() - filled, /*flags=*/0);
    // Without the kernel's randomness an epoch could repeat, and a stale descriptor could pass.
    FB_CHECK(got > 0 || errno == EINTR);
    if (got > 0) filled += static_cast<size_t>(got);
  }
  return id;
}

}  // namespace forebay
