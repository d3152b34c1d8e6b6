#include "codec/composition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/testing/status_matchers.h"
#include "codec/plane_rows.h"
#include "codec/testing/parts.h"

namespace forebay {
namespace {

using ::forebay::testing::CacheBytes;
using ::forebay::testing::Decode;
using ::forebay::testing::Encode;
using ::forebay::testing::EncodedFrame;
using ::forebay::testing::ForEachRow;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

const PlaneFormat kInt8Row{PlaneKind::kInt8, GroupAxis::kRow, 0, ScaleFormat::kBf16};
const PlaneFormat kInt2Row{PlaneKind::kInt2, GroupAxis::kRow, 32, ScaleFormat::kBf16};
const PlaneFormat kInt4Column{PlaneKind::kInt4, GroupAxis::kColumn, 32, ScaleFormat::kBf16};
const PlaneFormat kFp8Head{PlaneKind::kFp8E4M3, GroupAxis::kHead, 0, ScaleFormat::kFp32};

const Codec& Named(const char* name) { return **CodecRegistry::Default().FindByName(name); }

KvLayout Gqa(PlaneOrder order, uint32_t dim = 64, uint32_t page_tokens = 64) {
  KvLayout layout = KvLayout::Uniform(/*layer_count=*/3, /*kv_heads=*/4, dim, DType::kBf16,
                                      page_tokens, /*layers_per_part=*/3);
  layout.plane_order = order;
  return layout;
}

KvLayout Mla() {
  KvLayout layout = Gqa(PlaneOrder::kTokenMajor);
  for (LayerSpec& layer : layout.layers) {
    layer.attention = AttentionKind::kMla;
    layer.kv_heads = 1;
    layer.k_dim = 512;
    layer.v_dim = 64;
  }
  return layout;
}

std::vector<KvLayout> Layouts() {
  KvLayout split = Gqa(PlaneOrder::kHeadMajor);
  split.split_key_value = true;
  KvLayout cut = Gqa(PlaneOrder::kTokenMajor, /*dim=*/80, /*page_tokens=*/40);
  cut.heads_per_part = 2;
  for (LayerSpec& layer : cut.layers) layer.dtype = DType::kFp16;
  KvLayout uneven = Gqa(PlaneOrder::kHeadMajor, /*dim=*/128, /*page_tokens=*/33);
  for (LayerSpec& layer : uneven.layers) layer.v_dim = 48;
  return {Gqa(PlaneOrder::kTokenMajor), Gqa(PlaneOrder::kHeadMajor), Mla(), split, cut, uneven};
}

PartPlan RandomPlan(const KvLayout& layout, const PartSpec& part, SeededRandom& random) {
  PartPlan plan;
  if (random.Chance(0.5))
    plan.token_count = static_cast<uint32_t>(1 + random.Below(layout.page_tokens));
  if (random.Chance(0.8)) {
    plan.class_scope = static_cast<PlanScope>(random.Below(3));
    const bool drops = random.Chance(0.8);
    const bool has_exact = random.Chance(0.7);
    plan.classes.resize(ListCount(plan.class_scope, part) * layout.page_tokens);
    for (TokenClass& c : plan.classes) {
      c = TokenClass::kCoded;
      if (drops && random.Chance(0.4)) c = TokenClass::kDropped;
      if (has_exact && random.Chance(0.2)) c = TokenClass::kExact;
    }
  }
  if (random.Chance(0.5)) {
    plan.format_scope = static_cast<PlanScope>(random.Below(3));
    const PlaneFormat choice[] = {kInt8Row, kInt2Row, kInt4Column, kFp8Head, PlaneFormat{}};
    plan.formats.resize(ListCount(plan.format_scope, part));
    for (PartPlan::Formats& formats : plan.formats) {
      if (random.Chance(0.7)) formats.k = choice[random.Below(5)];
      if (random.Chance(0.7)) formats.v = choice[random.Below(5)];
    }
  }
  return plan;
}

// Whether a row decodes alike, whichever rows there are beside it.
bool RowsAreAlone(const PlaneFormat& format) {
  return (format.axis == GroupAxis::kNone || format.axis == GroupAxis::kRow) &&
         (format.scale == ScaleFormat::kBf16 || format.scale == ScaleFormat::kFp32);
}

// Parts as the format alone decodes them, for K and for V.
class References {
 public:
  References(const KvLayout& layout, const PartSpec& part, Bytes raw)
      : layout_(layout), part_(part), raw_(raw) {}
  const std::vector<std::byte>& Of(const PlaneFormat& format) {
    std::vector<std::byte>& known = known_[format.ToString()];
    if (known.empty()) {
      const PlanesCodec codec("reference", format, format);
      known = *Decode(layout_, part_, Encode(codec, layout_, part_, PartPlan(), raw_));
    }
    return known;
  }

 private:
  const KvLayout& layout_;
  const PartSpec& part_;
  const Bytes raw_;
  std::map<std::string, std::vector<std::byte>> known_;
};

// Each row against the plan: zeros, the same bits, or what its format makes of it.
void ExpectRows(const KvLayout& layout, const PartSpec& part, const PartPlan& plan,
                const PartPlan& read, const std::vector<std::byte>& raw,
                const std::vector<std::byte>& back, References& references) {
  const std::vector<std::byte> zeros(raw.size());
  size_t faults = 0;
  ForEachRow(
      layout, part,
      [&](uint32_t layer, bool value, uint32_t head, uint32_t token, size_t at, size_t bytes) {
        const TokenClass c = plan.ClassOf(layout, part, layer, head, token);
        if (read.ClassOf(layout, part, layer, head, token) != c) ++faults;
        const auto row_is = [&](const std::vector<std::byte>& wanted) {
          return std::memcmp(back.data() + at, wanted.data() + at, bytes) == 0;
        };
        const PartPlan::Formats& formats =
            read.formats[ListIndex(read.format_scope, part, layer, head)];
        const PlaneFormat format = value ? *formats.v : *formats.k;
        bool as_planned = true;
        if (c == TokenClass::kDropped) {
          as_planned = row_is(zeros);
        } else if (c == TokenClass::kExact) {
          as_planned = row_is(raw);
        } else if (RowsAreAlone(format)) {
          as_planned = row_is(references.Of(format));
        }
        if (!as_planned) ++faults;
      });
  EXPECT_EQ(faults, 0u);
}

TEST(CompositionTest, RandomPlansDecodeRowByRowAsTheySay) {
  SeededRandom random(1);
  for (const KvLayout& layout : Layouts()) {
    FB_ASSERT_OK(layout.Validate());
    for (const PartSpec& part : layout.Parts()) {
      const std::vector<std::byte> raw = CacheBytes(part, 2);
      References references(layout, part, raw);
      for (const auto& codec : CodecRegistry::Default().codecs()) {
        if (codec->id() != CodecId::kPlanes) continue;
        for (int round = 0; round < 3; ++round) {
          SCOPED_TRACE(absl::StrCat(layout.ToString(), ", ", codec->name(), ", ", round));
          const PartPlan plan = RandomPlan(layout, part, random);
          const EncodedFrame frame = Encode(*codec, layout, part, plan, raw);
          FB_ASSERT_OK(frame.status);
          const auto back = Decode(layout, part, frame);
          FB_ASSERT_OK(back.status());
          auto read = ReadPartPlan(layout, part, frame.header, frame.payload);
          FB_ASSERT_OK(read.status());
          if (frame.header.flags == kFrameRawFallback) {
            EXPECT_EQ(*back, raw);
            continue;
          }
          EXPECT_EQ(frame.header.flags, plan.Drops(layout) ? kFrameRetentionMask : 0);
          ExpectRows(layout, part, plan, *read, raw, *back, references);
        }
      }
    }
  }
}

// The scope of the lists is the writer's convenience: what is said is what counts.
TEST(CompositionTest, WhatSaysTheSameHasTheSameBytes) {
  const KvLayout layout = Gqa(PlaneOrder::kTokenMajor);
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = CacheBytes(part, 3);
  const Codec& int4 = Named("int4");
  const PlanesCodec int8_keys("test", kInt8Row, dynamic_cast<const PlanesCodec&>(int4).v());
  const EncodedFrame plain = Encode(int4, layout, part, PartPlan(), raw);
  std::vector<EncodedFrame> masked;
  for (const auto scope : {PlanScope::kPart, PlanScope::kLayer, PlanScope::kHead}) {
    PartPlan plan;
    plan.token_count = layout.page_tokens;
    plan.class_scope = scope;
    plan.classes.assign(ListCount(scope, part) * layout.page_tokens, TokenClass::kCoded);
    plan.format_scope = scope;
    plan.formats.resize(ListCount(scope, part));
    EXPECT_EQ(Encode(int4, layout, part, plan, raw).payload, plain.payload);
    for (PartPlan::Formats& formats : plan.formats) formats.k = kInt8Row;
    EXPECT_EQ(Encode(int4, layout, part, plan, raw).payload,
              Encode(int8_keys, layout, part, PartPlan(), raw).payload);
    for (size_t i = 5; i < plan.classes.size(); i += layout.page_tokens) {
      plan.classes[i] = TokenClass::kDropped;
    }
    masked.push_back(Encode(int4, layout, part, plan, raw));
    EXPECT_EQ(masked.back().payload, masked[0].payload);
  }
  EXPECT_NE(masked[0].payload, plain.payload);
}

TEST(CompositionTest, FirstLayersMayHaveFinerFormats) {
  const KvLayout layout = Gqa(PlaneOrder::kHeadMajor);
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = CacheBytes(part, 4);
  PartPlan plan;
  plan.format_scope = PlanScope::kLayer;
  plan.formats.resize(3);
  plan.formats[0] = {kInt8Row, kInt8Row};
  const EncodedFrame frame = Encode(Named("int4"), layout, part, plan, raw);
  EXPECT_EQ(frame.header.flags, 0);
  const auto back = *Decode(layout, part, frame);
  const auto fine = *Decode(
      layout, part, Encode(PlanesCodec("test", kInt8Row, kInt8Row), layout, part, PartPlan(), raw));
  const auto coarse = *Decode(layout, part, Encode(Named("int4"), layout, part, PartPlan(), raw));
  const size_t layer_bytes = raw.size() / 3;
  EXPECT_EQ(std::memcmp(back.data(), fine.data(), layer_bytes), 0);
  EXPECT_EQ(std::memcmp(back.data() + layer_bytes, coarse.data() + layer_bytes, 2 * layer_bytes),
            0);
  EXPECT_NE(fine, coarse);
}

TEST(CompositionTest, TheRotaryPartKeepsItsBitsUnderAnyMap) {
  const KvLayout layout = Mla();
  const PartSpec part = layout.Parts()[0];
  ASSERT_EQ(part.stream, Stream::kLatent);
  const std::vector<std::byte> raw = CacheBytes(part, 5);
  PartPlan plan;
  plan.token_count = 50;
  plan.formats = {{kInt8Row, kInt8Row}};
  const EncodedFrame frame = Encode(Named("int4"), layout, part, plan, raw);
  const auto back = *Decode(layout, part, frame);
  size_t changed[2] = {};
  ForEachRow(layout, part,
             [&](uint32_t, bool value, uint32_t, uint32_t token, size_t at, size_t bytes) {
               if (token < 50 && std::memcmp(raw.data() + at, back.data() + at, bytes) != 0)
                 ++changed[value];
             });
  EXPECT_EQ(changed[0], 3 * 50u);
  EXPECT_EQ(changed[1], 0u);
}

// A mask outlives what the codec cannot take: those planes alone are raw, and the frame says so.
TEST(CompositionTest, AMaskSurvivesNumbersThatAreNotFinite) {
  const KvLayout layout = Gqa(PlaneOrder::kTokenMajor);
  const PartSpec part = layout.Parts()[0];
  std::vector<std::byte> raw = CacheBytes(part, 6);
  PartPlan plan;
  plan.classes.assign(layout.page_tokens, TokenClass::kCoded);
  for (const uint32_t token : {1u, 7u}) plan.classes[token] = TokenClass::kDropped;
  const uint16_t nan = 0x7fc0;
  const auto poison = [&](uint32_t bad_token) {
    std::vector<std::byte> poisoned = raw;
    ForEachRow(layout, part,
               [&](uint32_t layer, bool value, uint32_t head, uint32_t token, size_t at, size_t) {
                 if (layer == 1 && value && head == 2 && token == bad_token) {
                   std::memcpy(poisoned.data() + at, &nan, sizeof(nan));
                 }
               });
    return poisoned;
  };
  for (const char* name : {"int8", "fp8", "int4", "int2"}) {
    const Codec& codec = Named(name);
    const EncodedFrame sound = Encode(codec, layout, part, plan, raw);
    EXPECT_EQ(sound.header.flags, kFrameRetentionMask);
    // In a row that is dropped it does not matter.
    EXPECT_EQ(Encode(codec, layout, part, plan, poison(7)).payload, sound.payload);
    const std::vector<std::byte> bad = poison(8);
    const EncodedFrame frame = Encode(codec, layout, part, plan, bad);
    FB_ASSERT_OK(frame.status);
    EXPECT_EQ(frame.header.flags, kFrameRetentionMask);
    EXPECT_EQ(frame.raw_planes, 1u);
    EXPECT_EQ(sound.raw_planes, 0u);
    const auto back = *Decode(layout, part, frame);
    const auto want = *Decode(layout, part, sound);
    ForEachRow(layout, part,
               [&](uint32_t layer, bool value, uint32_t, uint32_t token, size_t at, size_t bytes) {
                 const bool is_raw = layer == 1 && value && token != 1 && token != 7;
                 const std::vector<std::byte>& wanted = is_raw ? bad : want;
                 EXPECT_EQ(std::memcmp(back.data() + at, wanted.data() + at, bytes), 0)
                     << name << token;
               });
    EXPECT_EQ(Encode(codec, layout, part, PartPlan(), bad).header.flags, kFrameRawFallback);
  }
}

// Where dropping saves less than the mask costs, the frame is raw, with every token.
TEST(CompositionTest, AMaskThatSavesNothingIsLeftOut) {
  const KvLayout layout = KvLayout::Uniform(1, 1, /*head_dim=*/8, DType::kBf16, 4, 1);
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = CacheBytes(part, 13);
  PartPlan plan;
  plan.formats = {{PlaneFormat{}, PlaneFormat{}}};
  plan.classes.assign(4, TokenClass::kCoded);
  plan.classes[2] = TokenClass::kDropped;
  const EncodedFrame frame = Encode(Named("int8"), layout, part, plan, raw);
  EXPECT_EQ(frame.header.flags, kFrameRawFallback);
  EXPECT_EQ(frame.payload, raw);
  // Not so while the page grows: what is not there is never told to be.
  plan.token_count = 3;
  EXPECT_EQ(Encode(Named("int8"), layout, part, plan, raw).header.flags, kFrameRetentionMask);
  plan.token_count.reset();
  plan.classes[1] = TokenClass::kDropped;
  EXPECT_EQ(Encode(Named("int8"), layout, part, plan, raw).header.flags, kFrameRetentionMask);
}

// A reader's contract was checked against the header: the weakest formats in use, no more, no less.
TEST(CompositionTest, TheFrameTellsTheWeakestClassesOfItsFormats) {
  const KvLayout layout = Gqa(PlaneOrder::kTokenMajor);
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = CacheBytes(part, 14);
  PartPlan plan;
  plan.format_scope = PlanScope::kLayer;
  plan.formats.resize(3);
  plan.formats[1] = {PlaneFormat{}, kInt2Row};
  EncodedFrame frame = Encode(Named("int8"), layout, part, plan, raw);
  EXPECT_EQ(frame.header.codec_param, PackQuality({QualityClass::kNear, QualityClass::kCoarse}));
  FB_EXPECT_OK(Decode(layout, part, frame).status());
  for (const QualityBound other :
       {QualityBound{}, QualityBound{QualityClass::kNear, QualityClass::kNear}}) {
    frame.header.codec_param = PackQuality(other);
    EXPECT_THAT(Decode(layout, part, frame).status(),
                HasStatus(absl::StatusCode::kDataLoss, HasSubstr("in a frame of")));
    EXPECT_THAT(ReadPartPlan(layout, part, frame.header, frame.payload).status(),
                HasCode(absl::StatusCode::kDataLoss));
  }
}

// A rest of a key group is 16 bits until it is worth a scale.
TEST(CompositionTest, AGroupOfOneNeverPassesForQuantized) {
  const KvLayout layout = Gqa(PlaneOrder::kTokenMajor);
  const PartSpec part = layout.Parts()[0];
  Composition composition;
  composition.k = kInt4Column;
  const auto coded = [&](uint32_t token_count, uint32_t kept) {
    composition.token_count = token_count;
    composition.classes.assign(layout.page_tokens, TokenClass::kDropped);
    std::fill_n(composition.classes.begin(), kept, TokenClass::kCoded);
    const PlaneRows rows = LayRows(composition, layout, part, 0, /*value=*/false);
    EXPECT_EQ(rows.coded.size() + rows.exact.size(), size_t{4} * kept);
    return rows.coded.size() / 4;
  };
  EXPECT_EQ(coded(63, 63), 32u);
  EXPECT_EQ(coded(40, 31), 0u);
  EXPECT_EQ(coded(40, 32), 32u);
  EXPECT_EQ(coded(40, 33), 32u);
  EXPECT_EQ(coded(64, 64), 64u);
  EXPECT_EQ(coded(64, 1), 0u);
  EXPECT_EQ(coded(64, 7), 0u);
  EXPECT_EQ(coded(64, 8), 8u);
  EXPECT_EQ(coded(64, 33), 32u);
  EXPECT_EQ(coded(64, 40), 40u);
  composition.k.group = 0;  // all tokens of the page
  EXPECT_EQ(coded(63, 63), 0u);
  EXPECT_EQ(coded(64, 63), 63u);
  EXPECT_EQ(coded(64, 7), 0u);
}

TEST(CompositionTest, PlansThatDoNotFitAreRefused) {
  const KvLayout layout = Gqa(PlaneOrder::kTokenMajor);
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = CacheBytes(part, 9);
  const std::pair<const char*, std::function<void(PartPlan&)>> faults[] = {
      {"0 tokens", [](PartPlan& plan) { plan.token_count = 0; }},
      {"65 tokens", [](PartPlan& plan) { plan.token_count = 65; }},
      {"63 classes", [](PartPlan& plan) { plan.classes.resize(63); }},
      {"64 classes where 192",
       [](PartPlan& plan) {
         plan.class_scope = PlanScope::kLayer;
         plan.classes.resize(64);
       }},
      {"no such class",
       [](PartPlan& plan) { plan.classes.resize(64, static_cast<TokenClass>(3)); }},
      {"no such scope",
       [](PartPlan& plan) {
         plan.class_scope = static_cast<PlanScope>(3);
         plan.classes.resize(64);
       }},
      {"2 formats where 12",
       [](PartPlan& plan) {
         plan.format_scope = PlanScope::kHead;
         plan.formats.resize(2);
       }},
      {"no groups along this axis",
       [](PartPlan& plan) {
         plan.formats = {{PlaneFormat{PlaneKind::kInt4}, std::nullopt}};
       }},
  };
  for (const auto& [text, make] : faults) {
    PartPlan plan;
    make(plan);
    for (const char* name : {"int4", "raw"}) {
      EXPECT_THAT(Encode(Named(name), layout, part, plan, raw).status,
                  HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    }
  }
  PartPlan exact;
  exact.classes.assign(64, TokenClass::kExact);
  FB_EXPECT_OK(Encode(Named("raw"), layout, part, exact, raw).status);
  PartPlan drops;
  drops.token_count = 63;
  FB_EXPECT_OK(Encode(Named("int4"), layout, part, drops, raw).status);
  EXPECT_THAT(Encode(Named("raw"), layout, part, drops, raw).status,
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("every token")));
  std::vector<std::byte> small(Named("int4").PayloadBytesMax(layout, part, drops) - 1);
  EXPECT_THAT(Named("int4").Encode(layout, part, drops, raw, absl::MakeSpan(small)).status(),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("payload bytes where")));
  KvLayout opaque = layout;
  for (LayerSpec& layer : opaque.layers) layer.dtype = DType::kOpaque8;
  const PartSpec bytes = opaque.Parts()[0];
  FB_EXPECT_OK(Encode(Named("int4"), opaque, bytes, PartPlan(), CacheBytes(bytes, 1)).status);
  EXPECT_THAT(Encode(Named("int4"), opaque, bytes, exact, CacheBytes(bytes, 1)).status,
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("no planes")));
}

TEST(CompositionTest, HostilePayloadsGiveAnErrorOrAllOfThePart) {
  SeededRandom random(10);
  size_t refused = 0;
  for (const KvLayout& layout : {Gqa(PlaneOrder::kTokenMajor, 16, 24), Mla()}) {
    const PartSpec part = layout.Parts()[0];
    const std::vector<std::byte> raw = CacheBytes(part, 11);
    for (const auto& codec : CodecRegistry::Default().codecs()) {
      if (codec->id() != CodecId::kPlanes) continue;
      PartPlan plan = RandomPlan(layout, part, random);
      plan.token_count = layout.page_tokens - 5;
      const EncodedFrame frame = Encode(*codec, layout, part, plan, raw);
      FB_ASSERT_OK(frame.status);
      for (size_t cut = 0; cut < frame.payload.size(); cut += 1 + cut / 8) {
        EncodedFrame less = frame;
        less.payload.resize(cut);
        less.payload.shrink_to_fit();
        EXPECT_THAT(Decode(layout, part, less).status(), HasCode(absl::StatusCode::kDataLoss));
        (void)ReadPartPlan(layout, part, less.header, less.payload);
      }
      EncodedFrame more = frame;
      more.payload.resize(frame.payload.size() + 16);
      EXPECT_THAT(Decode(layout, part, more).status(), HasCode(absl::StatusCode::kDataLoss));
      for (int round = 0; round < 300; ++round) {
        EncodedFrame bad = frame;
        for (size_t flips = 1 + random.Below(4); flips > 0; --flips) {
          // Most of them in what composes the payload.
          const size_t at = random.Below(random.Chance(0.8) ? 48 : bad.payload.size());
          bad.payload[at] ^= static_cast<std::byte>(1 << random.Below(8));
        }
        const absl::Status status = Decode(layout, part, bad).status();
        EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
        const auto read = ReadPartPlan(layout, part, bad.header, bad.payload);
        EXPECT_TRUE(read.ok() || absl::IsDataLoss(read.status())) << read.status();
        if (read.ok()) {
          FB_EXPECT_OK(CheckPartPlan(*read, layout, part));
        }
        refused += status.ok() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(refused, 1000u);
}

TEST(CompositionTest, AFrameIsRefusedWhoseFlagsAndMaskDiffer) {
  const KvLayout layout = Gqa(PlaneOrder::kTokenMajor);
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = CacheBytes(part, 12);
  PartPlan plan;
  for (const uint32_t token_count : {64u, 63u}) {
    plan.token_count = token_count;
    EncodedFrame frame = Encode(Named("int8"), layout, part, plan, raw);
    FB_EXPECT_OK(Decode(layout, part, frame).status());
    frame.header.flags ^= kFrameRetentionMask;
    EXPECT_THAT(Decode(layout, part, frame).status(),
                HasStatus(absl::StatusCode::kDataLoss, HasSubstr("retention mask differ")));
    EXPECT_THAT(ReadPartPlan(layout, part, frame.header, frame.payload).status(),
                HasCode(absl::StatusCode::kDataLoss));
  }
}

// Each thing that a reader looks at, by itself.
TEST(CompositionTest, WhatNoWriterWritesIsRefusedAndNamed) {
  const KvLayout layout = Gqa(PlaneOrder::kTokenMajor, /*dim=*/16, /*page_tokens=*/20);
  const PartSpec part = layout.Parts()[0];
  PartPlan plan;
  plan.token_count = 19;
  plan.classes.assign(20, TokenClass::kCoded);
  plan.classes[2] = TokenClass::kDropped;
  plan.classes[3] = TokenClass::kExact;
  plan.format_scope = PlanScope::kLayer;
  plan.formats.resize(3);
  plan.formats[1].k = kInt8Row;
  const auto composition = *Compose(plan, layout, part, kInt4Column, kInt2Row);
  std::vector<std::byte> sound(CompositionBytesMax(composition, layout, part));
  sound.resize(WriteComposition(composition, layout, part, absl::MakeSpan(sound)));
  const size_t map = (8 + 2 * sizeof(PlaneFormat) + 15) / 16 * 16;
  const size_t kept = map + 1 + sizeof(PlaneFormat) + 6;
  const struct {
    size_t at;
    uint8_t flip;
    const char* text;
  } kFaults[] = {{0, 2, "version 3"},
                 {1, 0x40, "with sections"},
                 {1, 0x0c, "with sections"},
                 {1, 0x20, "with sections"},
                 {1, 0x07, "with sections"},  // a scope of nothing
                 {2, 0x20, "tokens absent"},
                 {4, 1, "with sections"},
                 {8, 0x80, "no such kind"},
                 {map + 1, 0x80, "no such kind"},
                 {map + 1 + sizeof(PlaneFormat), 0x80, "past its table"},
                 {kept, 8, "not there"},         // token 3 is exact
                 {kept + 2, 0x80, "not there"},  // token 23
                 {kept + 3, 4, "not there"},     // token 2, exact but dropped
                 {sound.size() - 1, 1, "no zeros"}};
  for (const auto& [at, flip, text] : kFaults) {
    std::vector<std::byte> bad = sound;
    Bytes payload = sound;
    FB_EXPECT_OK(ReadComposition(layout, part, &payload).status());
    EXPECT_TRUE(payload.empty());
    bad[at] ^= static_cast<std::byte>(flip);
    payload = bad;
    EXPECT_THAT(ReadComposition(layout, part, &payload).status(),
                HasStatus(absl::StatusCode::kDataLoss, HasSubstr(text)))
        << at;
  }
}

TEST(CompositionTest, RawFramesReadAsExactAndUnknownOnesNotAtAll) {
  const KvLayout layout = Gqa(PlaneOrder::kTokenMajor);
  const PartSpec part = layout.Parts()[0];
  FrameHeader header;
  header.codec = static_cast<uint8_t>(CodecId::kRaw);
  const auto read = ReadPartPlan(layout, part, header, {});
  FB_ASSERT_OK(read.status());
  EXPECT_FALSE(read->Drops(layout));
  EXPECT_EQ(read->ClassOf(layout, part, 2, 3, 63), TokenClass::kExact);
  header.codec = 99;
  EXPECT_THAT(ReadPartPlan(layout, part, header, {}).status(),
              HasCode(absl::StatusCode::kUnimplemented));
}

// The bytes of each section, so that the format cannot drift: frames outlive the build that wrote
// them.
TEST(CompositionTest, GoldenBytes) {
  KvLayout layout = KvLayout::Uniform(2, 2, 16, DType::kBf16, 10, 2);
  const PartSpec part = layout.Parts()[0];
  PartPlan plan;
  plan.token_count = 9;
  plan.class_scope = PlanScope::kLayer;
  plan.classes.assign(20, TokenClass::kCoded);
  plan.classes[0] = plan.classes[10] = TokenClass::kExact;
  plan.classes[3] = plan.classes[18] = TokenClass::kDropped;
  plan.format_scope = PlanScope::kHead;
  plan.formats.resize(4);
  plan.formats[0].k = kInt8Row;
  plan.formats[3].v = PlaneFormat{};
  const auto composition = Compose(plan, layout, part, kInt4Column, kInt2Row);
  FB_ASSERT_OK(composition.status());
  std::string bytes(CompositionBytesMax(*composition, layout, part), '\xff');
  bytes.resize(
      WriteComposition(*composition, layout, part, AsMutableBytes(bytes.data(), bytes.size())));
  // The bytes of a format are fixed by planes_codec_test.cc.
  const auto hex = [](const PlaneFormat& format) {
    return absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(&format), sizeof(format)));
  };
  const auto pad = [](std::string text) { return text.append((32 - text.size() % 32) % 32, '0'); };
  // Kept and exact by layer, map by head; a token is absent.
  std::string want = pad(absl::StrCat("0127010000000000", hex(kInt4Column), hex(kInt2Row)));
  absl::StrAppend(&want, "02", hex(kInt8Row), hex(PlaneFormat{}));
  absl::StrAppend(&want, "0201", "0001", "0001", "0003");  // indices of K and V
  absl::StrAppend(&want, "f701", "ff00", "0100", "0100");  // kept, then exact
  EXPECT_EQ(absl::BytesToHexString(bytes), pad(want));
}

}  // namespace
}  // namespace forebay
