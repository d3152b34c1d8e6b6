#include "codec/plane.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "codec/lossless/exponent_split.h"
#include "codec/plane_kernel/plane_kernel.h"
#include "codec/plane_outliers.h"
#include "codec/steps/compact_scale.h"

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
    case PlaneKind::kSplitFixed:
    case PlaneKind::kSplitEntropy:
      return 16;
    case PlaneKind::kFp8E4M3:
    case PlaneKind::kFp8E5M2:
    case PlaneKind::kInt8:
      return 8;
    case PlaneKind::kInt4:
    case PlaneKind::kLloyd4:
      return 4;
    case PlaneKind::kLloyd3:
      return 3;
    case PlaneKind::kInt2:
    case PlaneKind::kLloyd2:
      return 2;
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

// Where the streams of a plane begin, and how long they are without the zeros after them.
struct ByteRange {
  size_t begin = 0;
  size_t bytes = 0;
};
enum StreamName { kCodes, kScales, kZeros, kUnits, kOutliers, kRest, kStreamCount };
struct Streams {
  ByteRange at[kStreamCount];
  size_t end = 0;
  const ByteRange& operator[](StreamName name) const { return at[name]; }
};

size_t CodeBytes(const PlaneFormat& format, const PlaneShape& shape) {
  const size_t bits = BitsOf(format.kind);
  if (format.axis != GroupAxis::kColumn) {
    return shape.row_count() * CeilDivide(shape.dim * bits, 8);
  }
  const size_t per_byte = 8 / bits;
  const uint32_t tokens = CodedTokens(format, shape);
  const size_t group = format.group == 0 ? std::max(tokens, 1u) : format.group;
  size_t byte_rows = tokens / group * CeilDivide(group, per_byte);
  byte_rows += CeilDivide(tokens % group, per_byte);
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
    case GroupAxis::kColumn: {
      const uint32_t tokens = CodedTokens(format, shape);
      const size_t groups =
          format.group == 0 ? (tokens > 0 ? 1 : 0) : CeilDivide(tokens, format.group);
      return size_t{shape.heads} * shape.dim * groups;
    }
  }
  return 0;
}

size_t BytesOf(ScaleFormat format) {
  return format == ScaleFormat::kCompact ? 1 : format == ScaleFormat::kBf16 ? 2 : 4;
}

Streams StreamsOf(const PlaneFormat& format, const PlaneShape& shape) {
  Streams streams;
  const auto put = [&](StreamName name, size_t bytes) {
    streams.at[name] = {streams.end, bytes};
    streams.end += Aligned(bytes);
  };
  const size_t scales = ScaleCount(format, shape);
  const OutlierVectors vectors = OutlierVectorsOf(format, shape);
  put(kCodes, CodeBytes(format, shape));
  put(kScales, scales * BytesOf(format.scale));
  put(kZeros, IsAffine(format.kind) ? scales * BytesOf(format.scale) : 0);
  put(kUnits, format.scale == ScaleFormat::kCompact && scales > 0 ? 4 * size_t{shape.heads} : 0);
  put(kOutliers, kOutlierBytes * vectors.count * vectors.outliers);
  put(kRest, 2 * size_t{shape.tokens - CodedTokens(format, shape)} * shape.heads * shape.dim);
  return streams;
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
    case PlaneKind::kLloyd4:
    case PlaneKind::kLloyd3:
    case PlaneKind::kLloyd2:
      return axis == GroupAxis::kRow;
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
    case PlaneKind::kLloyd4:
      return "lloyd4";
    case PlaneKind::kLloyd3:
      return "lloyd3";
    case PlaneKind::kLloyd2:
      return "lloyd2";
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

const char* NameOf(ScaleFormat scale) {
  switch (scale) {
    case ScaleFormat::kBf16:
      return " bf16";
    case ScaleFormat::kFp32:
      return " fp32";
    case ScaleFormat::kCompact:
      return " compact";
  }
  return " unknown";
}

// What is wrong with it, or nullptr.
const char* FaultOf(const PlaneFormat& format) {
  if (BitsOf(format.kind) == 0) return "no such kind";
  if (!HasAxis(format.kind, format.axis)) return "the kind has no groups along this axis";
  if (format.scale != ScaleFormat::kBf16 && format.scale != ScaleFormat::kFp32 &&
      format.scale != ScaleFormat::kCompact) {
    return "no such format of scales";
  }
  if (format.scale == ScaleFormat::kCompact && !IsAffine(format.kind)) {
    return "compact scales are for affine groups";
  }
  const bool has_group = format.axis == GroupAxis::kRow || format.axis == GroupAxis::kColumn;
  // A group of less never passes for quantized: its scale and zero would cost more than it saves.
  if (format.group != 0 && (!has_group || format.group % 16 != 0)) {
    return "a group is 0 or a multiple of 16, along a row or a column";
  }
  if (format.transform != PlaneTransform::kNone && format.transform != PlaneTransform::kHadamard) {
    return "no such transform";
  }
  if (format.transform != PlaneTransform::kNone && format.axis != GroupAxis::kRow) {
    return "a rotation goes with groups along rows";
  }
  if (format.outliers > kOutliersMax) return "more outliers than a vector has";
  if (format.outliers > 0 && (!has_group || format.kind == PlaneKind::kFp8E4M3)) {
    return "outliers are taken from vectors of int8, int4, int2 and lloyd";
  }
  if (format.outliers > 0 && format.transform != PlaneTransform::kNone) {
    return "a rotation leaves no outliers";
  }
  if (format.zero != 0) return "reserved bits are set";
  return nullptr;
}

// The rows that are in no group, 16 bits an element, to or from their stream. False where one is
// Inf or NaN.
template <bool kToStream, typename PlaneByte, typename StreamByte>
bool CopyRest(const PlaneFormat& format, const PlaneShape& shape, PlaneByte* plane,
              StreamByte* stream) {
  const uint16_t inf = shape.dtype == DType::kBf16 ? 0x7f80 : 0x7c00;
  const size_t row_bytes = 2 * size_t{shape.dim};
  bool finite = true;
  for (uint32_t head = 0; head < shape.heads; ++head) {
    for (uint32_t token = CodedTokens(format, shape); token < shape.tokens; ++token) {
      auto* const row = plane + 2 * shape.RowAt(token, head);
      if constexpr (kToStream) {
        std::memcpy(stream, row, row_bytes);
      } else {
        std::memcpy(row, stream, row_bytes);
      }
      for (uint32_t c = 0; c < shape.dim; ++c) {
        uint16_t word;
        std::memcpy(&word, row + 2 * size_t{c}, sizeof(word));
        finite &= (word & 0x7fff) < inf;
      }
      stream += row_bytes;
    }
  }
  return finite;
}

// Compact scales and zeros as the fp32 that they stand for.
struct WideScales {
  std::vector<float> scales;
  std::vector<float> zeros;

  // False where a unit is none.
  bool Fill(const PlaneShape& shape, size_t count, const uint8_t* scale, const uint8_t* zero,
            const uint8_t* unit) {
    scales.resize(count);
    zeros.resize(count);
    const size_t per_head = count / std::max(shape.heads, 1u);
    for (size_t i = 0; i < count;) {
      float in_head;
      std::memcpy(&in_head, unit, sizeof(in_head));
      unit += sizeof(in_head);
      if (!(in_head >= 0 && IsFiniteFp32(in_head))) return false;
      for (const size_t end = i + per_head; i < end; ++i) {
        scales[i] = CompactScale(scale[i], in_head);
        zeros[i] = CompactZero(static_cast<int8_t>(zero[i]), in_head);
      }
    }
    return true;
  }
};

bool DecodeStreams(const PlaneFormat& format, const PlaneShape& shape, const Streams& streams,
                   const uint8_t* from, uint8_t* to) {
  const auto at = [&](StreamName name) { return from + streams[name].begin; };
  PlaneFormat plain = format;
  plane_kernel::StreamsToRead read{at(kCodes), at(kScales), at(kZeros)};
  WideScales wide;
  if (format.scale == ScaleFormat::kCompact) {
    if (!wide.Fill(shape, streams[kScales].bytes, at(kScales), at(kZeros), at(kUnits))) {
      return false;
    }
    plain.scale = ScaleFormat::kFp32;
    read.scales = reinterpret_cast<const uint8_t*>(wide.scales.data());
    read.zeros = reinterpret_cast<const uint8_t*>(wide.zeros.data());
  }
  if (!plane_kernel::Decode(plain, shape, read, to)) return false;
  if (format.outliers > 0 && !PutOutliers(format, shape, at(kOutliers), to)) return false;
  if (format.transform != PlaneTransform::kNone &&
      !plane_kernel::Rotate(shape, plane_kernel::Rotation::kBack, to, to)) {
    return false;
  }
  return streams[kRest].bytes == 0 || CopyRest<false>(format, shape, to, at(kRest));
}

}  // namespace

std::string PlaneFormat::ToString() const {
  std::string text = absl::StrCat(NameOf(kind), NameOf(axis));
  if (axis == GroupAxis::kNone) return text;
  if (group != 0) absl::StrAppend(&text, " ", group);
  absl::StrAppend(&text, NameOf(scale));
  if (transform == PlaneTransform::kHadamard) absl::StrAppend(&text, " hadamard");
  if (outliers > 0) absl::StrAppend(&text, " ", outliers, outliers > 1 ? " outliers" : " outlier");
  return text;
}

uint32_t CodedTokens(const PlaneFormat& format, const PlaneShape& shape) {
  if (format.axis != GroupAxis::kColumn) return shape.tokens;
  const uint32_t rest = format.group == 0 ? shape.tokens : shape.tokens % format.group;
  return rest < kColumnTokensMin ? shape.tokens - rest : shape.tokens;
}

absl::Status CheckPlaneFormat(const PlaneFormat& format, DType dtype) {
  if (const char* fault = FaultOf(format)) {
    return absl::InvalidArgumentError(
        absl::StrCat("plane format (", static_cast<int>(format.kind), ", ",
                     static_cast<int>(format.axis), ", ", format.group, ", ",
                     static_cast<int>(format.scale), ", ", static_cast<int>(format.transform), ", ",
                     format.outliers, ", ", format.zero, "): ", fault));
  }
  if (format.kind != PlaneKind::kRaw && dtype != DType::kBf16 && dtype != DType::kFp16) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(format.kind), " encodes bf16 and fp16, not ", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

QualityClass ValueQuality(const PlaneFormat& format) {
  switch (format.kind) {
    case PlaneKind::kRaw:
    case PlaneKind::kSplitFixed:
    case PlaneKind::kSplitEntropy:
      return QualityClass::kExact;
    case PlaneKind::kFp8E4M3:
    case PlaneKind::kInt8:
      return QualityClass::kNear;
    case PlaneKind::kFp8E5M2:
    case PlaneKind::kInt4:
    case PlaneKind::kLloyd4:
      return QualityClass::kFair;
    case PlaneKind::kInt2:
    case PlaneKind::kLloyd3:
    case PlaneKind::kLloyd2:
      return QualityClass::kCoarse;
  }
  return QualityClass::kCoarse;
}

QualityClass KeyQuality(const PlaneFormat& format) {
  // Channels of keys differ by tens of times: four bits over many of them lose the small ones.
  const bool by_token = format.axis == GroupAxis::kRow;
  if (by_token && (format.kind == PlaneKind::kInt4 || format.kind == PlaneKind::kLloyd4)) {
    return QualityClass::kCoarse;
  }
  return ValueQuality(format);
}

bool IsLossless(PlaneKind kind) { return kind == PlaneKind::kRaw || IsSplit(kind); }

size_t PlaneBytesMax(const PlaneFormat& format, const PlaneShape& shape) {
  if (format.kind == PlaneKind::kRaw) return Aligned(shape.raw_bytes());
  if (IsSplit(format.kind)) {
    return Aligned(ExponentSplitBytesMax(shape.raw_bytes()));
  }
  return StreamsOf(format, shape).end;
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
  const Streams streams = StreamsOf(format, shape);
  const auto at = [&](StreamName name) { return to + streams[name].begin; };
  for (const ByteRange& stream : streams.at) {
    pad(stream.begin + stream.bytes, stream.begin + Aligned(stream.bytes));
  }
  if (streams[kRest].bytes > 0 && !CopyRest<true>(format, shape, from, at(kRest))) {
    return std::nullopt;
  }
  std::unique_ptr<uint8_t[]> changed;
  if (format.transform != PlaneTransform::kNone || format.outliers > 0) {
    changed = std::make_unique_for_overwrite<uint8_t[]>(raw.size());
    const bool codable =
        format.outliers > 0
            ? plane_kernel::TakeOutliers(format, shape, from, changed.get(), at(kOutliers))
            : plane_kernel::Rotate(shape, plane_kernel::Rotation::kForth, from, changed.get());
    if (!codable) return std::nullopt;
  }
  if (!plane_kernel::Encode(format, shape, changed ? changed.get() : from,
                            {at(kCodes), at(kScales), at(kZeros), at(kUnits)})) {
    return std::nullopt;
  }
  return streams.end;
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
  if (DecodeStreams(format, shape, StreamsOf(format, shape), from, to)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("a plane of ", format.ToString(),
                                          " with a scale, zero or code that no encoder writes"));
}

}  // namespace forebay
