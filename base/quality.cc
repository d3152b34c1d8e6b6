#include "base/quality.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

constexpr QualityClass kClasses[] = {QualityClass::kExact, QualityClass::kNear, QualityClass::kFair,
                                     QualityClass::kCoarse};

bool Known(QualityClass c) { return c >= QualityClass::kExact && c <= QualityClass::kCoarse; }

std::string BoundText(const QualityBound& bound) {
  if (bound.k == bound.v) return std::string(QualityClassName(bound.k));
  return absl::StrCat(QualityClassName(bound.k), "/", QualityClassName(bound.v));
}

absl::StatusOr<QualityClass> ParseClass(absl::string_view text) {
  for (QualityClass c : kClasses) {
    if (QualityClassName(c) == text) return c;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "quality class \"", text, "\" is not known: exact, near, fair or coarse, or K/V of them"));
}

absl::StatusOr<QualityBound> ParseBound(absl::string_view text) {
  const std::vector<absl::string_view> both = absl::StrSplit(text, absl::MaxSplits('/', 1));
  QualityBound bound;
  FB_ASSIGN_OR_RETURN(bound.k, ParseClass(both.front()));
  FB_ASSIGN_OR_RETURN(bound.v, ParseClass(both.back()));
  return bound;
}

// "A-B CLASS" or "A CLASS".
absl::StatusOr<LayerQuality> ParseLayers(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  uint32_t first = 0;
  uint32_t last = 0;
  const std::vector<absl::string_view> ends =
      words.empty() ? words : absl::StrSplit(words[0], absl::MaxSplits('-', 1));
  if (words.size() != 2 || !absl::SimpleAtoi(ends.front(), &first) ||
      !absl::SimpleAtoi(ends.back(), &last) || last < first || last > UINT16_MAX - 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("quality \"layers", text, "\": want \"layers 0-3 CLASS\""));
  }
  LayerQuality layers;
  layers.layer_begin = static_cast<uint16_t>(first);
  layers.layer_count = static_cast<uint16_t>(last - first + 1);
  FB_ASSIGN_OR_RETURN(layers.bound, ParseBound(words[1]));
  return layers;
}

}  // namespace

absl::string_view QualityClassName(QualityClass c) {
  switch (c) {
    case QualityClass::kExact:
      return "exact";
    case QualityClass::kNear:
      return "near";
    case QualityClass::kFair:
      return "fair";
    case QualityClass::kCoarse:
      return "coarse";
  }
  return "unknown";
}

QualityBound Strictest(const QualityBound& a, const QualityBound& b) {
  return {std::min(a.k, b.k), std::min(a.v, b.v)};
}

QualityBound Weakest(const QualityBound& a, const QualityBound& b) {
  return {std::max(a.k, b.k), std::max(a.v, b.v)};
}

QualityBound QualityContract::At(uint32_t layer) const {
  for (const LayerQuality& other : layers) {
    if (layer >= other.layer_begin && layer < uint32_t{other.layer_begin} + other.layer_count) {
      return other.bound;
    }
  }
  return bound;
}

QualityBound QualityContract::StrictestOf(const PartSpec& part) const {
  QualityBound result{QualityClass::kCoarse, QualityClass::kCoarse};
  for (uint32_t i = 0; i < part.layer_count; ++i) {
    result = Strictest(result, At(part.layer_begin + i));
  }
  return result;
}

QualityBound QualityContract::WeakestOf(const PartSpec& part) const {
  QualityBound result;
  for (uint32_t i = 0; i < part.layer_count; ++i) {
    result = Weakest(result, At(part.layer_begin + i));
  }
  return result;
}

absl::Status QualityContract::Validate(uint32_t layer_count) const {
  std::vector<std::string> faults;
  if (version != 1) faults.push_back(absl::StrCat("quality version ", version, " is not known"));
  const auto check = [&faults](const QualityBound& of, absl::string_view where) {
    for (QualityClass c : {of.k, of.v}) {
      if (Known(c)) continue;
      faults.push_back(absl::StrCat("quality class ", static_cast<int>(c), where, " is not known"));
    }
  };
  check(bound, "");
  uint32_t end = 0;
  for (const LayerQuality& other : layers) {
    check(other.bound, absl::StrCat(" of layer ", other.layer_begin));
    const uint32_t other_end = uint32_t{other.layer_begin} + other.layer_count;
    if (other.layer_count == 0 || other.layer_begin < end || other_end > layer_count) {
      faults.push_back(absl::StrCat("quality of layers ", other.layer_begin, " to before ",
                                    other_end, ": want ascending ranges within ", layer_count,
                                    " layers"));
    }
    end = other_end;
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(faults, "; "));
}

std::string QualityContract::ToString() const {
  std::string text = BoundText(bound);
  for (const LayerQuality& other : layers) {
    absl::StrAppend(&text, ", layers ", other.layer_begin, "-",
                    other.layer_begin + other.layer_count - 1, " ", BoundText(other.bound));
  }
  if (retention) absl::StrAppend(&text, ", retention");
  return text;
}

absl::StatusOr<QualityContract> QualityContract::Parse(absl::string_view text) {
  QualityContract contract;
  bool first = true;
  for (absl::string_view piece : absl::StrSplit(text, ',')) {
    piece = absl::StripAsciiWhitespace(piece);
    if (first) {
      FB_ASSIGN_OR_RETURN(contract.bound, ParseBound(piece));
    } else if (piece == "retention") {
      contract.retention = true;
    } else if (absl::ConsumePrefix(&piece, "layers")) {
      FB_ASSIGN_OR_RETURN(contract.layers.emplace_back(), ParseLayers(piece));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("quality \"", piece, "\": want \"layers A-B CLASS\" or \"retention\""));
    }
    first = false;
  }
  FB_RETURN_IF_ERROR(contract.Validate(UINT16_MAX));
  return contract;
}

uint16_t PackQuality(const QualityBound& bound) {
  if (bound.exact()) return 0;
  return static_cast<uint16_t>(static_cast<unsigned>(bound.k) | static_cast<unsigned>(bound.v)
                                                                    << 8);
}

absl::StatusOr<QualityBound> UnpackQuality(uint16_t param) {
  if (param == 0) return QualityBound{};
  const QualityBound bound{static_cast<QualityClass>(param & 0xff),
                           static_cast<QualityClass>(param >> 8)};
  // One word for each bound: exact has 0 alone.
  if (Known(bound.k) && Known(bound.v) && !bound.exact()) return bound;
  return absl::InvalidArgumentError(absl::StrCat("quality classes ", absl::Hex(param)));
}

}  // namespace forebay
