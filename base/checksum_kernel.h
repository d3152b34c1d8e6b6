#pragma once

#include <stddef.h>
#include <stdint.h>

// XXH3-64 compiled for one instruction set: what checksum.cc chooses among at run time. The three
// translation units share checksum_kernel.inc and include nothing else: an inline function of C++
// that one of them compiled with AVX-512 could be the copy that the linker keeps for everybody.
struct ForebayChecksumKernel {
  uint64_t (*hash)(const void* data, size_t bytes);
  void (*reset)(void* state);
  void (*update)(void* state, const void* data, size_t bytes);
  uint64_t (*digest)(const void* state);
};

extern "C" {
extern const struct ForebayChecksumKernel forebay_checksum_baseline;
#if defined(__x86_64__)
extern const struct ForebayChecksumKernel forebay_checksum_avx2;
extern const struct ForebayChecksumKernel forebay_checksum_avx512;
#endif
}
