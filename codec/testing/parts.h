#pragma once

#include <cstring>
#include <vector>

#include "base/random.h"
#include "codec/codec.h"
#include "codec/planes_codec.h"
#include "codec/steps/float_formats.h"

// Parts of pages, and a way through a codec and back.
namespace forebay::testing {

// Numbers like those of a cache: channels of different spread, a few of them large.
inline std::vector<std::byte> CacheBytes(const PartSpec& part, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<std::byte> raw(part.raw_bytes);
  for (size_t i = 0; i + 1 < raw.size(); i += 2) {
    const float spread = i % 61 == 0 ? 12.0f : 1.0f + static_cast<float>(i % 7) / 4;
    const float x = spread * (static_cast<float>(random.Below(1 << 16)) / (1 << 15) - 1);
    const uint16_t word = part.dtype == DType::kFp16 ? Fp32ToFp16(x) : Fp32ToBf16(x);
    std::memcpy(raw.data() + i, &word, sizeof(word));
  }
  return raw;
}

struct EncodedFrame {
  absl::Status status;
  uint32_t raw_planes = 0;
  FrameHeader header;
  std::vector<std::byte> payload;
};

// In a payload of exactly PayloadBytesMax, so that a sanitizer sees what is written past it.
inline EncodedFrame Encode(const Codec& codec, const KvLayout& layout, const PartSpec& part,
                           const PartPlan& plan, Bytes raw) {
  EncodedFrame frame;
  frame.payload.resize(codec.PayloadBytesMax(layout, part, plan));
  const auto encoded = codec.Encode(layout, part, plan, raw, absl::MakeSpan(frame.payload));
  frame.status = encoded.status();
  if (!encoded.ok()) return frame;
  frame.raw_planes = encoded->raw_planes;
  frame.payload.resize(encoded->payload_bytes);
  frame.payload.shrink_to_fit();
  frame.header.codec = static_cast<uint8_t>(codec.id());
  frame.header.flags = encoded->flags;
  frame.header.codec_param = PackQuality(encoded->quality);
  return frame;
}

// By the first codec of the frame's id: whoever reads knows no name.
inline absl::StatusOr<std::vector<std::byte>> Decode(const KvLayout& layout, const PartSpec& part,
                                                     const EncodedFrame& frame) {
  std::vector<std::byte> raw(part.raw_bytes, std::byte{0xa5});
  const Codec* codec = *CodecRegistry::Default().Find(frame.header.codec);
  const absl::Status status =
      codec->Decode(layout, part, frame.header, frame.payload, absl::MakeSpan(raw));
  if (!status.ok()) return status;
  return raw;
}

// Calls visit(layer, value, head, token, begin, bytes) for the range of each row in a part.
template <typename Visit>
void ForEachRow(const KvLayout& layout, const PartSpec& part, Visit visit) {
  size_t at = 0;
  for (uint32_t layer = 0; layer < part.layer_count; ++layer) {
    const LayerSpec& spec = layout.layers[part.layer_begin + layer];
    for (const bool value : {false, true}) {
      if (part.stream == (value ? Stream::kKey : Stream::kValue)) continue;
      const PlaneShape shape{layout.page_tokens, part.head_count, value ? spec.v_dim : spec.k_dim,
                             layout.plane_order, part.dtype};
      if (shape.dim == 0) continue;
      for (uint32_t head = 0; head < part.head_count; ++head) {
        for (uint32_t token = 0; token < layout.page_tokens; ++token) {
          visit(layer, value, head, token, at + 2 * shape.RowAt(token, head),
                2 * size_t{shape.dim});
        }
      }
      at += shape.raw_bytes();
    }
  }
}

}  // namespace forebay::testing
