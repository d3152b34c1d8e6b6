// Contract: what is too large, too many or a bug is refused, and nothing else suffers.

#include <csignal>
#include <cstdlib>
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

bool LinkContractLimits() { return true; }

TEST_P(TransportContractTest, HeadersAndPayloadsOverTheLimitAreRefused) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  const std::string header(kHeaderBytesMax + 1, 'x');
  const std::vector<std::byte> megabytes(64 << 20);
  struct Case {
    size_t header_bytes;
    size_t range_count;
  };
  const Case cases[] = {{kHeaderBytesMax + 1, 0},
                        {kHeaderBytesMax + 1, 1},
                        {0, 0},
                        {0, 1},
                        {10, 33} /* 33 times 64 MiB is more than kPayloadBytesMax */};
  std::vector<uint64_t> tokens;
  for (const Case& c : cases) {
    OutgoingMessage message;
    message.header = AsBytes(header.data(), c.header_bytes);
    for (size_t i = 0; i < c.range_count; ++i) {
      message.payload.push_back(AsBytes(megabytes.data(), megabytes.size()));
    }
    message.token = NextMessageId();
    tokens.push_back(message.token);
    pair.client.handler().ExpectSent(pair.at_client, message.token);
    pair.client.transport().Send(pair.at_client, std::move(message));
  }
  ASSERT_TRUE(pair.RunUntil("OnSent of messages over the limit",
                            [&] { return pair.client.handler().sends_out() == 0; }));
  for (const uint64_t token : tokens) {
    EXPECT_THAT(pair.client.handler().sent(token)->status,
                HasCode(absl::StatusCode::kInvalidArgument));
  }
  pair.client.SendPayload(pair.at_client, {1234});
  EXPECT_TRUE(pair.RunUntil("a sound message after refused ones",
                            [&] { return pair.server.handler().delivered_count() == 1; }));
  EXPECT_EQ(pair.server.handler().messages_count(), 1u) << "a refused message arrived";
}

// More than the queue holds is refused at once; what was taken arrives, and so does what follows.
TEST_P(TransportContractTest, AFullSendQueueRefuses) {
  TransportOptions options;
  options.send_queue_bytes_max = 4 << 20;
  ConnectedPair pair(world(), options);
  ASSERT_TRUE(pair.Connect());
  for (int i = 0; i < 64; ++i) pair.client.SendPayload(pair.at_client, {1 << 20});
  ASSERT_TRUE(pair.RunUntil("OnSent of everything",
                            [&] { return pair.client.handler().sends_out() == 0; }));
  uint64_t taken = 0;
  uint64_t refused = 0;
  for (const auto& [token, sent] : pair.client.handler().sent()) {
    if (sent.status.ok()) {
      ++taken;
    } else {
      EXPECT_THAT(sent.status, HasCode(absl::StatusCode::kResourceExhausted));
      ++refused;
    }
  }
  EXPECT_GE(taken, 3u);
  EXPECT_GE(refused, 1u) << "64 MiB went into a queue of 4 MiB";
  ASSERT_TRUE(pair.RunUntil("what was taken",
                            [&] { return pair.server.handler().delivered_count() == taken; }));
  pair.client.SendPayload(pair.at_client, {1 << 20});
  EXPECT_TRUE(pair.RunUntil("a message after the queue drained",
                            [&] { return pair.server.handler().delivered_count() == taken + 1; }));
  EXPECT_EQ(pair.client.handler().closed_count(), 0u);
}

// Nobody learns that a header without a token is lost: it goes even where payloads have filled the
// queue, and where it cannot, the endpoint closes and says why.
TEST_P(TransportContractTest, AFullSendQueueNeverLosesAHeaderSilently) {
  TransportOptions options;
  options.send_queue_bytes_max = 4 << 20;
  for (const uint64_t headers : {16, 400}) {  // 60 KB each: less than is free for them, and more
    ConnectedPair pair(world(), options);
    ASSERT_TRUE(pair.Connect());
    pair.client.handler().on_closed = [](EndpointId, const absl::Status& why) {
      EXPECT_THAT(why, HasCode(absl::StatusCode::kResourceExhausted));
    };
    for (int i = 0; i < 8; ++i) pair.client.SendPayload(pair.at_client, {1 << 20});
    for (uint64_t i = 0; i < headers; ++i) {
      pair.client.SendBare(pair.at_client, std::string(60'000, 'h'));
    }
    uint64_t payloads = 0;
    const auto all_came = [&] {
      payloads = 0;
      for (const auto& [token, sent] : pair.client.handler().sent()) payloads += sent.status.ok();
      return pair.client.handler().sends_out() == 0 &&
             pair.server.handler().messages_count() == payloads + headers;
    };
    ASSERT_TRUE(pair.RunUntil("every header, or the end of the endpoint", [&] {
      return all_came() || pair.client.handler().closed_count() > 0;
    }));
    if (headers == 16) {
      EXPECT_EQ(pair.client.handler().closed_count(), 0u);
    }
  }
}

TEST_P(TransportContractTest, TheListenerTurnsAwayPeersOverItsLimit) {
  constexpr uint32_t kLimit = 3;
  TransportOptions options;
  options.endpoints_max = kLimit;
  TransportSide server(world(), "server", options);
  TransportSide client(world(), "client");
  const std::string address = server.Listen();
  std::vector<EndpointId> ends;
  for (uint32_t i = 0; i < kLimit; ++i) {
    ends.push_back(client.Connect(address));
    ASSERT_TRUE(RunUntil(world(), {&server, &client}, "OnConnected under the limit", [&] {
      return server.handler().connected_count() == i + 1 && client.handler().connected(ends.back());
    }));
  }
  const EndpointId over = client.Connect(address, 2 * kSecond);
  ASSERT_TRUE(RunUntil(world(), {&server, &client}, "OnClosed of the peer over the limit",
                       [&] { return client.handler().closed(over); }));
  EXPECT_EQ(server.handler().connected_count(), kLimit);
  for (const EndpointId end : ends) EXPECT_FALSE(client.handler().closed(end));

  // A place that is free again is given again.
  client.transport().Close(ends[0]);
  ASSERT_TRUE(RunUntil(world(), {&server, &client}, "OnClosed of one that left",
                       [&] { return server.handler().closed_count() == 1; }));
  const EndpointId next = client.Connect(address);
  EXPECT_TRUE(
      RunUntil(world(), {&server, &client}, "OnConnected in the place of one that left", [&] {
        return client.handler().connected(next) && server.handler().connected_count() == kLimit + 1;
      }));
}

TEST_P(TransportContractTest, ConnectOverTheLimitIsRefused) {
  TransportOptions options;
  options.endpoints_max = 2;
  TransportSide server(world(), "server");
  TransportSide client(world(), "client", options);
  const std::string address = server.Listen();
  const EndpointId first = client.Connect(address);
  const EndpointId second = client.Connect(address);
  const absl::StatusOr<EndpointId> third =
      client.transport().Connect(address, world().Now() + 2 * kSecond);
  ASSERT_TRUE(RunUntil(world(), {&server, &client}, "OnConnected of two, and the third's end", [&] {
    return client.handler().connected(first) && client.handler().connected(second) &&
           (!third.ok() || client.handler().closed(*third));
  }));
  EXPECT_THAT(third.ok() ? client.handler().endpoint(*third)->why : third.status(),
              HasCode(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(client.handler().connected_count(), 2u);
}

// Segments that do not add up to the payload are a bug of the receiver. Writing past them, or
// calling the rest landed, would be a wrong page: the transport aborts, or closes the endpoint.
TEST_P(TransportContractTest, LandingsThatDoNotAddUpNeverLand) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const std::vector<size_t>& segments :
       {std::vector<size_t>{500}, std::vector<size_t>{500, 501}, std::vector<size_t>{1000, 1}}) {
    EXPECT_EXIT(
        {
          ConnectedPair pair(world());
          if (!pair.Connect()) std::exit(1);
          pair.server.handler().choose_landing = [&](Received& received) {
            return pair.server.handler().LandIn(received, segments);
          };
          pair.client.SendPayload(pair.at_client, {1000});
          const bool ended = static_cast<bool>(
              pair.RunUntil("the end of an endpoint whose receiver has a bug",
                            [&] { return pair.server.handler().closed(pair.at_server); }));
          if (!ended || pair.server.handler().delivered_count() != 0) std::exit(1);
          std::abort();  // closing is as good an answer as aborting
        },
        ::testing::KilledBySignal(SIGABRT), "");
  }
}

}  // namespace forebay::testing
