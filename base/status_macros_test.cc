#include "base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;

absl::Status Both(absl::Status first, absl::StatusOr<std::unique_ptr<int>> second, int& reached) {
  FB_RETURN_IF_ERROR(first);
  reached = 1;
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<int> value, std::move(second));
  reached = 1 + *value;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, GoOnWhenOk) {
  int reached = 0;
  FB_EXPECT_OK(Both(absl::OkStatus(), std::make_unique<int>(4), reached));
  EXPECT_EQ(reached, 5);
}

TEST(StatusMacrosTest, ReturnTheErrorAtOnce) {
  int reached = 0;
  EXPECT_THAT(Both(absl::AbortedError("a"), std::make_unique<int>(4), reached),
              HasCode(absl::StatusCode::kAborted));
  EXPECT_EQ(reached, 0);
  EXPECT_THAT(Both(absl::OkStatus(), absl::DataLossError("b"), reached),
              HasCode(absl::StatusCode::kDataLoss));
  EXPECT_EQ(reached, 1);
}

}  // namespace
}  // namespace forebay
