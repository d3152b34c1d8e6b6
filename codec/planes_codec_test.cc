#include "codec/planes_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

constexpr uint32_t kTokens = 64;

KvLayout Layout(PlaneOrder order = PlaneOrder::kTokenMajor, DType dtype = DType::kBf16) {
  KvLayout layout = KvLayout::Uniform(/*layer_count=*/4, /*kv_heads=*/2, /*head_dim=*/128, dtype,
                                      kTokens, /*layers_per_part=*/2);
  layout.plane_order = order;
  return layout;
}

// Numbers like those of a cache: channels of different spread, a few of them large.
std::vector<std::byte> Cache(const PartSpec& part, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<uint16_t> words(part.raw_bytes / 2);
  for (size_t i = 0; i < words.size(); ++i) {
    const float spread = i % 61 == 0 ? 12.0f : 1.0f + static_cast<float>(i % 7) / 4;
    float x = 0;
    for (int k = 0; k < 4; ++k) x += static_cast<float>(random.Below(1 << 16)) / (1 << 16) - 0.5f;
    words[i] = part.dtype == DType::kFp16 ? Fp32ToFp16(spread * x) : Fp32ToBf16(spread * x);
  }
  std::vector<std::byte> raw(part.raw_bytes);
  std::memcpy(raw.data(), words.data(), raw.size());
  return raw;
}

struct RoundTrip {
  EncodedPart encoded;
  std::vector<std::byte> payload;
  std::vector<std::byte> raw;
  absl::Status status;
};

RoundTrip Go(const Codec& codec, const KvLayout& layout, const PartSpec& part, Bytes raw) {
  RoundTrip trip;
  trip.payload.resize(codec.PayloadBytesMax(layout, part));
  const auto encoded = codec.Encode(layout, part, raw, absl::MakeSpan(trip.payload));
  trip.status = encoded.status();
  if (!encoded.ok()) return trip;
  trip.encoded = *encoded;
  trip.payload.resize(encoded->payload_bytes);
  trip.raw.resize(raw.size());
  FrameHeader header;
  header.flags = encoded->flags;
  header.codec_param = PackQuality(encoded->quality);
  // By id: whoever reads knows no name.
  const Codec* reader = *CodecRegistry::Default().Find(codec.id());
  trip.status = reader->Decode(layout, part, header, trip.payload, absl::MakeSpan(trip.raw));
  return trip;
}

double RelativeError(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  double error = 0;
  double power = 0;
  for (size_t i = 0; i + 1 < a.size(); i += 2) {
    uint16_t x;
    uint16_t y;
    std::memcpy(&x, a.data() + i, 2);
    std::memcpy(&y, b.data() + i, 2);
    const double wanted = Bf16ToFp32(x);
    error += std::pow(wanted - Bf16ToFp32(y), 2);
    power += wanted * wanted;
  }
  return std::sqrt(error / power);
}

TEST(PlanesCodecTest, EachCompositionHasTheSizeAndTheErrorOfItsName) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = Cache(part, 1);
  struct Want {
    const char* name;
    double bits_max;
    double error_max;
  };
  for (const Want& want :
       {Want{"lossless", 12.2, 0}, Want{"lossless_fast", 12.6, 0}, Want{"int8", 8.15, 0.016},
        Want{"fp8", 8.02, 0.03}, Want{"fp8_token", 8.15, 0.03}, Want{"fp8_e5m2", 8.02, 0.06},
        Want{"k8v4", 6.35, 0.1}, Want{"kivi4", 5.02, 0.13}, Want{"int4_outlier", 4.91, 0.14},
        Want{"int4", 4.52, 0.14}, Want{"int4_hadamard", 4.52, 0.14}, Want{"lloyd4", 4.15, 0.14},
        Want{"k4v2", 3.21, 0.4}, Want{"kivi2", 3.02, 0.56}, Want{"int2", 2.27, 0.75},
        Want{"lloyd2", 2.15, 0.4}}) {
    const Codec* codec = *CodecRegistry::Default().FindByName(want.name);
    const RoundTrip trip = Go(*codec, layout, part, raw);
    FB_ASSERT_OK(trip.status);
    EXPECT_EQ(trip.encoded.flags, 0) << want.name;
    const double bits =
        16.0 * static_cast<double>(trip.payload.size()) / static_cast<double>(raw.size());
    EXPECT_LE(bits, want.bits_max) << want.name;
    EXPECT_LE(RelativeError(raw, trip.raw), want.error_max) << want.name;
    EXPECT_EQ(codec->quality().exact(), trip.raw == raw) << want.name;
  }
}

TEST(PlanesCodecTest, EachKeyFormatGoesWithEachValueFormat) {
  std::vector<PlaneFormat> formats = {{PlaneKind::kRaw},
                                      {PlaneKind::kSplitFixed},
                                      {PlaneKind::kSplitEntropy},
                                      {PlaneKind::kFp8E5M2}};
  for (const auto kind : {PlaneKind::kFp8E4M3, PlaneKind::kInt8}) {
    formats.push_back({kind, GroupAxis::kHead});
    formats.push_back({kind, GroupAxis::kRow, 32, ScaleFormat::kBf16});
  }
  for (const auto kind : {PlaneKind::kInt4, PlaneKind::kInt2}) {
    formats.push_back({kind, GroupAxis::kRow, 64, ScaleFormat::kBf16});
    formats.push_back({kind, GroupAxis::kColumn, 32});
    formats.push_back({kind, GroupAxis::kColumn, 64, ScaleFormat::kCompact});
    formats.push_back({kind, GroupAxis::kColumn, 64, ScaleFormat::kBf16, PlaneTransform::kNone, 2});
  }
  for (const auto kind : {PlaneKind::kLloyd4, PlaneKind::kLloyd3, PlaneKind::kLloyd2}) {
    formats.push_back({kind, GroupAxis::kRow, 0, ScaleFormat::kBf16, PlaneTransform::kHadamard});
  }
  for (const PlaneOrder order : {PlaneOrder::kTokenMajor, PlaneOrder::kHeadMajor}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      const KvLayout layout = Layout(order, dtype);
      const PartSpec part = layout.Parts()[1];
      const std::vector<std::byte> raw = Cache(part, 2);
      for (const PlaneFormat& k : formats) {
        for (const PlaneFormat& v : formats) {
          const PlanesCodec codec("test", k, v);
          const RoundTrip trip = Go(codec, layout, part, raw);
          FB_ASSERT_OK(trip.status) << k.ToString() << " and " << v.ToString();
          // Where nothing is saved the part stays raw.
          EXPECT_EQ(trip.encoded.flags == kFrameRawFallback, trip.payload.size() == raw.size());
          EXPECT_EQ(trip.raw == raw, codec.quality().exact())
              << k.ToString() << " and " << v.ToString();
        }
      }
    }
  }
}

TEST(PlanesCodecTest, WhatIsNotFiniteStaysRawAndSaysSo) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  for (const auto& codec : MakePlanesCodecs()) {
    std::vector<std::byte> raw = Cache(part, 3);
    const uint16_t nan = 0x7fc0;
    std::memcpy(raw.data() + raw.size() - 2, &nan, 2);
    const RoundTrip trip = Go(*codec, layout, part, raw);
    FB_ASSERT_OK(trip.status);
    EXPECT_EQ(trip.raw, raw) << codec->name();
    EXPECT_EQ(trip.encoded.flags, codec->quality().exact() ? 0 : kFrameRawFallback)
        << codec->name();
  }
}

TEST(PlanesCodecTest, StatesOpaqueBytesAndRotaryPartsKeepTheirBits) {
  KvLayout layout = Layout();
  layout.layers[2].layer_class = layout.layers[3].layer_class = LayerClass::kState;
  for (const int layer : {2, 3}) {
    layout.layers[layer] = LayerSpec{};
    layout.layers[layer].layer_class = LayerClass::kState;
    layout.layers[layer].attention = AttentionKind::kNone;
    layout.layers[layer].state_bytes = 4096;
  }
  FB_ASSERT_OK(layout.Validate());
  KvLayout opaque = Layout();
  for (LayerSpec& layer : opaque.layers) layer.dtype = DType::kOpaque8;
  KvLayout latent = Layout();
  for (LayerSpec& layer : latent.layers) {
    layer.attention = AttentionKind::kMla;
    layer.kv_heads = 1;
    layer.k_dim = 512;
    layer.v_dim = 64;
  }
  FB_ASSERT_OK(latent.Validate());
  const Codec* int4 = *CodecRegistry::Default().FindByName("int4");
  for (const auto& [shape, index] : {std::pair(layout, 1), std::pair(opaque, 0)}) {
    const PartSpec part = shape.Parts()[index];
    const std::vector<std::byte> raw = Cache(part, 4);
    const RoundTrip trip = Go(*int4, shape, part, raw);
    FB_ASSERT_OK(trip.status);
    EXPECT_EQ(trip.encoded.flags, kFrameRawFallback);
    EXPECT_EQ(trip.raw, raw);
  }
  const PartSpec part = latent.Parts()[0];
  ASSERT_EQ(part.stream, Stream::kLatent);
  const std::vector<std::byte> raw = Cache(part, 5);
  const RoundTrip trip = Go(*int4, latent, part, raw);
  FB_ASSERT_OK(trip.status);
  EXPECT_EQ(trip.encoded.flags, 0);
  const size_t latent_bytes = size_t{kTokens} * 512 * 2;
  const size_t rotary_bytes = size_t{kTokens} * 64 * 2;
  EXPECT_NE(std::memcmp(trip.raw.data(), raw.data(), latent_bytes), 0);
  EXPECT_EQ(std::memcmp(trip.raw.data() + latent_bytes, raw.data() + latent_bytes, rotary_bytes),
            0);
}

// The result of one head is the same whether its neighbours lie in the same part or not: tensor
// parallelism changes no number.
TEST(PlanesCodecTest, AHeadDecodesAlikeHoweverHeadsAreCut) {
  KvLayout whole = Layout(PlaneOrder::kHeadMajor);
  KvLayout cut = whole;
  cut.heads_per_part = 1;
  const PartSpec both = whole.Parts()[0];
  const std::vector<std::byte> raw = Cache(both, 6);
  const size_t head_bytes = size_t{kTokens} * 128 * 2;
  for (const auto& codec : MakePlanesCodecs()) {
    const RoundTrip together = Go(*codec, whole, both, raw);
    FB_ASSERT_OK(together.status);
    for (size_t head = 0; head < 2; ++head) {
      const PartSpec one = cut.Parts()[head];
      ASSERT_EQ(one.head_begin, head);
      std::vector<std::byte> own;
      std::vector<std::byte> want;
      for (size_t plane = 0; plane < 4; ++plane) {  // K and V of two layers
        const size_t at = (plane * 2 + head) * head_bytes;
        own.insert(own.end(), raw.begin() + at, raw.begin() + at + head_bytes);
        want.insert(want.end(), together.raw.begin() + at, together.raw.begin() + at + head_bytes);
      }
      const RoundTrip alone = Go(*codec, cut, one, own);
      FB_ASSERT_OK(alone.status);
      EXPECT_EQ(alone.raw, want) << codec->name() << " head " << head;
    }
  }
}

// Neither more nor less than the header says: a reader's contract was checked against that.
TEST(PlanesCodecTest, APayloadOfAnotherQualityThanItsHeaderSaysIsRefused) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = Cache(part, 7);
  std::vector<std::byte> back(raw.size());
  for (const auto& codec : MakePlanesCodecs()) {
    const RoundTrip trip = Go(*codec, layout, part, raw);
    FB_ASSERT_OK(trip.status);
    EXPECT_EQ(trip.encoded.quality, codec->quality()) << codec->name();
    for (const auto& other : MakePlanesCodecs()) {
      FrameHeader header;
      header.codec_param = PackQuality(other->quality());
      const absl::Status status =
          codec->Decode(layout, part, header, trip.payload, absl::MakeSpan(back));
      EXPECT_EQ(status.ok(), other->quality() == codec->quality())
          << codec->name() << " as " << other->name();
    }
  }
}

TEST(PlanesCodecTest, HostilePayloadsGiveAnErrorOrAllOfThePart) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = Cache(part, 7);
  SeededRandom random(8);
  FrameHeader header;
  std::vector<std::byte> back(raw.size());
  for (const auto& codec : MakePlanesCodecs()) {
    const RoundTrip trip = Go(*codec, layout, part, raw);
    FB_ASSERT_OK(trip.status);
    header.codec_param = PackQuality(trip.encoded.quality);
    for (size_t cut = 0; cut < trip.payload.size(); cut += 1 + cut / 4) {
      EXPECT_THAT(
          codec->Decode(layout, part, header, Bytes(trip.payload).first(cut), absl::MakeSpan(back)),
          HasCode(absl::StatusCode::kDataLoss))
          << codec->name() << " cut at " << cut;
    }
    std::vector<std::byte> longer = trip.payload;
    longer.resize(longer.size() + 16);
    EXPECT_THAT(codec->Decode(layout, part, header, longer, absl::MakeSpan(back)),
                HasStatus(absl::StatusCode::kDataLoss, HasSubstr("16 bytes after")));
    for (int round = 0; round < 300; ++round) {
      std::vector<std::byte> bad = trip.payload;
      for (int flips = 1 + static_cast<int>(random.Below(4)); flips > 0; --flips) {
        // Half of them where the formats and the scales are.
        const size_t at = random.Below(random.Chance(0.5) ? kTokens : bad.size());
        bad[at] ^= static_cast<std::byte>(1 << random.Below(8));
      }
      const absl::Status status = codec->Decode(layout, part, header, bad, absl::MakeSpan(back));
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
    }
  }
}

// The bytes of a small part, so that the format cannot drift: frames outlive the build that wrote
// them.
TEST(PlanesCodecTest, GoldenBytes) {
  KvLayout layout = KvLayout::Uniform(1, 1, 16, DType::kBf16, 8, 1);
  const PartSpec part = layout.Parts()[0];
  std::vector<std::byte> raw(part.raw_bytes);
  for (size_t i = 0; i < raw.size() / 2; ++i) {
    const uint16_t word = Fp32ToBf16(static_cast<float>(static_cast<int>(i % 23) - 11) / 4);
    std::memcpy(raw.data() + 2 * i, &word, 2);
  }
  const auto hex = [&](const char* name) {
    const RoundTrip trip = Go(**CodecRegistry::Default().FindByName(name), layout, part, raw);
    std::string text;
    for (const std::byte byte : trip.payload) {
      absl::StrAppend(&text, absl::Hex(static_cast<int>(byte), absl::kZeroPad2));
    }
    return text;
  };
  EXPECT_EQ(hex("int8"),
            "0100000000000000040100010000000004010001000000000000000000000000818c98a3afbbc6d2"
            "dde9f4000c17232e3a45515d68747f818c98a3afbbc6d2dde9f4000c17232e3a45515d68747f818c"
            "818f9dabb9c8d6e4f2000e1c2a384755515d68747f818c98a3afbbc6d2dde9f4000c17232e3a4551"
            "5d68747f818c98a391a1b1c0d0e0f000102030404f5f6f7f68747f818c98a3afbbc6d2dde9f4000c"
            "b13cb13cb13c913cb13cb13c813cb13c17232e3a45515d68747f818c98a3afbbc0cddae7f3000d19"
            "2633404c5966727f7f818c98a3afbbc6d2dde9f4000c17232e3a45515d68747f818c98a3afbbc6d2"
            "dde9f4000c17232e3a45515d68747f81818e9aa7b4c0cddae7f3000d1926334045515d68747f818c"
            "98a3afbbc6d2dde9f4000c17232e3a45515d68747f818c98b13ca13cb13cb13cb13ca13cb13cb13c");
  EXPECT_EQ(hex("k8v4"),
            "0100000000000000040100010000000005014001000000000000000000000000818c98a3afbbc6d2"
            "dde9f4000c17232e3a45515d68747f818c98a3afbbc6d2dde9f4000c17232e3a45515d68747f818c"
            "818f9dabb9c8d6e4f2000e1c2a384755515d68747f818c98a3afbbc6d2dde9f4000c17232e3a4551"
            "5d68747f818c98a391a1b1c0d0e0f000102030404f5f6f7f68747f818c98a3afbbc6d2dde9f4000c"
            "b13cb13cb13c913cb13cb13c813cb13ca9baccedfe1021331032547698badcfe0f113243557687a9"
            "baccedfe10213354657798aacbdcee0f1032547698badcfeccedfe10213354657798aacbdcee0f11"
            "bc3e803ebc3ebc3ebc3e803ebc3ebc3e30c0a0bf30c030c030c020c030c030c0");
  EXPECT_EQ(hex("int2"),
            "01000000000000000602800300000000060140030000000000000000000000001818186c6c6d6d71"
            "71717171b6b6c6c6dbdbdb1b1b18186c6c6c6c6c6161b1b1f4f4f4f5f5f5f5f2f2f2f2f2f5f5f2f2"
            "818c98818c818c818c98a3af818c818cc662b13c000000000000000000000000aaea0f504055aafe"
            "035455a9aafe005555aaaa3f4055aafeea0f5055a5aafa03f6edf6f6f6edf6f60000000000000000"
            "81c68181818c81810000000000000000c662b13c000000000000000000000000");
  EXPECT_EQ(hex("int4_outlier"),
            "0100000000000000050240010001000005014001000100000000000000000000ccccccd0d0555555"
            "5555555507075b5b06060627277d7d7d7d7d7d7d8f8fd5d57d7d7d9f9ff0f0f0f0f0f0f022220707"
            "f2f2f23333282828282828284a4a8f8f9a3e9a3e9a3e9a3e9a3e893e893e893e893e893e893e893e"
            "893e893e893e893e10c000c0e0bf00c0e0bf30c020c010c000c0e0bfc0bfa0bfc0bfa0bf10c000c0"
            "000030c0000020c0000010c0070030c0070020c00100204001003040010030c0010020c0010010c0"
            "010000c00100e0bf050030c0050020c0020030c0020020c099bacbedfe0f11320021436597badcfe"
            "0021436597badcfebacbedfe0f11324410325476a9cbedff0021436597badcfecbedfe0f11324465"
            "7698a9bbdceeff10b33e6f3e6f3eb33e6f3e6f3eb33eb33e20c080bf30c020c040bf10c020c020c0"
            "0a0030c00000a0bf00003040080030c00f0030c0000020c0060030c00d0030c0");
  EXPECT_EQ(hex("lloyd2"),
            "01000000000000000c010001010000000c01000101000000000000000000000094a8a8aa69956b96"
            "b78a89b894a8a8aaa957ab5796abaaa896a8a8aa686b6a6bb93ffa3fd83f9b3ff33fec3f943fe43f"
            "a6ba8b8897a8a8aaa8a9a8aa96a8abaa6b95946994a8a8aaa58abb8bab5756a8f73fa83fcb3ffb3f"
            "cb3fa83ff73fe43f");
}

}  // namespace
}  // namespace forebay
