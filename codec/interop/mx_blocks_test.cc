#include "codec/interop/mx_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

constexpr MxFormat kFormats[] = {MxFormat::kMxFp8E4M3, MxFormat::kMxFp4, MxFormat::kNvFp4};
constexpr MxLayout kLayouts[] = {{MxScales::kApart, MxNibbles::kEvenLow},
                                 {MxScales::kApart, MxNibbles::kSplitHalves},
                                 {MxScales::kInBlock, MxNibbles::kEvenLow},
                                 kGgmlMxLayout};
constexpr MxLayout kRecords = {MxScales::kInBlock, MxNibbles::kEvenLow};

Row RowOf(size_t elements, const std::function<double(int)>& element) {
  Row row;
  for (size_t i = 0; i < elements; ++i) {
    row.push_back(static_cast<float>(element(static_cast<int>(i))));
  }
  return row;
}

Row RandomRow(SeededRandom& random, size_t elements) {
  return RowOf(elements, [&random](int) {
    return std::ldexp(static_cast<double>(random.Below(2001)) - 1000.0,
                      static_cast<int>(random.Below(12)) - 14);
  });
}

Bytes BytesOf(const Row& row) { return AsBytes(row.data(), row.size() * sizeof(float)); }
MutableBytes MutableBytesOf(Row& row) {
  return AsMutableBytes(row.data(), row.size() * sizeof(float));
}

Blocks Encoded(MxFormat format, MxLayout layout, const Row& row, float global_scale = 1) {
  Blocks blocks(row.size() / MxBlockElements(format) * MxBlockBytes(format));
  FB_EXPECT_OK(EncodeMxRow(format, layout, DType::kFp32, BytesOf(row), absl::MakeSpan(blocks),
                           global_scale));
  return blocks;
}

Row Decoded(MxFormat format, MxLayout layout, const Blocks& blocks, float global_scale = 1) {
  Row row(blocks.size() / MxBlockBytes(format) * MxBlockElements(format));
  FB_EXPECT_OK(
      DecodeMxRow(format, layout, blocks, DType::kFp32, MutableBytesOf(row), global_scale));
  return row;
}

std::string Hex(const Blocks& blocks) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(blocks.data()), blocks.size()));
}

TEST(MxBlocksTest, V1InMxFp4) {
  const Row x = RowOf(32, [](int i) { return (i - 16) / 8.0; });
  const Row expected = {-2,    -2,    -2,    -1.5f,  -1.5f, -1.5f, -1,   -1,    -1,   -1,   -0.75f,
                        -0.5f, -0.5f, -0.5f, -0.25f, 0,     0,     0,    0.25f, 0.5f, 0.5f, 0.5f,
                        0.75f, 1,     1,     1,      1,     1.5f,  1.5f, 1.5f,  2,    2};
  for (const MxLayout layout : kLayouts) {
    EXPECT_EQ(Decoded(MxFormat::kMxFp4, layout, Encoded(MxFormat::kMxFp4, layout, x)), expected);
  }
  // The scale is 0.5, which is 2^(126 - 127). Element 0 is -4, code e; element 15 rounds to -0, 8.
  EXPECT_EQ(Hex(Encoded(MxFormat::kMxFp4, kRecords, x)), "7eeededdccccabaa890021224344545566");
  EXPECT_EQ(Hex(Encoded(MxFormat::kMxFp4, {MxScales::kApart, MxNibbles::kEvenLow}, x)),
            "eededdccccabaa8900212243445455667e");
  EXPECT_EQ(Hex(Encoded(MxFormat::kMxFp4, kGgmlMxLayout, x)), "7e0e0e1e2d2d2d3c4c4c4c4b5a5a5a6968");
}

TEST(MxBlocksTest, TheLayoutsHoldTheSameCodes) {
  SeededRandom random(1);
  for (const MxFormat format : kFormats) {
    const size_t elements = 3 * MxBlockElements(format);
    const Row x = RandomRow(random, elements);
    const Row expected = Decoded(format, kRecords, Encoded(format, kRecords, x));
    for (const MxLayout layout : kLayouts) {
      EXPECT_EQ(Decoded(format, layout, Encoded(format, layout, x)), expected);
    }
  }
}

// One block of ones, so that the scale is known, with a larger element at each place in turn.
TEST(MxBlocksTest, ElementsStandWhereTheLayoutSays) {
  for (size_t at = 0; at < 32; ++at) {
    Row x(32, 1.0f);
    x[at] = 6.0f;
    // 6 has exponent 2: scale 1, codes 2 and 7.
    const Blocks even = Encoded(MxFormat::kMxFp4, {MxScales::kApart, MxNibbles::kEvenLow}, x);
    EXPECT_EQ(even[16], std::byte{127});
    EXPECT_EQ(even[at / 2], at % 2 == 0 ? std::byte{0x27} : std::byte{0x72});
    const Blocks ggml = Encoded(MxFormat::kMxFp4, kGgmlMxLayout, x);
    EXPECT_EQ(ggml[0], std::byte{127});
    EXPECT_EQ(ggml[1 + at % 16], at < 16 ? std::byte{0x27} : std::byte{0x72});
    // 6 is 1.5 * 2^2 and 1 has code 0x38; the scale of E4M3 leaves room for 2^8.
    const Blocks fp8 = Encoded(MxFormat::kMxFp8E4M3, kRecords, x);
    EXPECT_EQ(fp8[0], std::byte{127 + 2 - 8});
    EXPECT_EQ(fp8[1 + at], static_cast<std::byte>(Fp32ToE4M3(6.0f * 64)));
  }
}

// The codes by another road: divide in double, look for the nearest value.
uint8_t NearestE2M1(double scaled) {
  constexpr double kGrid[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  uint8_t best = 0;
  for (uint8_t code = 1; code < 8; ++code) {
    const double to_code = std::fabs(std::fabs(scaled) - kGrid[code]);
    const double to_best = std::fabs(std::fabs(scaled) - kGrid[best]);
    if (to_code < to_best || (to_code == to_best && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(MxBlocksTest, MxFp4CodesAreTheNearest) {
  SeededRandom random(2);
  for (int round = 0; round < 2000; ++round) {
    const Row x = RandomRow(random, 32);
    const Blocks blocks = Encoded(MxFormat::kMxFp4, kRecords, x);
    double amax = 0;
    for (const float value : x) amax = std::max(amax, std::fabs(double{value}));
    if (amax == 0) continue;
    const int exponent = std::ilogb(amax) - 2;
    ASSERT_EQ(static_cast<int>(blocks[0]), exponent + 127);
    for (size_t i = 0; i < 32; ++i) {
      const int code = (static_cast<int>(blocks[1 + i / 2]) >> (i % 2 * 4)) & 0xf;
      ASSERT_EQ(code & 7, NearestE2M1(std::ldexp(x[i], -exponent))) << x[i];
      ASSERT_EQ(code >> 3, std::signbit(x[i]) ? 1 : 0);
    }
  }
}

TEST(MxBlocksTest, TheFloorRuleSaturates) {
  Row x(32, 0.0f);
  x[0] = 511.0f;  // floor(log2) is 8, so that the scale is 1
  EXPECT_EQ(Decoded(MxFormat::kMxFp8E4M3, kRecords, Encoded(MxFormat::kMxFp8E4M3, kRecords, x))[0],
            448.0f);
  x[0] = 512.0f;
  EXPECT_EQ(Decoded(MxFormat::kMxFp8E4M3, kRecords, Encoded(MxFormat::kMxFp8E4M3, kRecords, x))[0],
            512.0f);
}

TEST(MxBlocksTest, DecodingAndEncodingAgainChangesNothing) {
  SeededRandom random(3);
  for (const MxFormat format : kFormats) {
    for (int round = 0; round < 500; ++round) {
      const Row x = RandomRow(random, 2 * MxBlockElements(format));
      const Row once = Decoded(format, kRecords, Encoded(format, kRecords, x));
      // NVFP4 may find another scale for what its scale, rounded up, left short of six steps.
      if (format == MxFormat::kNvFp4) continue;
      ASSERT_EQ(Decoded(format, kRecords, Encoded(format, kRecords, once)), once);
    }
  }
}

TEST(MxBlocksTest, NvFp4ScalesAreRelativeToTheTensor) {
  Row x(32, 0.0f);
  for (size_t i = 0; i < 16; ++i) x[i] = static_cast<float>(i) - 8.0f;  // amax 8
  x[16] = 24.0f;
  x[17] = -12.0f;
  const float global_scale = NvFp4GlobalScale(24.0f);
  EXPECT_EQ(global_scale, 24.0f / 2688.0f);
  const MxLayout apart = {MxScales::kApart, MxNibbles::kEvenLow};
  const Blocks blocks = Encoded(MxFormat::kNvFp4, apart, x, global_scale);
  ASSERT_EQ(blocks.size(), 18u);
  // 24 / 6 / g is the largest scale, 448; 8 / 6 / g is 149.3, and 144 is near.
  EXPECT_EQ(blocks[17], std::byte{0x7e});
  EXPECT_EQ(blocks[16], static_cast<std::byte>(Fp32ToUE4M3(149.33f)));
  EXPECT_EQ(UE4M3ToFp32(static_cast<uint8_t>(blocks[16])), 144.0f);
  EXPECT_EQ(blocks[8], std::byte{0xd7});  // 24 is 6 steps of 4 and -12 is 3: codes 7 and d
  const double step = 144.0 * double{global_scale};
  for (size_t i = 0; i < 16; ++i) {
    const int code = (static_cast<int>(blocks[i / 2]) >> (i % 2 * 4)) & 0xf;
    EXPECT_EQ(code & 7, NearestE2M1(x[i] / step)) << i;
  }
  const Row back = Decoded(MxFormat::kNvFp4, apart, blocks, global_scale);
  EXPECT_FLOAT_EQ(back[16], 24.0f);
  EXPECT_FLOAT_EQ(back[17], -12.0f);
}

TEST(MxBlocksTest, NvFp4BlocksTooSmallForTheirTensorAreZeros) {
  Row x(32, 0.0f);
  x[0] = 1e-6f;
  x[16] = 1000.0f;
  const float global_scale = NvFp4GlobalScale(1000.0f);
  const Blocks blocks = Encoded(MxFormat::kNvFp4, kRecords, x, global_scale);
  EXPECT_EQ(blocks[0], std::byte{0});
  EXPECT_EQ(Decoded(MxFormat::kNvFp4, kRecords, blocks, global_scale)[0], 0.0f);
  EXPECT_EQ(NvFp4GlobalScale(0), 1.0f);
}

// The scale has no finite inverse, and 0 * Inf would be the largest code.
TEST(MxBlocksTest, NvFp4TensorsTooSmallToBeScaledAreZeros) {
  Row x(16, 0.0f);
  x[0] = 1e-40f;
  EXPECT_THAT(Encoded(MxFormat::kNvFp4, kRecords, x, NvFp4GlobalScale(1e-40f)), Each(std::byte{0}));
}

TEST(MxBlocksTest, ZerosAreZeros) {
  for (const MxFormat format : kFormats) {
    const Row x(64, 0.0f);
    const Blocks blocks = Encoded(format, kRecords, x);
    EXPECT_THAT(blocks, Each(std::byte{0}));
    EXPECT_EQ(Decoded(format, kRecords, blocks), x);
  }
}

TEST(MxBlocksTest, TheLargestAndTheSmallestNumbersPass) {
  for (const MxFormat format : {MxFormat::kMxFp8E4M3, MxFormat::kMxFp4}) {
    const float large = 0x1p127f;
    EXPECT_EQ(Decoded(format, kRecords, Encoded(format, kRecords, Row(32, large)))[5], large);
    const float small = 0x1p-127f;
    EXPECT_EQ(Decoded(format, kRecords, Encoded(format, kRecords, Row(32, small)))[5], small);
  }
}

TEST(MxBlocksTest, SixteenBitRowsEncodeAsTheirValues) {
  SeededRandom random(4);
  for (const MxFormat format : kFormats) {
    const Row wide = RandomRow(random, 64);
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      const bool is_bf16 = dtype == DType::kBf16;
      std::vector<uint16_t> words;
      Row x;
      for (const float value : wide) {
        words.push_back(is_bf16 ? Fp32ToBf16(value) : Fp32ToFp16(value));
        x.push_back(is_bf16 ? Bf16ToFp32(words.back()) : Fp16ToFp32(words.back()));
      }
      Blocks blocks(*MxRowBytes(format, 64));
      FB_ASSERT_OK(
          EncodeMxRow(format, kRecords, dtype, AsBytes(words.data(), 128), absl::MakeSpan(blocks)));
      EXPECT_EQ(blocks, Encoded(format, kRecords, x));
      FB_ASSERT_OK(DecodeMxRow(format, kRecords, blocks, dtype, AsMutableBytes(words.data(), 128)));
      const Row exact = Decoded(format, kRecords, blocks);
      for (size_t i = 0; i < 64; ++i) {
        ASSERT_EQ(words[i], is_bf16 ? Fp32ToBf16(exact[i]) : Fp32ToFp16(exact[i]));
      }
    }
  }
}

TEST(MxBlocksTest, RefusesWrongLengthsAndNamesThem) {
  Row x(40);
  Blocks blocks(33);
  EXPECT_THAT(
      EncodeMxRow(MxFormat::kMxFp8E4M3, {}, DType::kFp32, BytesOf(x), absl::MakeSpan(blocks)),
      HasStatus(absl::StatusCode::kInvalidArgument,
                HasSubstr("a row of 40 elements is no multiple of 32, the block of MXFP8")));
  EXPECT_THAT(EncodeMxRow(MxFormat::kNvFp4, {}, DType::kFp32, BytesOf(x), absl::MakeSpan(blocks)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("16, the block of NVFP4")));
  x.resize(32);
  EXPECT_THAT(EncodeMxRow(MxFormat::kMxFp4, {}, DType::kFp32, BytesOf(x), absl::MakeSpan(blocks)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("where 17 are due")));
  EXPECT_THAT(DecodeMxRow(MxFormat::kMxFp4, {}, blocks, DType::kFp32, MutableBytesOf(x)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("where 17 are due")));
  EXPECT_THAT(DecodeMxRow(MxFormat::kMxFp4, {}, blocks, DType::kOpaque8, MutableBytesOf(x)),
              HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(DecodeMxRow(static_cast<MxFormat>(7), {}, blocks, DType::kFp32, MutableBytesOf(x)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("the number 7")));
  EXPECT_THAT(DecodeMxRow(MxFormat::kMxFp4, {static_cast<MxScales>(5), MxNibbles::kEvenLow}, blocks,
                          DType::kFp32, MutableBytesOf(x)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("the number 5")));
  EXPECT_THAT(DecodeMxRow(MxFormat::kMxFp4, {MxScales::kApart, static_cast<MxNibbles>(6)}, blocks,
                          DType::kFp32, MutableBytesOf(x)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("the number 6")));
  EXPECT_THAT(MxRowBytes(static_cast<MxFormat>(7), 32),
              HasCode(absl::StatusCode::kInvalidArgument));
}

TEST(MxBlocksTest, RefusesWhatNoBlockCanHold) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const MxFormat format : kFormats) {
    Blocks blocks(*MxRowBytes(format, 64));
    for (const float bad : {inf, -inf, std::nanf("")}) {
      Row x(64, 1.0f);
      x[40] = bad;
      EXPECT_THAT(
          EncodeMxRow(format, {}, DType::kFp32, BytesOf(x), absl::MakeSpan(blocks)),
          HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("element 40 of the row")));
    }
  }
  Row x(16, 1.0f);
  Blocks blocks(9);
  for (const float global_scale : {0.0f, -1.0f, inf, std::nanf("")}) {
    EXPECT_THAT(EncodeMxRow(MxFormat::kNvFp4, {}, DType::kFp32, BytesOf(x), absl::MakeSpan(blocks),
                            global_scale),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("global scale")));
    EXPECT_THAT(
        DecodeMxRow(MxFormat::kNvFp4, {}, blocks, DType::kFp32, MutableBytesOf(x), global_scale),
        HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("global scale")));
  }
}

TEST(MxBlocksTest, ScalesAndCodesThatAreNoNumbersAreDataLoss) {
  Row x(32);
  Blocks blocks(17, std::byte{0x11});
  blocks[0] = std::byte{0xff};
  EXPECT_THAT(DecodeMxRow(MxFormat::kMxFp4, kRecords, blocks, DType::kFp32, MutableBytesOf(x)),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("element 0 decodes to nan")));
  // 448 * 2^127
  blocks.assign(33, std::byte{0x7e});
  blocks[0] = std::byte{0xfe};
  EXPECT_THAT(DecodeMxRow(MxFormat::kMxFp8E4M3, kRecords, blocks, DType::kFp32, MutableBytesOf(x)),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("decodes to inf")));
  blocks.assign(33, std::byte{0x30});
  blocks[9] = std::byte{0xff};
  EXPECT_THAT(DecodeMxRow(MxFormat::kMxFp8E4M3, kRecords, blocks, DType::kFp32, MutableBytesOf(x)),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("element 8 decodes to")));
  blocks.assign(18, std::byte{0x30});
  blocks[9] = std::byte{0xb0};
  EXPECT_THAT(DecodeMxRow(MxFormat::kNvFp4, kRecords, blocks, DType::kFp32, MutableBytesOf(x)),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("of block 1 has a sign")));
}

TEST(MxBlocksTest, ValuesBeyondTheRowsTypeAreRefused) {
  const Row x(32, 1e6f);
  std::vector<uint16_t> words(32);
  EXPECT_THAT(DecodeMxRow(MxFormat::kMxFp4, kRecords, Encoded(MxFormat::kMxFp4, kRecords, x),
                          DType::kFp16, AsMutableBytes(words.data(), 64)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("beyond fp16")));
}

// Under AddressSanitizer this shows that no byte leads out of the buffers.
TEST(MxBlocksTest, AnyBytesAreDecodedOrRefused) {
  SeededRandom random(5);
  constexpr DType kDTypes[] = {DType::kFp32, DType::kFp16, DType::kBf16};
  for (int round = 0; round < 3000; ++round) {
    const MxFormat format = kFormats[random.Below(3)];
    const DType dtype = kDTypes[random.Below(3)];
    Blocks blocks(random.Below(4) * MxBlockBytes(format) + (random.Chance(0.1) ? 1 : 0));
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(random.Next());
    std::vector<std::byte> row(random.Below(4) * MxBlockElements(format) * DTypeBytes(dtype));
    const absl::Status status = DecodeMxRow(format, kLayouts[random.Below(4)], blocks, dtype,
                                            absl::MakeSpan(row), /*global_scale=*/0.01f);
    ASSERT_THAT(status.code(),
                ::testing::AnyOf(absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument,
                                 absl::StatusCode::kDataLoss));
  }
}

}  // namespace
}  // namespace forebay
