// The formats that change a plane before its codes or have codes of their own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "codec/plane.h"
#include "codec/testing/plane_reference.h"
#include "codec/testing/targets.h"

namespace forebay {
namespace {

using ::forebay::testing::EveryTarget;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

using ::forebay::testing::Data;
using ::forebay::testing::Fill;
using ::forebay::testing::kDataCount;
using ::forebay::testing::Reference;
using ::forebay::testing::ReferenceCoder;
using ::forebay::testing::Value;
using ::forebay::testing::Words;

std::vector<PlaneFormat> Formats() {
  using enum PlaneKind;
  constexpr auto kRow = GroupAxis::kRow;
  constexpr auto kColumn = GroupAxis::kColumn;
  constexpr auto kHadamard = PlaneTransform::kHadamard;
  constexpr auto kNone = PlaneTransform::kNone;
  std::vector<PlaneFormat> formats;
  for (const PlaneKind kind : {kInt4, kInt2}) {
    for (const uint8_t group : std::initializer_list<uint8_t>{0, 32, 64, 128}) {
      formats.push_back({kind, kRow, group, ScaleFormat::kCompact});
      formats.push_back({kind, kColumn, group, ScaleFormat::kCompact});
    }
    formats.push_back({kind, kRow, 64, ScaleFormat::kBf16, kHadamard});
    formats.push_back({kind, kRow, 32, ScaleFormat::kCompact, kHadamard});
    formats.push_back({kind, kColumn, 64, ScaleFormat::kBf16, kNone, 1});
    formats.push_back({kind, kColumn, 16, ScaleFormat::kCompact, kNone, 5});
    formats.push_back({kind, kRow, 64, ScaleFormat::kFp32, kNone, 2});
    formats.push_back({kind, kRow, 16, ScaleFormat::kCompact, kNone, kOutliersMax});
  }
  for (const PlaneKind kind : {kLloyd4, kLloyd3, kLloyd2}) {
    for (const ScaleFormat scale : {ScaleFormat::kBf16, ScaleFormat::kFp32}) {
      formats.push_back({kind, kRow, 0, scale});
      formats.push_back({kind, kRow, 48, scale, kHadamard});
      formats.push_back({kind, kRow, 0, scale, kHadamard});
      formats.push_back({kind, kRow, 64, scale, kNone, 3});
    }
  }
  formats.push_back({kInt8, kRow, 0, ScaleFormat::kBf16, kHadamard});
  formats.push_back({kInt8, kRow, 32, ScaleFormat::kFp32, kNone, 1});
  return formats;
}

std::vector<PlaneShape> Shapes() {
  std::vector<PlaneShape> shapes;
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    for (const PlaneOrder order : {PlaneOrder::kTokenMajor, PlaneOrder::kHeadMajor}) {
      for (const uint32_t dim : {1u, 7u, 64u, 80u, 96u, 100u, 128u}) {
        for (const uint32_t tokens : {1u, 7u, 8u, 33u, 64u, 75u}) {
          shapes.push_back({tokens, dim < 100 ? 2u : 1u, dim, order, dtype});
        }
      }
    }
    // Latents of MLA.
    shapes.push_back({16, 1, 512, PlaneOrder::kTokenMajor, dtype});
  }
  return shapes;
}

absl::Status Decode(const PlaneFormat& format, const PlaneShape& shape, Bytes payload,
                    Words& words) {
  const absl::Status status =
      DecodePlane(format, shape, &payload, AsMutableBytes(words.data(), words.size() * 2));
  if (status.ok() && !payload.empty()) return absl::InternalError("bytes are left over");
  return status;
}
Bytes RawBytes(const Words& words) { return AsBytes(words.data(), words.size() * 2); }

// By element, or where rows are rotated by row.
void ExpectInBound(const PlaneFormat& format, const PlaneShape& shape, const Words& words,
                   const Words& decoded, const std::vector<float>& bound) {
  const double last_place = shape.dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
  const double smallest = shape.dtype == DType::kBf16 ? 0x1p-133 : 0x1p-24;
  const bool rotated = format.transform != PlaneTransform::kNone;
  for (size_t row = 0; row < words.size(); row += shape.dim) {
    double error = 0;
    double length = 0;
    double allowed = 0;
    for (size_t i = row; i < row + shape.dim; ++i) {
      const double x = Value(shape.dtype, words[i]);
      const double off = x - double{Value(shape.dtype, decoded[i])};
      if (!rotated) {
        ASSERT_LE(std::fabs(off), bound[i] + last_place * (std::fabs(x) + bound[i]) + smallest)
            << format.ToString() << " of " << x;
      }
      error += off * off;
      length += x * x;
      allowed += double{bound[i]} * bound[i];
    }
    const double rounding = 2 * last_place * (std::sqrt(length) + std::sqrt(allowed));
    ASSERT_LE(std::sqrt(error), std::sqrt(allowed) + rounding +
                                    4 * smallest * std::sqrt(static_cast<double>(shape.dim)))
        << format.ToString();
  }
}

// Encodes and decodes for the target that is chosen.
void ExpectTheReference(const PlaneFormat& format, const PlaneShape& shape, const Words& words,
                        const Reference& want) {
  std::vector<std::byte> payload(PlaneBytesMax(format, shape), std::byte{0xee});
  const auto bytes = EncodePlane(format, shape, RawBytes(words), absl::MakeSpan(payload));
  ASSERT_EQ(bytes.has_value(), want.codable);
  if (!want.codable) return;
  ASSERT_EQ(*bytes, payload.size());
  ASSERT_EQ(payload, want.payload);
  Words decoded(words.size());
  FB_ASSERT_OK(Decode(format, shape, payload, decoded));
  ASSERT_EQ(decoded, want.decoded);
}

TEST(PlaneFormatsTest, EachTargetGivesTheBytesOfTheReferenceAndStaysInItsBound) {
  int coded = 0;
  int refused = 0;
  uint64_t seed = 0;
  for (const PlaneShape& shape : Shapes()) {
    for (const PlaneFormat& format : Formats()) {
      // One shape in four for each format, another one for the next.
      if (++seed % 4 != 0) continue;
      const auto data = static_cast<Data>(seed / 4 % kDataCount);
      SCOPED_TRACE(absl::StrCat(format.ToString(), " of ", shape.tokens, " x ", shape.heads, " x ",
                                shape.dim, " ", DTypeName(shape.dtype), ", data ",
                                static_cast<int>(data)));
      FB_ASSERT_OK(CheckPlaneFormat(format, shape.dtype));
      const Words words = Fill(shape, data, seed);
      const Reference want = ReferenceCoder{format, shape, words}.Run();
      want.codable ? ++coded : ++refused;
      EveryTarget([&](const char* target) {
        SCOPED_TRACE(target);
        ASSERT_NO_FATAL_FAILURE(ExpectTheReference(format, shape, words, want));
      });
      if (HasFatalFailure()) return;
      if (!want.codable) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectInBound(format, shape, words, want.decoded, want.bound));
    }
  }
  EXPECT_GT(coded, 20 * refused);
  EXPECT_GT(refused, 0);
}

TEST(PlaneFormatsTest, OutliersComeBackExactlyAndNarrowTheRest) {
  const PlaneShape shape{64, 1, 64, PlaneOrder::kTokenMajor, DType::kBf16};
  Words words = Fill(shape, Data::kNormal, 1);
  for (uint32_t c = 0; c < 64; ++c) {
    words[size_t{c} * 64 + (c + 5) % 64] = Fp32ToBf16(c % 2 == 0 ? 1000.0f : -1000.0f);
  }
  for (const GroupAxis axis : {GroupAxis::kRow, GroupAxis::kColumn}) {
    const PlaneFormat format{PlaneKind::kInt4, axis, 64, ScaleFormat::kBf16, PlaneTransform::kNone,
                             /*outliers=*/1};
    std::vector<std::byte> payload(PlaneBytesMax(format, shape));
    ASSERT_TRUE(EncodePlane(format, shape, RawBytes(words), absl::MakeSpan(payload)));
    Words decoded(words.size());
    FB_ASSERT_OK(Decode(format, shape, payload, decoded));
    for (size_t i = 0; i < words.size(); ++i) {
      const float x = Bf16ToFp32(words[i]);
      if (std::fabs(x) == 1000.0f) {
        EXPECT_EQ(decoded[i], words[i]);
      } else {
        EXPECT_NEAR(Bf16ToFp32(decoded[i]), x, 0.25);
      }
    }
    // 4 bits, a scale and a zero for 64 elements, and an outlier.
    EXPECT_EQ(payload.size() * 8, words.size() * 4 + 64 * 32 + 64 * 32);
  }
}

TEST(PlaneFormatsTest, BitsAreThoseOfTheBytes) {
  const PlaneShape shape{64, 8, 128, PlaneOrder::kTokenMajor, DType::kBf16};
  const auto bits = [&](const PlaneFormat& format) {
    return 8.0 * static_cast<double>(PlaneBytesMax(format, shape)) /
           static_cast<double>(shape.element_count());
  };
  const double units = 8 * 32.0 / static_cast<double>(shape.element_count());
  const PlaneFormat compact{PlaneKind::kInt2, GroupAxis::kColumn, 64, ScaleFormat::kCompact};
  EXPECT_DOUBLE_EQ(bits(compact), 2.25 + units);
  EXPECT_LT(units, 0.004);
  EXPECT_DOUBLE_EQ(bits({PlaneKind::kInt2, GroupAxis::kRow, 64, ScaleFormat::kCompact}),
                   2.25 + units);
  EXPECT_DOUBLE_EQ(bits({PlaneKind::kLloyd3, GroupAxis::kRow, 0, ScaleFormat::kBf16}), 3.125);
  EXPECT_DOUBLE_EQ(bits({PlaneKind::kLloyd2, GroupAxis::kRow, 0, ScaleFormat::kBf16}), 2.125);
  // One token is no group, nor are seven.
  for (const uint32_t tokens : {1u, 7u}) {
    EXPECT_EQ(PlaneBytesMax(compact, {tokens, 1, 128, PlaneOrder::kTokenMajor, DType::kBf16}),
              tokens * 256u);
  }
  EXPECT_EQ(CodedTokens(compact, {71, 1, 128, PlaneOrder::kTokenMajor, DType::kBf16}), 64u);
  EXPECT_EQ(CodedTokens(compact, {72, 1, 128, PlaneOrder::kTokenMajor, DType::kBf16}), 72u);
}

TEST(PlaneFormatsTest, InfAndNanAreNeverCoded) {
  EveryTarget([](const char* target) {
    SCOPED_TRACE(target);
    SeededRandom random(5);
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      // Of 67 tokens three are in no group of 32 or 64.
      const PlaneShape shape{67, 2, 100, PlaneOrder::kTokenMajor, dtype};
      for (const PlaneFormat& format : Formats()) {
        std::vector<std::byte> payload(PlaneBytesMax(format, shape));
        Words words = Fill(shape, Data::kNormal, 1);
        ASSERT_TRUE(EncodePlane(format, shape, RawBytes(words), absl::MakeSpan(payload)));
        const uint16_t inf = dtype == DType::kBf16 ? 0x7f80 : 0x7c00;
        for (const int bad : {int{inf}, inf | 0x8000, inf + 1, 0x7fff, 0xffff}) {
          for (const size_t at : {random.Below(words.size()), words.size() - 1}) {
            const uint16_t good = words[at];
            words[at] = static_cast<uint16_t>(bad);
            EXPECT_FALSE(EncodePlane(format, shape, RawBytes(words), absl::MakeSpan(payload)))
                << format.ToString() << " took " << bad;
            words[at] = good;
          }
        }
      }
    }
  });
}

TEST(PlaneFormatsTest, HostilePayloadsAreRefusedOrDecodeToFiniteNumbers) {
  EveryTarget([](const char* target) {
    SCOPED_TRACE(target);
    SeededRandom random(9);
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      const PlaneShape shape{67, 2, 100, PlaneOrder::kTokenMajor, dtype};
      for (const PlaneFormat& format : Formats()) {
        Words raw = Fill(shape, Data::kOutliers, 2);
        std::vector<std::byte> payload(PlaneBytesMax(format, shape));
        ASSERT_TRUE(EncodePlane(format, shape, RawBytes(raw), absl::MakeSpan(payload)));
        for (size_t cut = 0; cut < payload.size(); cut += 1 + cut / 2) {
          EXPECT_THAT(Decode(format, shape, Bytes(payload).first(cut), raw),
                      HasStatus(absl::StatusCode::kDataLoss, HasSubstr("ends after")));
        }
        for (int round = 0; round < 40; ++round) {
          std::vector<std::byte> bad = payload;
          if (round % 4 == 0) {
            for (std::byte& byte : bad) byte = static_cast<std::byte>(random.Next());
          } else {
            for (int flips = 0; flips < 20; ++flips) {
              bad[random.Below(bad.size())] = static_cast<std::byte>(random.Next());
            }
          }
          const absl::Status status = Decode(format, shape, bad, raw);
          if (!status.ok()) {
            EXPECT_THAT(status, HasCode(absl::StatusCode::kDataLoss));
            continue;
          }
          for (const uint16_t word : raw) ASSERT_TRUE(IsFiniteFp32(Value(dtype, word)));
        }
      }
    }
  });
}

// Each thing that only a bad payload has.
TEST(PlaneFormatsTest, WhatNoEncoderWritesIsRefused) {
  const PlaneShape shape{16, 1, 64, PlaneOrder::kTokenMajor, DType::kBf16};
  Words words = Fill(shape, Data::kNormal, 1);
  const auto change = [&](const PlaneFormat& format, size_t at, uint32_t value, size_t bytes) {
    std::vector<std::byte> payload(PlaneBytesMax(format, shape));
    EXPECT_TRUE(EncodePlane(format, shape, RawBytes(words), absl::MakeSpan(payload)));
    Words decoded(words.size());
    FB_EXPECT_OK(Decode(format, shape, payload, decoded));
    std::memcpy(payload.data() + at, &value, bytes);
    return Decode(format, shape, payload, decoded);
  };
  const auto loss = HasCode(absl::StatusCode::kDataLoss);
  const PlaneFormat compact{PlaneKind::kInt2, GroupAxis::kRow, 0, ScaleFormat::kCompact};
  const size_t unit = 16 * 16 + 16 + 16;
  EXPECT_THAT(change(compact, unit, 0x7fc00000, 4), loss);
  EXPECT_THAT(change(compact, unit, 0x7f800000, 4), loss);
  EXPECT_THAT(change(compact, unit, 0xbf800000, 4), loss);
  EXPECT_THAT(change(compact, unit, 0x7f000000, 4), loss);  // finite, but not what it stands for
  FB_EXPECT_OK(change(compact, unit, 0x3f800000, 4));
  const PlaneFormat apart{PlaneKind::kInt4,   GroupAxis::kRow,       0,
                          ScaleFormat::kBf16, PlaneTransform::kNone, 2};
  const size_t outliers = 16 * 32 + 32 + 32;
  EXPECT_THAT(change(apart, outliers, 64, 2), loss);      // beyond the row
  EXPECT_THAT(change(apart, outliers, 0xffff, 2), loss);  // nor are they
  EXPECT_THAT(change(apart, outliers, 63, 2), loss);      // not before the second one
  EXPECT_THAT(change(apart, outliers + 2, 0x7f80, 2), loss);
  FB_EXPECT_OK(change(apart, outliers + 2, 0x7f7f, 2));
  const PlaneFormat levels{PlaneKind::kLloyd3, GroupAxis::kRow, 0, ScaleFormat::kBf16};
  EXPECT_THAT(change(levels, 16 * 24, 0xbf80, 2), loss);
  EXPECT_THAT(change(levels, 16 * 24, 0x7f7f, 2), loss);
  const PlaneFormat rotated{PlaneKind::kLloyd3, GroupAxis::kRow, 0, ScaleFormat::kBf16,
                            PlaneTransform::kHadamard};
  EXPECT_THAT(change(rotated, 16 * 24, 0x7000, 2), loss);
  FB_EXPECT_OK(change(levels, 16 * 24, 0x7000, 2));
}

TEST(PlaneFormatsTest, FormatsThatAreNoneAreNamed) {
  const auto check = [](const PlaneFormat& format, const char* what) {
    EXPECT_THAT(CheckPlaneFormat(format, DType::kBf16),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  using enum PlaneKind;
  constexpr auto kRow = GroupAxis::kRow;
  constexpr auto kColumn = GroupAxis::kColumn;
  constexpr auto kBf16 = ScaleFormat::kBf16;
  constexpr auto kHadamard = PlaneTransform::kHadamard;
  constexpr auto kNone = PlaneTransform::kNone;
  check({kInt4, kRow, 0, static_cast<ScaleFormat>(9)}, "format of scales");
  check({kInt8, kRow, 0, ScaleFormat::kCompact}, "compact");
  check({kLloyd4, kRow, 0, ScaleFormat::kCompact}, "compact");
  check({kLloyd4, kColumn, 0, kBf16}, "axis");
  check({kInt4, kRow, 0, kBf16, static_cast<PlaneTransform>(2)}, "no such transform");
  check({kInt4, kColumn, 0, kBf16, kHadamard}, "along rows");
  check({kInt8, GroupAxis::kHead, 0, kBf16, kHadamard}, "along rows");
  check({kRaw, GroupAxis::kNone, 0, kBf16, kHadamard}, "along rows");
  check({kInt4, kRow, 0, kBf16, kNone, kOutliersMax + 1}, "more outliers");
  check({kInt8, GroupAxis::kHead, 0, kBf16, kNone, 1}, "outliers are taken from");
  check({kFp8E4M3, kRow, 0, kBf16, kNone, 1}, "outliers are taken from");
  check({kSplitFixed, GroupAxis::kNone, 0, kBf16, kNone, 1}, "outliers are taken from");
  check({kInt4, kRow, 0, kBf16, kHadamard, 1}, "leaves no outliers");
  check({kInt4, kRow, 0, kBf16, kNone, 0, 1}, "reserved");
  check({static_cast<PlaneKind>(9), kRow, 0, kBf16}, "no such kind");
  EXPECT_EQ((PlaneFormat{kInt4, kRow, 64, kBf16, kNone, 2}).ToString(),
            "int4 row 64 bf16 2 outliers");
  EXPECT_EQ((PlaneFormat{kLloyd2, kRow, 0, kBf16, kHadamard}).ToString(),
            "lloyd2 row bf16 hadamard");
  EXPECT_EQ((PlaneFormat{kInt2, kColumn, 64, ScaleFormat::kCompact}).ToString(),
            "int2 column 64 compact");
}

}  // namespace
}  // namespace forebay
