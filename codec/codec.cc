#include "codec/codec.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace forebay {

absl::StatusOr<size_t> RawCodec::Encode(const PartSpec& part, Bytes raw,
                                        MutableBytes payload) const {
  if (raw.size() != part.raw_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a part of ", raw.size(), " raw bytes where ", part.raw_bytes, " are due"));
  }
  if (payload.size() < raw.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "room for ", payload.size(), " payload bytes where ", raw.size(), " are needed"));
  }
  if (!raw.empty()) std::memcpy(payload.data(), raw.data(), raw.size());
  return raw.size();
}

absl::Status RawCodec::Decode(const FrameHeader& header, Bytes payload, MutableBytes raw) const {
  if (payload.size() != raw.size() || header.raw_bytes != raw.size()) {
    return absl::DataLossError(absl::StrCat("a raw payload of ", payload.size(),
                                            " bytes for a part of ", raw.size(), " bytes"));
  }
  if (!raw.empty()) std::memcpy(raw.data(), payload.data(), raw.size());
  return absl::OkStatus();
}

const CodecRegistry& CodecRegistry::Default() {
  static const auto* registry = [] {
    auto* all = new CodecRegistry;
    FB_CHECK(all->Register(std::make_unique<RawCodec>()).ok());
    return all;
  }();
  return *registry;
}

absl::Status CodecRegistry::Register(std::unique_ptr<Codec> codec) {
  if (Find(codec->id()).ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("codec id ", static_cast<int>(codec->id()), " is taken"));
  }
  codecs_.push_back(std::move(codec));
  return absl::OkStatus();
}

absl::StatusOr<const Codec*> CodecRegistry::Find(uint8_t id) const {
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
