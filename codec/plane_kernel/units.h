#pragma once

#include <cstdint>

#include "codec/plane_kernel/plane_kernel.h"

// What plane_kernel.cc chooses from. Each unit is a file that is compiled once for each instruction
// set, which takes long: so there are several. All as Encode and Decode.
namespace forebay::plane_kernel {

bool EncodeInt8(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                const StreamsToWrite& to);
bool DecodeInt8(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                uint8_t* raw);
bool EncodeFp8(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
               const StreamsToWrite& to);
bool DecodeFp8(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
               uint8_t* raw);
bool EncodeAffineRows(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                      const StreamsToWrite& to);
bool DecodeAffineRows(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                      uint8_t* raw);
bool EncodeAffineColumns(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                         const StreamsToWrite& to);
bool DecodeAffineColumns(const PlaneFormat& format, const PlaneShape& shape,
                         const StreamsToRead& from, uint8_t* raw);
bool EncodeCompact(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                   const StreamsToWrite& to);
bool EncodeLevels(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                  const StreamsToWrite& to);
bool DecodeLevels(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
                  uint8_t* raw);

}  // namespace forebay::plane_kernel
