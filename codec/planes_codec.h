#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "codec/plane.h"

namespace forebay {

// Encodes each plane of a part by itself: keys one way, values another, since keys need more bits.
//
// Payload: 32 bytes (u8 version = 1 | u8 0 x 7 | PlaneFormat of K | PlaneFormat of V | u64 0), then
// the planes in the order of the part, each at a multiple of 16 bytes (codec/plane.h). So a frame
// decodes alone, whichever composition it has.
//
// The rotary part of MLA (V of the stream kLatent) stays 16 bits: its format is kRaw where V's has
// loss. Parts of states, and of other dtypes than bf16 and fp16, stay raw.
class PlanesCodec final : public Codec {
 public:
  // Requires formats that CheckPlaneFormat takes for bf16.
  PlanesCodec(std::string name, PlaneFormat k, PlaneFormat v);

  CodecId id() const override { return CodecId::kPlanes; }
  absl::string_view name() const override { return name_; }
  bool lossless() const override { return IsLossless(k_.kind) && IsLossless(v_.kind); }
  size_t PayloadBytesMax(const KvLayout& layout, const PartSpec& part) const override;
  absl::StatusOr<EncodedPart> Encode(const KvLayout& layout, const PartSpec& part, Bytes raw,
                                     MutableBytes payload) const override;
  absl::Status Decode(const KvLayout& layout, const PartSpec& part, const FrameHeader& header,
                      Bytes payload, MutableBytes raw) const override;

  const PlaneFormat& k() const { return k_; }
  const PlaneFormat& v() const { return v_; }

 private:
  const std::string name_;
  const PlaneFormat k_;
  const PlaneFormat v_;
};

// The compositions that have a name, the most exact first:
//   lossless       bf16 and fp16 by exponent split and rANS, about 10.7 bits an element
//   lossless_fast  the same at a fixed rate, 12.1 bits
//   int8           per token and head, 8.1 bits
//   fp8            E4M3, a scale for each head of a page, 8 bits
//   k8v4           int8 keys, int4 values of 64 channels a group: 6.3 bits
//   int4           keys by channel, values by token, 64 a group: 4.5 bits
//   int2           the same, 32 a group: 3 bits
std::vector<std::unique_ptr<Codec>> MakePlanesCodecs();

}  // namespace forebay
