#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "proto/forebay/v1/admin.pb.h"

namespace forebay {

// Asks one daemon's Admin service. Each call blocks until the answer or the deadline.
//
// Errors   UNAVAILABLE naming the address where nobody answers; UNAUTHENTICATED for a wrong token.
// Threads  any.
class AdminClient {
 public:
  AdminClient(absl::string_view control_address, absl::string_view token, Nanos deadline)
      : address_(control_address), token_(token), deadline_(deadline) {}

  absl::StatusOr<v1::StatusReply> Status() const;
  absl::StatusOr<v1::ListNamespacesReply> ListNamespaces() const;
  absl::StatusOr<std::string> Metrics() const;
  absl::StatusOr<std::string> ShowConfig() const;

 private:
  std::string address_;
  std::string token_;
  Nanos deadline_;
};

}  // namespace forebay
