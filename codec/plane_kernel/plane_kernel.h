#pragma once

#include <cstdint>

#include "codec/plane.h"

// The loops of codec/plane.h, chosen for the processor at run time. Internal to codec/. No
// alignment is needed anywhere.
namespace forebay::plane_kernel {

struct StreamsToWrite {
  uint8_t* codes;
  uint8_t* scales;
  uint8_t* zeros;
  uint8_t* units;
};
struct StreamsToRead {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;
};

// The codes, without what comes before them: no transform, no outliers, no rest of columns.
// Requires a sound format with loss. False as EncodePlane.
bool Encode(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
            const StreamsToWrite& to);
// The same way back, of scales in bf16 or fp32. False for a scale, zero or code that no encoder
// writes.
bool Decode(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
            uint8_t* raw);

// Every row of `from` as its Hadamard transform, to `to`, which may be the same. False where a
// number is not finite, or too large: forth above 2^64 or where fp16 overflows, back above 2^96.
// Back, what is a little beyond fp16 is cut off.
enum class Rotation : uint8_t { kForth, kBack };
bool Rotate(const PlaneShape& shape, Rotation rotation, const uint8_t* from, uint8_t* to);

// A copy of the plane whose outliers are replaced, and the outliers. False for Inf and NaN.
bool TakeOutliers(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                  uint8_t* dense, uint8_t* outliers);

}  // namespace forebay::plane_kernel
