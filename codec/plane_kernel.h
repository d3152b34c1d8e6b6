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
};
struct StreamsToRead {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;
};

// Requires a sound format with loss. False as EncodePlane.
bool Encode(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
            const StreamsToWrite& to);
// False for a scale, zero or code that no encoder writes.
bool Decode(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
            uint8_t* raw);

}  // namespace forebay::plane_kernel
