// Contract: a reactor may sleep on what PrepareToSleep gives, and is woken by whatever concerns it.

#include <poll.h>

#include <algorithm>
#include <string>
#include <vector>

#include "transport/testing/contract_parts.h"
#include "transport/testing/transport_contract.h"
#include "transport/testing/transport_side.h"

namespace forebay::testing {
namespace {

// Waits in poll(2) as a reactor does, for all of `sides`. False if none may sleep, or none woke.
enum class Slept { kHadWork, kWoken, kTimedOut };

Slept SleepOn(absl::Span<TransportSide* const> sides, int timeout_ms) {
  std::vector<int> fds;
  for (TransportSide* side : sides) {
    if (!side->transport().PrepareToSleep(fds)) return Slept::kHadWork;
  }
  std::vector<pollfd> polled;
  for (const int fd : fds) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  return poll(polled.data(), polled.size(), timeout_ms) > 0 ? Slept::kWoken : Slept::kTimedOut;
}

// Polls until `side` is ready to sleep and nothing would wake it.
bool Settle(ConnectedPair& pair, TransportSide& side) {
  return static_cast<bool>(pair.RunUntil("a side that can sleep", [&] {
    return SleepOn({&side}, /*timeout_ms=*/0) == Slept::kTimedOut;
  }));
}

}  // namespace

bool LinkContractSleep() { return true; }

TEST_P(TransportContractTest, AnIdleSideReportsNoWork) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  pair.client.SendPayload(pair.at_client, {100'000});
  ASSERT_TRUE(pair.RunUntil("one message", [&] {
    return pair.server.handler().delivered_count() == 1 && pair.client.handler().sends_out() == 0;
  }));
  pair.RunFor(20 * kMillisecond);
  // Keepalives may be work now and then; a transport that always reports work never lets its
  // reactor sleep.
  constexpr int kRounds = 1000;
  int worked = 0;
  for (int i = 0; i < kRounds; ++i) {
    for (TransportSide* side : {&pair.server, &pair.client}) {
      worked += side->Poll() ? 1 : 0;
    }
  }
  EXPECT_LT(worked, kRounds / 10);
  // Nor may a deadline in the past keep it awake. A poll at that time does what was due.
  for (TransportSide* side : {&pair.server, &pair.client}) {
    EXPECT_TRUE(pair.RunUntil("a deadline in the future", [&] {
      side->Poll();
      return side->transport().NextDeadline() > world().Now();
    }));
  }
}

TEST_P(TransportContractTest, ASleepingSideIsWokenByAMessage) {
  if (!world().traits().wakes_by_descriptor) GTEST_SKIP() << "nothing sleeps in virtual time";
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  for (int i = 0; i < 20; ++i) {
    const bool to_server = i % 2 == 0;
    TransportSide& sleeper = to_server ? pair.server : pair.client;
    TransportSide& sender = to_server ? pair.client : pair.server;
    ASSERT_TRUE(Settle(pair, sleeper));
    const uint64_t before = sleeper.handler().messages_count();
    sender.SendPayload(to_server ? pair.at_client : pair.at_server, {static_cast<size_t>(i) * 100});
    for (int j = 0; j < 3; ++j) sender.Poll();
    ASSERT_NE(SleepOn({&sleeper}, /*timeout_ms=*/2000), Slept::kTimedOut)
        << "message " << i << " did not wake a sleeping side";
    ASSERT_TRUE(pair.RunUntil("the message that woke us", [&] {
      return sleeper.handler().messages_count() == before + 1 &&
             sleeper.handler().landings_out() == 0 && sender.handler().sends_out() == 0;
    }));
  }
}

TEST_P(TransportContractTest, ASleepingListenerIsWokenByAPeer) {
  if (!world().traits().wakes_by_descriptor) GTEST_SKIP() << "nothing sleeps in virtual time";
  ConnectedPair pair(world());
  pair.address = pair.server.Listen();
  ASSERT_TRUE(Settle(pair, pair.server));
  const EndpointId end = pair.client.Connect(pair.address);
  for (int i = 0; i < 3; ++i) pair.client.Poll();
  ASSERT_NE(SleepOn({&pair.server}, /*timeout_ms=*/2000), Slept::kTimedOut);
  EXPECT_TRUE(pair.RunUntil("OnConnected", [&] { return pair.client.handler().connected(end); }));
}

TEST_P(TransportContractTest, ASleepingSideIsWokenByTheDeathOfItsPeer) {
  if (!world().traits().wakes_by_descriptor) GTEST_SKIP() << "nothing sleeps in virtual time";
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  ASSERT_TRUE(Settle(pair, pair.client));
  pair.server.Kill();
  // A medium without a sign of death has its keepalive, and says when that is due.
  const Nanos due = pair.client.transport().NextDeadline();
  if (SleepOn({&pair.client}, /*timeout_ms=*/2000) == Slept::kTimedOut) {
    EXPECT_NE(due, kForever) << "neither a descriptor nor a deadline tells of a dead peer";
  }
  EXPECT_TRUE(
      pair.RunUntil("OnClosed", [&] { return pair.client.handler().closed(pair.at_client); }));
}

// Bulk both ways between two reactors that sleep whenever they may: a wake-up that is lost anywhere
// (a full socket that drained, a credit that came back) shows as a sleep that nothing ends.
TEST_P(TransportContractTest, TransfersFinishThoughBothSidesSleep) {
  if (!world().traits().wakes_by_descriptor) GTEST_SKIP() << "nothing sleeps in virtual time";
  constexpr uint64_t kMessages = 40;
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  for (uint64_t i = 0; i < kMessages; ++i) {
    pair.client.SendPayload(pair.at_client, {i % 4 == 0 ? size_t{2} << 20 : 100 * i});
    pair.server.SendPayload(pair.at_server, {i % 4 == 1 ? size_t{2} << 20 : 100 * i});
  }
  const Nanos until = world().Now() + world().traits().patience;
  int timeouts = 0;
  while (pair.client.handler().delivered_count() < kMessages ||
         pair.server.handler().delivered_count() < kMessages) {
    ASSERT_LT(world().Now(), until) << pair.client.handler().ToString() << "\n"
                                    << pair.server.handler().ToString();
    const bool server_worked = pair.server.Poll();
    const bool client_worked = pair.client.Poll();
    if (server_worked || client_worked) continue;
    if (SleepOn({&pair.server, &pair.client}, /*timeout_ms=*/500) == Slept::kTimedOut) ++timeouts;
  }
  EXPECT_EQ(timeouts, 0) << "both sides slept while there was something to do";
}

}  // namespace forebay::testing
