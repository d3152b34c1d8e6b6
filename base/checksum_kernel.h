#pragma once

#include <stddef.h>
#include <stdint.h>

// XXH3-64 compiled for one instruction set: what checksum.cc chooses among at run time. The three
// translation units share checksum_kernel.inc and include nothing else: an inline function of C++
// that one of them compiled with AVX-512 could be the copy that the linker keeps for everybody.
//
// Long input is eaten in stripes of 64 bytes by eight accumulators, which are scrambled after every
// 16 stripes; the last 64 bytes are eaten once more in the digest.
struct ForebayChecksumKernel {
  uint64_t (*hash)(const void* data, size_t bytes);
  // The accumulators before the first byte.
  void (*begin)(uint64_t accumulators[8]);
  // Eats `stripes` stripes. `block_at`, in [0, 16), is how many were eaten since the last scramble;
  // returns what it is now.
  unsigned (*eat)(uint64_t accumulators[8], unsigned block_at, const unsigned char* from,
                  size_t stripes);
  // The same, and writes what was eaten to `to`: each byte is read once, so that a source which
  // changes meanwhile cannot make the two differ. `to` may be followed by a reader on any thread.
  unsigned (*copy)(uint64_t accumulators[8], unsigned block_at, unsigned char* to,
                   const unsigned char* from, size_t stripes);
  // Requires more than 240 bytes in all, all but the last 1 to 64 eaten, and `last`, the last 64.
  uint64_t (*digest)(const uint64_t accumulators[8], const unsigned char* last, uint64_t bytes);
};

extern "C" {
extern const struct ForebayChecksumKernel forebay_checksum_baseline;
#if defined(__x86_64__)
extern const struct ForebayChecksumKernel forebay_checksum_avx2;
extern const struct ForebayChecksumKernel forebay_checksum_avx512;
#endif
}
