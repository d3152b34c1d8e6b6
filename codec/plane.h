#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/kv_layout.h"
#include "base/quality.h"
#include "codec/steps/int_quant.h"

// How one plane, the K or the V of one layer of a part, is encoded: what a composition is made of.
//
// Groups never cross a head, nor the plane. A group shares a scale (and, where affine, a zero):
//   kRow     `group` channels of one token; 0: all of them
//   kColumn  `group` tokens of one channel; 0, or more than the plane has: all of them
//   kHead    all tokens and channels of a head
// The last group of a row is shorter where the row's length is no multiple. A last or only group of
// a column is shorter too, but of fewer than kColumnTokensMin tokens it is none: their rows stay 16
// bits, and so the plane's bytes say what it costs. A group of one never passes for quantized.
//
// `transform`: kHadamard rotates each row before and back after (codec/steps/hadamard.h). Rows in
// between are rounded to the element type. For groups along rows alone: it would blend the channels
// that groups along columns keep apart.
//
// `outliers`: so many elements of each vector (a row, or a channel over all coded tokens) are
// stored exactly; a quarter of the vector where that is fewer. They are chosen by rank, exactly so
// many: where groups are affine, those at both ends whose absence leaves the smallest range (of
// equal choices the one with fewest from above), else the largest magnitudes; of equal elements
// those of lowest index. A slot left empty repeats its neighbour in its group, so that it widens
// nothing.
//
// Streams of an encoded plane, little endian, each at a multiple of 16 bytes from its start, zeros
// between:
//   codes     heads in order. Rows: token by token, each row padded to a byte, a string of bits
//             with the first code lowest. Columns: group by group; byte j of channel c at [j][c]
//             holds the codes of 8 / bits tokens in a row, the first lowest.
//   scales    [head], [head][token][group] or [head][group][channel]
//   zeros     likewise, where affine
//   units     fp32 [head], where scales are compact (codec/steps/compact_scale.h)
//   outliers  [head][token][i] or [head][channel][i]: u16 index in the vector, ascending, and the
//             u16 element
//   rest      [head][token][channel], the 16-bit rows that are in no group
// A plane of the exponent split: its payload, whose header has its length.
//
// Bounds. With s the stored scale of a group, before the result is rounded to the element type:
//   int8            s / 2
//   int4, int2      s / 2; with scales of bf16 up to 15 / 256 s and |zero| / 256 more
//   fp8_e4m3        the greater of |x| / 16 and s / 1,024;  fp8_e5m2  of |x| / 8 and 2^-17
//   lloyd           half the distance of two levels times s; beyond the last level what is cut off
//   hadamard        the same for the rotated row: so the error of a row is no longer, as a vector,
//                   than that of the codes (and 2 roundings to the element type)
//
// Source   per-channel keys and per-token values: KIVI (arXiv 2402.02750). Dense and sparse:
//          KVQuant (arXiv 2401.18079). Rotation and Lloyd-Max levels: QuaRot (arXiv 2404.00456),
//          TurboQuant (arXiv 2504.19874).
namespace forebay {

// Values are wire format: never renumbered.
enum class PlaneKind : uint8_t {
  kRaw = 1,
  kFp8E4M3 = 2,  // symmetric, scale = amax / 448
  kFp8E5M2 = 3,  // no scale
  kInt8 = 4,     // symmetric, scale = amax / 127
  kInt4 = 5,     // affine
  kInt2 = 6,     // affine
  // Lossless (codec/lossless/exponent_split.h), of variable length.
  kSplitFixed = 7,
  kSplitEntropy = 8,
  // Levels of the normal distribution (codec/steps/level_quant.h), scale = root of the mean square.
  kLloyd4 = 10,
  kLloyd3 = 11,
  kLloyd2 = 12,
};
enum class GroupAxis : uint8_t { kNone = 0, kRow = 1, kColumn = 2, kHead = 3 };
enum class PlaneTransform : uint8_t { kNone = 0, kHadamard = 1 };

inline constexpr uint32_t kColumnTokensMin = 8;
inline constexpr uint32_t kOutliersMax = 16;

struct PlaneFormat {
  PlaneKind kind = PlaneKind::kRaw;
  GroupAxis axis = GroupAxis::kNone;
  uint8_t group = 0;
  ScaleFormat scale = ScaleFormat::kFp32;
  PlaneTransform transform = PlaneTransform::kNone;
  uint8_t outliers = 0;  // at most kOutliersMax
  uint16_t zero = 0;     // reserved
  friend bool operator==(const PlaneFormat&, const PlaneFormat&) = default;

  // "int4 column 64 bf16", "lloyd2 row bf16 hadamard", "int4 row 64 bf16 2 outliers"
  std::string ToString() const;
};
static_assert(sizeof(PlaneFormat) == 8);

struct PlaneShape {
  uint32_t tokens = 0;
  uint32_t heads = 0;
  uint32_t dim = 0;
  PlaneOrder order = PlaneOrder::kTokenMajor;
  DType dtype = DType::kBf16;

  size_t row_count() const { return size_t{tokens} * heads; }
  size_t element_count() const { return row_count() * dim; }
  size_t raw_bytes() const { return element_count() * DTypeBytes(dtype); }
  // First element of a row.
  size_t RowAt(uint32_t token, uint32_t head) const {
    return order == PlaneOrder::kTokenMajor ? (size_t{token} * heads + head) * dim
                                            : (size_t{head} * tokens + token) * dim;
  }
  // Channels that follow one another before the next token.
  size_t row_channels() const {
    return order == PlaneOrder::kTokenMajor ? size_t{heads} * dim : dim;
  }
  // Elements from a token's row to the next token's.
  size_t row_stride() const { return row_channels(); }
};

// Tokens of the plane that are in groups: all but those of a column's short rest.
uint32_t CodedTokens(const PlaneFormat& format, const PlaneShape& shape);

// INVALID_ARGUMENT: an unknown kind, an axis, group, format of scales, transform or number of
// outliers that it does not have, reserved bits, or a dtype other than bf16 and fp16 with anything
// but kRaw.
absl::Status CheckPlaneFormat(const PlaneFormat& format, DType dtype);

bool IsLossless(PlaneKind kind);

// The class that a plane of keys, or of values, keeps: as rounded to 8 or 4 bits. Keys need groups
// by channel for that (docs/decisions/0006).
QualityClass KeyQuality(const PlaneFormat& format);
QualityClass ValueQuality(const PlaneFormat& format);

// Largest encoded plane, a multiple of 16; every one has just that size but those of the exponent
// split. Requires CheckPlaneFormat().ok().
size_t PlaneBytesMax(const PlaneFormat& format, const PlaneShape& shape);

// Encodes `raw`; the bytes written, a multiple of 16. Nothing where the plane holds Inf or NaN,
// a group whose scale cannot be stored, or a row that overflows when rotated: then `payload` is
// undefined, and the part has to stay raw. The same input gives the same bytes on every processor.
// Requires room for PlaneBytesMax.
std::optional<size_t> EncodePlane(const PlaneFormat& format, const PlaneShape& shape, Bytes raw,
                                  MutableBytes payload);

// Decodes the plane at the front of `payload` and moves past it. Fills `raw` entirely, or fails,
// when it is undefined. The payload is not trusted.
//   DATA_LOSS  too short, or a scale, code, outlier or the like that no encoder writes
absl::Status DecodePlane(const PlaneFormat& format, const PlaneShape& shape, Bytes* payload,
                         MutableBytes raw);

}  // namespace forebay
