#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/namespace_spec.h"
#include "proto/control.h"
#include "proto/forebay/v1/pool.pb.h"

// Conversions between messages of the control plane and base types. What a message cannot say in
// base types (an enum value of a newer version, a key of the wrong length) is INVALID_ARGUMENT that
// names the field; limits of the types themselves are theirs to check (NamespaceSpec::Validate).
namespace forebay {

v1::NamespaceSpec ToProto(const NamespaceSpec& spec);  // leaves the tenant out
absl::StatusOr<NamespaceSpec> FromProto(const v1::NamespaceSpec& message);

v1::OpenSessionRequest ToProto(const OpenSessionRequest& request);
absl::StatusOr<OpenSessionRequest> FromProto(const v1::OpenSessionRequest& message);

v1::OpenSessionReply ToProto(const OpenSessionReply& reply);
absl::StatusOr<OpenSessionReply> FromProto(const v1::OpenSessionReply& message);

}  // namespace forebay
