#include "base/reactor.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace forebay {
namespace {

// Above this a turn holds up everything else that its reactor owns.
constexpr Nanos kLongTurnNanos = kMillisecond;

// A spin that lasts longer offers its core to whoever else wants it.
constexpr Nanos kPoliteAfterNanos = 10 * kMicrosecond;

void RelaxCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Reactor::Reactor(const Clock& clock, Options options)
    : clock_(clock),
      options_(options),
      spin_(options.spin_ns, options.spin_ns_max),
      mailbox_(options.mailbox_capacity) {
  wake_fd_ = eventfd(/*initval=*/0, EFD_NONBLOCK | EFD_CLOEXEC);
  FB_CHECK(wake_fd_ >= 0);
}

Reactor::~Reactor() { close(wake_fd_); }

void Reactor::Add(Pollable& pollable) { pollables_.push_back(&pollable); }

void Reactor::Remove(Pollable& pollable) { std::erase(pollables_, &pollable); }

bool Reactor::Post(Task task) {
  if (!mailbox_.TryPut(task)) return false;
  Wake();
  return true;
}

void Reactor::Wake() {
  // Every change of state_ is a read-modify-write, and each synchronizes with the one before. So
  // either this one comes first, and the reactor, which then finds kNotified, sees all that its
  // caller did before; or the reactor's kAsleep comes first, and this one finds it and writes.
  if (state_.exchange(State::kNotified, std::memory_order_acq_rel) != State::kAsleep) return;
  const uint64_t one = 1;
  ssize_t written;
  do {
    written = write(wake_fd_, &one, sizeof(one));
  } while (written < 0 && errno == EINTR);
  // EAGAIN: the counter is at its top, so the reactor wakes anyway.
  FB_CHECK(written == sizeof(one) || errno == EAGAIN);
}

bool Reactor::TurnOnce() {
  const Nanos start = clock_.Now();
  bool worked = false;
  // At most one mailbox full a turn, so that tasks which post tasks cannot hold up the pollables.
  for (size_t i = 0; i < options_.mailbox_capacity; ++i) {
    std::optional<Task> task = mailbox_.TryTake();
    if (!task.has_value()) break;
    (*task)();
    worked = true;
  }
  // By index: a Poll() may add and remove.
  for (size_t i = 0; i < pollables_.size(); ++i) {
    if (pollables_[i]->Poll(start)) worked = true;
  }
  ++turns_;
  if (clock_.Now() - start > kLongTurnNanos) ++long_turns_;
  return worked;
}

void Reactor::RunUntil(const std::function<bool()>& stop, Nanos deadline) {
  Nanos last_work = clock_.Now();
  while (!stopped() && !stop()) {
    const bool worked = TurnOnce();
    const Nanos now = clock_.Now();
    if (worked) {
      if (now - last_work > spin_.current()) spin_.NoteGap(now - last_work);
      last_work = now;
    }
    if (now >= deadline) return;
    if (worked) continue;
    if (now - last_work < spin_.current()) {
      // Whom we wait for may be on this very core.
      if (now - last_work < kPoliteAfterNanos) {
        RelaxCpu();
      } else {
        sched_yield();
      }
      continue;
    }
    Sleep(deadline);
  }
}

void Reactor::Stop() {
  stopped_.store(true, std::memory_order_release);
  Wake();
}

void Reactor::Sleep(Nanos until) {
  // kNotified: somebody called since the last turn began or before; take another turn, and look at
  // stop() again, before sleeping.
  bool may_sleep = state_.exchange(State::kAsleep, std::memory_order_acq_rel) != State::kNotified;
  may_sleep = may_sleep && mailbox_.empty() && !stopped();
  fds_.clear();
  const Nanos now = clock_.Now();
  until = std::min(until, now + options_.sleep_ns_max);
  for (size_t i = 0; may_sleep && i < pollables_.size(); ++i) {
    until = std::min(until, pollables_[i]->NextDeadline());
    may_sleep = pollables_[i]->PrepareToSleep(fds_);
  }
  if (may_sleep && until > now) WaitForFds(until - now);
  state_.exchange(State::kAwake, std::memory_order_acq_rel);
}

void Reactor::WaitForFds(Nanos timeout) {
  std::vector<pollfd> poll_fds;
  poll_fds.reserve(fds_.size() + 1);
  poll_fds.push_back({.fd = wake_fd_, .events = POLLIN, .revents = 0});
  for (const int fd : fds_) poll_fds.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  const timespec wait{.tv_sec = timeout / kSecond, .tv_nsec = timeout % kSecond};
  const int ready = ppoll(poll_fds.data(), poll_fds.size(), &wait, /*sigmask=*/nullptr);
  FB_CHECK(ready >= 0 || errno == EINTR);
  if (ready > 0 && poll_fds[0].revents != 0) {
    uint64_t count;
    // EAGAIN cannot hurt: the counter is empty, which is what is wanted.
    static_cast<void>(!read(wake_fd_, &count, sizeof(count)));
  }
}

}  // namespace forebay
