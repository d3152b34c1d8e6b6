// Public reports about codecs, each a test of its name (docs/cases.md): pages that grow.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/testing/status_matchers.h"
#include "codec/growing_part.h"
#include "codec/testing/case_parts.h"

namespace forebay {
namespace {

using ::forebay::testing::CacheBytes;
using ::forebay::testing::Decode;
using ::forebay::testing::Encode;
using ::forebay::testing::EncodedFrame;
using ::forebay::testing::ForEachRow;

using Buffer = std::vector<std::byte>;

constexpr uint32_t kTokens = 64;
constexpr uint32_t kGroup = 16;

KvLayout Layout() { return KvLayout::Uniform(1, 2, 32, DType::kBf16, kTokens, 1); }

// Keys in groups of 16 tokens, values of a token each.
const PlanesCodec& GroupedCodec() {
  static const auto* const codec =
      new PlanesCodec("grouped", {PlaneKind::kInt2, GroupAxis::kColumn, kGroup},
                      {PlaneKind::kInt4, GroupAxis::kRow, 32, ScaleFormat::kBf16});
  return *codec;
}

// Tokens [begin, begin + count) as a part of a page of that many; planes are token-major.
Buffer Slice(const Buffer& raw, uint32_t begin, uint32_t count) {
  const size_t plane = raw.size() / 2;
  const size_t token = plane / kTokens;
  Buffer slice(2 * count * token);
  for (size_t p = 0; p < 2; ++p) {
    std::memcpy(slice.data() + p * count * token, raw.data() + p * plane + begin * token,
                count * token);
  }
  return slice;
}

EncodedFrame EncodeNow(GrowingPart& part) {
  EncodedFrame frame;
  frame.payload.resize(part.PayloadBytesMax());
  const auto encoded = part.Encode(absl::MakeSpan(frame.payload));
  EXPECT_TRUE(encoded.ok()) << encoded.status();
  if (!encoded.ok()) return frame;
  frame.payload.resize(encoded->payload_bytes);
  frame.header.codec = static_cast<uint8_t>(CodecId::kPlanes);
  frame.header.flags = encoded->flags;
  frame.header.codec_param = PackQuality(encoded->quality);
  return frame;
}

// The newest `residual` of `count` tokens exact.
PartPlan WithResidual(uint32_t count, uint32_t residual) {
  PartPlan plan;
  plan.classes.assign(kTokens, TokenClass::kCoded);
  for (uint32_t t = count - std::min(count, residual); t < count; ++t) {
    plan.classes[t] = TokenClass::kExact;
  }
  return plan;
}

// Tokens of the first head whose K, or V, is as it was.
std::vector<bool> ExactTokens(const KvLayout& layout, const PartSpec& part, const Buffer& raw,
                              const Buffer& back, bool of_values) {
  std::vector<bool> exact(kTokens);
  ForEachRow(layout, part,
             [&](uint32_t, bool value, uint32_t head, uint32_t token, size_t at, size_t bytes) {
               if (value != of_values || head != 0) return;
               exact[token] = std::memcmp(raw.data() + at, back.data() + at, bytes) == 0;
             });
  return exact;
}

// VeloxQuant-MLX#86, PR#89: the residual window never aged.
TEST(VeloxQuantMlx86Test, TheResidualIsNeverLongerThanTheWindowAndAGroupLessOne) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 1);
  for (const uint32_t residual : {0u, 5u, 20u}) {
    auto growing = GrowingPart::Create(&GroupedCodec(), &layout, part, PartPlan());
    FB_ASSERT_OK(growing.status());
    uint32_t longest = 0;
    for (uint32_t n = 1; n <= kTokens; ++n) {
      FB_ASSERT_OK(growing->Append(1, Slice(raw, n - 1, 1)));
      FB_ASSERT_OK(growing->SetPlan(WithResidual(n, residual)));
      const Buffer back = *Decode(layout, part, EncodeNow(*growing));
      const std::vector<bool> keys = ExactTokens(layout, part, raw, back, false);
      const auto exact = static_cast<uint32_t>(std::count(keys.begin(), keys.begin() + n, true));
      EXPECT_LE(exact, residual + kGroup - 1) << n << " tokens";
      longest = std::max(longest, exact);
      // Values wait for nobody.
      const std::vector<bool> values = ExactTokens(layout, part, raw, back, true);
      EXPECT_EQ(std::count(values.begin(), values.begin() + n, true), std::min(n, residual));
    }
    EXPECT_EQ(longest, residual + kGroup - 1);
  }
}

// transformers#35185: a prefill was quantized at once, whatever the residual said.
TEST(Transformers35185Test, APrefillAtOnceKeepsItsResidual) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 2);
  for (const uint32_t count : {40u, kTokens}) {
    const PartPlan plan = WithResidual(count, 12);
    auto prefill = GrowingPart::Create(&GroupedCodec(), &layout, part, plan);
    auto decode = GrowingPart::Create(&GroupedCodec(), &layout, part, plan);
    FB_ASSERT_OK(prefill.status());
    FB_ASSERT_OK(decode.status());
    FB_ASSERT_OK(prefill->Append(count, Slice(raw, 0, count)));
    for (uint32_t t = 0; t < count; ++t) FB_ASSERT_OK(decode->Append(1, Slice(raw, t, 1)));
    const EncodedFrame frame = EncodeNow(*prefill);
    EXPECT_EQ(frame.payload, EncodeNow(*decode).payload);
    const Buffer back = *Decode(layout, part, frame);
    for (const bool value : {false, true}) {
      const std::vector<bool> exact = ExactTokens(layout, part, raw, back, value);
      EXPECT_TRUE(
          std::all_of(exact.begin() + count - 12, exact.begin() + count, [](bool e) { return e; }));
      EXPECT_FALSE(exact[0]);
    }
  }
}

// transformers PR#45510, #48700: a reorder, a crop and a choice of beams touched the residual
// alone.
TEST(Transformers45510Test, AForkKeepsWhatIsCodedAndWhatWaits) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 3);
  const Buffer other = CacheBytes(part, 4);
  auto first = GrowingPart::Create(&GroupedCodec(), &layout, part, PartPlan());
  FB_ASSERT_OK(first.status());
  // One whole group is coded, five tokens wait.
  FB_ASSERT_OK(first->Append(21, Slice(raw, 0, 21)));
  EncodeNow(*first);
  GrowingPart fork = *first;
  FB_ASSERT_OK(fork.Append(20, Slice(other, 21, 20)));
  const EncodedFrame forked = EncodeNow(fork);
  FB_ASSERT_OK(first->Append(20, Slice(raw, 21, 20)));
  PartPlan plan;
  plan.token_count = 41;
  Buffer mixed = raw;
  const size_t plane = raw.size() / 2;
  const size_t token = plane / kTokens;
  for (size_t p = 0; p < 2; ++p) {
    std::memcpy(mixed.data() + p * plane + 21 * token, other.data() + p * plane + 21 * token,
                20 * token);
  }
  EXPECT_EQ(EncodeNow(*first).payload, Encode(GroupedCodec(), layout, part, plan, raw).payload);
  EXPECT_EQ(forked.payload, Encode(GroupedCodec(), layout, part, plan, mixed).payload);
  EXPECT_NE(forked.payload, EncodeNow(*first).payload);
  // Beams change places, both parts of each.
  std::swap(*first, fork);
  EXPECT_EQ(EncodeNow(*first).payload, forked.payload);
  EXPECT_EQ(EncodeNow(fork).payload, Encode(GroupedCodec(), layout, part, plan, raw).payload);
}

TEST(Transformers45510Test, ACropIsThePartOfThoseTokens) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 5);
  for (const uint32_t left : {7u, 16u, 21u, 33u}) {
    auto growing = GrowingPart::Create(&GroupedCodec(), &layout, part, PartPlan());
    FB_ASSERT_OK(growing.status());
    FB_ASSERT_OK(growing->Append(50, Slice(raw, 0, 50)));
    PartPlan plan;
    plan.token_count = 50;
    EXPECT_EQ(EncodeNow(*growing).payload, Encode(GroupedCodec(), layout, part, plan, raw).payload);
    // Begun again with what is left, as a crop is: nothing of the others remains.
    auto cropped = GrowingPart::Create(&GroupedCodec(), &layout, part, PartPlan());
    FB_ASSERT_OK(cropped.status());
    FB_ASSERT_OK(cropped->Append(left, Slice(raw, 0, left)));
    plan.token_count = left;
    const EncodedFrame frame = EncodeNow(*cropped);
    EXPECT_EQ(frame.payload, Encode(GroupedCodec(), layout, part, plan, raw).payload);
    const Buffer back = *Decode(layout, part, frame);
    ForEachRow(layout, part,
               [&](uint32_t, bool, uint32_t, uint32_t token, size_t at, size_t bytes) {
                 if (token < left) return;
                 EXPECT_TRUE(std::all_of(back.begin() + static_cast<ptrdiff_t>(at),
                                         back.begin() + static_cast<ptrdiff_t>(at + bytes),
                                         [](std::byte b) { return b == std::byte{0}; }));
               });
  }
}

// omlx#2172: after tokens were filtered out, new ones overwrote live ones.
TEST(Omlx2172Test, TokensAreAppendedAfterTheLastWhateverWasDropped) {
  const KvLayout layout = Layout();
  const PartSpec part = layout.Parts()[0];
  const Buffer raw = CacheBytes(part, 6);
  const Codec* const int8 = *CodecRegistry::Default().FindByName("int8");
  for (const Codec* codec : {static_cast<const Codec*>(&GroupedCodec()), int8}) {
    auto growing = GrowingPart::Create(codec, &layout, part, PartPlan());
    FB_ASSERT_OK(growing.status());
    FB_ASSERT_OK(growing->Append(30, Slice(raw, 0, 30)));
    EncodeNow(*growing);
    PartPlan plan;
    plan.classes.assign(kTokens, TokenClass::kCoded);
    for (uint32_t t = 0; t < 30; t += 2) plan.classes[t] = TokenClass::kDropped;
    plan.classes[29] = plan.classes[30] = TokenClass::kExact;
    FB_ASSERT_OK(growing->SetPlan(plan));
    EXPECT_EQ(growing->token_count(), 30u);
    FB_ASSERT_OK(growing->Append(1, Slice(raw, 30, 1)));
    const EncodedFrame frame = EncodeNow(*growing);
    PartPlan at_once = plan;
    at_once.token_count = 31;
    EXPECT_EQ(frame.payload, Encode(*codec, layout, part, at_once, raw).payload);
    const Buffer back = *Decode(layout, part, frame);
    const std::vector<bool> exact = ExactTokens(layout, part, raw, back, false);
    EXPECT_TRUE(exact[29]);
    EXPECT_TRUE(exact[30]);
    EXPECT_FALSE(exact[28]);
  }
}

}  // namespace
}  // namespace forebay
