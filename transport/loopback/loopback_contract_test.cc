// The transport contract over a loopback network, in several moods.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/testing/manual_clock.h"
#include "transport/loopback/loopback_network.h"
#include "transport/loopback/loopback_transport.h"
#include "transport/testing/transport_contract.h"

namespace forebay::testing {
namespace {

class LoopbackWorld final : public TransportWorld {
 public:
  LoopbackWorld(uint64_t seed, const LoopbackFaults& faults) : network_(seed, clock_, faults) {}

  std::unique_ptr<Transport> Make(TransportHandler& handler,
                                  const TransportOptions& options) override {
    return network_.MakeTransport(absl::StrCat("node", ++last_node_), handler, options);
  }
  std::string ListenAddress() override { return absl::StrCat("loopback:name", ++last_name_); }
  std::string NobodyAddress() override { return "loopback:nobody"; }
  Nanos Now() override { return clock_.Now(); }

  // To the next thing that is due, at most a millisecond away.
  void Idle(absl::Span<Transport* const> transports) override {
    Nanos next = clock_.Now() + kMillisecond;
    for (Transport* transport : transports) next = std::min(next, transport->NextDeadline());
    clock_.Set(std::max(next, clock_.Now() + kMicrosecond));
  }

  TransportTraits traits() const override { return {.wakes_by_descriptor = false}; }
  const TransportCounts* CountsOf(const Transport& transport) const override {
    return &static_cast<const LoopbackTransport&>(transport).counts();
  }

 private:
  ManualClock clock_;
  LoopbackNetwork network_;
  int last_node_ = 0;
  int last_name_ = 0;
};

LoopbackFaults InOrder() {
  LoopbackFaults faults;
  faults.reorder = false;
  return faults;
}

LoopbackFaults Crumbs() {
  LoopbackFaults faults;
  faults.fragment_bytes_max = 4000;
  faults.window_bytes = 20'000;
  faults.duplicate_chance = 0.05;
  return faults;
}

LoopbackFaults Twice() {
  LoopbackFaults faults;
  faults.duplicate_chance = 0.3;
  faults.delay_ns_max = 5 * kMillisecond;
  return faults;
}

LoopbackFaults Silent() {
  LoopbackFaults faults;
  faults.reset_chance = 0;
  return faults;
}

TransportContractParam World(const char* name, uint64_t seed, const LoopbackFaults& faults) {
  return {absl::StrCat(name, seed),
          [seed, faults] { return std::make_unique<LoopbackWorld>(seed, faults); }};
}

}  // namespace
}  // namespace forebay::testing

FB_INSTANTIATE_TRANSPORT_CONTRACT(
    Loopback, ::testing::Values(World("Reordered", 1, LoopbackFaults{}),
                                World("Reordered", 2, LoopbackFaults{}),
                                World("InOrder", 3, InOrder()), World("Crumbs", 4, Crumbs()),
                                World("Twice", 5, Twice()), World("Silent", 6, Silent())));
