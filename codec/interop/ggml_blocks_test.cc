#include "codec/interop/ggml_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "codec/steps/float_formats.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::Each;
using ::testing::HasSubstr;

using Row = std::vector<float>;
using Blocks = std::vector<std::byte>;

constexpr GgmlBlock kFormats[] = {GgmlBlock::kQ80, GgmlBlock::kQ40, GgmlBlock::kQ41};
constexpr DType kDTypes[] = {DType::kFp32, DType::kFp16, DType::kBf16};

Row RowOf(const std::function<double(int)>& element) {
  Row row;
  for (int i = 0; i < 32; ++i) row.push_back(static_cast<float>(element(i)));
  return row;
}

Bytes BytesOf(const Row& row) { return AsBytes(row.data(), row.size() * sizeof(float)); }

Blocks Encoded(GgmlBlock format, const Row& row) {
  Blocks blocks(row.size() / 32 * GgmlBlockBytes(format));
  FB_EXPECT_OK(EncodeGgmlRow(format, DType::kFp32, BytesOf(row), absl::MakeSpan(blocks)));
  return blocks;
}

Row Decoded(GgmlBlock format, const Blocks& blocks) {
  Row row(blocks.size() / GgmlBlockBytes(format) * 32);
  FB_EXPECT_OK(DecodeGgmlRow(format, blocks, DType::kFp32,
                             AsMutableBytes(row.data(), row.size() * sizeof(float))));
  return row;
}

std::string Hex(const Blocks& blocks) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(blocks.data()), blocks.size()));
}

std::string Times(int count, const std::string& what) {
  std::string all;
  for (int i = 0; i < count; ++i) all += what;
  return all;
}

float ScaleOf(const Blocks& blocks) {
  uint16_t code;
  std::memcpy(&code, blocks.data(), sizeof(code));
  return Fp16ToFp32(code);
}

TEST(GgmlBlocksTest, V1ARamp) {
  const Row x = RowOf([](int i) { return (i - 16) / 8.0; });
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ80, x)),
            "082481899199a1a9b1b9c0c8d0d8e0e8f0f8000810182028303840474f575f676f77");
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ40, x)), "0034809191a2a2b3b3c4c4d5d5e6e6f7f7f8");
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ41, x)), "223400c080809191a2a2b3b3c4c4d5d5e6e6f7f7");
}

TEST(GgmlBlocksTest, V2AnOutlier) {
  const Row x = RowOf([](int i) { return i == 31 ? 100.0 : (i % 2 == 0 ? 1 : -1) * 0.01 * i; });
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ80, x)), "4d3a" + Times(31, "00") + "7f");
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ40, x)), "40ca" + Times(15, "88") + "08");
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ41, x)), "b046a4b4" + Times(15, "00") + "f0");
}

TEST(GgmlBlocksTest, V3AConstant) {
  const Row x = RowOf([](int) { return 1.5; });
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ80, x)), "0c22" + Times(32, "7f"));
  EXPECT_NEAR(Decoded(GgmlBlock::kQ80, Encoded(GgmlBlock::kQ80, x))[0], 1.4999085, 1e-7);
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ40, x)), "00b2" + Times(16, "00"));
  EXPECT_EQ(Decoded(GgmlBlock::kQ40, Encoded(GgmlBlock::kQ40, x)), x);
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ41, x)), "0000003e" + Times(16, "00"));
  EXPECT_EQ(Decoded(GgmlBlock::kQ41, Encoded(GgmlBlock::kQ41, x)), x);
}

TEST(GgmlBlocksTest, V4Zeros) {
  const Row x = RowOf([](int) { return 0; });
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ80, x)), Times(34, "00"));
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ40, x)), "0080" + Times(16, "88"));
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ41, x)), Times(20, "00"));
  for (const GgmlBlock format : kFormats) EXPECT_THAT(Decoded(format, Encoded(format, x)), Each(0));
}

TEST(GgmlBlocksTest, V5ScalesThatFp16CannotHold) {
  const Row x = RowOf([](int i) { return 1e-6 * (i + 1) / 32; });
  const Blocks q8_0 = Encoded(GgmlBlock::kQ80, x);
  EXPECT_EQ(Hex(q8_0).substr(0, 4), "0000");
  EXPECT_EQ(q8_0[2], std::byte{4});
  EXPECT_EQ(q8_0[33], std::byte{127});
  EXPECT_THAT(Decoded(GgmlBlock::kQ80, q8_0), Each(0));
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ40, x)).substr(0, 4), "0280");
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ41, x)).substr(0, 8), "01000100");
}

TEST(GgmlBlocksTest, V6DecodedValuesThatFp16CannotHold) {
  const Row x = RowOf([](int i) { return i % 2 == 0 ? 65504 : -65504; });
  const Blocks q8_0 = Encoded(GgmlBlock::kQ80, x);
  EXPECT_EQ(ScaleOf(q8_0), 516);
  EXPECT_EQ(Decoded(GgmlBlock::kQ80, q8_0)[1], -65532);
  const Blocks q4_0 = Encoded(GgmlBlock::kQ40, x);
  EXPECT_EQ(Hex(q4_0).substr(0, 4), "ffef");
  EXPECT_EQ(Decoded(GgmlBlock::kQ40, q4_0)[0], 65504);
  EXPECT_EQ(Decoded(GgmlBlock::kQ40, q4_0)[1], -57316);
  const Blocks q4_1 = Encoded(GgmlBlock::kQ41, x);
  EXPECT_EQ(ScaleOf(q4_1), 8736);
  EXPECT_EQ(Decoded(GgmlBlock::kQ41, q4_1)[0], 65536);

  Blocks fp16(64);
  for (const GgmlBlock format : {GgmlBlock::kQ80, GgmlBlock::kQ41}) {
    EXPECT_THAT(DecodeGgmlRow(format, Encoded(format, x), DType::kFp16, absl::MakeSpan(fp16)),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("element 0 decodes to")));
  }
  FB_EXPECT_OK(DecodeGgmlRow(GgmlBlock::kQ80, q8_0, DType::kBf16, absl::MakeSpan(fp16)));
}

// 16-bit rows give the blocks of the fp32 row of the same numbers.
TEST(GgmlBlocksTest, SixteenBitRowsEncodeAsTheirValues) {
  SeededRandom random(1);
  for (const GgmlBlock format : kFormats) {
    for (int round = 0; round < 100; ++round) {
      Row x(96);
      std::vector<uint16_t> words(x.size());
      const bool is_bf16 = round % 2 == 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const float value = static_cast<float>(random.Below(2001)) / 100.0f - 10.0f;
        words[i] = is_bf16 ? Fp32ToBf16(value) : Fp32ToFp16(value);
        x[i] = is_bf16 ? Bf16ToFp32(words[i]) : Fp16ToFp32(words[i]);
      }
      Blocks blocks(3 * GgmlBlockBytes(format));
      const DType dtype = is_bf16 ? DType::kBf16 : DType::kFp16;
      FB_ASSERT_OK(EncodeGgmlRow(format, dtype, AsBytes(words.data(), 2 * words.size()),
                                 absl::MakeSpan(blocks)));
      ASSERT_EQ(blocks, Encoded(format, x));

      std::vector<uint16_t> back(words.size());
      FB_ASSERT_OK(
          DecodeGgmlRow(format, blocks, dtype, AsMutableBytes(back.data(), 2 * back.size())));
      const Row exact = Decoded(format, blocks);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(back[i], is_bf16 ? Fp32ToBf16(exact[i]) : Fp32ToFp16(exact[i]));
      }
    }
  }
}

// What was decoded once stays what it is. Only q4_1, whose range is that of rounded numbers the
// second time, may move by a rounding of its fp16 scale.
TEST(GgmlBlocksTest, DecodingAndEncodingAgainSettles) {
  SeededRandom random(2);
  for (const GgmlBlock format : kFormats) {
    for (int round = 0; round < 500; ++round) {
      Row x(32);
      for (float& value : x) value = static_cast<float>(random.Below(20001)) / 1000.0f - 10.0f;
      const Row once = Decoded(format, Encoded(format, x));
      const Row twice = Decoded(format, Encoded(format, once));
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(once[i], twice[i], format == GgmlBlock::kQ41 ? 2e-2 : 0) << round;
      }
    }
  }
}

// Every scale, every code: the definition in exact arithmetic.
TEST(GgmlBlocksTest, EveryScaleAndCodeDecodesAsDefined) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto word = static_cast<uint16_t>(code);
    const float scale = Fp16ToFp32(word);
    if (!IsFiniteFp32(scale)) continue;
    for (const GgmlBlock format : kFormats) {
      Blocks blocks(GgmlBlockBytes(format));
      std::memcpy(blocks.data(), &word, sizeof(word));
      for (size_t i = 2; i < blocks.size(); ++i) {
        blocks[i] = static_cast<std::byte>(i * 37 + code);
      }
      const bool has_minimum = format == GgmlBlock::kQ41;
      const uint16_t minimum = 0x3e00;  // 1.5
      if (has_minimum) std::memcpy(blocks.data() + 2, &minimum, sizeof(minimum));
      const std::byte* codes = blocks.data() + (has_minimum ? 4 : 2);
      const Row row = Decoded(format, blocks);
      for (size_t i = 0; i < 32; ++i) {
        const int pair = static_cast<int>(codes[i % 16]);
        const auto nibble = static_cast<float>(i < 16 ? pair % 16 : pair / 16);
        const float value = format == GgmlBlock::kQ80 ? static_cast<int8_t>(codes[i]) * scale
                            : has_minimum             ? nibble * scale + 1.5f
                                                      : (nibble - 8) * scale;
        ASSERT_EQ(row[i], value) << GgmlBlockName(format) << " " << scale << " " << i;
      }
    }
  }
}

TEST(GgmlBlocksTest, RefusesWrongLengthsAndNamesThem) {
  Row x(100);
  Blocks blocks(200);
  EXPECT_THAT(
      EncodeGgmlRow(GgmlBlock::kQ40, DType::kFp32, BytesOf(x), absl::MakeSpan(blocks)),
      HasStatus(absl::StatusCode::kInvalidArgument,
                HasSubstr("a row of 100 elements is no multiple of 32, the block of q4_0")));
  x.resize(64);
  for (const size_t bytes : {size_t{35}, size_t{37}, size_t{0}}) {
    blocks.resize(bytes);
    EXPECT_THAT(EncodeGgmlRow(GgmlBlock::kQ40, DType::kFp32, BytesOf(x), absl::MakeSpan(blocks)),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("where 36 are due")));
    EXPECT_THAT(DecodeGgmlRow(GgmlBlock::kQ40, blocks, DType::kFp32, AsMutableBytes(x.data(), 256)),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("where 36 are due")));
  }
  EXPECT_THAT(
      DecodeGgmlRow(GgmlBlock::kQ40, blocks, DType::kFp32, AsMutableBytes(x.data(), 255)),
      HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("255 bytes is no whole number")));
  EXPECT_THAT(DecodeGgmlRow(GgmlBlock::kQ40, blocks, DType::kInt8, AsMutableBytes(x.data(), 64)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("not int8")));
  EXPECT_THAT(EncodeGgmlRow(static_cast<GgmlBlock>(9), DType::kFp32, {}, {}),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("the number 9")));
  EXPECT_THAT(GgmlRowBytes(GgmlBlock::kQ80, 33), HasCode(absl::StatusCode::kInvalidArgument));
  ASSERT_EQ(*GgmlRowBytes(GgmlBlock::kQ80, 64), 68u);
  FB_EXPECT_OK(EncodeGgmlRow(GgmlBlock::kQ80, DType::kFp32, {}, {}));
}

TEST(GgmlBlocksTest, RefusesWhatNoBlockCanHold) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const GgmlBlock format : kFormats) {
    Blocks blocks(2 * GgmlBlockBytes(format));
    for (const float bad : {inf, -inf, std::nanf("")}) {
      Row x(64, 1.0f);
      x[40] = bad;
      EXPECT_THAT(EncodeGgmlRow(format, DType::kFp32, BytesOf(x), absl::MakeSpan(blocks)),
                  HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("element 40")));
    }
    // 1e7 / 127 is beyond fp16; so is the range of q4_1 in fp32 with 3e38 and -3e38.
    for (const float large : {1e7f, 3e38f}) {
      Row x(64, 1.0f);
      x[40] = large;
      x[41] = -large;
      EXPECT_THAT(EncodeGgmlRow(format, DType::kFp32, BytesOf(x), absl::MakeSpan(blocks)),
                  HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("scale of block 1")));
    }
  }
  Blocks blocks(20);
  EXPECT_THAT(EncodeGgmlRow(GgmlBlock::kQ41, DType::kFp32, BytesOf(Row(32, -70000.0f)),
                            absl::MakeSpan(blocks)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("minimum of block 0")));
}

// The reference's rounding, where Forebay's own would give 0 and 2.
TEST(GgmlBlocksTest, HalvesOfQ8_0GoAwayFromZero) {
  Row x(32, 0.0f);
  x[0] = 127.0f;  // scale 1
  x[1] = 0.5f;
  x[2] = -0.5f;
  x[3] = 2.5f;
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ80, x)), "003c7f01ff03" + Times(28, "00"));
}

// A subnormal fp32 scale has no finite inverse.
TEST(GgmlBlocksTest, TheSmallestNumbersBecomeZeros) {
  Row x(32, 0.0f);
  x[3] = std::numeric_limits<float>::denorm_min();
  x[4] = -0x1p-127f;
  for (const GgmlBlock format : kFormats) EXPECT_THAT(Decoded(format, Encoded(format, x)), Each(0));
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ80, x)), Times(34, "00"));
  EXPECT_EQ(Hex(Encoded(GgmlBlock::kQ40, x)).substr(4), Times(16, "88"));
}

TEST(GgmlBlocksTest, AScaleThatIsNoNumberIsDataLoss) {
  for (const GgmlBlock format : kFormats) {
    for (const uint16_t scale : {uint16_t{0x7c00}, uint16_t{0xfc00}, uint16_t{0x7e01}}) {
      Blocks blocks(2 * GgmlBlockBytes(format), std::byte{0x11});
      std::memcpy(blocks.data() + GgmlBlockBytes(format), &scale, sizeof(scale));
      Row row(64);
      EXPECT_THAT(DecodeGgmlRow(format, blocks, DType::kFp32, AsMutableBytes(row.data(), 256)),
                  HasStatus(absl::StatusCode::kDataLoss, HasSubstr("element 32 decodes to")));
    }
  }
}

// Under AddressSanitizer this shows that no byte leads out of the buffers.
TEST(GgmlBlocksTest, AnyBytesAreDecodedOrRefused) {
  SeededRandom random(3);
  for (int round = 0; round < 3000; ++round) {
    const GgmlBlock format = kFormats[random.Below(3)];
    const DType dtype = kDTypes[random.Below(3)];
    Blocks blocks(random.Below(4) * GgmlBlockBytes(format) + (random.Chance(0.1) ? 1 : 0));
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(random.Next());
    std::vector<std::byte> row(random.Below(4) * 32 * DTypeBytes(dtype));
    const absl::Status status = DecodeGgmlRow(format, blocks, dtype, absl::MakeSpan(row));
    ASSERT_THAT(status.code(),
                ::testing::AnyOf(absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument,
                                 absl::StatusCode::kDataLoss));
  }
}

}  // namespace
}  // namespace forebay
