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

// memcpy(to, from, bytes) and the checksum of what arrived at `to`, in one pass over memory: each
// byte is read once, so that a source which changes meanwhile cannot pass. Large aligned copies go
// round the caches. Whatever tells another thread afterwards that `to` is ready may be an ordinary
// release store.
uint64_t CopyAndChecksum(void* to, const void* from, size_t bytes);

// The same over pieces, in order. A value; one thread at a time.
class RunningChecksum {
 public:
  RunningChecksum() { Reset(); }
  void Reset();
  void Update(Bytes bytes);
  void CopyAndUpdate(void* to, const void* from, size_t bytes);
  // May be called again after more updates.
  uint64_t Digest() const;
  uint64_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kStripeBytes = 64;
  // Not less than the 240 bytes of which XXH3 wants the whole at once.
  static constexpr size_t kHeldBytesMax = 256;

  // With `to` null nothing is written.
  void Take(unsigned char* to, const unsigned char* from, size_t bytes);
  void Hold(unsigned char** to, const unsigned char** from, size_t bytes);

  alignas(64) uint64_t accumulators_[8];
  // What was not eaten yet. Once the input is long, at least a stripe: its end is treated apart.
  unsigned char held_[kHeldBytesMax];
  size_t held_bytes_ = 0;
  unsigned block_at_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace forebay
