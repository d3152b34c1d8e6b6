#include "tests/bench/quality/codec_rows.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace forebay::bench {
namespace {

class FoldedCodec final : public Codec {
 public:
  FoldedCodec(std::string name, const Codec& codec) : name_(std::move(name)), codec_(codec) {}

  CodecId id() const override { return codec_.id(); }
  absl::string_view name() const override { return name_; }
  QualityBound quality() const override { return codec_.quality(); }
  using Codec::Encode;
  using Codec::PayloadBytesMax;
  size_t PayloadBytesMax(const KvLayout& layout, const PartSpec& part,
                         const PartPlan& plan) const override {
    return codec_.PayloadBytesMax(Folded(layout), Folded(part), plan);
  }
  absl::StatusOr<EncodedPart> Encode(const KvLayout& layout, const PartSpec& part,
                                     const PartPlan& plan, Bytes raw,
                                     MutableBytes payload) const override {
    if (!plan.plain() || layout.plane_order != PlaneOrder::kTokenMajor) {
      return absl::InvalidArgumentError(absl::StrCat(name_, " takes plain token-major parts"));
    }
    return codec_.Encode(Folded(layout), Folded(part), plan, raw, payload);
  }
  absl::Status Decode(const KvLayout& layout, const PartSpec& part, const FrameHeader& header,
                      Bytes payload, MutableBytes raw) const override {
    return codec_.Decode(Folded(layout), Folded(part), header, payload, raw);
  }

 private:
  static KvLayout Folded(KvLayout layout) {
    for (LayerSpec& layer : layout.layers) {
      layer.k_dim *= layer.kv_heads;
      layer.v_dim *= layer.kv_heads;
      layer.kv_heads = 1;
    }
    return layout;
  }
  static PartSpec Folded(PartSpec part) {
    part.head_begin = 0;
    part.head_count = 1;
    return part;
  }

  const std::string name_;
  const Codec& codec_;
};

}  // namespace

std::unique_ptr<Codec> AcrossHeads(std::string name, const Codec& codec) {
  return std::make_unique<FoldedCodec>(std::move(name), codec);
}

absl::StatusOr<CodecRows> CodecRows::Create(const examples::Checkpoint& model,
                                            const std::function<bool(absl::string_view)>& wants,
                                            uint32_t text_tokens, uint32_t calibration_tokens) {
  CodecRows rows;
  for (const auto& codec : CodecRegistry::Default().codecs()) {
    // Without a dictionary it only decodes.
    if (codec->id() == CodecId::kUniform || !wants(codec->name())) continue;
    rows.codecs.emplace_back(std::shared_ptr<void>(), codec.get());
  }
  for (const char* of : {"kivi4", "kivi2"}) {
    const std::string name = absl::StrCat(of, "_across");
    if (model.head_dim() >= kKiviGroup || !wants(name)) continue;
    FB_ASSIGN_OR_RETURN(const Codec* codec, CodecRegistry::Default().FindByName(of));
    rows.codecs.push_back(AcrossHeads(name, *codec));
  }
  for (const double bits : {4.5, 2.2}) {
    const std::string name = absl::StrFormat("uniform_%.1fb", bits);
    if (!wants(name)) continue;
    if (rows.calibration == nullptr) {
      rows.calibration = std::make_unique<Calibration>(model, text_tokens, calibration_tokens);
    }
    FB_ASSIGN_OR_RETURN(const UniformCalibrator::Options options, rows.calibration->Choose(bits));
    FB_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, rows.calibration->Make(name, options));
    rows.codecs.push_back(std::move(codec));
  }
  return rows;
}

}  // namespace forebay::bench
