#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// The two error macros of this project. Abseil's own arrive with a release newer than Debian 12's.
#define FB_RETURN_IF_ERROR(expression)        \
  do {                                        \
    ::absl::Status fb_status_ = (expression); \
    if (!fb_status_.ok()) [[unlikely]]        \
      return fb_status_;                      \
  } while (false)

#define FB_ASSIGN_OR_RETURN(declaration, expression) \
  FB_ASSIGN_OR_RETURN_IMPL_(FB_CONCAT_(fb_result_, __LINE__), declaration, expression)

#define FB_ASSIGN_OR_RETURN_IMPL_(result, declaration, expression) \
  auto result = (expression);                                      \
  if (!result.ok()) [[unlikely]]                                   \
    return std::move(result).status();                             \
  declaration = *std::move(result)

#define FB_CONCAT_(a, b) FB_CONCAT_INNER_(a, b)
#define FB_CONCAT_INNER_(a, b) a##b
