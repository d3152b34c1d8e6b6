// Contract: how endpoints open, close and name themselves.

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/status_matchers.h"
#include "transport/testing/contract_parts.h"
#include "transport/testing/transport_contract.h"
#include "transport/testing/transport_side.h"

namespace forebay::testing {

bool LinkContractConnect() { return true; }

TEST_P(TransportContractTest, ConnectTellsBothSidesOnce) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  pair.RunFor(50 * kMillisecond);

  EXPECT_EQ(pair.server.handler().connected_count(), 1u);
  EXPECT_EQ(pair.client.handler().connected_count(), 1u);
  EXPECT_EQ(pair.server.handler().closed_count() + pair.client.handler().closed_count(), 0u);
  EXPECT_NE(pair.at_server, 0u);
  for (TransportSide* side : {&pair.server, &pair.client}) {
    if (const TransportCounts* counts = world().CountsOf(side->transport())) {
      EXPECT_EQ(counts->endpoints_open, 1u) << side->name();
    }
  }
}

// The address that Listen gives is one to connect to, with the real port, and of the same scheme.
TEST_P(TransportContractTest, ListenGivesAnAddressOfItsScheme) {
  TransportSide side(world(), "listener");
  const std::string wanted = world().ListenAddress();
  const absl::StatusOr<std::string> address = side.transport().Listen(wanted);
  FB_ASSERT_OK(address);
  EXPECT_EQ(address->substr(0, address->find(':') + 1), wanted.substr(0, wanted.find(':') + 1));
  EXPECT_GT(address->size(), address->find(':') + 1);
}

TEST_P(TransportContractTest, OneListenerServesManyPeers) {
  constexpr int kPeers = 6;
  constexpr int kEndpointsEach = 3;
  TransportSide server(world(), "server");
  const std::string address = server.Listen();
  std::vector<std::unique_ptr<TransportSide>> peers;
  std::vector<TransportSide*> sides = {&server};
  std::vector<std::pair<TransportSide*, EndpointId>> ends;
  for (int i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<TransportSide>(world(), absl::StrCat("peer", i)));
    sides.push_back(peers.back().get());
    for (int j = 0; j < kEndpointsEach; ++j) {
      ends.emplace_back(peers.back().get(), peers.back()->Connect(address));
    }
  }
  ASSERT_TRUE(RunUntil(world(), sides, "all peers connected", [&] {
    return server.handler().connected_count() == kPeers * kEndpointsEach;
  }));

  // Each endpoint is its own: what one peer sends comes from one endpoint of the server only, and
  // the answer reaches that peer.
  server.handler().on_message = [&](RecordingHandler::Received& received) {
    server.SendPayload(received.endpoint, {static_cast<size_t>(received.payload_bytes) + 1});
  };
  for (const auto& [peer, end] : ends) peer->SendPayload(end, {1000 + static_cast<size_t>(end)});
  ASSERT_TRUE(RunUntil(world(), sides, "a message and an answer for each endpoint", [&] {
    uint64_t answers = 0;
    for (const auto& peer : peers) answers += peer->handler().delivered_count();
    return answers == kPeers * kEndpointsEach &&
           server.handler().delivered_count() == kPeers * kEndpointsEach;
  }));
  std::set<EndpointId> from;
  for (const auto& received : server.handler().received()) from.insert(received->endpoint);
  EXPECT_EQ(from.size(), static_cast<size_t>(kPeers * kEndpointsEach));
  for (const auto& peer : peers) {
    for (const auto& received : peer->handler().received()) {
      EXPECT_EQ(received->payload_bytes, 1000 + received->endpoint + 1);
    }
  }
  for (TransportSide* side : sides) side->Kill();
}

TEST_P(TransportContractTest, ConnectToNobodyClosesByTheDeadline) {
  TransportSide client(world(), "client");
  constexpr Nanos kWithin = 500 * kMillisecond;
  const Nanos begin = world().Now();
  const EndpointId endpoint = client.Connect(world().NobodyAddress(), kWithin);
  ASSERT_NE(endpoint, 0u);
  ASSERT_TRUE(RunUntil(world(), {&client}, "OnClosed of an endpoint to nobody",
                       [&] { return client.handler().closed(endpoint); }));
  EXPECT_LE(world().Now() - begin, kWithin + world().traits().slack);
  EXPECT_FALSE(client.handler().connected(endpoint));
  const absl::StatusCode why = client.handler().endpoint(endpoint)->why.code();
  EXPECT_TRUE(why == absl::StatusCode::kUnavailable || why == absl::StatusCode::kDeadlineExceeded)
      << client.handler().ToString();
}

TEST_P(TransportContractTest, RefusesAddressesOfOtherSchemes) {
  TransportSide side(world(), "side");
  for (const char* address :
       {"pigeon:coop", "", ":", "no-scheme", "tcpx:127.0.0.1:1", "127.0.0.1:1"}) {
    EXPECT_THAT(side.transport().Connect(address, world().Now() + kSecond),
                HasCode(absl::StatusCode::kInvalidArgument))
        << address;
    EXPECT_THAT(side.transport().Listen(address), HasCode(absl::StatusCode::kInvalidArgument))
        << address;
  }
  RunFor(world(), {&side}, 10 * kMillisecond);
  EXPECT_TRUE(side.handler().endpoints().empty()) << side.handler().ToString();
}

// Its own scheme and nothing more is no address; any error will do, but no crash and no endpoint.
TEST_P(TransportContractTest, RefusesAnEmptyRestOfAnAddress) {
  TransportSide side(world(), "side");
  const std::string listen = world().ListenAddress();
  const std::string scheme = listen.substr(0, listen.find(':') + 1);
  EXPECT_FALSE(side.transport().Connect(scheme, world().Now() + kSecond).ok());
  EXPECT_FALSE(side.transport().Listen(scheme).ok());
}

TEST_P(TransportContractTest, RefusesASecondListenerAtOneAddress) {
  TransportSide first(world(), "first");
  TransportSide second(world(), "second");
  const std::string address = first.Listen();
  ASSERT_FALSE(address.empty());
  const absl::StatusOr<std::string> again = second.transport().Listen(address);
  ASSERT_FALSE(again.ok());
  EXPECT_TRUE(again.status().code() == absl::StatusCode::kAlreadyExists ||
              again.status().code() == absl::StatusCode::kUnavailable)
      << again.status();

  // The refusal took nothing from the first.
  TransportSide client(world(), "client");
  const EndpointId endpoint = client.Connect(address);
  EXPECT_TRUE(
      RunUntil(world(), {&first, &second, &client}, "OnConnected at the first listener", [&] {
        return client.handler().connected(endpoint) && first.handler().connected_count() == 1;
      }));
}

TEST_P(TransportContractTest, CloseEndsBothSides) {
  for (const bool client_closes : {true, false}) {
    ConnectedPair pair(world());
    ASSERT_TRUE(pair.Connect());
    TransportSide& closer = client_closes ? pair.client : pair.server;
    const EndpointId end = client_closes ? pair.at_client : pair.at_server;
    closer.transport().Close(end);
    EXPECT_FALSE(closer.handler().closed(end)) << "OnClosed from inside Close()";
    ASSERT_TRUE(pair.RunUntil("OnClosed on both sides", [&] {
      return pair.client.handler().closed(pair.at_client) &&
             pair.server.handler().closed(pair.at_server);
    }));
    const absl::Status why = closer.handler().endpoint(end)->why;
    EXPECT_TRUE(why.ok() || why.code() == absl::StatusCode::kCancelled) << why;
    pair.RunFor(10 * kMillisecond);
  }
}

TEST_P(TransportContractTest, CloseOfAnUnknownEndpointDoesNothing) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  for (const EndpointId unknown : {uint64_t{0}, uint64_t{987'654'321}, UINT64_MAX}) {
    pair.client.transport().Close(unknown);
  }
  pair.client.transport().Close(pair.at_client);
  pair.client.transport().Close(pair.at_client);
  ASSERT_TRUE(
      pair.RunUntil("OnClosed", [&] { return pair.client.handler().closed(pair.at_client); }));
  pair.client.transport().Close(pair.at_client);
  pair.RunFor(20 * kMillisecond);
  EXPECT_EQ(pair.client.handler().endpoints().size(), 1u) << pair.client.handler().ToString();
}

// At whatever step the connection is, Close ends it, once, and nothing connects afterwards.
TEST_P(TransportContractTest, CloseWhileConnecting) {
  ConnectedPair pair(world());
  pair.address = pair.server.Listen();
  for (int rounds = 0; rounds < 12; ++rounds) {
    const EndpointId end = pair.client.Connect(pair.address);
    for (int i = 0; i < rounds; ++i) {
      pair.client.Poll();
      pair.server.Poll();
    }
    const bool was_connected = pair.client.handler().connected(end);
    pair.client.transport().Close(end);
    ASSERT_TRUE(pair.RunUntil("OnClosed of a connection that Close() ended",
                              [&] { return pair.client.handler().closed(end); }));
    EXPECT_EQ(pair.client.handler().connected(end), was_connected) << "connected after Close()";
  }
  // Whatever the server saw open, it sees close.
  EXPECT_TRUE(pair.RunUntil("OnClosed of each endpoint at the server", [&] {
    return pair.server.handler().connected_count() <= pair.server.handler().closed_count();
  }));
}

TEST_P(TransportContractTest, ReconnectGetsAFreshEndpointAndNothingOld) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  std::set<EndpointId> client_ids, server_ids;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(client_ids.insert(pair.at_client).second) << "an endpoint id came again";
    EXPECT_TRUE(server_ids.insert(pair.at_server).second) << "an endpoint id came again";
    // Left in the air on purpose: none of it may reach the next endpoint.
    for (int j = 0; j < 8; ++j) pair.client.SendPayload(pair.at_client, {200'000});
    for (int j = 0; j < i; ++j) pair.client.Poll();
    pair.client.transport().Close(pair.at_client);
    ASSERT_TRUE(pair.Connect());

    const EndpointId fresh = pair.at_server;
    const uint64_t last = pair.client.SendPayload(pair.at_client, {5000});
    ASSERT_TRUE(pair.RunUntil("a message over the new endpoint", [&] {
      // Anywhere among them: what the old endpoint had already sent may come later than this.
      const auto& received = pair.server.handler().received();
      return std::any_of(received.begin(), received.end(),
                         [&](const auto& each) { return each->id == last && each->landed; });
    }));
    uint64_t from_fresh = 0;
    for (const auto& received : pair.server.handler().received()) {
      from_fresh += received->endpoint == fresh ? 1 : 0;
    }
    EXPECT_EQ(from_fresh, 1u) << "a message of the old endpoint reached the new one";
  }
}

// A daemon that died and started again is found where it was: a stale socket file or a port in
// TIME_WAIT must not stand in its way.
TEST_P(TransportContractTest, AListenerThatDiedComesBackAtItsAddress) {
  TransportSide client(world(), "client");
  auto server = std::make_unique<TransportSide>(world(), "server");
  const std::string address = server->Listen();
  const EndpointId first = client.Connect(address);
  ASSERT_TRUE(RunUntil(world(), {server.get(), &client}, "OnConnected",
                       [&] { return client.handler().connected(first); }));
  server->Kill();
  ASSERT_TRUE(RunUntil(world(), {&client}, "OnClosed after the listener died",
                       [&] { return client.handler().closed(first); }));

  server = std::make_unique<TransportSide>(world(), "server again");
  const absl::StatusOr<std::string> again = server->transport().Listen(address);
  FB_ASSERT_OK(again);
  EXPECT_EQ(*again, address);
  const EndpointId second = client.Connect(address);
  ASSERT_TRUE(RunUntil(world(), {server.get(), &client}, "OnConnected to the new listener",
                       [&] { return client.handler().connected(second); }));
  const uint64_t token = client.SendPayload(second, {100'000});
  EXPECT_TRUE(RunUntil(world(), {server.get(), &client}, "a message to the new listener", [&] {
    return server->handler().delivered_count() == 1 && client.handler().sent(token) != nullptr;
  }));
}

// Reconnecting from OnClosed is what every client does.
TEST_P(TransportContractTest, ConnectFromInsideOnClosed) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  EndpointId next = 0;
  pair.client.handler().on_closed = [&](EndpointId, const absl::Status&) {
    if (next == 0) next = pair.client.Connect(pair.address);
  };
  pair.server.transport().Close(pair.at_server);
  ASSERT_TRUE(pair.RunUntil("OnConnected of an endpoint opened from OnClosed",
                            [&] { return next != 0 && pair.client.handler().connected(next); }));
  pair.client.handler().on_closed = nullptr;
}

// Idle is not dead: keepalives, where there are any, are answered by the other side's Poll.
TEST_P(TransportContractTest, IdlePeersStayConnected) {
  TransportOptions options;
  options.peer_timeout = kSecond;
  options.keepalive_interval = 200 * kMillisecond;
  ConnectedPair pair(world(), options);
  ASSERT_TRUE(pair.Connect());
  pair.RunFor(2 * kSecond + kSecond / 2);
  EXPECT_EQ(pair.client.handler().closed_count(), 0u) << pair.client.handler().ToString();
  EXPECT_EQ(pair.server.handler().closed_count(), 0u) << pair.server.handler().ToString();
  pair.client.SendPayload(pair.at_client, {10'000});
  EXPECT_TRUE(pair.RunUntil("a message after a long pause",
                            [&] { return pair.server.handler().delivered_count() == 1; }));
}

// The end of a transport with everything in flight: memory is let go, nobody is called, and the
// peer is told.
TEST_P(TransportContractTest, ADestructorCallsNobody) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  for (int i = 0; i < 4; ++i) {
    pair.client.SendPayload(pair.at_client, {300'000, 7});
    pair.server.SendPayload(pair.at_server, {300'000, 7});
  }
  for (int i = 0; i < 3; ++i) {
    pair.client.Poll();
    pair.server.Poll();
  }
  const uint64_t closed_before = pair.client.handler().closed_count();
  const uint64_t sent_before = pair.client.handler().sent().size();
  const uint64_t landed_before = pair.client.handler().landed_count();
  pair.client.Kill();
  EXPECT_EQ(pair.client.handler().closed_count(), closed_before);
  EXPECT_EQ(pair.client.handler().sent().size(), sent_before);
  EXPECT_EQ(pair.client.handler().landed_count(), landed_before);
  EXPECT_TRUE(pair.RunUntil("OnClosed at the peer of a destroyed transport",
                            [&] { return pair.server.handler().closed(pair.at_server); }));
}

}  // namespace forebay::testing
