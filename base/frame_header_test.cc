#include "base/frame_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "absl/strings/escaping.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

PageKey TestKey() {
  PageKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<uint8_t>(i);
  return key;
}

struct Example {
  KvLayout layout = KvLayout::Uniform(/*layer_count=*/8, /*kv_heads=*/8, /*head_dim=*/128,
                                      DType::kBf16, /*page_tokens=*/16, /*layers_per_part=*/2);
  PartSpec part = layout.Parts()[2];
  FrameHeader header = MakeFrameHeader(layout, part, TestKey(), /*page_index=*/7, CodecId::kRaw,
                                       part.raw_bytes, /*payload_checksum=*/0x1122334455667788);
};

// The bytes on the wire and in the tiers, built by a Python script with struct and libxxhash.
TEST(FrameHeaderTest, GoldenBytes) {
  const Example example;
  EXPECT_EQ(absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(&example.header),
                                                     sizeof(example.header))),
            "46425931"
            "01"
            "01"
            "0000"  // magic, version, codec, its parameter
            "01"
            "03"
            "1000"  // stream, dtype, page tokens
            "0400"
            "0200"
            "0000"
            "0800"  // layers, heads
            "0000"
            "0000"  // flags, reserved
            "00000200"
            "00000200"  // raw and payload bytes
            "000102030405060708090a0b0c0d0e0f"
            "8877665544332211"
            "07000000"
            "5b771d08");
}

TEST(FrameHeaderTest, ASoundHeaderPassesBothChecks) {
  const Example example;
  FB_EXPECT_OK(CheckFrameHeader(example.header));
  FB_EXPECT_OK(CheckFrameIdentity(example.header, example.layout, example.part, TestKey(), 7));
}

TEST(FrameHeaderTest, AnyFlippedBitIsDataLoss) {
  const Example example;
  for (size_t bit = 0; bit < 8 * sizeof(FrameHeader); ++bit) {
    FrameHeader flipped = example.header;
    reinterpret_cast<unsigned char*>(&flipped)[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    EXPECT_THAT(CheckFrameHeader(flipped), HasCode(absl::StatusCode::kDataLoss)) << "bit " << bit;
  }
}

// What a newer build may have written is a miss, not a fault.
TEST(FrameHeaderTest, ASealedUnknownIsUnimplemented) {
  const std::function<void(FrameHeader&)> kChanges[] = {
      [](FrameHeader& h) { h.format_version = 2; },
      [](FrameHeader& h) { h.format_version = 0; },
      [](FrameHeader& h) { h.codec = 0; },
      [](FrameHeader& h) { h.codec = 200; },
      [](FrameHeader& h) { h.flags = kFrameFlagsKnown + 1; },
      [](FrameHeader& h) { h.flags = kFrameRetentionMask; },  // a raw payload has no mask
      [](FrameHeader& h) { h.codec_param = 1; },
      [](FrameHeader& h) { h.reserved = 1; },
  };
  for (size_t i = 0; i < std::size(kChanges); ++i) {
    FrameHeader header = Example().header;
    kChanges[i](header);
    header.Seal();
    EXPECT_THAT(CheckFrameHeader(header), HasCode(absl::StatusCode::kUnimplemented)) << i;
  }
}

TEST(FrameHeaderTest, ARawFrameIsAsLongAsItsPart) {
  FrameHeader header = Example().header;
  header.payload_bytes -= 1;
  header.Seal();
  EXPECT_THAT(CheckFrameHeader(header),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("131071 payload bytes")));
}

// A sound frame of anything but the asked page and part is refused, and the field is named.
TEST(FrameHeaderTest, EveryFieldOfTheIdentityIsCompared) {
  const struct {
    const char* field;
    std::function<void(FrameHeader&)> change;
  } kChanges[] = {
      {"identity", [](FrameHeader& h) { h.identity[15] ^= 1; }},
      {"page index", [](FrameHeader& h) { h.page_index = 8; }},
      {"page tokens", [](FrameHeader& h) { h.page_tokens = 32; }},
      {"first layer", [](FrameHeader& h) { h.layer_begin = 2; }},
      {"layer count", [](FrameHeader& h) { h.layer_count = 1; }},
      {"first head", [](FrameHeader& h) { h.head_begin = 1; }},
      {"head count", [](FrameHeader& h) { h.head_count = 4; }},
      {"stream", [](FrameHeader& h) { h.stream = 2; }},
      {"dtype", [](FrameHeader& h) { h.dtype = 2; }},
      {"raw bytes", [](FrameHeader& h) { h.raw_bytes = h.payload_bytes = 4096; }},
  };
  const Example example;
  for (const auto& [field, change] : kChanges) {
    FrameHeader header = example.header;
    change(header);
    header.Seal();
    FB_EXPECT_OK(CheckFrameHeader(header)) << field;
    EXPECT_THAT(CheckFrameIdentity(header, example.layout, example.part, TestKey(), 7),
                HasStatus(absl::StatusCode::kDataLoss, HasSubstr(field)));
  }
}

}  // namespace
}  // namespace forebay
