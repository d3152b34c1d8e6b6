#include "client/engine.h"

#include <sched.h>

#include <algorithm>

#include "absl/time/time.h"
#include "base/log.h"
#include "client/transport_factory.h"

namespace forebay {
namespace {

// How long a shutdown may take before the log says so; it then goes on.
constexpr Nanos kShutdownWarning = 5 * kSecond;
// A waiter who was not told looks again after this; it is told, so this only bounds what is unseen.
constexpr absl::Duration kWaiterPatience = absl::Milliseconds(20);

Reactor::Options ReactorOptions(Nanos spin_ns) {
  Reactor::Options options;
  options.spin_ns = spin_ns;
  return options;
}

}  // namespace

Engine::Engine(ClientCoreOptions options, std::string token, const UcxChoice& ucx,
               bool caller_driven, Nanos spin_ns)
    : caller_driven_(caller_driven),
      spin_ns_(spin_ns),
      reactor_(clock_, ReactorOptions(spin_ns)),
      opener_(std::move(token)) {
  core_ = std::make_unique<ClientCore>(clock_, opener_, std::move(options),
                                       SystemTransports(clock_, ucx), registry_,
                                       [this] { reactor_.Wake(); });
  reactor_.Add(*core_);
}

Engine::~Engine() { reactor_.Remove(*core_); }

void Engine::Start() {
  if (caller_driven_) return;
  thread_ = std::thread([this] {
    driver_.store(pthread_self(), std::memory_order_relaxed);
    RunUntilShutdown();
  });
}

bool Engine::ShutdownComplete() {
  if (!shutdown_asked_.load(std::memory_order_acquire)) return false;
  if (!shutdown_begun_) {
    shutdown_begun_ = true;
    core_->BeginShutdown();
  }
  return core_->idle();
}

void Engine::RunUntilShutdown() {
  for (;;) {
    const Nanos until = shutdown_begun_ ? clock_.Now() + kShutdownWarning : kForever;
    reactor_.RunUntil([this] { return ShutdownComplete(); }, until);
    if (ShutdownComplete()) return;
    LogWarning("client.shutdown_slow", {{"calls", core_->calls()}});
  }
}

void Engine::Shutdown() {
  // It waits for the very thread that would be in here.
  FB_CHECK(!OnReactor());
  shutdown_asked_.store(true, std::memory_order_release);
  reactor_.Wake();
  if (caller_driven_) {
    {
      absl::MutexLock lock(&mutex_);
      while (driving_) changed_.Wait(&mutex_);
      BeginDriving();
    }
    RunUntilShutdown();
    EndDriving();
  } else {
    thread_.join();
  }
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  // Calls that were posted too late are told so by the core, here.
  while (reactor_.TurnOnce()) {
  }
  NotifyWaiters();
}

void Engine::BeginDriving() {
  driving_ = true;
  driver_.store(pthread_self(), std::memory_order_relaxed);
}

void Engine::EndDriving() {
  absl::MutexLock lock(&mutex_);
  driver_.store(pthread_t{}, std::memory_order_relaxed);
  driving_ = false;
  changed_.SignalAll();
}

void Engine::NotifyWaiters() {
  // Pairs with the fence in WaitUntil: either we see the waiter, or it sees what became ready.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_relaxed) == 0) return;
  absl::MutexLock lock(&mutex_);
  changed_.SignalAll();
}

void Engine::WaitUntil(const std::function<bool()>& ready, Nanos until) {
  if (!caller_driven_) {
    // A wake-up costs more than many an answer takes to come.
    const Nanos spin_end = clock_.Now() + spin_ns_;
    while (!ready() && clock_.Now() < std::min(until, spin_end)) sched_yield();
    return;
  }
  while (!ready() && clock_.Now() < until) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return;
      if (driving_) {
        waiters_.fetch_add(1, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (!ready()) changed_.WaitWithTimeout(&mutex_, kWaiterPatience);
        waiters_.fetch_sub(1, std::memory_order_relaxed);
        continue;
      }
      BeginDriving();
    }
    reactor_.RunUntil([&] { return ready() || shutdown_asked_.load(std::memory_order_acquire); },
                      until);
    EndDriving();
    if (shutdown_asked_.load(std::memory_order_acquire)) return;
  }
}

}  // namespace forebay
