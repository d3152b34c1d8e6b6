#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace forebay {

// Ranges of raw memory. A Bytes never owns.
using Bytes = absl::Span<const std::byte>;
using MutableBytes = absl::Span<std::byte>;

inline Bytes AsBytes(const void* data, size_t bytes) {
  return {static_cast<const std::byte*>(data), bytes};
}
inline MutableBytes AsMutableBytes(void* data, size_t bytes) {
  return {static_cast<std::byte*>(data), bytes};
}

}  // namespace forebay
