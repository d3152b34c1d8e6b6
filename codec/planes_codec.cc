#include "codec/planes_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

constexpr size_t kHeaderBytes = 32;
constexpr uint8_t kVersion = 1;

struct Header {
  uint8_t version = kVersion;
  uint8_t zeros[7] = {};
  PlaneFormat k;
  PlaneFormat v;
  uint64_t zero = 0;
};
static_assert(sizeof(Header) == kHeaderBytes);

bool HasPlanes(const PartSpec& part) {
  return part.stream != Stream::kState &&
         (part.dtype == DType::kBf16 || part.dtype == DType::kFp16);
}

PlaneFormat ValueFormat(const PartSpec& part, const PlaneFormat& v) {
  if (part.stream == Stream::kLatent && !IsLossless(v.kind)) return PlaneFormat{};
  return v;
}

// Calls visit(format, shape) for each plane of the part, in order, until it fails.
template <typename Visit>
absl::Status ForEachPlane(const KvLayout& layout, const PartSpec& part, const PlaneFormat& k,
                          const PlaneFormat& v, Visit visit) {
  for (uint32_t i = 0; i < part.layer_count; ++i) {
    const LayerSpec& layer = layout.layers[part.layer_begin + i];
    PlaneShape shape{layout.page_tokens, part.head_count, layer.k_dim, layout.plane_order,
                     part.dtype};
    if (part.stream != Stream::kValue) {
      FB_RETURN_IF_ERROR(visit(k, shape));
    }
    shape.dim = layer.v_dim;
    if (part.stream != Stream::kKey && layer.v_dim > 0) {
      FB_RETURN_IF_ERROR(visit(v, shape));
    }
  }
  return absl::OkStatus();
}

}  // namespace

PlanesCodec::PlanesCodec(std::string name, PlaneFormat k, PlaneFormat v)
    : name_(std::move(name)), k_(k), v_(v) {
  FB_CHECK(CheckPlaneFormat(k, DType::kBf16).ok());
  FB_CHECK(CheckPlaneFormat(v, DType::kBf16).ok());
}

size_t PlanesCodec::PayloadBytesMax(const KvLayout& layout, const PartSpec& part) const {
  if (!HasPlanes(part)) return part.raw_bytes;
  size_t bytes = kHeaderBytes;
  const auto add = [&](const PlaneFormat& format, const PlaneShape& shape) {
    bytes += PlaneBytesMax(format, shape);
    return absl::OkStatus();
  };
  FB_CHECK(ForEachPlane(layout, part, k_, ValueFormat(part, v_), add).ok());
  return std::max<size_t>(bytes, part.raw_bytes);
}

absl::StatusOr<EncodedPart> PlanesCodec::Encode(const KvLayout& layout, const PartSpec& part,
                                                Bytes raw, MutableBytes payload) const {
  FB_RETURN_IF_ERROR(CheckRoom(*this, layout, part, raw, payload));
  bool coded = HasPlanes(part);
  size_t at = kHeaderBytes;
  if (coded) {
    Header header;
    header.k = k_;
    header.v = ValueFormat(part, v_);
    std::memcpy(payload.data(), &header, sizeof(header));
    Bytes left = raw;
    const auto encode = [&](const PlaneFormat& format, const PlaneShape& shape) {
      if (!coded) return absl::OkStatus();
      const Bytes plane = left.first(shape.raw_bytes());
      left.remove_prefix(plane.size());
      const std::optional<size_t> bytes = EncodePlane(format, shape, plane, payload.subspan(at));
      coded = bytes.has_value();
      at += bytes.value_or(0);
      return absl::OkStatus();
    };
    FB_RETURN_IF_ERROR(ForEachPlane(layout, part, header.k, header.v, encode));
    FB_CHECK(!coded || left.empty());
  }
  if (coded && at < raw.size()) return EncodedPart{at, 0};
  if (!raw.empty()) std::memcpy(payload.data(), raw.data(), raw.size());
  return EncodedPart{raw.size(), kFrameRawFallback};
}

absl::Status PlanesCodec::Decode(const KvLayout& layout, const PartSpec& part,
                                 const FrameHeader& frame, Bytes payload, MutableBytes raw) const {
  if (raw.size() != part.raw_bytes) {
    return absl::DataLossError(
        absl::StrCat("a part of ", part.raw_bytes, " bytes, with room for ", raw.size()));
  }
  if ((frame.flags & kFrameRawFallback) != 0) {
    return RawCodec().Decode(layout, part, frame, payload, raw);
  }
  if (!HasPlanes(part)) return absl::DataLossError("planes of a part that has none");
  if (payload.size() < kHeaderBytes) {
    return absl::DataLossError(absl::StrCat("a payload of ", payload.size(), " bytes"));
  }
  Header header;
  std::memcpy(&header, payload.data(), sizeof(header));
  payload.remove_prefix(kHeaderBytes);
  if (header.version != kVersion) {
    return absl::DataLossError(absl::StrCat("planes of version ", header.version));
  }
  for (const PlaneFormat& format : {header.k, header.v}) {
    if (absl::Status status = CheckPlaneFormat(format, part.dtype); !status.ok()) {
      return absl::DataLossError(status.message());
    }
  }
  const auto decode = [&](const PlaneFormat& format, const PlaneShape& shape) {
    const MutableBytes plane = raw.first(shape.raw_bytes());
    raw.remove_prefix(plane.size());
    return DecodePlane(format, shape, &payload, plane);
  };
  FB_RETURN_IF_ERROR(ForEachPlane(layout, part, header.k, header.v, decode));
  FB_CHECK(raw.empty());
  if (payload.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(payload.size(), " bytes after the last plane"));
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
  add("int2", {kInt2, kColumn, 64, kCompact}, {kInt2, kRow, 64, kCompact});
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
