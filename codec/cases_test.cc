// Public reports about codecs, each a test of its name (docs/cases.md): which bytes are whose.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "base/testing/status_matchers.h"
#include "codec/testing/case_parts.h"
#include "codec/testing/targets.h"

namespace forebay {
namespace {

using ::forebay::testing::CacheBytes;
using ::forebay::testing::Decode;
using ::forebay::testing::ElementAt;
using ::forebay::testing::Encode;
using ::forebay::testing::EncodedFrame;
using ::forebay::testing::ErrorMax;
using ::forebay::testing::EveryTarget;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::forebay::testing::RelativeError;
using ::forebay::testing::SetElement;
using ::forebay::testing::Trip;
using ::forebay::testing::UniformFor;
using ::testing::HasSubstr;

using Buffer = std::vector<std::byte>;

KvLayout Gqa(uint32_t heads = 2, uint32_t dim = 64, uint32_t tokens = 64,
             DType dtype = DType::kBf16) {
  return KvLayout::Uniform(/*layer_count=*/2, heads, dim, dtype, tokens, /*layers_per_part=*/2);
}

KvLayout Mla() {
  KvLayout layout = KvLayout::Uniform(1, 1, 512, DType::kBf16, 64, 1);
  layout.layers[0].attention = AttentionKind::kMla;
  layout.layers[0].v_dim = 64;
  return layout;
}

// ik_llama.cpp PR#1592: a quantized path took the K cache for V.
TEST(IkLlamaCpp1592Test, KeysAreNeverTakenForValues) {
  const KvLayout layout = Gqa();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 1);
  int refused = 0;
  for (const auto& codec : MakePlanesCodecs()) {
    const auto& planes = static_cast<const PlanesCodec&>(*codec);
    EncodedFrame frame;
    Trip(planes, layout, part, raw, &frame);
    if (KeyQuality(planes.k()) == KeyQuality(planes.v()) &&
        ValueQuality(planes.k()) == ValueQuality(planes.v())) {
      continue;
    }
    // The formats of K and of V in its front, exchanged.
    std::swap_ranges(frame.payload.begin() + 8, frame.payload.begin() + 16,
                     frame.payload.begin() + 16);
    EXPECT_THAT(Decode(layout, part, frame).status(), HasCode(absl::StatusCode::kDataLoss))
        << codec->name();
    ++refused;
  }
  EXPECT_GE(refused, 4);
  // In parts of their own it is the stream that tells them apart.
  KvLayout split = layout;
  split.layers_per_part = 1;
  split.split_key_value = true;
  const std::vector<PartSpec> parts = split.Parts();
  ASSERT_EQ(parts[0].stream, Stream::kKey);
  ASSERT_EQ(parts[1].stream, Stream::kValue);
  const PageKey key;
  const FrameHeader of_keys = MakeFrameHeader(split, parts[0], key, 0, CodecId::kPlanes, 100, 1);
  FB_EXPECT_OK(CheckFrameIdentity(of_keys, split, parts[0], key, 0));
  EXPECT_THAT(CheckFrameIdentity(of_keys, split, parts[1], key, 0),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("stream")));
}

// Every kind, axis, format of scales, rotation and outliers, at a small size.
std::vector<PlaneFormat> EveryFormat() {
  std::vector<PlaneFormat> formats;
  for (int kind = 0; kind < 16; ++kind) {
    for (int bits = 0; bits < 4 * 4 * 2 * 2; ++bits) {
      PlaneFormat format;
      format.kind = static_cast<PlaneKind>(kind);
      format.axis = static_cast<GroupAxis>(bits & 3);
      format.scale = static_cast<ScaleFormat>(bits >> 2 & 3);
      format.transform = static_cast<PlaneTransform>(bits >> 4 & 1);
      format.outliers = static_cast<uint8_t>(bits >> 5 & 1);
      for (const auto group : {uint8_t{0}, uint8_t{16}}) {
        format.group = group;
        if (CheckPlaneFormat(format, DType::kBf16).ok()) formats.push_back(format);
      }
    }
  }
  return formats;
}

// ik_llama.cpp#92: garbage for some pairs of K and V types only.
TEST(IkLlamaCpp92Test, NoFormatOfKChangesWhatVDecodesToNorTheOtherWay) {
  const KvLayout layout = KvLayout::Uniform(1, 1, 32, DType::kBf16, 32, 1);
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 2);
  const PlaneShape shape{32, 1, 32, PlaneOrder::kTokenMajor, DType::kBf16};
  const std::vector<PlaneFormat> formats = EveryFormat();
  ASSERT_GT(formats.size(), 40u);
  // What each makes of K and of V alone.
  std::vector<std::pair<Buffer, Buffer>> alone;
  for (const PlaneFormat& format : formats) {
    const auto decoded = [&](Bytes plane) {
      Buffer payload(PlaneBytesMax(format, shape));
      const auto bytes = EncodePlane(format, shape, plane, absl::MakeSpan(payload));
      EXPECT_TRUE(bytes.has_value()) << format.ToString();
      Bytes rest = Bytes(payload).first(*bytes);
      Buffer back(shape.raw_bytes());
      FB_EXPECT_OK(DecodePlane(format, shape, &rest, absl::MakeSpan(back)));
      return back;
    };
    alone.emplace_back(decoded(Bytes(raw).first(shape.raw_bytes())),
                       decoded(Bytes(raw).subspan(shape.raw_bytes())));
  }
  size_t coded = 0;
  for (size_t k = 0; k < formats.size(); ++k) {
    for (size_t v = 0; v < formats.size(); ++v) {
      EncodedFrame frame;
      const Buffer back =
          Trip(PlanesCodec("pair", formats[k], formats[v]), layout, part, raw, &frame);
      if ((frame.header.flags & kFrameRawFallback) != 0) {
        ASSERT_EQ(back, raw);
        continue;
      }
      ++coded;
      ASSERT_EQ(std::memcmp(back.data(), alone[k].first.data(), shape.raw_bytes()), 0)
          << formats[k].ToString() << " beside " << formats[v].ToString();
      ASSERT_EQ(
          std::memcmp(back.data() + shape.raw_bytes(), alone[v].second.data(), shape.raw_bytes()),
          0)
          << formats[v].ToString() << " beside " << formats[k].ToString();
    }
  }
  EXPECT_GT(coded, formats.size() * formats.size() / 2);
}

// llama.cpp#25391, #26423: where V is a view of K the output was never rotated back.
TEST(LlamaCpp25391Test, RotatedPlanesComeBackInTheirOwnBasis) {
  KvLayout view = Gqa(1, 128);
  for (LayerSpec& layer : view.layers) layer.v_dim = 0;  // V is read from K
  FB_ASSERT_OK(view.Validate());
  for (const KvLayout& layout : {view, Mla()}) {
    const PartSpec part = layout.Parts()[0];
    const Buffer raw = CacheBytes(part, 3);
    for (const char* name : {"int4_hadamard", "lloyd4", "lloyd2"}) {
      EncodedFrame frame;
      const Buffer back =
          Trip(**CodecRegistry::Default().FindByName(name), layout, part, raw, &frame);
      EXPECT_EQ(frame.header.flags, 0) << name;
      EXPECT_LT(RelativeError(DType::kBf16, raw, back, 0, raw.size() / 2), 0.45) << name;
      EXPECT_NE(back, raw) << name;
    }
  }
}

TEST(LlamaCpp25391Test, NothingOfTheLatentMixesWithTheRotaryPart) {
  const KvLayout layout = Mla();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 4);
  const size_t latent = size_t{64} * 512;
  Buffer other = raw;
  for (size_t i = latent; i < raw.size() / 2; ++i) {
    SetElement(DType::kBf16, other, i, 1000 * ElementAt(DType::kBf16, raw, i) + 1);
  }
  for (const auto& codec : MakePlanesCodecs()) {
    const Buffer back = Trip(*codec, layout, part, raw);
    const Buffer of_other = Trip(*codec, layout, part, other);
    EXPECT_EQ(std::memcmp(back.data(), of_other.data(), 2 * latent), 0) << codec->name();
    EXPECT_EQ(
        std::memcmp(back.data() + 2 * latent, raw.data() + 2 * latent, raw.size() - 2 * latent), 0)
        << codec->name();
    EXPECT_EQ(std::memcmp(of_other.data() + 2 * latent, other.data() + 2 * latent,
                          raw.size() - 2 * latent),
              0)
        << codec->name();
  }
}

// vllm#23813: FP8's accuracy changed with the degree of tensor parallelism.
TEST(Vllm23813Test, TensorParallelismChangesNoNumber) {
  KvLayout whole = Gqa(/*heads=*/4);
  whole.plane_order = PlaneOrder::kHeadMajor;
  const PartSpec part = whole.Parts()[0];
  const Buffer raw = CacheBytes(part, 5);
  const size_t head_bytes = size_t{64} * 64 * 2;
  std::vector<std::unique_ptr<Codec>> codecs = MakePlanesCodecs();
  codecs.push_back(UniformFor(whole));
  for (const auto& codec : codecs) {
    EncodedFrame frame;
    const Buffer together = Trip(*codec, whole, part, raw, &frame);
    EXPECT_EQ(frame.header.flags & kFrameRawFallback, 0) << codec->name();
    for (const uint32_t ranks : {2u, 4u}) {
      KvLayout cut = whole;
      cut.heads_per_part = 4 / ranks;
      const std::vector<PartSpec> shares = cut.Parts();
      ASSERT_EQ(shares.size(), ranks);
      for (const PartSpec& share : shares) {
        Buffer own;
        Buffer want;
        for (size_t plane = 0; plane < 4; ++plane) {
          const auto at = static_cast<ptrdiff_t>((plane * 4 + share.head_begin) * head_bytes);
          const auto bytes = static_cast<ptrdiff_t>(share.head_count * head_bytes);
          own.insert(own.end(), raw.begin() + at, raw.begin() + at + bytes);
          want.insert(want.end(), together.begin() + at, together.begin() + at + bytes);
        }
        EXPECT_EQ(Trip(*codec, cut, share, own), want) << codec->name() << " of " << ranks;
      }
    }
  }
}

// sglang#22777: groups mixed what is of different requests.
TEST(Sglang22777Test, NoGroupCrossesAHeadOrAPart) {
  KvLayout layout = Gqa();
  layout.plane_order = PlaneOrder::kHeadMajor;
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 6);
  const size_t head = size_t{64} * 64;
  Buffer other = raw;  // its second head, of the first plane, is of another request
  for (size_t i = head; i < 2 * head; ++i) SetElement(DType::kBf16, other, i, 700);
  for (const auto& codec : MakePlanesCodecs()) {
    EncodedFrame first;
    Trip(*codec, layout, part, raw, &first);
    Buffer a = Trip(*codec, layout, part, raw);
    Buffer b = Trip(*codec, layout, part, other);
    EXPECT_LT(first.payload.size(), raw.size()) << codec->name();
    // All but that head decodes alike, and a part has no memory of the one before.
    std::fill_n(a.begin() + static_cast<ptrdiff_t>(2 * head), 2 * head, std::byte{0});
    std::fill_n(b.begin() + static_cast<ptrdiff_t>(2 * head), 2 * head, std::byte{0});
    EXPECT_EQ(a, b) << codec->name();
    EXPECT_EQ(Encode(*codec, layout, part, PartPlan(), raw).payload, first.payload);
  }
}

// llama.cpp#5652, #9383, #9743, #7230: a shift of quantized keys crashed. Positions are not changed
// in the pool; who decodes, turns keys and encodes again gets what it would of new ones.
TEST(LlamaCpp5652Test, DecodedPartsAreTurnedAndEncodedAgain) {
  const KvLayout layout = Gqa();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 7);
  for (const auto& codec : MakePlanesCodecs()) {
    Buffer turned = Trip(*codec, layout, part, raw);
    for (size_t i = 0; i + 1 < turned.size() / 2; i += 2) {
      const float x = ElementAt(DType::kBf16, turned, i);
      const float y = ElementAt(DType::kBf16, turned, i + 1);
      SetElement(DType::kBf16, turned, i, 0.6f * x - 0.8f * y);
      SetElement(DType::kBf16, turned, i + 1, 0.8f * x + 0.6f * y);
    }
    const Buffer back = Trip(*codec, layout, part, turned);
    EXPECT_LE(RelativeError(DType::kBf16, turned, back, 0, turned.size() / 2),
              ErrorMax(std::max(codec->quality().k, codec->quality().v)))
        << codec->name();
  }
}

// llama.cpp PR#14081, sglang#36121: what moved a page left its scales behind.
TEST(LlamaCpp14081Test, APayloadIsOneUnitWhereverItLies) {
  const KvLayout layout = Gqa();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 8);
  std::vector<std::unique_ptr<Codec>> codecs = MakePlanesCodecs();
  codecs.push_back(UniformFor(layout));
  for (const auto& codec : codecs) {
    EncodedFrame frame;
    const Buffer back = Trip(*codec, layout, part, raw, &frame);
    Buffer memory(frame.payload.size() + 16);
    for (size_t at : {0, 1, 2, 7, 13}) {
      std::memcpy(memory.data() + at, frame.payload.data(), frame.payload.size());
      Buffer moved(raw.size());
      FB_EXPECT_OK((*CodecRegistry::Default().Find(codec->id()))
                       ->Decode(layout, part, frame.header,
                                Bytes(memory).subspan(at, frame.payload.size()),
                                absl::MakeSpan(moved)));
      EXPECT_EQ(moved, back) << codec->name() << " at " << at;
    }
  }
}

// llama.cpp#23044: one CPU path decoded gibberish. Each plane format against a scalar reference is
// in plane_test.cc and plane_formats_test.cc; here each composition, whole.
TEST(LlamaCpp23044Test, EveryInstructionSetWritesAndReadsTheSame) {
  const KvLayout layout = Gqa(2, 80, 40);
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 9);
  for (const auto& codec : MakePlanesCodecs()) {
    Buffer payload;
    Buffer back;
    EveryTarget([&](const char* target) {
      EncodedFrame frame;
      const Buffer now = Trip(*codec, layout, part, raw, &frame);
      if (payload.empty()) {
        payload = frame.payload;
        back = now;
      }
      EXPECT_EQ(frame.payload, payload) << codec->name() << " by " << target;
      EXPECT_EQ(now, back) << codec->name() << " by " << target;
    });
  }
}

// vllm PR#38479: kernels for one width and head size, and garbage for the others.
TEST(Vllm38479Test, EveryWidthTakesEveryHeadSize) {
  for (const uint32_t dim : {8u, 16u, 48u, 64u, 80u, 96u, 128u, 192u, 256u, 576u}) {
    for (const uint32_t tokens : {16u, 33u, 64u}) {
      const KvLayout layout = Gqa(1, dim, tokens);
      const PartSpec part = layout.Parts()[0];
      const Buffer raw = CacheBytes(part, dim);
      const size_t plane = size_t{dim} * tokens;
      for (const auto& codec : MakePlanesCodecs()) {
        const Buffer back = Trip(*codec, layout, part, raw);
        for (size_t i = 0; i < 4; ++i) {
          const QualityBound q = codec->quality();
          EXPECT_LE(RelativeError(DType::kBf16, raw, back, i * plane, (i + 1) * plane),
                    ErrorMax(i % 2 == 0 ? q.k : q.v))
              << codec->name() << ", head of " << dim << ", " << tokens << " tokens";
        }
      }
    }
  }
}

// transformers#34848: a change of version broke the quantized cache.
TEST(Transformers34848Test, OtherVersionsAndCodecsAreAMissThatIsNamed) {
  const KvLayout layout = Gqa();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 10);
  EXPECT_THAT(CodecRegistry::Default().Find(99).status(),
              HasStatus(absl::StatusCode::kUnimplemented, HasSubstr("codec 99")));
  FrameHeader header = MakeFrameHeader(layout, part, PageKey(), 0, CodecId::kPlanes, 100, 1);
  FB_EXPECT_OK(CheckFrameHeader(header));
  for (const auto change :
       {+[](FrameHeader& h) { h.codec = 99; }, +[](FrameHeader& h) { ++h.format_version; },
        +[](FrameHeader& h) { h.flags = 1 << 9; }}) {
    FrameHeader newer = header;
    change(newer);
    newer.Seal();
    EXPECT_THAT(CheckFrameHeader(newer), HasCode(absl::StatusCode::kUnimplemented));
  }
  std::vector<std::unique_ptr<Codec>> codecs = MakePlanesCodecs();
  codecs.push_back(UniformFor(layout));
  for (const auto& codec : codecs) {
    EncodedFrame frame;
    Trip(*codec, layout, part, raw, &frame);
    // Where a payload has its version.
    const size_t at = codec->id() == CodecId::kUniform ? 32 : 0;
    frame.payload[at] = std::byte{77};
    EXPECT_THAT(Decode(layout, part, frame).status(), HasCode(absl::StatusCode::kDataLoss))
        << codec->name();
  }
}

// vllm#54338: the bits of one 16-bit type were read as the other.
TEST(Vllm54338Test, Bf16AndFp16AreNeverTakenForEachOther) {
  const KvLayout bf16 = Gqa();
  const KvLayout fp16 = Gqa(2, 64, 64, DType::kFp16);
  const PartSpec part = bf16.Parts()[0];
  const PartSpec other = fp16.Parts()[0];
  ASSERT_EQ(part.raw_bytes, other.raw_bytes);
  const PageKey key;
  const FrameHeader header = MakeFrameHeader(bf16, part, key, 0, CodecId::kPlanes, 100, 1);
  EXPECT_THAT(CheckFrameIdentity(header, fp16, other, key, 0),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("dtype")));
  // The lossless forms know it themselves.
  for (const char* name : {"lossless", "lossless_fast"}) {
    EncodedFrame frame;
    Trip(**CodecRegistry::Default().FindByName(name), bf16, part, CacheBytes(part, 11), &frame);
    EXPECT_THAT(Decode(fp16, other, frame).status(), HasCode(absl::StatusCode::kDataLoss)) << name;
  }
}

// vllm#44184, #43980 and LMCache#4064, #5022: caches of bytes or of fp8 crashed, or stored nothing.
TEST(Vllm44184Test, OtherTypesKeepTheirBitsAndTheirName) {
  for (const DType dtype :
       {DType::kOpaque8, DType::kFp8E4M3, DType::kFp8E5M2, DType::kInt8, DType::kFp32}) {
    const KvLayout layout = Gqa(2, 64, 64, dtype);
    FB_ASSERT_OK(layout.Validate());
    const PartSpec part = layout.Parts()[0];
    const Buffer raw = CacheBytes(part, 12);
    for (const auto& codec : CodecRegistry::Default().codecs()) {
      EncodedFrame frame;
      EXPECT_EQ(Trip(*codec, layout, part, raw, &frame), raw) << codec->name();
      EXPECT_EQ(frame.payload.size(), raw.size()) << codec->name();
      EXPECT_EQ(frame.header.codec_param, PackQuality({})) << codec->name();
    }
    const PageKey key;
    const FrameHeader header =
        MakeFrameHeader(layout, part, key, 0, CodecId::kRaw, part.raw_bytes, 1);
    EXPECT_EQ(header.dtype, static_cast<uint8_t>(dtype));
    if (dtype == DType::kOpaque8 || dtype == DType::kFp32) continue;
    const KvLayout opaque = Gqa(2, 64, 64, DType::kOpaque8);
    EXPECT_THAT(CheckFrameIdentity(header, opaque, opaque.Parts()[0], key, 0),
                HasStatus(absl::StatusCode::kDataLoss, HasSubstr("dtype")));
  }
}

// LMCache#4972, #4358: an object of several groups was viewed as one shape.
TEST(LMCache4972Test, LayersOfOtherShapesAreOtherParts) {
  KvLayout layout = KvLayout::Uniform(5, 2, 64, DType::kBf16, 64, 5);
  layout.layers[1].k_dim = layout.layers[1].v_dim = 128;
  layout.layers[2].v_dim = 32;
  layout.layers[3].dtype = DType::kFp16;
  layout.layers[4].kv_heads = 4;
  FB_ASSERT_OK(layout.Validate());
  const std::vector<PartSpec> parts = layout.Parts();
  ASSERT_EQ(parts.size(), 5u);
  std::vector<std::unique_ptr<Codec>> codecs = MakePlanesCodecs();
  codecs.push_back(UniformFor(layout));
  for (const auto& codec : codecs) {
    for (const PartSpec& part : parts) {
      const Buffer raw = CacheBytes(part, 13);
      EncodedFrame frame;
      const Buffer back = Trip(*codec, layout, part, raw, &frame);
      EXPECT_EQ(frame.header.flags & kFrameRawFallback, 0) << codec->name();
      EXPECT_LE(RelativeError(part.dtype, raw, back, 0, raw.size() / 2),
                ErrorMax(std::max(codec->quality().k, codec->quality().v)))
          << codec->name() << " layer " << part.layer_begin;
      // Of another layer's shape it is refused, whose raw bytes differ.
      for (const PartSpec& other : parts) {
        if (other.raw_bytes == part.raw_bytes) continue;
        EXPECT_FALSE(Decode(layout, other, frame).ok()) << codec->name();
      }
    }
  }
}

}  // namespace
}  // namespace forebay
