// Contract: what a handler may do from inside a callback.

#include <string>
#include <vector>

#include "base/testing/status_matchers.h"
#include "transport/testing/contract_parts.h"
#include "transport/testing/transport_contract.h"
#include "transport/testing/transport_side.h"

namespace forebay::testing {
namespace {

using Received = RecordingHandler::Received;

}  // namespace

bool LinkContractCallbacks() { return true; }

// A request answered from OnMessage, the next one asked from OnLanded: the shape of every Get.
TEST_P(TransportContractTest, PingPongFromInsideCallbacks) {
  constexpr uint64_t kRounds = 500;
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  pair.server.handler().on_message = [&](Received& received) {
    pair.server.SendPayload(received.endpoint, {1 + static_cast<size_t>(received.id % 9000)});
  };
  pair.client.handler().on_landed = [&](Received& received) {
    if (pair.client.handler().landed_count() < kRounds) {
      pair.client.SendPayload(received.endpoint, {});
    }
  };
  pair.client.SendPayload(pair.at_client, {});
  EXPECT_TRUE(pair.RunUntil("all rounds of a ping-pong",
                            [&] { return pair.client.handler().landed_count() == kRounds; }));
  EXPECT_EQ(pair.client.handler().delivered_count(), kRounds);
}

TEST_P(TransportContractTest, SendFromInsideOnConnectedAndOnSent) {
  constexpr size_t kChain = 50;
  ConnectedPair pair(world());
  for (TransportSide* side : {&pair.client, &pair.server}) {
    side->handler().on_connected = [side](EndpointId end) { side->SendPayload(end, {3000}); };
    side->on_sent = [side](EndpointId end, uint64_t, const absl::Status& status) {
      if (status.ok() && side->handler().sent().size() < kChain) side->SendPayload(end, {3000});
    };
  }
  ASSERT_TRUE(pair.Connect());
  EXPECT_TRUE(pair.RunUntil("a chain of sends from OnSent, both ways", [&] {
    return pair.client.handler().delivered_count() == kChain &&
           pair.server.handler().delivered_count() == kChain;
  }));
}

TEST_P(TransportContractTest, CloseFromInsideOnConnected) {
  for (const bool client_closes : {true, false}) {
    ConnectedPair pair(world());
    TransportSide& closer = client_closes ? pair.client : pair.server;
    closer.handler().on_connected = [&](EndpointId end) { closer.transport().Close(end); };
    pair.address = pair.server.Listen();
    const EndpointId end = pair.client.Connect(pair.address);
    EXPECT_TRUE(pair.RunUntil("OnClosed after Close() in OnConnected", [&] {
      return pair.client.handler().closed(end) && closer.handler().closed_count() == 1;
    }));
    pair.RunFor(10 * kMillisecond);
  }
}

// The landing that OnMessage gives after it closed the endpoint is handed back all the same.
TEST_P(TransportContractTest, CloseFromInsideOnMessage) {
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{2'000'000}}) {
    ConnectedPair pair(world());
    ASSERT_TRUE(pair.Connect());
    pair.server.handler().on_message = [&](Received& received) {
      pair.server.transport().Close(received.endpoint);
    };
    for (int i = 0; i < 5; ++i) pair.client.SendPayload(pair.at_client, {bytes});
    for (int i = 0; i < 5; ++i) pair.server.SendPayload(pair.at_server, {bytes});
    ASSERT_TRUE(pair.RunUntil("OnClosed on both sides after Close() in OnMessage", [&] {
      return pair.server.handler().closed(pair.at_server) &&
             pair.client.handler().closed(pair.at_client);
    }));
    EXPECT_EQ(pair.server.handler().messages_count(), 1u) << "OnMessage after Close()";
    EXPECT_EQ(pair.server.handler().landings_out(), 0u);
    for (const auto& received : pair.server.handler().received()) {
      EXPECT_FALSE(received->landed && received->status.ok()) << "OnLanded(OK) after Close()";
    }
    pair.RunFor(10 * kMillisecond);
  }
}

TEST_P(TransportContractTest, CloseFromInsideOnLanded) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  uint64_t ok_count = 0;
  pair.server.handler().on_landed = [&](Received& received) {
    if (received.status.ok()) ++ok_count;
    pair.server.transport().Close(received.endpoint);
  };
  for (int i = 0; i < 20; ++i) pair.client.SendPayload(pair.at_client, {40'000});
  ASSERT_TRUE(pair.RunUntil("OnClosed on both sides after Close() in OnLanded", [&] {
    return pair.server.handler().closed(pair.at_server) &&
           pair.client.handler().closed(pair.at_client);
  }));
  EXPECT_EQ(ok_count, 1u) << "OnLanded(OK) after Close()";
  EXPECT_EQ(pair.server.handler().landings_out(), 0u);
}

TEST_P(TransportContractTest, CloseFromInsideOnSent) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  pair.client.on_sent = [&](EndpointId end, uint64_t, const absl::Status&) {
    pair.client.transport().Close(end);
  };
  for (int i = 0; i < 20; ++i) pair.client.SendPayload(pair.at_client, {40'000});
  ASSERT_TRUE(pair.RunUntil("OnClosed on both sides after Close() in OnSent", [&] {
    return pair.server.handler().closed(pair.at_server) &&
           pair.client.handler().closed(pair.at_client);
  }));
  EXPECT_EQ(pair.client.handler().sends_out(), 0u);
}

// Close() of one endpoint from a callback of another: the ends of one transport are one list.
TEST_P(TransportContractTest, CloseAnotherEndpointFromInsideACallback) {
  ConnectedPair pair(world());
  std::vector<EndpointId> ends;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.Connect());
    ends.push_back(pair.at_server);
  }
  pair.server.handler().on_message = [&](Received& received) {
    for (const EndpointId end : ends) {
      if (end != received.endpoint) pair.server.transport().Close(end);
    }
  };
  pair.client.SendPayload(pair.at_client, {50'000});
  ASSERT_TRUE(pair.RunUntil("OnClosed of three of four endpoints, and the fourth's payload", [&] {
    return pair.server.handler().closed_count() == 3 && pair.client.handler().closed_count() == 3 &&
           pair.server.handler().delivered_count() == 1;
  }));
  EXPECT_FALSE(pair.server.handler().closed(pair.at_server));
}

// A dead endpoint answers sends, also from inside its OnClosed, and also when nobody knows its id.
TEST_P(TransportContractTest, SendToAClosedOrUnknownEndpointIsUnavailable) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  std::vector<uint64_t> tokens;
  pair.client.handler().on_closed = [&](EndpointId end, const absl::Status&) {
    tokens.push_back(pair.client.SendPayload(end, {1000}));
    pair.client.transport().Close(end);
  };
  pair.client.transport().Close(pair.at_client);
  ASSERT_TRUE(
      pair.RunUntil("OnClosed", [&] { return pair.client.handler().closed(pair.at_client); }));
  pair.client.handler().on_closed = nullptr;
  tokens.push_back(pair.client.SendPayload(pair.at_client, {}));
  tokens.push_back(pair.client.SendPayload(pair.at_client, {5000, 1}));
  tokens.push_back(pair.client.SendPayload(123'456'789, {77}));
  tokens.push_back(pair.client.SendPayload(0, {}));
  ASSERT_TRUE(pair.RunUntil("OnSent of messages to nobody",
                            [&] { return pair.client.handler().sends_out() == 0; }));
  for (const uint64_t token : tokens) {
    EXPECT_THAT(pair.client.handler().sent(token)->status, HasCode(absl::StatusCode::kUnavailable));
  }
  const std::string header = "no token, no answer";
  pair.client.SendBare(pair.at_client, header);
  pair.RunFor(20 * kMillisecond);
  EXPECT_EQ(pair.server.handler().messages_count(), 0u);
}

}  // namespace forebay::testing
