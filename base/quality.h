#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/kv_layout.h"

namespace forebay {

// How far decoded elements may be from those that were put, best first; a codec's formats say which
// class they keep (codec/plane.h). Wire format: never renumbered.
enum class QualityClass : uint8_t {
  kExact = 1,   // the same bits
  kNear = 2,    // as 8 bits: int8 by token and head, FP8 E4M3
  kFair = 3,    // as 4 bits in groups with scales of their own; keys by channel
  kCoarse = 4,  // anything
};
absl::string_view QualityClassName(QualityClass c);

// The weakest classes allowed for keys and for values, which bear less well and better.
struct QualityBound {
  QualityClass k = QualityClass::kExact;
  QualityClass v = QualityClass::kExact;

  bool exact() const { return k == QualityClass::kExact && v == QualityClass::kExact; }
  // Whether elements of the classes `is` satisfy this bound.
  bool Allows(const QualityBound& is) const { return is.k <= k && is.v <= v; }
  friend bool operator==(const QualityBound&, const QualityBound&) = default;
};
// The strictest, and the weakest, of two in each of K and V.
QualityBound Strictest(const QualityBound& a, const QualityBound& b);
QualityBound Weakest(const QualityBound& a, const QualityBound& b);

// Another bound for some layers.
struct LayerQuality {
  uint16_t layer_begin = 0;
  uint16_t layer_count = 0;
  QualityBound bound;
  friend bool operator==(const LayerQuality&, const LayerQuality&) = default;
};

// The weakest fidelity that a reader accepts. It is part of a namespace, and so of each page's
// identity: who asked for exact shares no page with who did not, and a frame that is worse than its
// namespace allows is refused by the daemon, and a miss to a reader.
//
// States are exact under every contract, and so is the rotary part of MLA (V of the latent).
struct QualityContract {
  uint32_t version = 1;
  QualityBound bound;
  std::vector<LayerQuality> layers;  // ascending, disjoint, not empty; instead of `bound`
  bool retention = false;            // whether tokens may be dropped

  friend bool operator==(const QualityContract&, const QualityContract&) = default;

  QualityBound At(uint32_t layer) const;
  // Over the layers of a part: what every one of them allows, and what any of them does.
  QualityBound StrictestOf(const PartSpec& part) const;
  QualityBound WeakestOf(const PartSpec& part) const;

  // INVALID_ARGUMENT that names every fault, joined by "; ".
  absl::Status Validate(uint32_t layer_count) const;

  // "near/fair, layers 0-1 exact, retention"
  std::string ToString() const;
  // The same back, for flags and configuration: a class, or K/V, then `, layers A-B CLASS` and
  // `, retention`. INVALID_ARGUMENT naming what is wrong.
  static absl::StatusOr<QualityContract> Parse(absl::string_view text);
};

// A frame header's word on the classes that a part keeps, as FrameHeader::codec_param: K in the
// low byte. 0 stands for exact.
uint16_t PackQuality(const QualityBound& bound);
// INVALID_ARGUMENT: a class that this build does not know.
absl::StatusOr<QualityBound> UnpackQuality(uint16_t param);

}  // namespace forebay
