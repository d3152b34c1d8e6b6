#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace forebay {

// gRPC's status codes and Abseil's have the same numbers and meanings.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace forebay
