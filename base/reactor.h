#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/op.h"

namespace forebay {

// Something that a reactor polls: a transport, a node, a client core.
class Pollable {
 public:
  virtual ~Pollable() = default;
  // Does what can be done without waiting. True if anything was done.
  virtual bool Poll(Nanos now) = 0;
  // Makes ready to sleep: appends to `fds` the descriptors whose readability must wake the reactor.
  // False if there is work already, so that the reactor must not sleep.
  virtual bool PrepareToSleep(std::vector<int>& fds) = 0;
  // The next moment when it wants a poll though nothing happened; kForever for none.
  virtual Nanos NextDeadline() const = 0;
};

// How long a reactor spins: from `least` up to `most`; twice the last gap between pieces of work
// that was short enough to be worth it; halved by each that was not. So one client that copies
// 100 us between its calls finds its daemon awake, and an idle daemon sleeps.
class SpinWindow {
 public:
  SpinWindow(Nanos least, Nanos most)
      : least_(least), most_(std::max(least, most)), current_(least) {}
  Nanos current() const { return current_; }
  // Work came `gap` after the last, past the window.
  void NoteGap(Nanos gap) {
    current_ = gap <= most_ ? std::clamp(2 * gap, current_, most_) : std::max(least_, current_ / 2);
  }

 private:
  const Nanos least_;
  const Nanos most_;
  Nanos current_;
};

// One thread's loop: drain mail, poll each Pollable, sleep when idle.
//
// It spins for a while after the last work before it sleeps in poll(2), so that a request which
// comes soon pays no wake-up: see SpinWindow. A turn longer than 1 ms is counted (long_turns).
//
// Threads  Post() and Wake() from any thread; everything else from the one that runs it.
class Reactor {
 public:
  using Task = std::function<void()>;
  struct Options {
    Nanos spin_ns = 20 * kMicrosecond;
    Nanos spin_ns_max = 0;  // no more than spin_ns where it is less
    Nanos sleep_ns_max = 50 * kMillisecond;
    size_t mailbox_capacity = 4096;
  };

  Reactor(const Clock& clock, Options options);
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Borrows; must outlive the loop.
  void Add(Pollable& pollable);
  void Remove(Pollable& pollable);

  // Runs `task` on the reactor's thread. False when the mailbox is full.
  bool Post(Task task);
  // Makes the reactor take a turn that sees all that the caller did before, and look at `stop`
  // again.
  void Wake();

  // One turn without sleeping: for tests, simulations, and callers that lend their own thread.
  // True if anything was done.
  bool TurnOnce();
  // Turns until `stop` returns true, sleeping when idle, but not past `deadline`.
  void RunUntil(const std::function<bool()>& stop, Nanos deadline = kForever);
  // Makes RunUntil return soon, from any thread.
  void Stop();
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

  uint64_t turns() const { return turns_; }
  uint64_t long_turns() const { return long_turns_; }

 private:
  // kAsleep: about to wait, or waiting, in poll(2). kNotified: Wake() was called since.
  enum class State : uint8_t { kAwake, kAsleep, kNotified };

  void Sleep(Nanos until);
  void WaitForFds(Nanos timeout);

  const Clock& clock_;
  const Options options_;
  SpinWindow spin_;
  Mailbox<Task> mailbox_;
  std::vector<Pollable*> pollables_;
  std::vector<int> fds_;
  int wake_fd_ = -1;
  std::atomic<State> state_{State::kAwake};
  std::atomic<bool> stopped_{false};
  uint64_t turns_ = 0;
  uint64_t long_turns_ = 0;
};

}  // namespace forebay
