#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "codec/part_plan.h"

// What a payload of planes says of itself before the first plane. Internal to codec/.
//
//   u8 version = 1 | u8 sections | u16 absent_tokens, the last of the page | u32 0 | PlaneFormat of
//   K | PlaneFormat of V | zeros to a multiple of 16, then the sections that are named, in this
//   order, and zeros likewise:
//   map    u8 format_count, formats, then for each list an index for K and one for V: 0 is the K
//          above, 1 the V above, 2 the first of these formats
//   kept   for each list a bit a token, the first lowest, padded to a byte
//   exact  the same; exact tokens are kept
// Bits of `sections`: 1 kept, 2 exact, 4 and 8 the PlanScope of these two, 16 and 32 that of the
// map, 0 where there is none. docs/wire.md has the table.
namespace forebay {

// A plan, and the formats of its codec, in the smallest scopes that say it.
//
// Threads  a value.
struct Composition {
  uint32_t token_count = 0;
  PlaneFormat k;
  PlaneFormat v;
  PlanScope class_scope = PlanScope::kPart;
  std::vector<TokenClass> classes;  // [scope][page_tokens]; empty: all coded
  PlanScope format_scope = PlanScope::kPart;
  std::vector<PlaneFormat> formats;  // [scope][K, V]; empty: k and v

  PlaneFormat FormatOf(const PartSpec& part, uint32_t layer, uint32_t head, bool value) const;
  // Of the tokens of one head; nullptr: all coded.
  const TokenClass* ClassesOf(const KvLayout& layout, const PartSpec& part, uint32_t layer,
                              uint32_t head) const;
  bool Drops(const KvLayout& layout) const;
  // Leaves a plane in 16 bits.
  void KeepRaw(const PartSpec& part, uint32_t layer, bool value);
};

// INVALID_ARGUMENT as CheckPartPlan, and for more than 250 formats. The rotary part of MLA stays 16
// bits, whatever the plan says. Requires HasPlanes(part).
absl::StatusOr<Composition> Compose(const PartPlan& plan, const KvLayout& layout,
                                    const PartSpec& part, const PlaneFormat& k,
                                    const PlaneFormat& v);

// The bytes of it, at most, with any planes kept raw.
size_t CompositionBytesMax(const Composition& composition, const KvLayout& layout,
                           const PartSpec& part);
// The bytes written, a multiple of 16. Requires room for CompositionBytesMax.
size_t WriteComposition(const Composition& composition, const KvLayout& layout,
                        const PartSpec& part, MutableBytes payload);
// Reads from the front of `payload`, which is not trusted, and moves past it.
//   DATA_LOSS  too short, or not what a writer writes
absl::StatusOr<Composition> ReadComposition(const KvLayout& layout, const PartSpec& part,
                                            Bytes* payload);

}  // namespace forebay
