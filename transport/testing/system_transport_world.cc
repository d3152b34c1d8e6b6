#include <poll.h>
#include <sched.h>

#include <vector>

#include "transport/testing/transport_contract.h"

namespace forebay::testing {
namespace {

// A message through loopback takes a few rounds; only a longer pause is worth a system call.
constexpr uint64_t kRoundsBeforeSleep = 64;

}  // namespace

Nanos SystemTransportWorld::Now() { return SystemClock().Now(); }

void SystemTransportWorld::Idle(absl::Span<Transport* const> transports) {
  if (++idle_rounds_ % kRoundsBeforeSleep != 0) {
    sched_yield();
    return;
  }
  std::vector<int> fds;
  for (Transport* transport : transports) {
    if (!transport->PrepareToSleep(fds)) return;
  }
  std::vector<pollfd> polled;
  for (const int fd : fds) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  poll(polled.data(), polled.size(), /*timeout=*/1);
}

}  // namespace forebay::testing
