#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/steps/float_formats.h"
#include "codec/steps/host_device.h"

// The rotation of rows by Hadamard matrices: y = H x / sqrt(n). It spreads an outlier over all of
// its block and makes numbers about normal; it is its own inverse, and keeps the length of a row.
//
// A row whose length is no power of two is cut into blocks that are, the largest first: 80 = 64 +
// 16, 100 = 64 + 32 + 4; a block of one stays as it is.
//
// Of a block, butterflies (a, b) -> (a + b, a - b) of elements 1, 2, 4, ... apart in this order,
// all in fp32, then one product with 1 / sqrt(n): so the bits are the same wherever it runs.
//
// Errors   none here. |y| <= sqrt(n) * max |x|; partial sums <= n * max |x|.
// Threads  pure functions; one block a call.
// Requires round to nearest.
// Source   QuaRot (arXiv 2404.00456), without its random signs.
namespace forebay {

// The largest power of two that is not above `length` >= 1.
FB_HOST_DEVICE constexpr size_t HadamardBlock(size_t length) {
  size_t block = 1;
  while (block <= length / 2) block *= 2;
  return block;
}

// 1 / sqrt(n) of a power of two.
FB_HOST_DEVICE constexpr float HadamardFactor(size_t n) {
  float factor = 1.0f;
  for (; n >= 4; n /= 4) factor = MultiplyFp32(factor, 0.5f);
  return n == 2 ? MultiplyFp32(factor, 0.70710678f) : factor;
}

// In place. Requires a power of two.
FB_HOST_DEVICE constexpr void HadamardRotate(float* x, size_t n) {
  for (size_t apart = 1; apart < n; apart *= 2) {
    for (size_t begin = 0; begin < n; begin += 2 * apart) {
      for (size_t i = begin; i < begin + apart; ++i) {
        const float a = x[i];
        const float b = x[i + apart];
        x[i] = AddFp32(a, b);
        x[i + apart] = AddFp32(a, -b);
      }
    }
  }
  const float factor = HadamardFactor(n);
  for (size_t i = 0; i < n; ++i) x[i] = MultiplyFp32(x[i], factor);
}

}  // namespace forebay
