#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/reactor.h"

namespace forebay {

// Runs `work` on the reactor's thread and waits for its result, but not past `deadline`. A late
// result goes nowhere: what the work needs must be its own or outlive the reactor.
//
// Errors   RESOURCE_EXHAUSTED when the reactor's mailbox is full; DEADLINE_EXCEEDED.
// Threads  any but the reactor's.
template <typename T, typename Work>
absl::StatusOr<T> CallOnReactor(Reactor& reactor, absl::Time deadline, Work work) {
  struct Call {
    absl::Notification done;
    std::optional<absl::StatusOr<T>> result;
  };
  auto call = std::make_shared<Call>();
  const bool posted = reactor.Post([call, work = std::move(work)]() mutable {
    call->result.emplace(work());
    call->done.Notify();
  });
  if (!posted) return absl::ResourceExhaustedError("the daemon has too many calls waiting");
  if (!call->done.WaitForNotificationWithDeadline(deadline)) {
    return absl::DeadlineExceededError("the daemon did not get to this call in time");
  }
  return *std::move(call->result);
}

}  // namespace forebay
