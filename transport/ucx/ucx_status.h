#pragma once

#include <ucs/type/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace forebay {

// The one place where a status of UCX becomes one of ours. `what` says what was tried.
//
//   gone or unreachable peers, dead links  UNAVAILABLE     cancelled                CANCELLED
//   too little memory or room              RESOURCE_EXHAUSTED   no such device      NOT_FOUND
//   our bug                                INVALID_ARGUMENT     not in this build   UNIMPLEMENTED
//   anything that we do not know           INTERNAL
absl::Status UcxStatus(ucs_status_t status, absl::string_view what);

}  // namespace forebay
