#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "codec/composition.h"
#include "codec/plane.h"

// Where the rows of one plane of a composition are in its payload. Internal to codec/.
//
// Runs of neighbouring heads that have one format and equally many coded tokens make a plane each
// (codec/plane.h), of these tokens alone, whichever they are: its groups hold tokens that are kept.
// It is [head][token][dim]; one of all rows of the plane has the plane's own order. Behind the runs
// lie the exact rows, 16 bits an element, [head][token][dim] too, and zeros to a multiple of 16.
//
// Along columns a group waits until it is whole: while the page grows, the coded tokens of an
// unfinished last group are exact. Once the page is there such a rest is coded where it has at
// least 8 tokens, and exact below: a group of one never passes for quantized.
namespace forebay {

struct PlaneRun {
  PlaneFormat format;
  uint32_t head_begin = 0;
  uint32_t head_count = 0;
  uint32_t tokens = 0;  // coded ones of each head
  friend bool operator==(const PlaneRun&, const PlaneRun&) = default;
};

// Rows are counted as they lie in the memory of the plane. Follows from the composition alone, so
// that nothing of it is in the payload.
struct PlaneRows {
  PlaneShape shape;
  bool whole = false;  // one run of all rows; no lists then
  std::vector<PlaneRun> runs;
  std::vector<uint32_t> coded;  // run by run, head by head
  std::vector<uint32_t> exact;  // head by head

  PlaneShape RunShape(const PlaneRun& run) const;
  size_t BytesMax() const;
  // Whether a row of the plane is missing.
  bool Drops() const { return !whole && coded.size() + exact.size() < shape.row_count(); }
};

// The K, or V, of a layer of the part.
PlaneRows LayRows(const Composition& composition, const KvLayout& layout, const PartSpec& part,
                  uint32_t layer, bool value);

// An encoded run, kept for the next time.
struct EncodedRun {
  PlaneRun run;
  std::vector<std::byte> bytes;
};

// Encodes `plane`; the bytes written, a multiple of 16. Nothing as EncodePlane. Requires room for
// rows.BytesMax(). Where `kept` is given, runs that are there are copied, and then it has those of
// this call: the caller vouches that equal runs have equal rows.
std::optional<size_t> EncodeRows(const PlaneRows& rows, Bytes plane, MutableBytes payload,
                                 std::vector<EncodedRun>* kept);

// Decodes from the front of `payload`, which is not trusted, and moves past it. Fills `plane`
// entirely, or fails.
//   DATA_LOSS  as DecodePlane
absl::Status DecodeRows(const PlaneRows& rows, Bytes* payload, MutableBytes plane);

}  // namespace forebay
