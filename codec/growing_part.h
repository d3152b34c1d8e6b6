#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "codec/planes_codec.h"

namespace forebay {

// A part of a page that grows by decode steps, and can be encoded after each of them.
//
// The payload is, to the byte, that of the same tokens handed to Codec::Encode at once with
// PartPlan::token_count, however they were appended; once the page is whole it is that of a page
// written at once. Key groups along tokens wait in 16 bits until they are whole
// (codec/plane_rows.h). Runs of heads that got no coded token since the last Encode are not encoded
// again.
//
// Owns     the raw bytes of the part, and what was encoded of it.
// Borrows  codec and layout.
// Threads  one.
class GrowingPart {
 public:
  // INVALID_ARGUMENT: a codec that does not encode planes, a part that has none, or as
  // CheckPartPlan. The plan's token_count is not looked at.
  static absl::StatusOr<GrowingPart> Create(const Codec* codec, const KvLayout* layout,
                                            const PartSpec& part, PartPlan plan);

  uint32_t token_count() const { return *plan_.token_count; }
  size_t PayloadBytesMax() const;

  // Takes the next `token_count` tokens: `raw` as a part of a page of just that many.
  //   INVALID_ARGUMENT    more than the page has left, or other bytes than these tokens have
  absl::Status Append(uint32_t token_count, Bytes raw);
  // For the calls to come: exact tokens that are no longer the newest become coded.
  // INVALID_ARGUMENT as CheckPartPlan.
  absl::Status SetPlan(PartPlan plan);
  // Requires a token, else FAILED_PRECONDITION. Otherwise as Codec::Encode.
  absl::StatusOr<EncodedPart> Encode(MutableBytes payload);

 private:
  GrowingPart(const PlanesCodec* codec, const KvLayout* layout, const PartSpec& part);

  const PlanesCodec* codec_;
  const KvLayout* layout_;
  PartSpec part_;
  PartPlan plan_;  // its token_count is there, and 0 before the first Append
  std::vector<std::byte> raw_;
  PlanesCodec::EncodedRuns runs_;
};

}  // namespace forebay
