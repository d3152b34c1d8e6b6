#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace forebay {

// Threads that encode and decode for one client, so that its reactor moves bytes meanwhile. They
// start with the first work. Without any, work is done inside Run(), as a simulation wants it.
//
// Threads  everything from the reactor.
class CodecWorkers {
 public:
  using Task = std::function<void()>;

  // `wake` makes the reactor take a turn; it is called from the workers.
  CodecWorkers(int thread_count, Task wake);
  // Ends the threads. Requires that the `done` of all work was run.
  ~CodecWorkers();
  CodecWorkers(const CodecWorkers&) = delete;
  CodecWorkers& operator=(const CodecWorkers&) = delete;

  // Runs `work` on a worker soon, in the order of the calls, and `done` in a later RunDone().
  void Run(Task work, Task done);
  // Runs the `done` of all work that has ended. True if there was any.
  bool RunDone();
  bool has_done() const { return has_done_.load(std::memory_order_acquire); }
  int thread_count() const { return thread_count_; }

 private:
  struct Job {
    Task work;
    Task done;
  };
  void WorkUntilStopped();
  void PutDone(Task done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int thread_count_;
  const Task wake_;
  std::vector<std::thread> threads_;
  size_t open_ = 0;  // the reactor's: run and not yet done
  std::atomic<bool> has_done_{false};

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<Task> done_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

inline constexpr int kCodecThreadsMax = 256;
// Of this host; at least 1.
unsigned ProcessorCount();
// As many as a client takes by itself: a quarter of the processors, 2 to 8 where there are two.
int DefaultCodecThreads();

}  // namespace forebay
