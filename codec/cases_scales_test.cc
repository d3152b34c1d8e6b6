// Public reports about codecs, each a test of its name (docs/cases.md): scales and numbers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checksum.h"
#include "base/testing/status_matchers.h"
#include "codec/testing/case_parts.h"

namespace forebay {
namespace {

using ::forebay::testing::CacheBytes;
using ::forebay::testing::ElementAt;
using ::forebay::testing::EncodedFrame;
using ::forebay::testing::ErrorMax;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::forebay::testing::RelativeError;
using ::forebay::testing::SetElement;
using ::forebay::testing::Trip;
using ::forebay::testing::UniformFor;
using ::testing::HasSubstr;

using Buffer = std::vector<std::byte>;

constexpr uint32_t kTokens = 64;
constexpr uint32_t kDim = 64;
constexpr size_t kPlane = size_t{kTokens} * kDim;

// One layer of one head: the K plane, then the V plane.
KvLayout OneHead(DType dtype = DType::kBf16) {
  return KvLayout::Uniform(1, 1, kDim, dtype, kTokens, 1);
}

// The planes multiplied by a power of two each, which is exact.
Buffer Scaled(const Buffer& raw, float k, float v) {
  Buffer scaled = raw;
  for (size_t i = 0; i < 2 * kPlane; ++i) {
    SetElement(DType::kBf16, scaled, i, ElementAt(DType::kBf16, raw, i) * (i < kPlane ? k : v));
  }
  return scaled;
}

PlaneShape Shape() { return {kTokens, 1, kDim, PlaneOrder::kTokenMajor, DType::kBf16}; }

// llama.cpp#10011, ik_llama.cpp#103: NaN out of quantized K. The accumulation is an attention
// kernel's, and not the pool's; that no finite number decodes to another is ours.
TEST(LlamaCpp10011Test, WhatIsFiniteStaysFinite) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    const KvLayout layout = OneHead(dtype);
    const PartSpec part = layout.Parts()[0];
    const float largest = dtype == DType::kBf16 ? 0x1.fep127f : 65504.0f;
    const float smallest = dtype == DType::kBf16 ? 0x1p-133f : 0x1p-24f;
    for (int kind = 0; kind < 4; ++kind) {
      Buffer raw = CacheBytes(part, 1);
      for (size_t i = 0; i < 2 * kPlane; ++i) {
        const float sign = i % 3 == 0 ? -1.0f : 1.0f;
        if (kind == 0) SetElement(dtype, raw, i, sign * largest);
        if (kind == 1 && i % 17 == 0) SetElement(dtype, raw, i, sign * largest);
        if (kind == 2) SetElement(dtype, raw, i, sign * smallest);
        if (kind == 3) SetElement(dtype, raw, i, i % 64 == 0 ? largest : 0);
      }
      std::vector<std::unique_ptr<Codec>> codecs = MakePlanesCodecs();
      codecs.push_back(UniformFor(layout));
      for (const auto& codec : codecs) {
        const Buffer back = Trip(*codec, layout, part, raw);
        size_t bad = 0;
        for (size_t i = 0; i < 2 * kPlane; ++i) bad += !std::isfinite(ElementAt(dtype, back, i));
        EXPECT_EQ(bad, 0u) << codec->name() << " of kind " << kind;
      }
    }
  }
}

// vllm#13133: output that nobody could read where the scales of K and of V differed.
TEST(Vllm13133Test, KeysAndValuesOfOtherSizesHaveScalesOfTheirOwn) {
  const KvLayout layout = OneHead();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 2);
  for (const auto& codec : MakePlanesCodecs()) {
    const QualityBound q = codec->quality();
    // E5M2 has no scale: its numbers are themselves, down to 2^-16.
    const float least = codec->name() == "fp8_e5m2" ? 0x1p-4f : 0x1p-12f;
    for (const auto& [k, v] : {std::pair(least, 1024.0f), std::pair(1024.0f, least)}) {
      const Buffer scaled = Scaled(raw, k, v);
      EncodedFrame frame;
      const Buffer back = Trip(*codec, layout, part, scaled, &frame);
      EXPECT_EQ(frame.header.flags, 0) << codec->name();
      EXPECT_LE(RelativeError(DType::kBf16, scaled, back, 0, kPlane), ErrorMax(q.k))
          << codec->name() << " K times " << k;
      EXPECT_LE(RelativeError(DType::kBf16, scaled, back, kPlane, 2 * kPlane), ErrorMax(q.v))
          << codec->name() << " V times " << v;
    }
  }
}

// sglang#5700: a reader that lacked a scale. Whoever multiplies what is put by a power of two gets
// just that of what came out before.
TEST(Sglang5700Test, TheScaleIsAppliedOnceOnTheWayBack) {
  const KvLayout layout = OneHead();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 3);
  for (const auto& codec : MakePlanesCodecs()) {
    if (codec->name() == "fp8_e5m2") continue;  // has none
    const Buffer once = Trip(*codec, layout, part, raw);
    for (const float factor : {0x1p-6f, 0x1p3f, 0x1p20f}) {
      EXPECT_EQ(Trip(*codec, layout, part, Scaled(raw, factor, 1 / factor)),
                Scaled(once, factor, 1 / factor))
          << codec->name() << " times " << factor;
    }
  }
}

// vllm#45562: FP8 of AMD, where 0x80 is NaN and every code is half as much. Here 0x80 is -0, 0x7f
// and 0xff are what no encoder writes, and there is no name nor number of the other one.
TEST(Vllm45562Test, E4M3IsTheOneOfOcpAndNoOther) {
  const PlaneFormat format{PlaneKind::kFp8E4M3, GroupAxis::kHead, 0, ScaleFormat::kFp32};
  Buffer raw = CacheBytes(OneHead().Parts()[0], 4);
  raw.resize(Shape().raw_bytes());
  SetElement(DType::kBf16, raw, 0, 0.0f);
  Buffer payload(PlaneBytesMax(format, Shape()));
  ASSERT_TRUE(EncodePlane(format, Shape(), raw, absl::MakeSpan(payload)).has_value());
  const auto decoded = [&](uint8_t code, absl::StatusCode want) {
    payload[0] = static_cast<std::byte>(code);
    Bytes rest = payload;
    Buffer back(raw.size());
    EXPECT_THAT(DecodePlane(format, Shape(), &rest, absl::MakeSpan(back)), HasCode(want))
        << int{code};
    return ElementAt(DType::kBf16, back, 0);
  };
  EXPECT_EQ(decoded(0x80, absl::StatusCode::kOk), 0.0f);
  decoded(0x7f, absl::StatusCode::kDataLoss);
  decoded(0xff, absl::StatusCode::kDataLoss);
  // The largest code is the largest of the plane; with the other bias it would be about half.
  float largest = 0;
  for (size_t i = 0; i < kPlane; ++i) {
    largest = std::max(largest, std::abs(ElementAt(DType::kBf16, raw, i)));
  }
  EXPECT_NEAR(decoded(0x7e, absl::StatusCode::kOk), largest, largest / 100);
  EXPECT_FALSE(ParseDType("fp8_e4m3fnuz").ok());
  EXPECT_EQ(DTypeBytes(static_cast<DType>(8)), 0u);
}

// llm-compressor#2117: calibrated scales that were all 0.
TEST(LlmCompressor2117Test, ScalesThatAreNoneAreRefusedWhereTheyAreRead) {
  Buffer raw = CacheBytes(OneHead().Parts()[0], 5);
  raw.resize(Shape().raw_bytes());
  constexpr float kNone[] = {std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity(), -1.0f};
  for (const auto kind : {PlaneKind::kFp8E4M3, PlaneKind::kInt8}) {
    const PlaneFormat format{kind, GroupAxis::kHead, 0, ScaleFormat::kFp32};
    for (const float scale : kNone) {
      Buffer payload(PlaneBytesMax(format, Shape()));
      ASSERT_TRUE(EncodePlane(format, Shape(), raw, absl::MakeSpan(payload)).has_value());
      std::memcpy(payload.data() + kPlane, &scale, sizeof(scale));
      Bytes rest = payload;
      Buffer back(raw.size());
      EXPECT_THAT(DecodePlane(format, Shape(), &rest, absl::MakeSpan(back)),
                  HasCode(absl::StatusCode::kDataLoss))
          << format.ToString() << " by " << scale;
    }
    // 0 is that of zeros, and of nothing else.
    Buffer payload(PlaneBytesMax(format, Shape()));
    float scale = -1;
    for (const float x : {0.0f, 0x1p-100f, 1.0f}) {
      Buffer one(raw.size());
      SetElement(DType::kBf16, one, 7, x);
      ASSERT_TRUE(EncodePlane(format, Shape(), one, absl::MakeSpan(payload)).has_value());
      std::memcpy(&scale, payload.data() + kPlane, sizeof(scale));
      EXPECT_EQ(scale > 0, x > 0) << format.ToString() << " of " << x;
    }
  }
}

TEST(LlmCompressor2117Test, ADictionaryOfSuchStepsIsNotLoaded) {
  const KvLayout layout = OneHead();
  const PartSpec part = layout.Parts()[0];
  EncodedFrame frame;
  Trip(*UniformFor(layout), layout, part, CacheBytes(part, 6), &frame);
  Sha256Digest name;
  std::memcpy(name.data(), frame.payload.data(), name.size());
  const auto dictionary = DictionaryStore::Default().Find(name);
  ASSERT_NE(dictionary, nullptr);
  const Bytes sound = dictionary->serialized();
  // From its end: a checksum, and V, then K, of a step and 5 bytes a channel.
  const size_t v_step = sound.size() - 8 - 5 * kDim - 4;
  for (const size_t at : {v_step, v_step - 5 * kDim - 4}) {
    for (const float step : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity()}) {
      Buffer bad(sound.begin(), sound.end());
      std::memcpy(bad.data() + at, &step, sizeof(step));
      const uint64_t checksum = ChecksumOf(Bytes(bad).first(bad.size() - 8));
      std::memcpy(bad.data() + bad.size() - 8, &checksum, sizeof(checksum));
      EXPECT_THAT(Dictionary::Parse(bad).status(),
                  HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("a step of")));
    }
  }
}

// FBGEMM PR#4237: an upper bound that overflowed where a scale is doubled for the other FP8.
TEST(Fbgemm4237Test, TwiceAScaleIsFinite) {
  for (const float largest : {0x1.fep127f, 0x1p127f, 0x1p-100f}) {
    Buffer raw(Shape().raw_bytes());
    for (size_t i = 0; i < kPlane; ++i) {
      SetElement(DType::kBf16, raw, i, i % 5 == 0 ? largest : -largest / 4);
    }
    for (const auto kind : {PlaneKind::kFp8E4M3, PlaneKind::kInt8}) {
      const PlaneFormat format{kind, GroupAxis::kHead, 0, ScaleFormat::kFp32};
      Buffer payload(PlaneBytesMax(format, Shape()));
      ASSERT_TRUE(EncodePlane(format, Shape(), raw, absl::MakeSpan(payload)).has_value());
      float scale;
      std::memcpy(&scale, payload.data() + kPlane, sizeof(scale));
      EXPECT_GT(scale, 0) << format.ToString();
      EXPECT_TRUE(std::isfinite(2 * scale)) << format.ToString();
      EXPECT_NEAR(scale / largest, kind == PlaneKind::kInt8 ? 1 / 127.0 : 1 / 448.0, 1e-4);
    }
  }
}

// transformers#35185, #40099: Qwen2.5, whose keys have a bias in few channels, lost every answer
// where groups run over channels.
TEST(Transformers40099Test, ChannelsWithABiasLoseNothingOfTheOthers) {
  const KvLayout layout = OneHead();
  const PartSpec part = layout.Parts()[0];
  Buffer raw = CacheBytes(part, 7);
  for (size_t i = 0; i < kPlane; ++i) {
    if (i % kDim % 16 != 3) continue;
    SetElement(DType::kBf16, raw, i, 150 + ElementAt(DType::kBf16, raw, i));
  }
  const auto other_channels = [&](const Buffer& of) {
    Buffer only = of;
    for (size_t i = 0; i < kPlane; ++i) {
      if (i % kDim % 16 == 3) SetElement(DType::kBf16, only, i, 0);
    }
    return only;
  };
  int fair = 0;
  for (const auto& codec : MakePlanesCodecs()) {
    const auto& planes = static_cast<const PlanesCodec&>(*codec);
    const double error = RelativeError(DType::kBf16, other_channels(raw),
                                       other_channels(Trip(*codec, layout, part, raw)), 0, kPlane);
    if (planes.k().kind == PlaneKind::kInt4 && planes.k().axis == GroupAxis::kRow) {
      // Such keys are of no class that anybody asks for by accident.
      EXPECT_EQ(codec->quality().k, QualityClass::kCoarse) << codec->name();
      EXPECT_GT(error, ErrorMax(QualityClass::kFair)) << codec->name();
    }
    if (codec->quality().k != QualityClass::kFair) continue;
    EXPECT_LE(error, ErrorMax(QualityClass::kFair)) << codec->name();
    ++fair;
  }
  EXPECT_GE(fair, 3);
}

}  // namespace
}  // namespace forebay
