#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/control.h"

namespace forebay {

// Opens sessions over gRPC (service forebay.v1.Pool), with the tenant's token as metadata.
//
// One channel an address, kept; gRPC's own reconnecting is set to be quicker than the client's, so
// that a daemon which is back is seen at the next attempt.
//
// Threads  Open from one thread at a time; answers come on gRPC's own threads.
class GrpcSessionOpener final : public SessionOpener {
 public:
  explicit GrpcSessionOpener(std::string token);
  // Cancels what is under way and waits for its answers.
  ~GrpcSessionOpener() override;

  void Open(absl::string_view control_address, const OpenSessionRequest& request, Nanos deadline,
            OpenSessionDone done) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace forebay
