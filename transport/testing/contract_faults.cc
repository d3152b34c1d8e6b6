// Contract: whatever dies, and whenever, everything is handed back, once, in time, and left alone.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/status_matchers.h"
#include "transport/testing/contract_parts.h"
#include "transport/testing/transport_contract.h"
#include "transport/testing/transport_side.h"

namespace forebay::testing {
namespace {

TransportOptions ShortTimeouts() {
  TransportOptions options;
  options.peer_timeout = 500 * kMillisecond;
  options.keepalive_interval = 100 * kMillisecond;
  return options;
}

// Small ones, odd ones and bulk, both ways.
void PutInFlight(ConnectedPair& pair) {
  for (const size_t bytes :
       {size_t{0}, size_t{10}, size_t{9000}, size_t{400'001}, size_t{1} << 20}) {
    pair.client.SendPayload(pair.at_client, {bytes / 3, bytes - bytes / 3});
    pair.server.SendPayload(pair.at_server, {bytes});
  }
}

void PollRounds(ConnectedPair& pair, TransportWorld& world, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const bool server_worked = pair.server.Poll();
    const bool client_worked = pair.client.Poll();
    if (!server_worked && !client_worked) {
      world.Idle({&pair.server.transport(), &pair.client.transport()});
    }
  }
}

// Nothing is left with the transport, and nothing landed after it said so.
void ExpectAllHandedBack(TransportSide& side) {
  EXPECT_EQ(side.handler().sends_out(), 0u) << side.name();
  EXPECT_EQ(side.handler().landings_out(), 0u) << side.name();
  side.handler().VerifyMemory();
}

}  // namespace

bool LinkContractFaults() { return true; }

// Close() after each number of rounds, from the side that asked and from the side that was asked.
TEST_P(TransportContractTest, CloseAtEachStepHandsEverythingBack) {
  ConnectedPair pair(world());
  for (int rounds = 0; rounds < 40; ++rounds) {
    ASSERT_TRUE(pair.Connect());
    PutInFlight(pair);
    PollRounds(pair, world(), rounds);
    const bool client_closes = rounds % 2 == 0;
    TransportSide& closer = client_closes ? pair.client : pair.server;
    const EndpointId end = client_closes ? pair.at_client : pair.at_server;
    const uint64_t messages_before = closer.handler().messages_count();
    const uint64_t delivered_before = closer.handler().delivered_count();
    closer.transport().Close(end);
    ASSERT_TRUE(pair.RunUntil("OnClosed on both sides",
                              [&] {
                                return pair.client.handler().closed(pair.at_client) &&
                                       pair.server.handler().closed(pair.at_server);
                              }))
        << "closed after " << rounds << " rounds";
    EXPECT_EQ(closer.handler().messages_count(), messages_before) << "OnMessage after Close()";
    EXPECT_EQ(closer.handler().delivered_count(), delivered_before) << "OnLanded(OK) after Close()";
    pair.RunFor(2 * kMillisecond);
    ExpectAllHandedBack(pair.client);
    ExpectAllHandedBack(pair.server);
  }
}

// The peer's process ends after each number of rounds. The survivor hears of it in time, with
// UNAVAILABLE, and has everything back.
TEST_P(TransportContractTest, APeerThatDiesAtEachStepIsNoticed) {
  const TransportOptions options = ShortTimeouts();
  for (int rounds = 0; rounds < 20; ++rounds) {
    const bool client_dies = rounds % 2 == 0;
    ConnectedPair pair(world(), options);
    ASSERT_TRUE(pair.Connect());
    PutInFlight(pair);
    PollRounds(pair, world(), rounds);
    TransportSide& survivor = client_dies ? pair.server : pair.client;
    const EndpointId end = client_dies ? pair.at_server : pair.at_client;
    (client_dies ? pair.client : pair.server).Kill();

    const Nanos died = world().Now();
    ASSERT_TRUE(
        pair.RunUntil("OnClosed at the survivor", [&] { return survivor.handler().closed(end); }))
        << "died after " << rounds << " rounds";
    EXPECT_LE(world().Now() - died, options.peer_timeout + world().traits().slack);
    EXPECT_THAT(survivor.handler().endpoint(end)->why, HasCode(absl::StatusCode::kUnavailable));
    RunFor(world(), {&survivor}, 5 * kMillisecond);
    ExpectAllHandedBack(survivor);
  }
}

// The listener ends while a peer connects, after each number of rounds.
TEST_P(TransportContractTest, AListenerThatDiesWhileWeConnectIsNoticed) {
  for (int rounds = 0; rounds < 10; ++rounds) {
    ConnectedPair pair(world(), ShortTimeouts());
    pair.address = pair.server.Listen();
    const EndpointId end = pair.client.Connect(pair.address, kSecond);
    const uint64_t token = pair.client.SendPayload(end, {50'000});
    for (int i = 0; i < rounds; ++i) {
      pair.client.Poll();
      pair.server.Poll();
    }
    pair.server.Kill();
    ASSERT_TRUE(pair.RunUntil("OnClosed of a connection to a listener that died",
                              [&] { return pair.client.handler().closed(end); }));
    EXPECT_FALSE(pair.client.handler().endpoint(end)->why.ok());
    EXPECT_NE(pair.client.handler().sent(token), nullptr);
  }
}

// A process that stands still (stopped, or its machine cut off) gives no sign. Whoever has sent to
// it gives up after peer_timeout.
TEST_P(TransportContractTest, ASilentPeerIsNoticed) {
  if (!world().traits().notices_silence) GTEST_SKIP() << "this medium cannot tell";
  const TransportOptions options = ShortTimeouts();
  for (const size_t bytes : {size_t{0}, size_t{1000}, size_t{32} << 20}) {
    ConnectedPair pair(world(), options);
    ASSERT_TRUE(pair.Connect());
    pair.RunFor(10 * kMillisecond);
    pair.client.SendPayload(pair.at_client, {bytes});
    const Nanos asked = world().Now();
    ASSERT_TRUE(RunUntil(world(), {&pair.client}, "OnClosed of a peer that gives no sign",
                         [&] { return pair.client.handler().closed(pair.at_client); }))
        << bytes << " bytes sent";
    EXPECT_GE(world().Now() - asked, options.peer_timeout / 2) << "gave up too soon";
    EXPECT_LE(world().Now() - asked, options.peer_timeout + world().traits().slack);
    EXPECT_THAT(pair.client.handler().endpoint(pair.at_client)->why,
                HasCode(absl::StatusCode::kUnavailable));
    ExpectAllHandedBack(pair.client);

    // When it wakes, it learns that it was given up, and no harm comes of what it finds.
    EXPECT_TRUE(pair.RunUntil("OnClosed at the peer that woke",
                              [&] { return pair.server.handler().closed(pair.at_server); }));
    ExpectAllHandedBack(pair.server);
  }
}

// The middle of a payload stops coming, its receiver waits in vain: the landing is handed back.
TEST_P(TransportContractTest, ASenderThatStopsInTheMiddleIsNoticed) {
  if (!world().traits().notices_silence) GTEST_SKIP() << "this medium cannot tell";
  const TransportOptions options = ShortTimeouts();
  ConnectedPair pair(world(), options);
  ASSERT_TRUE(pair.Connect());
  pair.client.SendPayload(pair.at_client, {64 << 20});
  ASSERT_TRUE(pair.RunUntil("the begin of a payload",
                            [&] { return pair.server.handler().messages_count() == 1; }));
  if (pair.server.handler().landed_count() == 1) GTEST_SKIP() << "it came in one piece";
  ASSERT_TRUE(RunUntil(world(), {&pair.server}, "OnClosed, or the payload, at the receiver", [&] {
    return pair.server.handler().closed(pair.at_server) ||
           pair.server.handler().delivered_count() == 1;
  }));
  ExpectAllHandedBack(pair.server);
}

// Memory of a landing that was handed back at Close() is the receiver's: it may hold another page
// by the time the rest of the old payload comes in.
TEST_P(TransportContractTest, LateBytesNeverTouchALandingThatWasHandedBack) {
  ConnectedPair pair(world());
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(pair.Connect());
    const uint64_t before = pair.server.handler().messages_count();
    for (int j = 0; j < 3; ++j) pair.client.SendPayload(pair.at_client, {5 << 20});
    ASSERT_TRUE(pair.RunUntil("the begin of a payload",
                              [&] { return pair.server.handler().messages_count() > before; }));
    for (int j = 0; j < i; ++j) pair.client.Poll();
    pair.server.transport().Close(pair.at_server);
    ASSERT_TRUE(pair.RunUntil("OnClosed at the receiver",
                              [&] { return pair.server.handler().closed(pair.at_server); }));
    pair.RunFor(20 * kMillisecond, 200);
    pair.server.handler().VerifyMemory();
  }
}

// One peer of many dies. The others notice nothing.
TEST_P(TransportContractTest, ADeadPeerTakesNobodyWithIt) {
  TransportSide server(world(), "server");
  TransportSide steady(world(), "steady");
  const std::string address = server.Listen();
  const EndpointId steady_end = steady.Connect(address);
  ASSERT_TRUE(RunUntil(world(), {&server, &steady}, "OnConnected of the steady peer",
                       [&] { return server.handler().connected_count() == 1; }));
  uint64_t sent = 0;
  for (uint64_t i = 1; i <= 8; ++i) {
    auto mortal = std::make_unique<TransportSide>(world(), absl::StrCat("mortal", i));
    const EndpointId end = mortal->Connect(address);
    for (int j = 0; j < 3; ++j) mortal->SendPayload(end, {500'000});
    for (int j = 0; j < 3; ++j, ++sent) steady.SendPayload(steady_end, {100'000});
    ASSERT_TRUE(RunUntil(world(), {&server, &steady, mortal.get()}, "OnConnected of a mortal",
                         [&] { return server.handler().connected_count() == 1 + i; }));
    mortal->Kill();
    ASSERT_TRUE(RunUntil(world(), {&server, &steady}, "OnClosed of a mortal",
                         [&] { return server.handler().closed_count() == i; }));
  }
  ASSERT_TRUE(RunUntil(world(), {&server, &steady}, "all messages of the steady peer", [&] {
    uint64_t from_steady = 0;
    for (const auto& received : server.handler().received()) {
      const bool whole = received->landed && received->status.ok();
      from_steady += whole && received->payload_bytes == 100'000 ? 1 : 0;
    }
    return from_steady == sent;
  }));
  EXPECT_EQ(steady.handler().closed_count(), 0u);
}

}  // namespace forebay::testing
