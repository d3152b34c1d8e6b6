#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/reactor.h"

// What the daemon and its supervisor (systemd, a test, a shell) tell each other.
namespace forebay {

// Tells systemd "READY=1" or "STOPPING=1" over $NOTIFY_SOCKET; nothing where that is not set.
//
// Errors   INVALID_ARGUMENT for a socket name that cannot be; UNAVAILABLE where nobody takes it
absl::Status NotifySupervisor(absl::string_view state);

// Writes `text` so that a reader sees all of it or nothing: to PATH.tmp, then renamed.
absl::Status WriteWhole(const std::string& path, absl::string_view text);

// Raises the soft limit of open files to the hard one: each endpoint takes a few.
void RaiseOpenFileLimit();

// SIGTERM and SIGINT as something to poll. Blocks both for the calling thread and those that it
// starts afterwards: make it before any of them.
class StopSignals final : public Pollable {
 public:
  StopSignals();
  ~StopSignals() override;
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int count() const { return count_; }

  bool Poll(Nanos now) override;
  bool PrepareToSleep(std::vector<int>& fds) override;
  Nanos NextDeadline() const override { return kForever; }

 private:
  bool Take();

  int fd_ = -1;
  int count_ = 0;
  Nanos look_at_ = 0;
};

}  // namespace forebay
