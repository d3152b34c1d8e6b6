#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/frame_header.h"
#include "base/kv_layout.h"
#include "base/quality.h"
#include "codec/part_plan.h"

// Part bytes -> the payload of a frame, and back. This header is the guide to the folder.
namespace forebay {

// What an encoder made.
struct EncodedPart {
  size_t payload_bytes = 0;
  uint16_t flags = 0;       // of the frame's header: kFrameRetentionMask or kFrameRawFallback
  QualityBound quality;     // the weakest classes in it: FrameHeader::codec_param, packed
  uint32_t raw_planes = 0;  // under a mask: planes that the codec gave up on
};

// One way to encode the raw bytes of a part.
//
// A part that a codec cannot take (a state, an opaque dtype, numbers that are not finite) stays
// raw, with kFrameRawFallback, and its frame is one of the raw codec: never a number that was cut
// off in silence. Where a plan drops tokens its mask stays, and those planes alone are raw. The
// same input always gives the same payload. Threads  any; an instance has no state that changes.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const = 0;
  virtual absl::string_view name() const = 0;
  // The classes that it keeps for keys and values (base/quality.h); exact: the same bits come back.
  virtual QualityBound quality() const = 0;
  // Largest payload of a part under a plan: what a writer makes room for.
  virtual size_t PayloadBytesMax(const KvLayout& layout, const PartSpec& part,
                                 const PartPlan& plan) const = 0;
  // Encodes `raw`, a part of `layout` as base/kv_layout.h orders it. What is no smaller than that
  // stays raw, with the rows that the plan drops; but while rows are not there yet, which may hold
  // anything, it is a payload that no frame can take.
  //   INVALID_ARGUMENT   `payload` is smaller than PayloadBytesMax, `raw` is no such part, or the
  //                      plan is not one for it, or drops tokens where the codec cannot
  virtual absl::StatusOr<EncodedPart> Encode(const KvLayout& layout, const PartSpec& part,
                                             const PartPlan& plan, Bytes raw,
                                             MutableBytes payload) const = 0;
  // Fills `raw` entirely, or fails. Any codec of an id decodes what any other of that id encoded;
  // the payload is not trusted.
  //   DATA_LOSS          the payload does not decode to exactly that many bytes
  virtual absl::Status Decode(const KvLayout& layout, const PartSpec& part,
                              const FrameHeader& header, Bytes payload, MutableBytes raw) const = 0;
  // True when payload and raw bytes are the same bytes, so that nobody needs to call the above: a
  // writer sends its memory, a reader lands in its own.
  virtual bool identity() const { return false; }

  // Without a plan.
  size_t PayloadBytesMax(const KvLayout& layout, const PartSpec& part) const {
    return PayloadBytesMax(layout, part, PartPlan());
  }
  absl::StatusOr<EncodedPart> Encode(const KvLayout& layout, const PartSpec& part, Bytes raw,
                                     MutableBytes payload) const {
    return Encode(layout, part, PartPlan(), raw, payload);
  }
};

// What Encode checks first. INVALID_ARGUMENT as there.
absl::Status CheckEncode(const Codec& codec, const KvLayout& layout, const PartSpec& part,
                         const PartPlan& plan, Bytes raw, MutableBytes payload);

// The codec that leaves bytes as they are. Whatever a plan says of formats, it is exact.
class RawCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kRaw; }
  absl::string_view name() const override { return "raw"; }
  QualityBound quality() const override { return {}; }
  using Codec::Encode;
  using Codec::PayloadBytesMax;
  size_t PayloadBytesMax(const KvLayout& layout, const PartSpec& part,
                         const PartPlan& plan) const override;
  absl::StatusOr<EncodedPart> Encode(const KvLayout& layout, const PartSpec& part,
                                     const PartPlan& plan, Bytes raw,
                                     MutableBytes payload) const override;
  absl::Status Decode(const KvLayout& layout, const PartSpec& part, const FrameHeader& header,
                      Bytes payload, MutableBytes raw) const override;
  bool identity() const override { return true; }
};

// The codecs that this build knows: for readers by id, for writers by name.
//
// Threads  any, after Register.
class CodecRegistry {
 public:
  // With every codec of this build.
  static const CodecRegistry& Default();

  // FAILED_PRECONDITION: the name is taken.
  absl::Status Register(std::unique_ptr<Codec> codec);
  // One that decodes frames of this id. UNIMPLEMENTED naming the id: a frame of it is a miss here.
  absl::StatusOr<const Codec*> Find(uint8_t id) const;
  absl::StatusOr<const Codec*> Find(CodecId id) const { return Find(static_cast<uint8_t>(id)); }
  // By its name, for configuration. INVALID_ARGUMENT naming the known ones.
  absl::StatusOr<const Codec*> FindByName(absl::string_view name) const;
  const std::vector<std::unique_ptr<Codec>>& codecs() const { return codecs_; }

 private:
  std::vector<std::unique_ptr<Codec>> codecs_;
};

}  // namespace forebay
