// How fast each codec encodes and decodes on one core, of raw bytes, beside memcpy.

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "codec/codec.h"
#include "codec/steps/float_formats.h"
#include "tests/bench/pool_bench.h"

namespace forebay::bench {
namespace {

// Numbers as caches have them: tokens that resemble their neighbours, channels of different spread
// and a few that are far larger than the others.
void FillLikeACache(const KvLayout& layout, const PartSpec& part, Buffer& buffer) {
  const uint32_t heads = part.head_count;
  const uint32_t dim = layout.layers[0].k_dim;
  SeededRandom random(1);
  std::vector<float> last(size_t{heads} * dim);
  std::vector<float> spread(last.size());
  for (float& s : spread)
    s = random.Chance(0.02) ? 20.0f : 0.5f + 0.001f * static_cast<float>(random.Below(1500));
  const size_t rows = buffer.bytes() / 2 / last.size();
  for (size_t row = 0; row < rows; ++row) {
    for (size_t c = 0; c < last.size(); ++c) {
      float noise = 0;
      for (int k = 0; k < 3; ++k)
        noise += static_cast<float>(random.Below(1 << 16)) / (1 << 15) - 1;
      last[c] = 0.9f * last[c] + 0.44f * noise;
      const uint16_t word = Fp32ToBf16(spread[c] * last[c]);
      std::memcpy(buffer.data() + 2 * (row * last.size() + c), &word, 2);
    }
  }
}

}  // namespace

absl::Status BenchCodec(const BenchOptions& options, Report* report) {
  report->Section("codecs, one core, streaming: raw bytes in (encode) and out (decode)");
  const KvLayout layout = KvLayout::Uniform(/*layer_count=*/1, /*kv_heads=*/8, /*head_dim=*/128,
                                            DType::kBf16, /*page_tokens=*/64, 1);
  const PartSpec part = layout.Parts()[0];
  const size_t parts = std::max<size_t>(4, options.total_bytes() / 4 / part.raw_bytes);
  const size_t total = parts * part.raw_bytes;
  Buffer raw(total, 1), back(total, 2);
  FillLikeACache(layout, part, raw);
  const SystemClock clock;
  for (const auto& codec : CodecRegistry::Default().codecs()) {
    if (codec->identity()) continue;
    const size_t room = codec->PayloadBytesMax(layout, part);
    Buffer payload(parts * room, 3);
    std::vector<EncodedPart> encoded(parts);
    PairedRounds encode, decode;
    size_t encoded_bytes = 0;
    for (int round = 0; round < options.rounds(); ++round) {
      const double ceiling = MemcpyRate(back, raw, part.raw_bytes, total);
      Nanos start = clock.Now();
      encoded_bytes = 0;
      for (size_t i = 0; i < parts; ++i) {
        FB_ASSIGN_OR_RETURN(
            encoded[i],
            codec->Encode(layout, part, {raw.data() + i * part.raw_bytes, part.raw_bytes},
                          {payload.data() + encoded_bytes, room}));
        encoded_bytes += encoded[i].payload_bytes;
      }
      encode.ours.push_back(static_cast<double>(total) / static_cast<double>(clock.Now() - start));
      encode.ceiling.push_back(ceiling);
      start = clock.Now();
      size_t at = 0;
      for (size_t i = 0; i < parts; ++i) {
        FrameHeader header;
        header.flags = encoded[i].flags;
        header.codec_param = PackQuality(encoded[i].quality);
        FB_RETURN_IF_ERROR(codec->Decode(layout, part, header,
                                         {payload.data() + at, encoded[i].payload_bytes},
                                         {back.data() + i * part.raw_bytes, part.raw_bytes}));
        at += encoded[i].payload_bytes;
      }
      decode.ours.push_back(static_cast<double>(total) / static_cast<double>(clock.Now() - start));
      decode.ceiling.push_back(ceiling);
    }
    if (codec->quality().exact() && std::memcmp(raw.data(), back.data(), total) != 0) {
      return absl::DataLossError(absl::StrCat(codec->name(), " is not lossless"));
    }
    for (const auto& [what, rounds] :
         {std::pair("encode", &encode), std::pair("decode", &decode)}) {
      Figure figure = rounds->ToFigure();
      figure.name = absl::StrCat(what, " ", codec->name());
      figure.path = "memory";
      figure.bytes = part.raw_bytes;
      figure.unit = "GB/s";
      figure.ceiling_name = "memcpy, one thread";
      figure.note = absl::StrCat("(",
                                 0.01 * std::round(1600.0 * static_cast<double>(encoded_bytes) /
                                                   static_cast<double>(total)),
                                 " bits)");
      report->Add(figure);
    }
  }
  return absl::OkStatus();
}

}  // namespace forebay::bench
