#pragma once

#include <cstddef>
#include <cstdint>

// The inner loops over key bytes by channel (codec/lossless/exponent_split.h), chosen for the
// processor at run time. Internal to codec/. Byte i is of channel (at + i) % period; fastest where
// both are multiples of 32.
//
// Threads  any; no state.
namespace forebay::exponent_split {

// Raises maxima[channel] to the largest of its bytes.
void RaiseMaxima(const uint8_t* bytes, size_t count, size_t at, uint8_t* maxima, size_t period);

// Each byte becomes ceilings[channel] less itself, modulo 256: its own inverse.
void Mirror(const uint8_t* ceilings, size_t period, size_t at, uint8_t* bytes, size_t count);

// Adds the bytes to `counts`, of 256.
void CountBytes(const uint8_t* bytes, size_t count, uint64_t* counts);

}  // namespace forebay::exponent_split
