#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "codec/plane.h"
#include "codec/plane_rows.h"

namespace forebay {

// Encodes each plane of a part by itself: keys one way, values another, since keys need more bits;
// and as a plan says: tokens dropped or exact, other formats by layer and head, a page that grows.
//
// Payload: what composes it (codec/composition.h; 32 bytes where there is no plan), then the planes
// in the order of the part, each a multiple of 16 bytes: codec/plane.h where it is whole, runs of
// heads and exact rows (codec/plane_rows.h) where it is not. So a frame decodes alone, whichever
// composition it has. Dropped rows decode to zeros.
//
// The rotary part of MLA (V of the stream kLatent) stays 16 bits: its format is kRaw where V's has
// loss. Parts of states, and of other dtypes than bf16 and fp16, stay raw.
class PlanesCodec final : public Codec {
 public:
  // Requires formats that CheckPlaneFormat takes for bf16.
  PlanesCodec(std::string name, PlaneFormat k, PlaneFormat v);

  CodecId id() const override { return CodecId::kPlanes; }
  absl::string_view name() const override { return name_; }
  QualityBound quality() const override { return {KeyQuality(k_), ValueQuality(v_)}; }
  using Codec::Encode;
  using Codec::PayloadBytesMax;
  size_t PayloadBytesMax(const KvLayout& layout, const PartSpec& part,
                         const PartPlan& plan) const override;
  absl::StatusOr<EncodedPart> Encode(const KvLayout& layout, const PartSpec& part,
                                     const PartPlan& plan, Bytes raw,
                                     MutableBytes payload) const override;
  absl::Status Decode(const KvLayout& layout, const PartSpec& part, const FrameHeader& header,
                      Bytes payload, MutableBytes raw) const override;

  // Runs of planes that were encoded, by plane.
  using EncodedRuns = std::vector<std::vector<EncodedRun>>;
  // As Encode, but copies the runs that `runs` has from the call before, under the same plan with
  // fewer tokens: the rows of those have not changed since. Then `runs` has those of this call.
  absl::StatusOr<EncodedPart> EncodeGrown(const KvLayout& layout, const PartSpec& part,
                                          const PartPlan& plan, Bytes raw, MutableBytes payload,
                                          EncodedRuns* runs) const;

  const PlaneFormat& k() const { return k_; }
  const PlaneFormat& v() const { return v_; }

 private:
  const std::string name_;
  const PlaneFormat k_;
  const PlaneFormat v_;
};

// The plan that a raw payload, or one of planes, tells of itself, every list filled: so that an
// engine masks the tokens that were dropped, without decoding. The payload is not trusted.
//   DATA_LOSS          as Codec::Decode, of what comes before the planes
//   UNIMPLEMENTED      another codec: those drop nothing, and frames say so (kFrameRetentionMask)
absl::StatusOr<PartPlan> ReadPartPlan(const KvLayout& layout, const PartSpec& part,
                                      const FrameHeader& header, Bytes payload);

// The compositions that have a name, by bits an element of pages of 64 tokens and d = 128:
//   lossless       bf16 and fp16 by exponent split and rANS, about 10.7
//   lossless_fast  the same at a fixed rate, 12.1
//   int8           per token and head, 8.1
//   fp8            E4M3, a scale for each head of a page, 8.0
//   fp8_token      E4M3, a scale for each token and head, 8.1: for heads whose tokens differ much
//   k8v4           int8 keys, int4 values of 64 channels a group, 6.3
//   int4           keys by channel, values by token, 64 a group, 4.5
//   k4v2           int4's keys with scales and zeros of a byte, lloyd2's values, 3.2
//   int2           int4's layout with scales and zeros of a byte, 2.25
// and those that others are known by, to compare with:
//   fp8_e5m2       no scale at all, 8.0
//   kivi4, kivi2   KIVI's: int4's layout, 32 a group, 5.0 and 3.0
//   int4_outlier   KVQuant's dense and sparse: int4, one of each channel and token apart, 4.9
//   int4_hadamard  QuaRot's: rows rotated, 64 a group, 4.5
//   lloyd4, lloyd2 TurboQuant's: rows rotated, Lloyd-Max levels, one scale a row, 4.1 and 2.1
std::vector<std::unique_ptr<Codec>> MakePlanesCodecs();

}  // namespace forebay
