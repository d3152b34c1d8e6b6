#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "codec/lossless/exponent_split.h"
#include "codec/lossless/exponent_split_kernel.h"

// The entropy form of the exponent split, behind its header. Internal to codec/.
namespace forebay::exponent_split {

// The bytes written, and whether the keys stand below ceilings; 0 bytes where they are not fewer
// than those of `raw`, when `out` is undefined.
struct EntropyForm {
  size_t bytes = 0;
  bool has_ceilings = false;
};
EntropyForm EncodeEntropy(Kind kind, const SplitChannels& channels, Bytes raw, MutableBytes out);

// DATA_LOSS as ExponentSplitDecode.
absl::Status DecodeEntropy(Kind kind, const SplitChannels& channels, bool has_ceilings, Bytes in,
                           MutableBytes raw);

}  // namespace forebay::exponent_split
