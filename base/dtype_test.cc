#include "base/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

// Wire format: these numbers are in every frame that was ever stored.
TEST(DTypeTest, NumbersAndSizesStay) {
  const struct {
    DType dtype;
    int number;
    size_t bytes;
  } kRows[] = {
      {DType::kFp32, 1, 4},    {DType::kFp16, 2, 2},    {DType::kBf16, 3, 2},
      {DType::kFp8E4M3, 4, 1}, {DType::kFp8E5M2, 5, 1}, {DType::kInt8, 6, 1},
      {DType::kOpaque8, 7, 1},
  };
  for (const auto& row : kRows) {
    EXPECT_EQ(static_cast<int>(row.dtype), row.number);
    EXPECT_EQ(DTypeBytes(row.dtype), row.bytes);
    const absl::StatusOr<DType> parsed = ParseDType(DTypeName(row.dtype));
    FB_ASSERT_OK(parsed);
    EXPECT_EQ(*parsed, row.dtype);
  }
}

TEST(DTypeTest, AnUnknownNumberHasNoSize) {
  EXPECT_EQ(DTypeBytes(static_cast<DType>(0)), 0u);
  EXPECT_EQ(DTypeBytes(static_cast<DType>(8)), 0u);
  EXPECT_EQ(DTypeName(static_cast<DType>(8)), "unknown");
}

TEST(DTypeTest, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  EXPECT_THAT(ParseDType("float8"),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("fp8_e4m3, fp8_e5m2")));
}

}  // namespace
}  // namespace forebay
