#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace forebay {

// The checksum of frame payloads: XXH3-64, seed 0 (xxHash, through its library; SSE2, AVX2 or
// AVX-512 by what the processor has; all give the same value).
//
// Detects accidents: flips, tears, stale bytes. It is no defence against a forger; see PageKey.
uint64_t ChecksumOf(Bytes bytes);

// memcpy(to, from, bytes) and the checksum of what arrived at `to`, in one pass over memory.
// The bytes hashed are those at `to`, so that a source which changes meanwhile cannot pass.
uint64_t CopyAndChecksum(void* to, const void* from, size_t bytes);

// The same over pieces, in order. A value; one thread at a time.
class RunningChecksum {
 public:
  RunningChecksum() { Reset(); }
  void Reset();
  void Update(Bytes bytes);
  // Copies in blocks that stay in the first-level cache, and hashes each block where it arrived.
  void CopyAndUpdate(void* to, const void* from, size_t bytes);
  // May be called again after more updates.
  uint64_t Digest() const;
  uint64_t bytes() const { return bytes_; }

 private:
  alignas(64) unsigned char state_[576 + 64];  // XXH3_state_t; checksum.cc asserts that it fits
  uint64_t bytes_ = 0;
};

}  // namespace forebay
