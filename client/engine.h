#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/reactor.h"
#include "client/client_core.h"
#include "client/pending.h"
#include "client/rpc/grpc_session_opener.h"

namespace forebay {

// What turns a ClientCore in a real process: a reactor on a thread of its own, or turned by whoever
// waits (`caller_driven`). Shared by the client, its namespaces, hits and pending calls, so that
// each may be dropped in any order.
//
// Threads  any.
class Engine final : public ProgressSource, public std::enable_shared_from_this<Engine> {
 public:
  Engine(ClientCoreOptions options, std::string token, const UcxChoice& ucx, bool caller_driven,
         Nanos spin_ns);
  ~Engine() override;

  // Starts the thread, if there is one.
  void Start();
  // Cancels every call, waits until no transport touches borrowed memory, and ends. Once.
  void Shutdown();

  // Runs `task` on the reactor soon; at once, on this thread, where the caller drives and nobody
  // else does. False after Shutdown, in a forked child, or when the mailbox is full.
  template <typename Task>
  bool Submit(Task&& task) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!Alive()) return false;
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return false;
      if (!caller_driven_ || driving_) return reactor_.Post(std::forward<Task>(task));
      BeginDriving();
    }
    task();
    EndDriving();
    return true;
  }

  // To be called when something that a waiter may wait for has become ready.
  void NotifyWaiters() ABSL_LOCKS_EXCLUDED(mutex_);

  void WaitUntil(const std::function<bool()>& ready, Nanos until) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool Alive() const override { return pid_ == getpid(); }
  bool OnReactor() const override {
    return driver_.load(std::memory_order_relaxed) == pthread_self();
  }

  ClientCore& core() { return *core_; }
  const Clock& clock() const { return clock_; }
  std::string MetricsText() const { return registry_.Text(); }

 private:
  void BeginDriving() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndDriving() ABSL_LOCKS_EXCLUDED(mutex_);
  // On the reactor: whether the shutdown that was asked for is complete.
  bool ShutdownComplete();
  void RunUntilShutdown();

  const SystemClock clock_;
  const pid_t pid_ = getpid();
  const bool caller_driven_;
  const Nanos spin_ns_;
  MetricRegistry registry_;
  Reactor reactor_;
  GrpcSessionOpener opener_;
  std::unique_ptr<ClientCore> core_;
  std::thread thread_;
  std::atomic<pthread_t> driver_{};
  std::atomic<bool> shutdown_asked_{false};
  bool shutdown_begun_ = false;  // the reactor's
  std::atomic<int> waiters_{0};

  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace forebay
