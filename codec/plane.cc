#include "codec/plane.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "codec/lossless/exponent_split.h"
#include "codec/plane_kernel.h"

namespace forebay {
namespace {

constexpr size_t kStreamAlignment = 16;

size_t Aligned(size_t bytes) {
  return (bytes + kStreamAlignment - 1) / kStreamAlignment * kStreamAlignment;
}
size_t CeilDivide(size_t a, size_t b) { return (a + b - 1) / b; }

size_t BitsOf(PlaneKind kind) {
  switch (kind) {
    case PlaneKind::kRaw:
      return 16;
    case PlaneKind::kFp8E4M3:
    case PlaneKind::kFp8E5M2:
    case PlaneKind::kInt8:
      return 8;
    case PlaneKind::kInt4:
      return 4;
    case PlaneKind::kInt2:
      return 2;
    case PlaneKind::kSplitFixed:
    case PlaneKind::kSplitEntropy:
      return 16;
  }
  return 0;
}

bool IsSplit(PlaneKind kind) {
  return kind == PlaneKind::kSplitFixed || kind == PlaneKind::kSplitEntropy;
}
SplitChannels SplitChannelsOf(const PlaneShape& shape) {
  return {shape.row_channels(), shape.row_channels() * shape.tokens};
}
bool IsAffine(PlaneKind kind) { return kind == PlaneKind::kInt4 || kind == PlaneKind::kInt2; }

// Where the streams of a plane begin, and where it ends.
struct StreamOffsets {
  size_t code_bytes;
  size_t scales;
  size_t scale_bytes;
  size_t zeros;
  size_t end;
};

size_t CodeBytes(const PlaneFormat& format, const PlaneShape& shape) {
  const size_t per_byte = 8 / BitsOf(format.kind);
  if (format.axis != GroupAxis::kColumn) return shape.row_count() * CeilDivide(shape.dim, per_byte);
  const size_t group = format.group == 0 ? shape.tokens : format.group;
  size_t byte_rows = shape.tokens / group * CeilDivide(group, per_byte);
  byte_rows += CeilDivide(shape.tokens % group, per_byte);
  return shape.heads * byte_rows * shape.dim;
}

size_t ScaleCount(const PlaneFormat& format, const PlaneShape& shape) {
  switch (format.axis) {
    case GroupAxis::kNone:
      return 0;
    case GroupAxis::kHead:
      return shape.heads;
    case GroupAxis::kRow:
      return shape.row_count() * (format.group == 0 ? 1 : CeilDivide(shape.dim, format.group));
    case GroupAxis::kColumn:
      return size_t{shape.heads} * shape.dim *
             (format.group == 0 ? 1 : CeilDivide(shape.tokens, format.group));
  }
  return 0;
}

StreamOffsets OffsetsOf(const PlaneFormat& format, const PlaneShape& shape) {
  StreamOffsets at{};
  at.code_bytes = CodeBytes(format, shape);
  at.scales = Aligned(at.code_bytes);
  at.scale_bytes = ScaleCount(format, shape) * (format.scale == ScaleFormat::kBf16 ? 2 : 4);
  at.zeros = at.scales + Aligned(at.scale_bytes);
  at.end = at.zeros + (IsAffine(format.kind) ? Aligned(at.scale_bytes) : 0);
  return at;
}

bool HasAxis(PlaneKind kind, GroupAxis axis) {
  switch (kind) {
    case PlaneKind::kRaw:
    case PlaneKind::kFp8E5M2:
    case PlaneKind::kSplitFixed:
    case PlaneKind::kSplitEntropy:
      return axis == GroupAxis::kNone;
    case PlaneKind::kFp8E4M3:
    case PlaneKind::kInt8:
      return axis == GroupAxis::kRow || axis == GroupAxis::kHead;
    case PlaneKind::kInt4:
    case PlaneKind::kInt2:
      return axis == GroupAxis::kRow || axis == GroupAxis::kColumn;
  }
  return false;
}

const char* NameOf(PlaneKind kind) {
  switch (kind) {
    case PlaneKind::kRaw:
      return "raw";
    case PlaneKind::kFp8E4M3:
      return "fp8_e4m3";
    case PlaneKind::kFp8E5M2:
      return "fp8_e5m2";
    case PlaneKind::kInt8:
      return "int8";
    case PlaneKind::kInt4:
      return "int4";
    case PlaneKind::kInt2:
      return "int2";
    case PlaneKind::kSplitFixed:
      return "split_fixed";
    case PlaneKind::kSplitEntropy:
      return "split_entropy";
  }
  return "unknown";
}

const char* NameOf(GroupAxis axis) {
  switch (axis) {
    case GroupAxis::kNone:
      return "";
    case GroupAxis::kRow:
      return " row";
    case GroupAxis::kColumn:
      return " column";
    case GroupAxis::kHead:
      return " head";
  }
  return " unknown";
}

}  // namespace

std::string PlaneFormat::ToString() const {
  std::string text = absl::StrCat(NameOf(kind), NameOf(axis));
  if (axis == GroupAxis::kNone) return text;
  if (group != 0) absl::StrAppend(&text, " ", group);
  absl::StrAppend(&text, scale == ScaleFormat::kBf16 ? " bf16" : " fp32");
  return text;
}

absl::Status CheckPlaneFormat(const PlaneFormat& format, DType dtype) {
  const auto fault = [&](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plane format (", static_cast<int>(format.kind), ", ", static_cast<int>(format.axis), ", ",
        format.group, ", ", static_cast<int>(format.scale), "): ", what));
  };
  if (BitsOf(format.kind) == 0) return fault("no such kind");
  if (!HasAxis(format.kind, format.axis)) return fault("the kind has no groups along this axis");
  if (format.scale != ScaleFormat::kBf16 && format.scale != ScaleFormat::kFp32) {
    return fault("no such format of scales");
  }
  const bool has_group = format.axis == GroupAxis::kRow || format.axis == GroupAxis::kColumn;
  // A group of less never passes for quantized: its scale and zero would cost more than it saves.
  if (format.group != 0 && (!has_group || format.group % 16 != 0)) {
    return fault("a group is 0 or a multiple of 16, along a row or a column");
  }
  if (format.kind != PlaneKind::kRaw && dtype != DType::kBf16 && dtype != DType::kFp16) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(format.kind), " encodes bf16 and fp16, not ", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

bool IsLossless(PlaneKind kind) { return kind == PlaneKind::kRaw || IsSplit(kind); }

size_t PlaneBytesMax(const PlaneFormat& format, const PlaneShape& shape) {
  if (format.kind == PlaneKind::kRaw) return Aligned(shape.raw_bytes());
  if (IsSplit(format.kind)) {
    return Aligned(ExponentSplitBytesMax(shape.raw_bytes()));
  }
  return OffsetsOf(format, shape).end;
}

std::optional<size_t> EncodePlane(const PlaneFormat& format, const PlaneShape& shape, Bytes raw,
                                  MutableBytes payload) {
  FB_CHECK(raw.size() == shape.raw_bytes());
  FB_CHECK(payload.size() >= PlaneBytesMax(format, shape));
  auto* const to = reinterpret_cast<uint8_t*>(payload.data());
  const auto* const from = reinterpret_cast<const uint8_t*>(raw.data());
  const auto pad = [&](size_t begin, size_t end) {
    if (begin < end) std::memset(to + begin, 0, end - begin);
    return end;
  };
  if (format.kind == PlaneKind::kRaw) {
    if (!raw.empty()) std::memcpy(to, from, raw.size());
    return pad(raw.size(), Aligned(raw.size()));
  }
  if (IsSplit(format.kind)) {
    const SplitForm form =
        format.kind == PlaneKind::kSplitFixed ? SplitForm::kFixed : SplitForm::kEntropy;
    const size_t bytes =
        ExponentSplitEncode(shape.dtype, form, raw, payload, SplitChannelsOf(shape));
    return pad(bytes, Aligned(bytes));
  }
  const StreamOffsets at = OffsetsOf(format, shape);
  pad(at.code_bytes, at.scales);
  pad(at.scales + at.scale_bytes, at.zeros);
  if (at.end > at.zeros) pad(at.zeros + at.scale_bytes, at.end);
  if (!plane_kernel::Encode(format, shape, from, {to, to + at.scales, to + at.zeros})) {
    return std::nullopt;
  }
  return at.end;
}

absl::Status DecodePlane(const PlaneFormat& format, const PlaneShape& shape, Bytes* payload,
                         MutableBytes raw) {
  FB_CHECK(raw.size() == shape.raw_bytes());
  const auto take = [&](size_t bytes) -> absl::StatusOr<Bytes> {
    if (payload->size() < bytes) {
      return absl::DataLossError(absl::StrCat("a plane of ", format.ToString(), " ends after ",
                                              payload->size(), " of ", bytes, " bytes"));
    }
    const Bytes taken = payload->first(bytes);
    payload->remove_prefix(bytes);
    return taken;
  };
  if (IsSplit(format.kind)) {
    FB_ASSIGN_OR_RETURN(const size_t bytes, ExponentSplitBytes(*payload));
    FB_ASSIGN_OR_RETURN(const Bytes split, take(Aligned(bytes)));
    return ExponentSplitDecode(shape.dtype, split.first(bytes), raw, SplitChannelsOf(shape));
  }
  FB_ASSIGN_OR_RETURN(const Bytes plane, take(PlaneBytesMax(format, shape)));
  const auto* const from = reinterpret_cast<const uint8_t*>(plane.data());
  auto* const to = reinterpret_cast<uint8_t*>(raw.data());
  if (format.kind == PlaneKind::kRaw) {
    if (!raw.empty()) std::memcpy(to, from, raw.size());
    return absl::OkStatus();
  }
  const StreamOffsets at = OffsetsOf(format, shape);
  if (plane_kernel::Decode(format, shape, {from, from + at.scales, from + at.zeros}, to)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("a plane of ", format.ToString(),
                                          " with a scale, zero or code that no encoder writes"));
}

}  // namespace forebay
