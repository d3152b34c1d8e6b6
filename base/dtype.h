#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace forebay {

// Element type of cached keys and values. Part of the identity of a namespace: the same tokens in
// another dtype are another page. Values are wire format: never renumbered.
enum class DType : uint8_t {
  kFp32 = 1,
  kFp16 = 2,
  kBf16 = 3,
  kFp8E4M3 = 4,
  kFp8E5M2 = 5,
  kInt8 = 6,
  kOpaque8 = 7,  // Bytes with a meaning of their own (an engine's packed cache): exact only.
};

// Bytes of one element; 0 for a value that is no DType.
size_t DTypeBytes(DType dtype);
absl::string_view DTypeName(DType dtype);
// INVALID_ARGUMENT naming the known ones.
absl::StatusOr<DType> ParseDType(absl::string_view name);

}  // namespace forebay
