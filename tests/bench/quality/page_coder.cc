#include "tests/bench/quality/page_coder.h"

#include <algorithm>
#include <cstring>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "codec/steps/float_formats.h"

namespace forebay::bench {
namespace {

using examples::Checkpoint;
using examples::PagedCache;

constexpr uint32_t kPartBytesMin = 32 << 10;

// Calls visit(layer, is_key, row, bytes of the row in the part) for each row of each plane.
template <typename Visit>
void ForEachRow(PagedCache& cache, uint32_t page, const KvLayout& layout, const PartSpec& part,
                std::byte* raw, Visit visit) {
  for (uint32_t layer = part.layer_begin; layer < part.layer_begin + part.layer_count; ++layer) {
    const size_t row_values = size_t{layout.layers[layer].kv_heads} * layout.layers[layer].k_dim;
    for (const bool is_key : {true, false}) {
      if (part.stream == (is_key ? Stream::kValue : Stream::kKey)) continue;
      for (uint32_t t = 0; t < layout.page_tokens; ++t, raw += 2 * row_values) {
        const uint32_t token = page * layout.page_tokens + t;
        float* row = is_key ? cache.Key(layer, token) : cache.Value(layer, token);
        visit(layer, is_key, absl::Span<float>(row, row_values), raw);
      }
    }
  }
}

std::vector<std::byte> Gather(PagedCache& cache, uint32_t page, const KvLayout& layout,
                              const PartSpec& part) {
  std::vector<std::byte> raw(part.raw_bytes);
  ForEachRow(cache, page, layout, part, raw.data(),
             [](uint32_t, bool, absl::Span<const float> row, std::byte* bytes) {
               for (size_t i = 0; i < row.size(); ++i) {
                 const uint16_t word = Fp32ToBf16(row[i]);
                 std::memcpy(bytes + 2 * i, &word, 2);
               }
             });
  return raw;
}

void Scatter(PagedCache& cache, uint32_t page, const KvLayout& layout, const PartSpec& part,
             std::vector<std::byte>* raw, PageDamage* damage) {
  std::vector<float> decoded;
  ForEachRow(cache, page, layout, part, raw->data(),
             [&](uint32_t layer, bool is_key, absl::Span<float> row, const std::byte* bytes) {
               decoded.resize(row.size());
               for (size_t i = 0; i < row.size(); ++i) {
                 uint16_t word;
                 std::memcpy(&word, bytes + 2 * i, 2);
                 decoded[i] = Bf16ToFp32(word);
               }
               if (damage != nullptr) {
                 (is_key ? damage->keys : damage->values)[layer].Add(row, decoded);
               }
               std::copy(decoded.begin(), decoded.end(), row.begin());
             });
}

}  // namespace

KvLayout PageLayout(const Checkpoint& model, bool split) {
  const uint32_t layer_bytes = 2 * 2 * model.kv_dim() * kPageTokens;
  const uint32_t parts = std::max(1u, model.layer_count * layer_bytes / kPartBytesMin);
  KvLayout layout =
      KvLayout::Uniform(model.layer_count, model.kv_head_count, model.head_dim(), DType::kBf16,
                        kPageTokens, (model.layer_count + parts - 1) / parts);
  layout.split_key_value = split;
  return layout;
}

void CodedBytes::Add(const CodedBytes& other) {
  all.Add(other.all);
  keys.Add(other.keys);
  values.Add(other.values);
  headers.Add(other.headers);
}

PageCoder::PageCoder(const Checkpoint& model, const Codec& codec)
    : codec_(codec), layout_(PageLayout(model, false)), split_(PageLayout(model, true)) {}

absl::Status PageCoder::Code(PagedCache& cache, uint32_t page, PageDamage* damage) const {
  std::vector<std::byte> payload;
  const auto encode = [&](const KvLayout& layout, const PartSpec& part,
                          Bytes raw) -> absl::StatusOr<EncodedPart> {
    payload.resize(codec_.PayloadBytesMax(layout, part));
    return codec_.Encode(layout, part, raw, absl::MakeSpan(payload));
  };
  if (damage != nullptr) {
    damage->keys.resize(layout_.layers.size());
    damage->values.resize(layout_.layers.size());
    for (const PartSpec& part : split_.Parts()) {
      FB_ASSIGN_OR_RETURN(const EncodedPart encoded,
                          encode(split_, part, Gather(cache, page, split_, part)));
      (part.stream == Stream::kKey ? damage->bytes.keys : damage->bytes.values)
          .Add({encoded.payload_bytes, part.raw_bytes / 2});
    }
  }
  for (const PartSpec& part : layout_.Parts()) {
    std::vector<std::byte> raw = Gather(cache, page, layout_, part);
    FB_ASSIGN_OR_RETURN(const EncodedPart encoded, encode(layout_, part, raw));
    FrameHeader header;
    header.flags = encoded.flags;
    header.codec_param = PackQuality(encoded.quality);
    FB_RETURN_IF_ERROR(codec_.Decode(
        layout_, part, header, Bytes(payload).first(encoded.payload_bytes), absl::MakeSpan(raw)));
    Scatter(cache, page, layout_, part, &raw, damage);
    if (damage != nullptr) {
      damage->bytes.all.Add({encoded.payload_bytes, part.raw_bytes / 2});
      damage->bytes.headers.Add({kFrameHeaderBytes, part.raw_bytes / 2});
    }
  }
  return absl::OkStatus();
}

}  // namespace forebay::bench
