#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/kv_layout.h"
#include "codec/steps/int_quant.h"

// How one plane, the K or the V of one layer of a part, is encoded: what a composition is made of.
//
// Groups never cross a head, nor the plane. A group shares a scale (and, where affine, a zero):
//   kRow     `group` channels of one token; 0: all of them
//   kColumn  `group` tokens of one channel; 0: all of them
//   kHead    all tokens and channels of a head
// The last group of a row or column is shorter where its length is no multiple.
//
// Streams of an encoded plane, little endian, each at a multiple of 16 bytes from its start, zeros
// between:
//   codes   heads in order. Rows: token by token, each row padded to a byte. Columns: group by
//           group; byte j of channel c at [j][c] holds the codes of 8 / bits tokens in a row, the
//           first lowest.
//   scales  [head], [head][token][group] or [head][group][channel]
//   zeros   likewise, where affine
// A plane of the exponent split: its payload, whose header has its length.
//
// Source   per-channel keys and per-token values: KIVI (arXiv 2402.02750).
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
};
enum class GroupAxis : uint8_t { kNone = 0, kRow = 1, kColumn = 2, kHead = 3 };

struct PlaneFormat {
  PlaneKind kind = PlaneKind::kRaw;
  GroupAxis axis = GroupAxis::kNone;
  uint8_t group = 0;
  ScaleFormat scale = ScaleFormat::kFp32;
  friend bool operator==(const PlaneFormat&, const PlaneFormat&) = default;

  // "int4 column 64 bf16"
  std::string ToString() const;
};
static_assert(sizeof(PlaneFormat) == 4);

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

// INVALID_ARGUMENT: an unknown kind, an axis or group that it does not have, or a dtype other than
// bf16 and fp16 with anything but kRaw.
absl::Status CheckPlaneFormat(const PlaneFormat& format, DType dtype);

bool IsLossless(PlaneKind kind);

// Largest encoded plane, a multiple of 16; every one has just that size but those of the exponent
// split. Requires CheckPlaneFormat().ok().
size_t PlaneBytesMax(const PlaneFormat& format, const PlaneShape& shape);

// Encodes `raw`; the bytes written, a multiple of 16. Nothing where the plane holds Inf or NaN, or
// a group whose scale cannot be stored: then `payload` is undefined, and the part has to stay raw.
// The same input gives the same bytes on every processor. Requires room for PlaneBytesMax.
std::optional<size_t> EncodePlane(const PlaneFormat& format, const PlaneShape& shape, Bytes raw,
                                  MutableBytes payload);

// Decodes the plane at the front of `payload` and moves past it. Fills `raw` entirely, or fails,
// when it is undefined. The payload is not trusted.
//   DATA_LOSS  too short, or a scale, zero or code that no encoder writes
absl::Status DecodePlane(const PlaneFormat& format, const PlaneShape& shape, Bytes* payload,
                         MutableBytes raw);

}  // namespace forebay
