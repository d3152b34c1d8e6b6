#include "codec/codec.h"

#include <gtest/gtest.h>

#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

PartSpec PartOf(uint32_t raw_bytes) {
  PartSpec part;
  part.raw_bytes = raw_bytes;
  return part;
}

TEST(RawCodecTest, GivesBackWhatItTook) {
  std::vector<std::byte> raw(1000);
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::byte>(i * 7);
  std::vector<std::byte> payload(raw.size());
  RawCodec codec;

  const auto encoded = codec.Encode({}, PartOf(1000), raw, absl::MakeSpan(payload));
  FB_ASSERT_OK(encoded);
  EXPECT_EQ(encoded->payload_bytes, raw.size());
  EXPECT_EQ(encoded->flags, 0);

  std::vector<std::byte> back(raw.size());
  FB_ASSERT_OK(codec.Decode({}, PartOf(1000), {}, payload, absl::MakeSpan(back)));
  EXPECT_EQ(back, raw);
}

TEST(RawCodecTest, RefusesLengthsThatDiffer) {
  std::vector<std::byte> raw(1000);
  std::vector<std::byte> small(999);
  RawCodec codec;
  EXPECT_THAT(codec.Encode({}, PartOf(1000), raw, absl::MakeSpan(small)),
              HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(codec.Encode({}, PartOf(1001), raw, absl::MakeSpan(raw)),
              HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(codec.Decode({}, PartOf(1000), {}, small, absl::MakeSpan(raw)),
              HasCode(absl::StatusCode::kDataLoss));
}

TEST(CodecRegistryTest, KnowsRawAndNamesWhatItDoesNotKnow) {
  const CodecRegistry& registry = CodecRegistry::Default();
  absl::StatusOr<const Codec*> raw = registry.Find(CodecId::kRaw);
  FB_ASSERT_OK(raw);
  EXPECT_TRUE((*raw)->identity());
  EXPECT_THAT(registry.Find(uint8_t{200}),
              HasStatus(absl::StatusCode::kUnimplemented, HasSubstr("200")));
  EXPECT_THAT(registry.FindByName("zstd"),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("known: raw, lossless")));
}

TEST(CodecRegistryTest, RefusesANameTwice) {
  CodecRegistry registry;
  FB_ASSERT_OK(registry.Register(std::make_unique<RawCodec>()));
  EXPECT_THAT(registry.Register(std::make_unique<RawCodec>()),
              HasCode(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace forebay
