#pragma once

#include <gmock/gmock.h>

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Matchers for absl::Status; Abseil's own arrive with a release newer than Debian 12's.
namespace forebay::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << "which is " << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

MATCHER_P(HasCode, code, "has code " + absl::StatusCodeToString(code)) {
  *result_listener << "which is " << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code;
}

MATCHER_P2(HasStatus, code, message_matcher, "") {
  *result_listener << "which is " << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code &&
         ::testing::ExplainMatchResult(message_matcher, std::string(StatusOf(arg).message()),
                                       result_listener);
}

}  // namespace forebay::testing

#define FB_ASSERT_OK(expression) ASSERT_THAT((expression), ::forebay::testing::IsOk())
#define FB_EXPECT_OK(expression) EXPECT_THAT((expression), ::forebay::testing::IsOk())
