// What decodes a payload of planes meets any bytes at all: it fails, or fills its part entirely; it
// touches nothing else; and a payload that an encoder wrote comes back.

#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/quality.h"
#include "base/random.h"
#include "codec/codec.h"
#include "codec/plane.h"
#include "codec/planes_codec.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/guarded_memory.h"

namespace forebay::fuzz {
namespace {

constexpr size_t kRawBytesMax = 16 * 1024;
constexpr size_t kPayloadBytesMax = 24 * 1024;

enum Mode : uint8_t { kDecode, kEncode, kDamage, kModes };

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

// Every format that there is, with few sizes of groups and outliers.
const std::vector<PlaneFormat>& Formats() {
  static const auto* const formats = [] {
    auto* const made = new std::vector<PlaneFormat>;
    constexpr uint8_t kGroups[] = {0, 8, 32};
    constexpr uint8_t kOutliers[] = {0, 1, 5};
    for (size_t i = 0; i < size_t{16} * 4 * 4 * 2 * 3 * 3; ++i) {
      size_t left = i;
      const auto digit = [&left](size_t base) {
        const size_t value = left % base;
        left /= base;
        return value;
      };
      PlaneFormat format;
      format.kind = static_cast<PlaneKind>(digit(16));
      format.axis = static_cast<GroupAxis>(digit(4));
      format.scale = static_cast<ScaleFormat>(digit(4));
      format.transform = static_cast<PlaneTransform>(digit(2));
      format.group = kGroups[digit(3)];
      format.outliers = kOutliers[digit(3)];
      if (CheckPlaneFormat(format, DType::kBf16).ok()) made->push_back(format);
    }
    // Transforms, outliers, compact scales and levels are among them.
    FB_CHECK(made->size() > 50);
    return made;
  }();
  return *formats;
}

// Tokens missing, exact or dropped, and formats by layer or head, as the input says.
PartPlan TakePlan(FuzzInput& input, const Place& place) {
  PartPlan plan;
  if (!HasPlanes(place.part)) return plan;
  if (input.Flag()) {
    plan.token_count = static_cast<uint32_t>(1 + input.Below(place.layout.page_tokens));
  }
  if (input.Flag()) {
    plan.class_scope = static_cast<PlanScope>(input.Below(3));
    plan.classes.resize(ListCount(plan.class_scope, place.part) * place.layout.page_tokens);
    SeededRandom random(input.Take<uint8_t>());
    const size_t classes = 2 + input.Below(2);
    for (TokenClass& c : plan.classes) c = static_cast<TokenClass>(2 - random.Below(classes));
  }
  if (input.Flag()) {
    plan.format_scope = static_cast<PlanScope>(input.Below(3));
    plan.formats.resize(ListCount(plan.format_scope, place.part));
    for (PartPlan::Formats& formats : plan.formats) {
      formats.k = Formats()[input.Below(Formats().size())];
      formats.v = Formats()[input.Below(Formats().size())];
    }
  }
  return plan;
}

// What any format and plan writes, then changed here and there.
void DamageEncoded(FuzzInput& input) {
  static auto* const raw_memory = new GuardedMemory(kRawBytesMax);
  static auto* const payload_memory = new GuardedMemory(2 * kPayloadBytesMax);
  const Place place = TakePlace(input);
  const PlaneFormat k = Formats()[input.Below(Formats().size())];
  const PlaneFormat v = Formats()[input.Below(Formats().size())];
  const PlanesCodec codec("fuzz", k, v);
  const PartPlan plan = TakePlan(input, place);
  SeededRandom random(input.Take<uint16_t>());
  const uint16_t spread = input.Take<uint8_t>() % 0x40;
  std::vector<std::byte> raw(place.part.raw_bytes);
  for (size_t i = 0; i + 1 < raw.size(); i += 2) {
    const auto half = static_cast<uint16_t>(
        (random.Below(2) << 15) + (0x2000 + (random.Below(1 + spread) << 7)) + random.Below(128));
    std::memcpy(raw.data() + i, &half, sizeof(half));
  }
  std::vector<std::byte> payload(codec.PayloadBytesMax(place.layout, place.part, plan));
  const absl::StatusOr<EncodedPart> encoded =
      codec.Encode(place.layout, place.part, plan, raw, absl::MakeSpan(payload));
  FB_CHECK(encoded.ok() && encoded->payload_bytes <= payload.size());
  payload.resize(encoded->payload_bytes);
  const std::vector<std::byte> sound = payload;
  Damage(input, payload);
  if (payload.size() > 2 * kPayloadBytesMax) return;
  FrameHeader header;
  header.codec = static_cast<uint8_t>(CodecId::kPlanes);
  header.flags = encoded->flags;
  header.codec_param = PackQuality(encoded->quality);
  const Bytes held = payload_memory->Hold(payload);
  ReadPartPlan(place.layout, place.part, header, held).status().IgnoreError();
  const MutableBytes back = raw_memory->Last(raw.size());
  std::memset(back.data(), 0x5a, back.size());
  const absl::Status status = Decoder().Decode(place.layout, place.part, header, held, back);
  FB_CHECK(status.ok() || payload != sound);
  if (!status.ok()) return;
  const std::vector<std::byte> once(back.begin(), back.end());
  std::memset(back.data(), 0xa5, back.size());
  FB_CHECK(Decoder().Decode(place.layout, place.part, header, held, back).ok());
  FB_CHECK(std::memcmp(once.data(), back.data(), back.size()) == 0);
  FB_CHECK(payload != sound || !encoded->quality.exact() || plan.Drops(place.layout) ||
           once == raw);
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
      seed.Add(kDecode).AddBelow(layout).AddBelow(0).AddBelow(encoded.flags);
      seed.Add(PackQuality(encoded.quality));
      seed.AddBytes(Bytes(payload).first(encoded.payload_bytes));
      seeds.push_back(seed.Take());
    }
    SeedBuilder seed;
    seed.Add(kEncode).AddBelow(layout).AddBelow(0).AddBelow(3);
    seed.AddBytes(Bytes(raw).first(64));
    seeds.push_back(seed.Take());
    // Every format as K and as V, each with one of the plans.
    for (size_t format = 0; format < Formats().size(); ++format) {
      SeedBuilder damage;
      damage.Add(kDamage).AddBelow(layout).AddBelow(format % 2);
      damage.AddBelow(format).AddBelow((format + 7) % Formats().size());
      const bool grows = format % 3 == 0;
      damage.AddFlag(grows);
      if (grows) damage.AddBelow(format);
      const bool masks = format % 2 == 0;
      damage.AddFlag(masks);
      if (masks) damage.AddBelow(format).Add(uint8_t{5}).AddBelow(format / 2);
      damage.AddFlag(false);
      damage.Add(uint16_t{1}).Add(uint8_t{8});
      damage.Add(static_cast<uint8_t>(format % 3));
      for (uint8_t i = 0; i < format % 3; ++i) {
        damage.Add(uint8_t{1}).Add(static_cast<uint32_t>(97 * format * i)).Add(uint8_t{1});
      }
      seeds.push_back(damage.Take());
    }
  }
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  switch (input.Take<uint8_t>() % forebay::fuzz::kModes) {
    case forebay::fuzz::kDecode:
      forebay::fuzz::DecodeAny(input);
      break;
    case forebay::fuzz::kEncode:
      forebay::fuzz::EncodeAny(input);
      break;
    default:
      forebay::fuzz::DamageEncoded(input);
      break;
  }
  return 0;
}
