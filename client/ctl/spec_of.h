#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/namespace_spec.h"
#include "client/ctl/subcommand.h"

namespace forebay::ctl {

// The namespace as the daemon has it, so that nobody has to type a layout.
//   NOT_FOUND         there is none of this id
//   INVALID_ARGUMENT  it is salted, and `salt` is empty
absl::StatusOr<NamespaceSpec> SpecOf(const Context& context, uint64_t id, absl::string_view salt);

}  // namespace forebay::ctl
