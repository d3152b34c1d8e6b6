#include "codec/planes_codec.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "codec/composition.h"

namespace forebay {
namespace {

// Calls visit(layer of the part, whether it is V) for each plane of the part, in order, until it
// fails.
template <typename Visit>
absl::Status ForEachPlane(const KvLayout& layout, const PartSpec& part, Visit visit) {
  for (uint32_t layer = 0; layer < part.layer_count; ++layer) {
    if (part.stream != Stream::kValue) FB_RETURN_IF_ERROR(visit(layer, false));
    if (part.stream != Stream::kKey && layout.layers[part.layer_begin + layer].v_dim > 0) {
      FB_RETURN_IF_ERROR(visit(layer, true));
    }
  }
  return absl::OkStatus();
}

// The weakest classes of the planes that the part has.
QualityBound QualityOf(const PartSpec& part, const Composition& composition) {
  QualityBound quality;
  const auto add = [&](const PlaneFormat& k, const PlaneFormat& v) {
    if (part.stream != Stream::kValue) quality.k = std::max(quality.k, KeyQuality(k));
    if (part.stream != Stream::kKey) quality.v = std::max(quality.v, ValueQuality(v));
  };
  if (composition.formats.empty()) add(composition.k, composition.v);
  for (size_t i = 0; i < composition.formats.size(); i += 2) {
    add(composition.formats[i], composition.formats[i + 1]);
  }
  return quality;
}

absl::StatusOr<Composition> ReadFrame(const KvLayout& layout, const PartSpec& part,
                                      const FrameHeader& header, Bytes* payload) {
  FB_ASSIGN_OR_RETURN(Composition composition, ReadComposition(layout, part, payload));
  if (composition.Drops(layout) != ((header.flags & kFrameRetentionMask) != 0)) {
    return absl::DataLossError("the flags of the frame and its retention mask differ");
  }
  const uint16_t quality = PackQuality(QualityOf(part, composition));
  if (header.codec_param == quality) return composition;
  return absl::DataLossError(absl::StrCat("planes of quality ", absl::Hex(quality),
                                          " in a frame of ", absl::Hex(header.codec_param)));
}

// The payload's bytes, or nothing where planes cannot be coded: those are raw in `composition`
// then, and counted.
std::optional<size_t> EncodePlanes(const KvLayout& layout, const PartSpec& part, Bytes raw,
                                   MutableBytes payload, Composition* composition,
                                   uint32_t* raw_planes, PlanesCodec::EncodedRuns* runs) {
  size_t at = WriteComposition(*composition, layout, part, payload);
  std::vector<std::pair<uint32_t, bool>> refused;
  size_t plane_index = 0;
  const auto encode = [&](uint32_t layer, bool value) {
    const PlaneRows rows = LayRows(*composition, layout, part, layer, value);
    const Bytes plane = raw.first(rows.shape.raw_bytes());
    raw.remove_prefix(plane.size());
    std::vector<EncodedRun>* const kept = runs == nullptr ? nullptr : &(*runs)[plane_index++];
    const std::optional<size_t> bytes = EncodeRows(rows, plane, payload.subspan(at), kept);
    if (!bytes) refused.emplace_back(layer, value);
    at += bytes.value_or(0);
    return absl::OkStatus();
  };
  FB_CHECK(ForEachPlane(layout, part, encode).ok());
  FB_CHECK(raw.empty());
  for (const auto& [layer, value] : refused) composition->KeepRaw(part, layer, value);
  *raw_planes += static_cast<uint32_t>(refused.size());
  if (!refused.empty()) return std::nullopt;
  return at;
}

}  // namespace

PlanesCodec::PlanesCodec(std::string name, PlaneFormat k, PlaneFormat v)
    : name_(std::move(name)), k_(k), v_(v) {
  FB_CHECK(CheckPlaneFormat(k, DType::kBf16).ok());
  FB_CHECK(CheckPlaneFormat(v, DType::kBf16).ok());
}

size_t PlanesCodec::PayloadBytesMax(const KvLayout& layout, const PartSpec& part,
                                    const PartPlan& plan) const {
  if (!HasPlanes(part)) return part.raw_bytes;
  const absl::StatusOr<Composition> composition = Compose(plan, layout, part, k_, v_);
  if (!composition.ok()) return part.raw_bytes;  // Encode refuses it
  const bool drops = composition->Drops(layout);
  size_t bytes = CompositionBytesMax(*composition, layout, part);
  Composition raw = *composition;
  raw.formats.clear();
  raw.format_scope = PlanScope::kPart;
  raw.k = raw.v = PlaneFormat{};
  const auto add = [&](uint32_t layer, bool value) {
    size_t plane_bytes = LayRows(*composition, layout, part, layer, value).BytesMax();
    if (drops) {  // Any plane may stay raw.
      plane_bytes = std::max(plane_bytes, LayRows(raw, layout, part, layer, value).BytesMax());
    }
    bytes += plane_bytes;
    return absl::OkStatus();
  };
  FB_CHECK(ForEachPlane(layout, part, add).ok());
  return std::max<size_t>(bytes, part.raw_bytes);
}

absl::StatusOr<EncodedPart> PlanesCodec::Encode(const KvLayout& layout, const PartSpec& part,
                                                const PartPlan& plan, Bytes raw,
                                                MutableBytes payload) const {
  return EncodeGrown(layout, part, plan, raw, payload, /*runs=*/nullptr);
}

absl::StatusOr<EncodedPart> PlanesCodec::EncodeGrown(const KvLayout& layout, const PartSpec& part,
                                                     const PartPlan& plan, Bytes raw,
                                                     MutableBytes payload,
                                                     EncodedRuns* runs) const {
  FB_RETURN_IF_ERROR(CheckEncode(*this, layout, part, plan, raw, payload));
  if (HasPlanes(part)) {
    if (runs != nullptr) runs->resize(2 * size_t{part.layer_count});
    FB_ASSIGN_OR_RETURN(Composition composition, Compose(plan, layout, part, k_, v_));
    EncodedPart encoded;
    const auto encode = [&] {
      return EncodePlanes(layout, part, raw, payload, &composition, &encoded.raw_planes, runs);
    };
    std::optional<size_t> bytes = encode();
    const bool drops = composition.Drops(layout);
    if (!bytes && drops) {
      bytes = encode();
      FB_CHECK(bytes.has_value());  // Planes that stay raw take anything, the others were taken.
    }
    encoded.payload_bytes = bytes.value_or(raw.size());
    encoded.flags = drops ? kFrameRetentionMask : 0;
    encoded.quality = QualityOf(part, composition);
    const bool is_whole = composition.token_count == layout.page_tokens;
    if (encoded.payload_bytes < raw.size() || !is_whole) return encoded;
  }
  if (!raw.empty()) std::memcpy(payload.data(), raw.data(), raw.size());
  return EncodedPart{raw.size(), kFrameRawFallback, {}};
}

absl::Status PlanesCodec::Decode(const KvLayout& layout, const PartSpec& part,
                                 const FrameHeader& header, Bytes payload, MutableBytes raw) const {
  if (raw.size() != part.raw_bytes) {
    return absl::DataLossError(
        absl::StrCat("a part of ", part.raw_bytes, " bytes, with room for ", raw.size()));
  }
  if ((header.flags & kFrameRawFallback) != 0) {
    return RawCodec().Decode(layout, part, header, payload, raw);
  }
  FB_ASSIGN_OR_RETURN(const Composition composition, ReadFrame(layout, part, header, &payload));
  const auto decode = [&](uint32_t layer, bool value) {
    const PlaneRows rows = LayRows(composition, layout, part, layer, value);
    const MutableBytes plane = raw.first(rows.shape.raw_bytes());
    raw.remove_prefix(plane.size());
    return DecodeRows(rows, &payload, plane);
  };
  FB_RETURN_IF_ERROR(ForEachPlane(layout, part, decode));
  FB_CHECK(raw.empty());
  if (payload.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(payload.size(), " bytes after the last plane"));
}

absl::StatusOr<PartPlan> ReadPartPlan(const KvLayout& layout, const PartSpec& part,
                                      const FrameHeader& header, Bytes payload) {
  PartPlan plan;
  plan.token_count = layout.page_tokens;
  if (header.codec == static_cast<uint8_t>(CodecId::kRaw) ||
      (header.flags & kFrameRawFallback) != 0) {
    plan.classes.assign(layout.page_tokens, TokenClass::kExact);
    plan.formats = {{PlaneFormat{}, PlaneFormat{}}};
    return plan;
  }
  if (header.codec != static_cast<uint8_t>(CodecId::kPlanes)) {
    return absl::UnimplementedError(absl::StrCat("codec ", header.codec, " is not known"));
  }
  FB_ASSIGN_OR_RETURN(Composition composition, ReadFrame(layout, part, header, &payload));
  plan.token_count = composition.token_count;
  plan.class_scope = composition.class_scope;
  plan.classes = std::move(composition.classes);
  if (plan.classes.empty()) {
    plan.classes.assign(layout.page_tokens, TokenClass::kDropped);
    std::fill_n(plan.classes.begin(), composition.token_count, TokenClass::kCoded);
  }
  plan.format_scope = composition.format_scope;
  if (composition.formats.empty()) composition.formats = {composition.k, composition.v};
  for (size_t i = 0; i < composition.formats.size(); i += 2) {
    plan.formats.push_back({composition.formats[i], composition.formats[i + 1]});
  }
  return plan;
}

std::vector<std::unique_ptr<Codec>> MakePlanesCodecs() {
  using enum PlaneKind;
  constexpr auto kRow = GroupAxis::kRow;
  constexpr auto kColumn = GroupAxis::kColumn;
  constexpr auto kBf16 = ScaleFormat::kBf16;
  constexpr auto kCompact = ScaleFormat::kCompact;
  constexpr auto kHadamard = PlaneTransform::kHadamard;
  std::vector<std::unique_ptr<Codec>> codecs;
  const auto add = [&](const char* name, const PlaneFormat& k, const PlaneFormat& v) {
    codecs.push_back(std::make_unique<PlanesCodec>(name, k, v));
  };
  const auto add_both = [&](const char* name, const PlaneFormat& both) { add(name, both, both); };
  const PlaneFormat int8{kInt8, kRow, 0, kBf16};
  const PlaneFormat int4_k{kInt4, kColumn, 64, kBf16};
  const PlaneFormat int4_v{kInt4, kRow, 64, kBf16};
  add_both("lossless", {kSplitEntropy});
  add_both("lossless_fast", {kSplitFixed});
  add_both("int8", int8);
  add_both("fp8", {kFp8E4M3, GroupAxis::kHead, 0, ScaleFormat::kFp32});
  add_both("fp8_token", {kFp8E4M3, kRow, 0, kBf16});
  add("k8v4", int8, int4_v);
  add("int4", int4_k, int4_v);
  add("k4v2", {kInt4, kColumn, 64, kCompact}, {kLloyd2, kRow, 0, kBf16, kHadamard});
  // A page of which half is dropped has keys of few tokens: whatever is left of 128 is one group.
  add("int2", {kInt2, kColumn, 128, kCompact}, {kInt2, kRow, 64, kCompact});
  add_both("fp8_e5m2", {kFp8E5M2});
  add("kivi4", {kInt4, kColumn, 32, kBf16}, {kInt4, kRow, 32, kBf16});
  add("kivi2", {kInt2, kColumn, 32, kBf16}, {kInt2, kRow, 32, kBf16});
  add("int4_outlier", {kInt4, kColumn, 64, kBf16, PlaneTransform::kNone, 1},
      {kInt4, kRow, 64, kBf16, PlaneTransform::kNone, 1});
  add_both("int4_hadamard", {kInt4, kRow, 64, kBf16, kHadamard});
  add_both("lloyd4", {kLloyd4, kRow, 0, kBf16, kHadamard});
  add_both("lloyd2", {kLloyd2, kRow, 0, kBf16, kHadamard});
  return codecs;
}

}  // namespace forebay
