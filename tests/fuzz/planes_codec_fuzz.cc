// What decodes a payload of planes meets any bytes at all: it fails, or fills its part entirely; it
// touches nothing else; and a payload that an encoder wrote comes back.

#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/quality.h"
#include "base/random.h"
#include "codec/codec.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/guarded_memory.h"

namespace forebay::fuzz {
namespace {

constexpr size_t kRawBytesMax = 16 * 1024;
constexpr size_t kPayloadBytesMax = 24 * 1024;

const std::vector<KvLayout>& Layouts() {
  static const auto* const layouts = [] {
    auto* const made = new std::vector<KvLayout>;
    made->push_back(KvLayout::Uniform(1, 2, 16, DType::kBf16, 16, 1));
    made->push_back(KvLayout::Uniform(2, 2, 20, DType::kFp16, 40, 2));
    made->back().plane_order = PlaneOrder::kHeadMajor;
    made->push_back(KvLayout::Uniform(1, 1, 64, DType::kBf16, 32, 1));
    made->back().split_key_value = true;
    made->push_back(KvLayout::Uniform(1, 1, 128, DType::kBf16, 16, 1));
    made->back().layers[0].attention = AttentionKind::kMla;
    made->back().layers[0].v_dim = 16;
    for (const KvLayout& layout : *made) FB_CHECK(layout.Validate().ok());
    return made;
  }();
  return *layouts;
}

struct Place {
  const KvLayout& layout;
  PartSpec part;
};

Place TakePlace(FuzzInput& input) {
  const KvLayout& layout = Layouts()[input.Below(Layouts().size())];
  const std::vector<PartSpec> parts = layout.Parts();
  return {layout, parts[input.Below(parts.size())]};
}

const Codec& Decoder() { return **CodecRegistry::Default().Find(CodecId::kPlanes); }

void DecodeAny(FuzzInput& input) {
  static auto* const raw_memory = new GuardedMemory(kRawBytesMax);
  static auto* const payload_memory = new GuardedMemory(kPayloadBytesMax);
  const Place place = TakePlace(input);
  FrameHeader header;
  header.codec = static_cast<uint8_t>(CodecId::kPlanes);
  header.flags = static_cast<uint16_t>(input.Below(16));
  // Mostly what the payload is, so that it gets further than this.
  header.codec_param = input.Take<uint16_t>();
  const Bytes rest = input.TakeRest();
  const Bytes payload = rest.first(std::min(rest.size(), kPayloadBytesMax));
  const MutableBytes from = payload_memory->Last(payload.size());
  if (!payload.empty()) std::memcpy(from.data(), payload.data(), payload.size());
  FB_CHECK(place.part.raw_bytes <= kRawBytesMax);
  const MutableBytes raw = raw_memory->Last(place.part.raw_bytes);
  std::memset(raw.data(), 0x5a, raw.size());
  const absl::Status first = Decoder().Decode(place.layout, place.part, header, from, raw);
  if (!first.ok()) {
    FB_CHECK(!first.message().empty());
    return;
  }
  // Every byte was written: over other memory the same comes out.
  const std::vector<std::byte> once(raw.begin(), raw.end());
  std::memset(raw.data(), 0xa5, raw.size());
  FB_CHECK(Decoder().Decode(place.layout, place.part, header, from, raw).ok());
  FB_CHECK(std::memcmp(once.data(), raw.data(), raw.size()) == 0);
}

// Any numbers there are, through any codec there is.
void EncodeAny(FuzzInput& input) {
  const Place place = TakePlace(input);
  const auto& codecs = CodecRegistry::Default().codecs();
  const Codec& codec = *codecs[input.Below(codecs.size())];
  std::vector<std::byte> raw(place.part.raw_bytes);
  const Bytes given = input.TakeRest();
  for (size_t i = 0; i < raw.size(); ++i) {
    raw[i] = given.empty() ? std::byte{0} : given[i % given.size()];
  }
  std::vector<std::byte> payload(codec.PayloadBytesMax(place.layout, place.part));
  const absl::StatusOr<EncodedPart> encoded =
      codec.Encode(place.layout, place.part, raw, absl::MakeSpan(payload));
  FB_CHECK(encoded.ok() && encoded->payload_bytes <= payload.size());
  FrameHeader header;
  header.flags = encoded->flags;
  header.codec_param = PackQuality(encoded->quality);
  std::vector<std::byte> back(raw.size());
  FB_CHECK(codec
               .Decode(place.layout, place.part, header,
                       Bytes(payload).first(encoded->payload_bytes), absl::MakeSpan(back))
               .ok());
  FB_CHECK(!encoded->quality.exact() || back == raw);
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  SeededRandom random(1);
  for (size_t layout = 0; layout < Layouts().size(); ++layout) {
    const PartSpec part = Layouts()[layout].Parts()[0];
    std::vector<std::byte> raw(part.raw_bytes);
    for (size_t i = 0; i < raw.size(); i += 2) {
      // Of one sign and near exponents.
      const auto half = static_cast<uint16_t>(0x3c00 + random.Below(0x0400));
      std::memcpy(raw.data() + i, &half, sizeof(half));
    }
    for (const auto& codec : CodecRegistry::Default().codecs()) {
      if (codec->id() != CodecId::kPlanes) continue;
      std::vector<std::byte> payload(codec->PayloadBytesMax(Layouts()[layout], part));
      const EncodedPart encoded =
          *codec->Encode(Layouts()[layout], part, raw, absl::MakeSpan(payload));
      SeedBuilder seed;
      seed.AddFlag(false).AddBelow(layout).AddBelow(0).AddBelow(encoded.flags);
      seed.Add(PackQuality(encoded.quality));
      seed.AddBytes(Bytes(payload).first(encoded.payload_bytes));
      seeds.push_back(seed.Take());
    }
    SeedBuilder seed;
    seed.AddFlag(true).AddBelow(layout).AddBelow(0).AddBelow(3);
    seed.AddBytes(Bytes(raw).first(64));
    seeds.push_back(seed.Take());
  }
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  if (input.Flag()) {
    forebay::fuzz::EncodeAny(input);
  } else {
    forebay::fuzz::DecodeAny(input);
  }
  return 0;
}
