#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"

namespace forebay {

// Makes progress while somebody waits, or spins a little where a thread of the client's makes it.
class ProgressSource {
 public:
  virtual ~ProgressSource() = default;
  // Returns when `ready` is true, at `until`, or earlier where somebody else makes progress.
  virtual void WaitUntil(const std::function<bool()>& ready, Nanos until) = 0;
  // False in a process that was forked from the client's: there nobody makes progress.
  virtual bool Alive() const = 0;
  // True on the thread that makes progress, inside a callback: who waited there would wait for
  // itself.
  virtual bool OnReactor() const = 0;
};

// The result of a call under way, shared by those who hold copies.
//
// Every call has a deadline of its own, so Wait() ends. Dropping a Pending does not cancel the
// call.
//
// Threads  any.
template <typename T>
class Pending {
 public:
  using Callback = std::function<void(const absl::StatusOr<T>&)>;

  // The side that completes.
  struct State {
    absl::Mutex mutex;
    bool ready ABSL_GUARDED_BY(mutex) = false;
    absl::StatusOr<T> result ABSL_GUARDED_BY(mutex) = absl::UnknownError("pending");
    std::vector<Callback> callbacks ABSL_GUARDED_BY(mutex);
    std::function<void()> cancel;              // set before the state is shared
    std::shared_ptr<ProgressSource> progress;  // may be null

    bool IsReady() {
      absl::MutexLock lock(&mutex);
      return ready;
    }
    // Once. Runs the callbacks on the calling thread.
    void Complete(absl::StatusOr<T> value) {
      std::vector<Callback> run;
      {
        absl::MutexLock lock(&mutex);
        if (ready) return;
        result = std::move(value);
        ready = true;
        run.swap(callbacks);
      }
      for (const Callback& callback : run) callback(result_after_ready());
    }
    const absl::StatusOr<T>& result_after_ready() ABSL_NO_THREAD_SAFETY_ANALYSIS { return result; }
  };

  Pending() = default;
  explicit Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}

  static Pending Ready(absl::StatusOr<T> value) {
    auto state = std::make_shared<State>();
    state->Complete(std::move(value));
    return Pending(std::move(state));
  }

  bool IsReady() const { return state_->IsReady(); }
  // Until the result is there. FAILED_PRECONDITION in a forked child, and, where the result is not
  // there yet, inside a callback.
  absl::StatusOr<T> Wait() const {
    if (state_->progress != nullptr) {
      State* state = state_.get();
      if (!state->progress->Alive()) {
        return absl::FailedPreconditionError(
            "the client belongs to the process that forked this one");
      }
      if (state->progress->OnReactor() && !state->IsReady()) {
        return absl::FailedPreconditionError(
            "Wait() inside a callback of the same client would never end: use OnReady()");
      }
      state->progress->WaitUntil([state] { return state->IsReady(); }, kForever);
    }
    absl::MutexLock lock(&state_->mutex);
    state_->mutex.Await(absl::Condition(&state_->ready));
    return state_->result;
  }
  // Asks the call to end soon, with CANCELLED; it may still succeed.
  void Cancel() const {
    if (state_->cancel) state_->cancel();
  }
  // Runs `callback` once, on the thread that completes it, or now if it is ready.
  void OnReady(Callback callback) const {
    {
      absl::MutexLock lock(&state_->mutex);
      if (!state_->ready) {
        state_->callbacks.push_back(std::move(callback));
        return;
      }
    }
    callback(state_->result_after_ready());
  }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace forebay
