#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

// The inner loops of codec/uniform/uniform_planes.h, chosen for the processor at run time. Internal
// to codec/. Element i is of channel (at + i) % period; `at` and the period are multiples of 32.
//
// Threads  any; no state.
namespace forebay::uniform_kernel {

constexpr size_t kAlign = 32;

// UniformChannel field by field, [period].
struct Channels {
  const float* mean;
  const float* step;
  const float* inverse;
  const float* reach;
  size_t period;
};

struct Found {
  bool finite = true;    // no Inf and no NaN
  bool escapes = false;  // a code is kUniformEscape
};

// Codes of bf16 or fp16 as bytes. What is not finite has a code that means nothing.
Found Quantize(DType dtype, const Channels& channels, size_t at, const uint8_t* raw, size_t count,
               uint8_t* codes);

// The way back; escapes come out as some number. Whether there are any.
bool Dequantize(DType dtype, const Channels& channels, size_t at, const uint8_t* codes,
                size_t count, uint8_t* raw);

}  // namespace forebay::uniform_kernel
