#include "codec/codec.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "codec/planes_codec.h"
#include "codec/uniform/uniform_codec.h"

namespace forebay {

size_t RawCodec::PayloadBytesMax(const KvLayout& /*layout*/, const PartSpec& part,
                                 const PartPlan& /*plan*/) const {
  return part.raw_bytes;
}

absl::StatusOr<EncodedPart> RawCodec::Encode(const KvLayout& layout, const PartSpec& part,
                                             const PartPlan& plan, Bytes raw,
                                             MutableBytes payload) const {
  FB_RETURN_IF_ERROR(CheckEncode(*this, layout, part, plan, raw, payload));
  if (plan.Drops(layout)) {
    return absl::InvalidArgumentError("a raw frame has every token of its page");
  }
  if (!raw.empty()) std::memcpy(payload.data(), raw.data(), raw.size());
  return EncodedPart{raw.size(), 0, {}};
}

absl::Status RawCodec::Decode(const KvLayout& /*layout*/, const PartSpec& part,
                              const FrameHeader& /*header*/, Bytes payload,
                              MutableBytes raw) const {
  if (payload.size() != raw.size() || part.raw_bytes != raw.size()) {
    return absl::DataLossError(absl::StrCat("a raw payload of ", payload.size(),
                                            " bytes for a part of ", raw.size(), " bytes"));
  }
  if (!raw.empty()) std::memcpy(raw.data(), payload.data(), raw.size());
  return absl::OkStatus();
}

absl::Status CheckEncode(const Codec& codec, const KvLayout& layout, const PartSpec& part,
                         const PartPlan& plan, Bytes raw, MutableBytes payload) {
  FB_RETURN_IF_ERROR(CheckPartPlan(plan, layout, part));
  if (raw.size() != part.raw_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a part of ", raw.size(), " raw bytes where ", part.raw_bytes, " are due"));
  }
  const size_t needed = codec.PayloadBytesMax(layout, part, plan);
  if (payload.size() >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("room for ", payload.size(), " payload bytes where ", needed, " are needed"));
}

const CodecRegistry& CodecRegistry::Default() {
  static const auto* registry = [] {
    auto* all = new CodecRegistry;
    FB_CHECK(all->Register(std::make_unique<RawCodec>()).ok());
    for (std::unique_ptr<Codec>& codec : MakePlanesCodecs()) {
      FB_CHECK(all->Register(std::move(codec)).ok());
    }
    return all;
  }();
  return *registry;
}

absl::Status CodecRegistry::Register(std::unique_ptr<Codec> codec) {
  if (FindByName(codec->name()).ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a codec is named \"", codec->name(), "\" already"));
  }
  codecs_.push_back(std::move(codec));
  return absl::OkStatus();
}

absl::StatusOr<const Codec*> CodecRegistry::Find(uint8_t id) const {
  // Whoever encodes by uniform steps has a codec with a dictionary of its own.
  if (id == static_cast<uint8_t>(CodecId::kUniform)) {
    static const auto* const decoder =
        new UniformCodec("uniform", &DictionaryStore::Default(), nullptr, 1, 1);
    return decoder;
  }
  for (const std::unique_ptr<Codec>& codec : codecs_) {
    if (static_cast<uint8_t>(codec->id()) == id) return codec.get();
  }
  return absl::UnimplementedError(absl::StrCat("codec ", id, " is unknown to this build"));
}

absl::StatusOr<const Codec*> CodecRegistry::FindByName(absl::string_view name) const {
  std::string known;
  for (const std::unique_ptr<Codec>& codec : codecs_) {
    if (codec->name() == name) return codec.get();
    absl::StrAppend(&known, known.empty() ? "" : ", ", codec->name());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no codec is named \"", name, "\"; known: ", known));
}

}  // namespace forebay
