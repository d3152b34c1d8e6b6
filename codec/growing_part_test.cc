#include "codec/growing_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/testing/status_matchers.h"
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

constexpr uint32_t kTokens = 40;

KvLayout Layout(PlaneOrder order) {
  KvLayout layout = KvLayout::Uniform(/*layer_count=*/2, /*kv_heads=*/2, /*head_dim=*/32,
                                      DType::kBf16, kTokens, /*layers_per_part=*/2);
  layout.plane_order = order;
  for (LayerSpec& layer : layout.layers) layer.v_dim = 48;
  return layout;
}

// The rows of tokens [begin, begin + count), as a part of a page of that many.
std::vector<std::byte> Slice(const KvLayout& layout, const PartSpec& part, Bytes raw,
                             uint32_t begin, uint32_t count) {
  KvLayout small = layout;
  small.page_tokens = count;
  std::vector<std::pair<size_t, size_t>> from;  // of each row, begin and bytes
  ForEachRow(layout, part, [&](uint32_t, bool, uint32_t, uint32_t token, size_t at, size_t bytes) {
    if (token >= begin && token < begin + count) from.emplace_back(at, bytes);
  });
  std::vector<std::byte> slice(raw.size() / layout.page_tokens * count);
  size_t i = 0;
  ForEachRow(small, part, [&](uint32_t, bool, uint32_t, uint32_t, size_t at, size_t bytes) {
    EXPECT_EQ(from[i].second, bytes);
    std::memcpy(slice.data() + at, raw.data() + from[i++].first, bytes);
  });
  return slice;
}

// What is not there yet may hold anything.
std::vector<std::byte> WithNoise(const KvLayout& layout, const PartSpec& part,
                                 std::vector<std::byte> raw, uint32_t token_count) {
  ForEachRow(layout, part, [&](uint32_t, bool, uint32_t, uint32_t token, size_t at, size_t bytes) {
    if (token >= token_count)
      std::fill_n(raw.begin() + static_cast<ptrdiff_t>(at), bytes, std::byte{0xff});
  });
  return raw;
}

EncodedFrame EncodeNow(GrowingPart& part) {
  EncodedFrame frame;
  frame.payload.resize(part.PayloadBytesMax());
  const auto encoded = part.Encode(absl::MakeSpan(frame.payload));
  frame.status = encoded.status();
  if (!encoded.ok()) return frame;
  frame.payload.resize(encoded->payload_bytes);
  frame.header.codec = static_cast<uint8_t>(CodecId::kPlanes);
  frame.header.flags = encoded->flags;
  frame.header.codec_param = PackQuality(encoded->quality);
  return frame;
}

// Appends `step` tokens at a time, and compares after each step with all at once.
void ExpectGrowth(const Codec& codec, const KvLayout& layout, const PartSpec& part,
                  const PartPlan& plan, const std::vector<std::byte>& raw, uint32_t step) {
  auto growing = GrowingPart::Create(&codec, &layout, part, plan);
  FB_ASSERT_OK(growing.status());
  while (growing->token_count() < kTokens) {
    const uint32_t begin = growing->token_count();
    const uint32_t count = std::min(step, kTokens - begin);
    FB_ASSERT_OK(growing->Append(count, Slice(layout, part, raw, begin, count)));
    PartPlan at_once = plan;
    at_once.token_count = begin + count;
    const EncodedFrame want =
        Encode(codec, layout, part, at_once, WithNoise(layout, part, raw, begin + count));
    FB_ASSERT_OK(want.status);
    for (const char* time : {"first", "second"}) {
      const EncodedFrame frame = EncodeNow(*growing);
      FB_ASSERT_OK(frame.status);
      ASSERT_EQ(frame.payload, want.payload) << begin + count << " tokens, the " << time << " time";
      ASSERT_EQ(frame.header.flags, want.header.flags);
      ASSERT_EQ(frame.header.codec_param, want.header.codec_param);
    }
  }
  EXPECT_EQ(EncodeNow(*growing).payload, Encode(codec, layout, part, plan, raw).payload);
}

std::vector<std::unique_ptr<Codec>> Codecs() {
  std::vector<std::unique_ptr<Codec>> codecs = MakePlanesCodecs();
  for (uint8_t group = 0; group <= 48; group = static_cast<uint8_t>(group + 16)) {
    for (const auto kind : {PlaneKind::kInt4, PlaneKind::kInt2}) {
      codecs.push_back(std::make_unique<PlanesCodec>(
          absl::StrCat("columns of ", group), PlaneFormat{kind, GroupAxis::kColumn, group},
          PlaneFormat{kind, GroupAxis::kRow, group, ScaleFormat::kBf16}));
    }
  }
  return codecs;
}

TEST(GrowingPartTest, EveryLengthHasTheBytesOfItsTokensAtOnce) {
  for (const auto order : {PlaneOrder::kTokenMajor, PlaneOrder::kHeadMajor}) {
    const KvLayout layout = Layout(order);
    const PartSpec part = layout.Parts()[0];
    const std::vector<std::byte> raw = CacheBytes(part, 1);
    for (const auto& codec : Codecs()) {
      for (const uint32_t step : {1u, 3u, 16u, 40u}) {
        SCOPED_TRACE(absl::StrCat(codec->name(), ", ", step, " at a time"));
        ExpectGrowth(*codec, layout, part, PartPlan(), raw, step);
      }
    }
  }
}

TEST(GrowingPartTest, SoUnderAPlanOfEachHead) {
  SeededRandom random(2);
  for (const auto order : {PlaneOrder::kTokenMajor, PlaneOrder::kHeadMajor}) {
    const KvLayout layout = Layout(order);
    const PartSpec part = layout.Parts()[0];
    const std::vector<std::byte> raw = CacheBytes(part, 3);
    for (const auto& codec : Codecs()) {
      SCOPED_TRACE(codec->name());
      PartPlan plan;
      plan.class_scope = PlanScope::kHead;
      plan.classes.resize(size_t{4} * kTokens);
      for (TokenClass& c : plan.classes) c = static_cast<TokenClass>(random.Below(3));
      plan.format_scope = PlanScope::kLayer;
      plan.formats.resize(2);
      plan.formats[1].k = PlaneFormat{PlaneKind::kInt4, GroupAxis::kColumn, 16};
      ExpectGrowth(*codec, layout, part, plan, raw, 1);
      ExpectGrowth(*codec, layout, part, plan, raw, 7);
    }
  }
}

// A number that is not finite makes its plane raw, from its token on.
TEST(GrowingPartTest, SoWhenANumberIsNotFinite) {
  const KvLayout layout = Layout(PlaneOrder::kTokenMajor);
  const PartSpec part = layout.Parts()[0];
  std::vector<std::byte> raw = CacheBytes(part, 4);
  const uint16_t infinite = 0x7f80;
  ForEachRow(layout, part,
             [&](uint32_t layer, bool value, uint32_t, uint32_t token, size_t at, size_t) {
               if (layer == 1 && !value && token == 20) std::memcpy(raw.data() + at, &infinite, 2);
             });
  for (const auto& codec : Codecs()) {
    SCOPED_TRACE(codec->name());
    ExpectGrowth(*codec, layout, part, PartPlan(), raw, 3);
  }
}

// Keys of a group that is not whole keep their bits, and are billed for them.
TEST(GrowingPartTest, KeysWaitIn16Bits) {
  const KvLayout layout = Layout(PlaneOrder::kTokenMajor);
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = CacheBytes(part, 5);
  const PlanesCodec codec("test", PlaneFormat{PlaneKind::kInt2, GroupAxis::kColumn, 16},
                          PlaneFormat{PlaneKind::kInt8, GroupAxis::kRow});
  auto growing = GrowingPart::Create(&codec, &layout, part, PartPlan());
  FB_ASSERT_OK(growing.status());
  size_t last_bytes = 0;
  for (uint32_t n = 1; n <= kTokens; ++n) {
    FB_ASSERT_OK(growing->Append(1, Slice(layout, part, raw, n - 1, 1)));
    const EncodedFrame frame = EncodeNow(*growing);
    const auto back = *Decode(layout, part, frame);
    const uint32_t coded = n == kTokens ? n : n / 16 * 16;
    ForEachRow(
        layout, part, [&](uint32_t, bool value, uint32_t, uint32_t token, size_t at, size_t bytes) {
          if (value || token >= n) return;
          EXPECT_EQ(std::memcmp(raw.data() + at, back.data() + at, bytes) == 0, token >= coded);
        });
    const size_t waiting_bytes = size_t{2} * 2 * 32 * 2 * (n - coded);
    EXPECT_GT(frame.payload.size(), waiting_bytes);
    if (n == 16 || n == 32 || n == kTokens) {
      EXPECT_LT(frame.payload.size(), last_bytes);
    }
    last_bytes = frame.payload.size();
  }
}

// The newest tokens age: under a later plan the same tokens are coded.
TEST(GrowingPartTest, APlanMayChange) {
  const KvLayout layout = Layout(PlaneOrder::kHeadMajor);
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = CacheBytes(part, 6);
  const Codec* codec = *CodecRegistry::Default().FindByName("int8");
  auto growing = GrowingPart::Create(codec, &layout, part, PartPlan());
  FB_ASSERT_OK(growing.status());
  FB_ASSERT_OK(growing->Append(kTokens, raw));
  // As many tokens are coded each time, but others: nothing that was kept may be used.
  for (const uint32_t newest : {30u, 20u, 10u}) {
    PartPlan plan;
    plan.classes.assign(kTokens, TokenClass::kCoded);
    std::fill_n(plan.classes.begin() + newest, 8, TokenClass::kExact);
    FB_ASSERT_OK(growing->SetPlan(plan));
    EXPECT_EQ(EncodeNow(*growing).payload, Encode(*codec, layout, part, plan, raw).payload);
  }
  PartPlan bad;
  bad.classes.resize(3);
  EXPECT_THAT(growing->SetPlan(bad), HasCode(absl::StatusCode::kInvalidArgument));
}

TEST(GrowingPartTest, RefusesWhatDoesNotFit) {
  const KvLayout layout = Layout(PlaneOrder::kTokenMajor);
  const PartSpec part = layout.Parts()[0];
  const std::vector<std::byte> raw = CacheBytes(part, 7);
  const Codec* int8 = *CodecRegistry::Default().FindByName("int8");
  const Codec* raw_codec = *CodecRegistry::Default().FindByName("raw");
  EXPECT_THAT(GrowingPart::Create(raw_codec, &layout, part, PartPlan()).status(),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("raw does not encode")));
  PartSpec opaque = part;
  opaque.dtype = DType::kOpaque8;
  EXPECT_THAT(GrowingPart::Create(int8, &layout, opaque, PartPlan()).status(),
              HasCode(absl::StatusCode::kInvalidArgument));
  auto growing = GrowingPart::Create(int8, &layout, part, PartPlan());
  FB_ASSERT_OK(growing.status());
  std::vector<std::byte> payload(part.raw_bytes);
  EXPECT_THAT(growing->Encode(absl::MakeSpan(payload)).status(),
              HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(growing->Append(2, Slice(layout, part, raw, 0, 1)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("raw bytes for 2")));
  FB_EXPECT_OK(growing->Append(39, Slice(layout, part, raw, 0, 39)));
  EXPECT_THAT(growing->Append(2, Slice(layout, part, raw, 0, 2)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("has 39 of 40")));
  FB_EXPECT_OK(growing->Append(1, Slice(layout, part, raw, 39, 1)));
  EXPECT_EQ(growing->token_count(), kTokens);
}

}  // namespace
}  // namespace forebay
