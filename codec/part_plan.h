#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/kv_layout.h"
#include "codec/plane.h"

// What a writer asks of one part of one page, beside the raw bytes.
namespace forebay {

// What becomes of a token's rows. Dropped ones cost nothing, and decode to zeros; exact ones keep
// their 16 bits; coded ones are as the format of their plane says.
enum class TokenClass : uint8_t { kDropped = 0, kCoded = 1, kExact = 2 };

// What one list of a plan is for. Values are wire format: never renumbered.
enum class PlanScope : uint8_t {
  kPart = 0,   // one list for the part
  kLayer = 1,  // one for each layer of the part
  kHead = 2,   // one for each layer and KV head of the part: heads may keep different tokens
};

// Shapes   classes: [scope][page_tokens], formats: [scope]; where that is kHead: [layer][head]
// Threads  a value.
struct PartPlan {
  struct Formats {
    std::optional<PlaneFormat> k;  // absent: the codec's
    std::optional<PlaneFormat> v;
  };

  // Tokens [0, token_count) of the page are there, the others not yet. Absent: all.
  std::optional<uint32_t> token_count;
  PlanScope class_scope = PlanScope::kPart;
  std::vector<TokenClass> classes;  // empty: all coded
  PlanScope format_scope = PlanScope::kPart;
  std::vector<Formats> formats;  // empty: the codec's, for all

  // Whether it asks for nothing.
  bool plain() const { return !token_count && classes.empty() && formats.empty(); }
  // Of a token, by layer and head of the part.
  TokenClass ClassOf(const KvLayout& layout, const PartSpec& part, uint32_t layer, uint32_t head,
                     uint32_t token) const;
  // Whether a row of the part is missing: dropped, or not there yet.
  bool Drops(const KvLayout& layout) const;
};

// How many lists a scope has in a part, and which of them is that of a layer and head of the part.
size_t ListCount(PlanScope scope, const PartSpec& part);
size_t ListIndex(PlanScope scope, const PartSpec& part, uint32_t layer, uint32_t head);

// Whether the part has planes: no state, and 16-bit floating point.
bool HasPlanes(const PartSpec& part);

// INVALID_ARGUMENT: lists of other lengths than the part has, no token or more than the page has, a
// value that is none, a format that CheckPlaneFormat refuses, or any plan for a part without
// planes.
absl::Status CheckPartPlan(const PartPlan& plan, const KvLayout& layout, const PartSpec& part);

}  // namespace forebay
