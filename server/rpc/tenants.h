#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/pool_node.h"

namespace forebay {

// Whose token this is. Takes as long for a wrong one as for a right one, whichever it resembles.
// Without tenants everybody is kDefaultTenant.
//
// Errors   UNAUTHENTICATED, the same for a missing and for a wrong token.
// Threads  any.
absl::StatusOr<std::string> TenantOf(absl::Span<const TenantOptions> tenants,
                                     absl::string_view token);

}  // namespace forebay
