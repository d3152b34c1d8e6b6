#include "codec/plane_kernel/plane_kernel.h"

#include "codec/plane_kernel/units.h"

namespace forebay::plane_kernel {

bool Encode(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
            const StreamsToWrite& to) {
  switch (format.kind) {
    case PlaneKind::kFp8E4M3:
    case PlaneKind::kFp8E5M2:
      return EncodeFp8(format, shape, raw, to);
    case PlaneKind::kInt8:
      return EncodeInt8(format, shape, raw, to);
    case PlaneKind::kInt4:
    case PlaneKind::kInt2:
      if (format.scale == ScaleFormat::kCompact) return EncodeCompact(format, shape, raw, to);
      return format.axis == GroupAxis::kRow ? EncodeAffineRows(format, shape, raw, to)
                                            : EncodeAffineColumns(format, shape, raw, to);
    case PlaneKind::kLloyd4:
    case PlaneKind::kLloyd3:
    case PlaneKind::kLloyd2:
      return EncodeLevels(format, shape, raw, to);
    case PlaneKind::kRaw:
    case PlaneKind::kSplitFixed:
    case PlaneKind::kSplitEntropy:
      break;
  }
  return false;
}

bool Decode(const PlaneFormat& format, const PlaneShape& shape, const StreamsToRead& from,
            uint8_t* raw) {
  switch (format.kind) {
    case PlaneKind::kFp8E4M3:
    case PlaneKind::kFp8E5M2:
      return DecodeFp8(format, shape, from, raw);
    case PlaneKind::kInt8:
      return DecodeInt8(format, shape, from, raw);
    case PlaneKind::kInt4:
    case PlaneKind::kInt2:
      return format.axis == GroupAxis::kRow ? DecodeAffineRows(format, shape, from, raw)
                                            : DecodeAffineColumns(format, shape, from, raw);
    case PlaneKind::kLloyd4:
    case PlaneKind::kLloyd3:
    case PlaneKind::kLloyd2:
      return DecodeLevels(format, shape, from, raw);
    case PlaneKind::kRaw:
    case PlaneKind::kSplitFixed:
    case PlaneKind::kSplitEntropy:
      break;
  }
  return false;
}

}  // namespace forebay::plane_kernel
