#include "client/codec_workers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace forebay {

CodecWorkers::CodecWorkers(int thread_count, Task wake)
    : thread_count_(thread_count), wake_(std::move(wake)) {}

CodecWorkers::~CodecWorkers() {
  FB_CHECK(open_ == 0);
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void CodecWorkers::Run(Task work, Task done) {
  ++open_;
  if (thread_count_ == 0) {
    work();
    absl::MutexLock lock(&mutex_);
    PutDone(std::move(done));
    return;
  }
  while (threads_.size() < static_cast<size_t>(thread_count_)) {
    threads_.emplace_back([this] { WorkUntilStopped(); });
  }
  absl::MutexLock lock(&mutex_);
  jobs_.push_back({std::move(work), std::move(done)});
  changed_.Signal();
}

void CodecWorkers::PutDone(Task done) {
  done_.push_back(std::move(done));
  has_done_.store(true, std::memory_order_release);
}

bool CodecWorkers::RunDone() {
  if (!has_done()) return false;
  std::vector<Task> done;
  {
    absl::MutexLock lock(&mutex_);
    done.swap(done_);
    has_done_.store(false, std::memory_order_relaxed);
  }
  open_ -= done.size();
  for (const Task& task : done) task();
  return true;
}

void CodecWorkers::WorkUntilStopped() {
  for (;;) {
    Job job;
    {
      absl::MutexLock lock(&mutex_);
      while (jobs_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.work();
    {
      absl::MutexLock lock(&mutex_);
      PutDone(std::move(job.done));
    }
    if (wake_) wake_();
  }
}

unsigned ProcessorCount() { return std::max(std::thread::hardware_concurrency(), 1u); }

int DefaultCodecThreads() {
  const unsigned processors = ProcessorCount();
  return static_cast<int>(std::clamp(processors / 4, std::min(processors, 2u), 8u));
}

}  // namespace forebay
