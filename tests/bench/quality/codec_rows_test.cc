#include "tests/bench/quality/codec_rows.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "base/testing/status_matchers.h"

namespace forebay::bench {
namespace {

using ::forebay::testing::HasCode;

const Codec& Kivi4() { return **CodecRegistry::Default().FindByName("kivi4"); }

std::vector<std::byte> Numbers(const PartSpec& part) {
  SeededRandom random(1);
  std::vector<std::byte> raw(part.raw_bytes);
  for (size_t i = 0; i < raw.size(); i += 2) {
    const auto word = static_cast<uint16_t>(0x3f80 | random.Below(1 << 7));
    std::memcpy(raw.data() + i, &word, sizeof(word));
  }
  return raw;
}

std::vector<std::byte> Encoded(const Codec& codec, const KvLayout& layout) {
  const PartSpec part = layout.Parts()[0];
  std::vector<std::byte> payload(codec.PayloadBytesMax(layout, part));
  const auto encoded = codec.Encode(layout, part, Numbers(part), absl::MakeSpan(payload));
  FB_EXPECT_OK(encoded);
  payload.resize(encoded->payload_bytes);
  return payload;
}

TEST(AcrossHeadsTest, EncodesAsOneWideHead) {
  const KvLayout narrow = KvLayout::Uniform(1, 4, 8, DType::kBf16, 64, 1);
  const KvLayout wide = KvLayout::Uniform(1, 1, 32, DType::kBf16, 64, 1);
  const std::unique_ptr<Codec> across = AcrossHeads("across", Kivi4());
  const std::vector<std::byte> payload = Encoded(*across, narrow);
  EXPECT_EQ(across->name(), "across");
  EXPECT_EQ(payload, Encoded(Kivi4(), wide));
  EXPECT_LT(payload.size(), Encoded(Kivi4(), narrow).size());

  const PartSpec part = narrow.Parts()[0];
  FrameHeader header;
  header.codec_param = PackQuality(across->quality());
  std::vector<std::byte> back(part.raw_bytes), due(part.raw_bytes);
  FB_EXPECT_OK(across->Decode(narrow, part, header, payload, absl::MakeSpan(back)));
  FB_EXPECT_OK(Kivi4().Decode(wide, wide.Parts()[0], header, payload, absl::MakeSpan(due)));
  EXPECT_EQ(back, due);
}

TEST(AcrossHeadsTest, RefusesHeadMajor) {
  KvLayout layout = KvLayout::Uniform(1, 4, 8, DType::kBf16, 64, 1);
  layout.plane_order = PlaneOrder::kHeadMajor;
  const PartSpec part = layout.Parts()[0];
  const std::unique_ptr<Codec> across = AcrossHeads("across", Kivi4());
  std::vector<std::byte> payload(across->PayloadBytesMax(layout, part));
  EXPECT_THAT(across->Encode(layout, part, Numbers(part), absl::MakeSpan(payload)),
              HasCode(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace forebay::bench
