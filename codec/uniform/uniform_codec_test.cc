#include "codec/uniform/uniform_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "codec/uniform/calibrator.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

class UniformCodecTest : public ::testing::Test {
 protected:
  UniformCodecTest() {
    UniformCalibrator calibrator(layout_);
    const PlaneShape shape{layout_.page_tokens, 2, 32, PlaneOrder::kTokenMajor, DType::kBf16};
    const std::vector<std::byte> raw = Part(100);
    for (uint32_t plane = 0; plane < 4; ++plane) {
      const Bytes bytes = Bytes(raw).subspan(plane * shape.raw_bytes(), shape.raw_bytes());
      EXPECT_TRUE(
          calibrator
              .AddPlane(plane / 2, plane % 2 == 0 ? Stream::kKey : Stream::kValue, shape, bytes)
              .ok());
    }
    dictionary_ = std::make_shared<const Dictionary>(*calibrator.Finish({}));
    store_.Add(dictionary_);
  }

  // Numbers of the same kind for each seed.
  std::vector<std::byte> Part(uint64_t seed) const {
    SeededRandom random(seed);
    std::vector<std::byte> raw(part_.raw_bytes);
    for (size_t i = 0; i < raw.size() / 2; ++i) {
      float sum = -2;
      for (int k = 0; k < 4; ++k) sum += static_cast<float>(random.Below(1 << 16)) / 65536;
      const float x = sum * static_cast<float>(1 + i % 32 % 5);
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof(bits));
      const auto half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(raw.data() + 2 * i, &half, sizeof(half));
    }
    return raw;
  }
  UniformCodec CodecWith(float k_dial, float v_dial) const {
    return UniformCodec("uniform", &store_, dictionary_, k_dial, v_dial);
  }
  static FrameHeader HeaderOf(const EncodedPart& encoded) {
    FrameHeader header;
    header.flags = encoded.flags;
    header.codec_param = PackQuality(encoded.quality);
    return header;
  }
  // Encodes `raw` into payload_, of which the used bytes are left.
  EncodedPart Encode(const Codec& codec, const std::vector<std::byte>& raw) {
    payload_.resize(codec.PayloadBytesMax(layout_, part_));
    const absl::StatusOr<EncodedPart> encoded =
        codec.Encode(layout_, part_, raw, absl::MakeSpan(payload_));
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    payload_.resize(encoded->payload_bytes);
    return *encoded;
  }

  const KvLayout layout_ = KvLayout::Uniform(2, 2, 32, DType::kBf16, 64, 2);
  const PartSpec part_ = layout_.Parts()[0];
  std::shared_ptr<const Dictionary> dictionary_;
  DictionaryStore store_;
  std::vector<std::byte> payload_;
};

TEST_F(UniformCodecTest, AFrameNamesItsDictionaryAndComesBack) {
  const UniformCodec codec = CodecWith(1, 1);
  const std::vector<std::byte> raw = Part(1);
  const EncodedPart encoded = Encode(codec, raw);
  EXPECT_EQ(encoded.flags, kFrameDictionary);
  EXPECT_LT(encoded.payload_bytes * 3, raw.size());
  EXPECT_EQ(std::memcmp(payload_.data(), dictionary_->name().data(), 32), 0);
  std::vector<std::byte> back(raw.size());
  // Whoever has the dictionary decodes, whatever its own dials.
  FB_EXPECT_OK(UniformCodec("uniform", &store_, nullptr, 3, 3)
                   .Decode(layout_, part_, HeaderOf(encoded), payload_, absl::MakeSpan(back)));
  EXPECT_NE(back, raw);
}

TEST_F(UniformCodecTest, TheDialIsContinuousAndSaysItsClass) {
  const std::vector<std::byte> raw = Part(1);
  size_t last = raw.size();
  QualityBound worst;
  for (float dial : {0.25f, 0.4f, 0.7f, 1.0f, 1.6f, 2.5f, 4.0f}) {
    const UniformCodec codec = CodecWith(dial, dial);
    const EncodedPart encoded = Encode(codec, raw);
    EXPECT_LT(encoded.payload_bytes, last) << dial;
    last = encoded.payload_bytes;
    EXPECT_TRUE(encoded.quality.Allows(worst)) << dial;
    EXPECT_EQ(encoded.quality, codec.quality());
    worst = encoded.quality;
  }
  EXPECT_EQ(CodecWith(0.1f, 0.1f).quality(),
            (QualityBound{QualityClass::kNear, QualityClass::kNear}));
  EXPECT_EQ(CodecWith(1, 1).quality(), (QualityBound{QualityClass::kNear, QualityClass::kFair}));
  EXPECT_EQ(worst, (QualityBound{QualityClass::kCoarse, QualityClass::kCoarse}));
}

TEST_F(UniformCodecTest, WithoutTheDictionaryItIsAMissThatNamesIt) {
  const EncodedPart encoded = Encode(CodecWith(1, 1), Part(1));
  const DictionaryStore empty;
  std::vector<std::byte> back(part_.raw_bytes);
  EXPECT_THAT(UniformCodec("uniform", &empty, nullptr, 1, 1)
                  .Decode(layout_, part_, HeaderOf(encoded), payload_, absl::MakeSpan(back)),
              HasStatus(absl::StatusCode::kNotFound, HasSubstr("the dictionary")));
}

TEST_F(UniformCodecTest, AnotherQualityThanTheHeadersIsRefused) {
  const UniformCodec codec = CodecWith(1, 1);
  const EncodedPart encoded = Encode(codec, Part(1));
  FrameHeader header = HeaderOf(encoded);
  header.codec_param = PackQuality({QualityClass::kNear, QualityClass::kNear});
  ASSERT_NE(header.codec_param, PackQuality(encoded.quality));
  std::vector<std::byte> back(part_.raw_bytes);
  EXPECT_THAT(codec.Decode(layout_, part_, header, payload_, absl::MakeSpan(back)),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("quality")));
}

TEST_F(UniformCodecTest, WhatItCannotTakeStaysRaw) {
  std::vector<std::byte> raw = Part(1);
  EXPECT_EQ(Encode(UniformCodec("uniform", &store_, nullptr, 1, 1), raw).flags, kFrameRawFallback);
  const uint16_t infinity = 0x7f80;
  std::memcpy(raw.data() + 10, &infinity, sizeof(infinity));
  EXPECT_EQ(Encode(CodecWith(1, 1), raw).flags, kFrameRawFallback);
  EXPECT_EQ(payload_, raw);
  PartPlan plan;
  plan.classes.assign(64, TokenClass::kDropped);
  EXPECT_THAT(CodecWith(1, 1).Encode(layout_, part_, plan, raw, absl::MakeSpan(payload_)).status(),
              HasCode(absl::StatusCode::kInvalidArgument));
}

TEST_F(UniformCodecTest, HostilePayloadsGiveAnErrorOrAllOfThePart) {
  const UniformCodec codec = CodecWith(1, 1);
  const EncodedPart encoded = Encode(codec, Part(1));
  SeededRandom random(3);
  std::vector<std::byte> back(part_.raw_bytes);
  for (size_t cut = 0; cut < payload_.size(); cut += 1 + cut / 8) {
    const std::vector<std::byte> exact(payload_.begin(),
                                       payload_.begin() + static_cast<ptrdiff_t>(cut));
    EXPECT_FALSE(codec.Decode(layout_, part_, HeaderOf(encoded), exact, absl::MakeSpan(back)).ok());
  }
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bad = payload_;
    bad[random.Below(bad.size())] ^= static_cast<std::byte>(1 + random.Below(255));
    codec.Decode(layout_, part_, HeaderOf(encoded), bad, absl::MakeSpan(back)).IgnoreError();
  }
}

}  // namespace
}  // namespace forebay
