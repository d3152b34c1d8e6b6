#pragma once

#include <memory>
#include <optional>
#include <string>

#include "codec/codec.h"
#include "codec/uniform/dictionary.h"
#include "codec/uniform/uniform_planes.h"

namespace forebay {

// Planes at uniform steps, with what a model's channels are like in a dictionary that both sides
// have (codec/uniform/uniform_planes.h).
//
// Payload: the dictionary's name, 32 bytes (flag kFrameDictionary), then that of EncodeUniform. A
// part that the dictionary has no planes for, or any plan but the plain one, stays raw.
//
// A class is what the steps are against the calibration's sigmas: an error, by its mean square and
// for each plane, of at most 3% is near, of 6% for keys and 10% for values fair.
class UniformCodec final : public Codec {
 public:
  // Encodes with `dictionary`, its steps times the dials: larger is coarser. Null: it decodes
  // alone. Borrows  the store, in which it finds the dictionaries of frames.
  UniformCodec(std::string name, const DictionaryStore* store,
               std::shared_ptr<const Dictionary> dictionary, float k_dial, float v_dial);

  // What it encodes with; or null.
  const std::shared_ptr<const Dictionary>& dictionary() const { return dictionary_; }
  // The name of the dictionary that a frame needs. Absent: none, or no such frame.
  static std::optional<Sha256Digest> DictionaryOf(const FrameHeader& header, Bytes payload);

  CodecId id() const override { return CodecId::kUniform; }
  absl::string_view name() const override { return name_; }
  QualityBound quality() const override { return quality_; }
  using Codec::Encode;
  using Codec::PayloadBytesMax;
  size_t PayloadBytesMax(const KvLayout& layout, const PartSpec& part,
                         const PartPlan& plan) const override;
  absl::StatusOr<EncodedPart> Encode(const KvLayout& layout, const PartSpec& part,
                                     const PartPlan& plan, Bytes raw,
                                     MutableBytes payload) const override;
  // NOT_FOUND: the store does not have the dictionary, which it names.
  absl::Status Decode(const KvLayout& layout, const PartSpec& part, const FrameHeader& header,
                      Bytes payload, MutableBytes raw) const override;

 private:
  const std::string name_;
  const DictionaryStore* store_;
  const std::shared_ptr<const Dictionary> dictionary_;
  const float k_dial_;
  const float v_dial_;
  const QualityBound quality_;
};

}  // namespace forebay
