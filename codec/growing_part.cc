#include "codec/growing_part.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace forebay {

GrowingPart::GrowingPart(const PlanesCodec* codec, const KvLayout* layout, const PartSpec& part)
    : codec_(codec), layout_(layout), part_(part), raw_(part.raw_bytes) {
  plan_.token_count = 0;
}

absl::StatusOr<GrowingPart> GrowingPart::Create(const Codec* codec, const KvLayout* layout,
                                                const PartSpec& part, PartPlan plan) {
  const auto* const planes = dynamic_cast<const PlanesCodec*>(codec);
  if (planes == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(codec->name(), " does not encode planes"));
  }
  if (!HasPlanes(part)) return absl::InvalidArgumentError("a part without planes does not grow");
  GrowingPart growing(planes, layout, part);
  FB_RETURN_IF_ERROR(growing.SetPlan(std::move(plan)));
  return growing;
}

absl::Status GrowingPart::SetPlan(PartPlan plan) {
  plan.token_count.reset();
  FB_RETURN_IF_ERROR(CheckPartPlan(plan, *layout_, part_));
  plan.token_count = plan_.token_count;
  plan_ = std::move(plan);
  runs_.clear();
  return absl::OkStatus();
}

size_t GrowingPart::PayloadBytesMax() const {
  return codec_->PayloadBytesMax(*layout_, part_, plan_);
}

absl::Status GrowingPart::Append(uint32_t token_count, Bytes raw) {
  const uint32_t page_tokens = layout_->page_tokens;
  const uint32_t begin = *plan_.token_count;
  if (token_count > page_tokens - begin) {
    return absl::InvalidArgumentError(
        absl::StrCat(token_count, " tokens for a page that has ", begin, " of ", page_tokens));
  }
  if (raw.size() != size_t{part_.raw_bytes} / page_tokens * token_count) {
    return absl::InvalidArgumentError(
        absl::StrCat(raw.size(), " raw bytes for ", token_count, " tokens"));
  }
  std::byte* plane = raw_.data();
  const auto append = [&](uint32_t dim) {
    // Heads, or the one piece of all of them, lie apart by their tokens in the page.
    const bool token_major = layout_->plane_order == PlaneOrder::kTokenMajor;
    const size_t pieces = token_major ? 1 : part_.head_count;
    const size_t token_bytes =
        size_t{dim} * DTypeBytes(part_.dtype) * (token_major ? part_.head_count : 1u);
    for (size_t piece = 0; piece < pieces; ++piece) {
      const size_t bytes = token_count * token_bytes;
      if (bytes > 0) std::memcpy(plane + begin * token_bytes, raw.data(), bytes);
      raw.remove_prefix(bytes);
      plane += page_tokens * token_bytes;
    }
  };
  for (uint32_t i = 0; i < part_.layer_count; ++i) {
    const LayerSpec& layer = layout_->layers[part_.layer_begin + i];
    if (part_.stream != Stream::kValue) append(layer.k_dim);
    if (part_.stream != Stream::kKey) append(layer.v_dim);
  }
  plan_.token_count = begin + token_count;
  return absl::OkStatus();
}

absl::StatusOr<EncodedPart> GrowingPart::Encode(MutableBytes payload) {
  if (token_count() == 0) return absl::FailedPreconditionError("a part without a token");
  return codec_->EncodeGrown(*layout_, part_, plan_, raw_, payload, &runs_);
}

}  // namespace forebay
