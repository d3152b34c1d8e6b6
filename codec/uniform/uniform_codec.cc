#include "codec/uniform/uniform_codec.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

constexpr size_t kNameBytes = sizeof(Sha256Digest);
// Of a payload of EncodeUniform: the steps of its planes.
constexpr size_t kStepsAt = 8;

// Squares of the largest relative errors of a class.
constexpr double kNear = 0.03 * 0.03;
constexpr double kFairKeys = 0.06 * 0.06;
constexpr double kFairValues = 0.10 * 0.10;

// From the numbers that both sides have alone, in a fixed order: the same on every machine.
QualityClass ClassOf(const Dictionary::Plane& plane, float step, bool keys) {
  double error = 0;
  double power = 0;
  for (size_t c = 0; c < plane.sigmas.size(); ++c) {
    const double its = static_cast<double>(step) * Exp2Eighths(plane.weights[c]);
    const double sigma = Exp2Eighths(plane.sigmas[c]);
    error += its * its / 12;
    power += sigma * sigma;
  }
  if (error <= kNear * power) return QualityClass::kNear;
  if (error <= (keys ? kFairKeys : kFairValues) * power) return QualityClass::kFair;
  return QualityClass::kCoarse;
}

QualityBound Widened(const QualityBound& quality, const Dictionary& dictionary, uint32_t layer,
                     bool keys, float step) {
  const Dictionary::Layer& its = dictionary.layers()[layer];
  const QualityClass c = ClassOf(keys ? its.k : its.v, step, keys);
  return Weakest(quality, keys ? QualityBound{c, QualityClass::kExact}
                               : QualityBound{QualityClass::kExact, c});
}

// Of every layer of the dictionary.
QualityBound QualityAt(const Dictionary* dictionary, float k_dial, float v_dial) {
  QualityBound quality;
  if (dictionary == nullptr) return quality;
  for (uint32_t layer = 0; layer < dictionary->layers().size(); ++layer) {
    const Dictionary::Layer& its = dictionary->layers()[layer];
    if (its.k_dim > 0) {
      quality = Widened(quality, *dictionary, layer, true, its.k.step * k_dial);
    }
    if (its.v_dim > 0) {
      quality = Widened(quality, *dictionary, layer, false, its.v.step * v_dial);
    }
  }
  return quality;
}

QualityBound QualityOf(const Dictionary& dictionary, absl::Span<const UniformPlane> planes,
                       const float* steps) {
  QualityBound quality;
  for (size_t i = 0; i < planes.size(); ++i) {
    quality =
        Widened(quality, dictionary, planes[i].layer, planes[i].stream == Stream::kKey, steps[i]);
  }
  return quality;
}

std::optional<Sha256Digest> NameIn(const FrameHeader& header, Bytes payload) {
  if (payload.size() < kNameBytes || (header.flags & kFrameDictionary) == 0) return std::nullopt;
  Sha256Digest name;
  std::memcpy(name.data(), payload.data(), kNameBytes);
  return name;
}

}  // namespace

UniformCodec::UniformCodec(std::string name, const DictionaryStore* store,
                           std::shared_ptr<const Dictionary> dictionary, float k_dial, float v_dial)
    : name_(std::move(name)),
      store_(store),
      dictionary_(std::move(dictionary)),
      k_dial_(k_dial),
      v_dial_(v_dial),
      quality_(QualityAt(dictionary_.get(), k_dial, v_dial)) {}

std::optional<Sha256Digest> UniformCodec::DictionaryOf(const FrameHeader& header, Bytes payload) {
  if (header.codec != static_cast<uint8_t>(CodecId::kUniform)) return std::nullopt;
  return NameIn(header, payload);
}

size_t UniformCodec::PayloadBytesMax(const KvLayout& /*layout*/, const PartSpec& part,
                                     const PartPlan& /*plan*/) const {
  return kNameBytes + part.raw_bytes;
}

absl::StatusOr<EncodedPart> UniformCodec::Encode(const KvLayout& layout, const PartSpec& part,
                                                 const PartPlan& plan, Bytes raw,
                                                 MutableBytes payload) const {
  FB_RETURN_IF_ERROR(CheckEncode(*this, layout, part, plan, raw, payload));
  if (plan.Drops(layout)) {
    return absl::InvalidArgumentError("uniform steps have every token of their page");
  }
  if (dictionary_ != nullptr && plan.plain() && dictionary_->CheckLayout(layout).ok()) {
    const std::vector<UniformPlane> planes =
        UniformPlanesOf(*dictionary_, layout, part, k_dial_, v_dial_);
    const std::optional<size_t> bytes =
        planes.empty() ? std::nullopt
                       : EncodeUniform(*dictionary_, planes, raw, payload.subspan(kNameBytes));
    if (bytes.has_value() && kNameBytes + *bytes < raw.size()) {
      std::memcpy(payload.data(), dictionary_->name().data(), kNameBytes);
      std::vector<float> steps;
      for (const UniformPlane& plane : planes) steps.push_back(plane.step);
      return EncodedPart{kNameBytes + *bytes, kFrameDictionary,
                         QualityOf(*dictionary_, planes, steps.data())};
    }
  }
  std::memcpy(payload.data(), raw.data(), raw.size());
  return EncodedPart{raw.size(), kFrameRawFallback, {}};
}

absl::Status UniformCodec::Decode(const KvLayout& layout, const PartSpec& part,
                                  const FrameHeader& header, Bytes payload,
                                  MutableBytes raw) const {
  if (raw.size() != part.raw_bytes) {
    return absl::DataLossError(
        absl::StrCat("a part of ", part.raw_bytes, " bytes, with room for ", raw.size()));
  }
  if ((header.flags & kFrameRawFallback) != 0) {
    return RawCodec().Decode(layout, part, header, payload, raw);
  }
  const std::optional<Sha256Digest> named = NameIn(header, payload);
  if (!named) return absl::DataLossError("uniform steps without the name of a dictionary");
  const Sha256Digest& name = *named;
  payload.remove_prefix(kNameBytes);
  const std::shared_ptr<const Dictionary> dictionary = store_->Find(name);
  if (dictionary == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "the dictionary ",
        absl::BytesToHexString({reinterpret_cast<const char*>(name.data()), name.size()}),
        " is not here"));
  }
  if (absl::Status fits = dictionary->CheckLayout(layout); !fits.ok()) {
    return absl::DataLossError(fits.message());
  }
  const std::vector<UniformPlane> planes = UniformPlanesOf(*dictionary, layout, part, 1, 1);
  if (planes.empty()) return absl::DataLossError("uniform steps of a part that has no planes");
  std::vector<float> steps(planes.size());
  const size_t step_bytes = steps.size() * sizeof(float);
  if (payload.size() < kStepsAt + step_bytes) {
    return absl::DataLossError(absl::StrCat("a payload of ", payload.size(), " bytes"));
  }
  std::memcpy(steps.data(), payload.data() + kStepsAt, step_bytes);
  FB_RETURN_IF_ERROR(DecodeUniform(*dictionary, planes, payload, raw));
  // Now that the steps are known to be numbers.
  if (header.codec_param != PackQuality(QualityOf(*dictionary, planes, steps.data()))) {
    return absl::DataLossError(
        absl::StrCat("uniform steps of another quality than ", absl::Hex(header.codec_param)));
  }
  return absl::OkStatus();
}

}  // namespace forebay
