#include "client/ctl/spec_of.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/convert.h"

namespace forebay::ctl {

absl::StatusOr<NamespaceSpec> SpecOf(const Context& context, uint64_t id, absl::string_view salt) {
  FB_ASSIGN_OR_RETURN(const v1::ListNamespacesReply reply, context.Admin().ListNamespaces());
  for (const v1::NamespaceStatus& ns : reply.namespaces()) {
    if (ns.namespace_id() != id) continue;
    if (ns.salted() && salt.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "namespace ", id, " is salted, and a daemon does not tell salts: give --salt"));
    }
    FB_ASSIGN_OR_RETURN(NamespaceSpec spec, FromProto(ns.spec()));
    spec.salt = std::string(salt);
    return spec;
  }
  return absl::NotFoundError(
      absl::StrCat("this daemon has no namespace ", id, "; 'forebayctl namespaces' lists them"));
}

}  // namespace forebay::ctl
