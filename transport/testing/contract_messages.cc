// Contract: what is sent arrives, whole, once, where its receiver said.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "transport/testing/contract_parts.h"
#include "transport/testing/transport_contract.h"
#include "transport/testing/transport_side.h"

namespace forebay::testing {
namespace {

using Received = RecordingHandler::Received;

// `bytes` in at most `count` ranges of odd sizes, some of them empty.
std::vector<size_t> OddRanges(SeededRandom& random, size_t bytes, size_t count) {
  std::vector<size_t> ranges;
  size_t left = bytes;
  while (ranges.size() + 1 < count && left > 0) {
    const size_t take = random.Chance(0.1) ? 0 : static_cast<size_t>(random.Below(left)) | 1;
    ranges.push_back(take);
    left -= take;
  }
  ranges.push_back(left);
  return ranges;
}

}  // namespace

bool LinkContractMessages() { return true; }

TEST_P(TransportContractTest, HeaderOnlyMessages) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  const uint64_t token = pair.client.SendPayload(pair.at_client, {});
  // Without a token there is no OnSent; the handler fails the test if one comes.
  const std::string header = "knock";
  pair.client.SendBare(pair.at_client, header);

  ASSERT_TRUE(pair.RunUntil("two headers and one OnSent", [&] {
    return pair.server.handler().messages_count() == 2 && pair.client.handler().sent(token);
  }));
  FB_EXPECT_OK(pair.client.handler().sent(token)->status);
  pair.RunFor(20 * kMillisecond);
  EXPECT_EQ(pair.server.handler().messages_count(), 2u);
  EXPECT_EQ(pair.server.handler().landed_count(), 0u);
  EXPECT_EQ(pair.client.handler().sent().size(), 1u);
  bool knocked = false;
  for (const auto& received : pair.server.handler().received())
    knocked |= received->header == header;
  EXPECT_TRUE(knocked);
}

// Every size, as one range and as many odd ones, both ways. The handlers check each byte, that the
// running checksum is of the data, and that nothing was written beside the segments.
TEST_P(TransportContractTest, PayloadsOfEverySize) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  SeededRandom random(7);
  for (const size_t bytes :
       {size_t{1}, size_t{7}, size_t{64}, size_t{4095}, size_t{4096}, size_t{8193}, size_t{65'535},
        size_t{65'536}, size_t{1'000'003}, size_t{1} << 20, size_t{16} << 20}) {
    for (const size_t ranges : {size_t{1}, size_t{3}, size_t{23}}) {
      const uint64_t there =
          pair.client.SendPayload(pair.at_client, OddRanges(random, bytes, ranges));
      const uint64_t back =
          pair.server.SendPayload(pair.at_server, OddRanges(random, bytes, ranges));
      const std::string awaited = absl::StrCat(bytes, " bytes in ", ranges, " ranges");
      ASSERT_TRUE(pair.RunUntil(awaited.c_str(), [&] {
        return pair.client.handler().sent(there) && pair.server.handler().sent(back) &&
               pair.client.handler().landings_out() == 0 &&
               pair.server.handler().received().size() == pair.client.handler().received().size() &&
               !pair.server.handler().received().empty() &&
               pair.server.handler().received().back()->id == there &&
               pair.server.handler().landings_out() == 0 &&
               pair.client.handler().received().back()->id == back;
      }));
      FB_ASSERT_OK(pair.client.handler().sent(there)->status);
      FB_ASSERT_OK(pair.server.handler().received().back()->status);
      FB_ASSERT_OK(pair.client.handler().received().back()->status);
    }
  }
  for (TransportSide* side : {&pair.server, &pair.client}) {
    if (const TransportCounts* counts = world().CountsOf(side->transport())) {
      EXPECT_EQ(counts->messages_sent, side->handler().sent().size()) << side->name();
      EXPECT_EQ(counts->messages_received, side->handler().messages_count()) << side->name();
      EXPECT_EQ(counts->protocol_errors, 0u) << side->name();
    }
  }
}

// One checksum over all segments, one each, and none: as the receiver likes.
TEST_P(TransportContractTest, SegmentsShareChecksumsOrHaveNone) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  constexpr size_t kBytes = 300'001;
  RunningChecksum first, second;
  pair.server.handler().choose_landing = [&](Received& received) {
    Landing landing =
        pair.server.handler().LandIn(received, {1, 99'999, 0, 100'000, 50'000, 50'001});
    received.checksum = nullptr;  // this test looks itself
    RunningChecksum* const sums[] = {&first, &first, &first, &second, nullptr, &second};
    for (size_t i = 0; i < landing.segments.size(); ++i) landing.segments[i].checksum = sums[i];
    return landing;
  };
  pair.client.SendPayload(pair.at_client, {100'000, 1, 200'000});
  ASSERT_TRUE(
      pair.RunUntil("one payload", [&] { return pair.server.handler().landed_count() == 1; }));

  std::vector<std::byte> data(kBytes);
  FillPattern(pair.server.handler().received()[0]->id, AsMutableBytes(data.data(), kBytes));
  EXPECT_EQ(first.Digest(), ChecksumOf(AsBytes(data.data(), 100'000)));
  RunningChecksum expected;
  expected.Update(AsBytes(data.data() + 100'000, 100'000));
  expected.Update(AsBytes(data.data() + 250'000, 50'001));
  EXPECT_EQ(second.Digest(), expected.Digest());
  const auto& segments = pair.server.handler().received()[0]->segments;
  EXPECT_EQ(0, memcmp(segments[4].bytes().data(), data.data() + 200'000, 50'000));
}

TEST_P(TransportContractTest, HeadersOfEverySize) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  uint64_t count = 0;
  for (const size_t header_bytes :
       {TestMessage::kHeaderBytesMin, size_t{100}, size_t{1500}, size_t{4096}, size_t{8192},
        size_t{33'333}, kHeaderBytesMax - 1, kHeaderBytesMax}) {
    for (const size_t payload_bytes : {size_t{0}, size_t{1}, size_t{10'000}, size_t{500'000}}) {
      pair.client.Send(
          pair.at_client,
          {.id = NextMessageId(), .range_bytes = {payload_bytes}, .header_bytes = header_bytes});
      ++count;
    }
  }
  EXPECT_TRUE(pair.RunUntil("headers of all sizes", [&] {
    return pair.server.handler().delivered_count() == count &&
           pair.client.handler().sends_out() == 0;
  }));
  size_t header_bytes_seen = 0;
  for (const auto& received : pair.server.handler().received()) {
    header_bytes_seen = std::max(header_bytes_seen, received->header.size());
  }
  EXPECT_EQ(header_bytes_seen, kHeaderBytesMax);
}

// A payload that nobody wants costs the receiver nothing and holds nobody up.
TEST_P(TransportContractTest, DroppedPayloads) {
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  pair.server.handler().choose_landing = [&](Received& received) {
    return received.id % 2 == 0 ? Landing::Drop() : pair.server.handler().LandInSegments(received);
  };
  std::vector<uint64_t> tokens;
  for (const size_t bytes : {1, 100, 5000, 70'000, 3'000'000}) {
    for (int i = 0; i < 4; ++i) {
      tokens.push_back(pair.client.SendPayload(pair.at_client, {static_cast<size_t>(bytes)}));
    }
  }
  ASSERT_TRUE(pair.RunUntil("every message, and the half of payloads that is wanted", [&] {
    return pair.server.handler().messages_count() == tokens.size() &&
           pair.server.handler().landed_count() == tokens.size() / 2 &&
           pair.client.handler().sends_out() == 0;
  }));
  for (const uint64_t token : tokens) FB_EXPECT_OK(pair.client.handler().sent(token)->status);
  pair.RunFor(20 * kMillisecond);
  EXPECT_EQ(pair.server.handler().landed_count(), tokens.size() / 2) << "OnLanded of a drop";
}

// Thousands of small messages with large ones between them, both ways at once. The handlers see
// that each comes once and whole.
TEST_P(TransportContractTest, ManyMessagesBothWays) {
  constexpr int kMessages = 3000;
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  SeededRandom random(11);
  for (int i = 0; i < kMessages; ++i) {
    size_t bytes = random.Chance(0.3) ? 0 : static_cast<size_t>(random.Below(6000));
    if (i % 100 == 50) bytes = static_cast<size_t>(random.Below(1 << 20));
    pair.client.SendPayload(pair.at_client, OddRanges(random, bytes, 1 + random.Below(4)));
    pair.server.SendPayload(pair.at_server, OddRanges(random, bytes, 1 + random.Below(4)));
    if (i % 16 == 0) {
      pair.client.Poll();
      pair.server.Poll();
    }
  }
  ASSERT_TRUE(pair.RunUntil("all messages both ways", [&] {
    return pair.client.handler().delivered_count() == kMessages &&
           pair.server.handler().delivered_count() == kMessages &&
           pair.client.handler().sends_out() == 0 && pair.server.handler().sends_out() == 0;
  }));
  for (TransportSide* side : {&pair.client, &pair.server}) {
    for (const auto& [token, sent] : side->handler().sent()) FB_ASSERT_OK(sent.status) << token;
    EXPECT_EQ(side->handler().messages_count(), static_cast<uint64_t>(kMessages));
  }
}

// Payloads in memory that the transport lends, among others that wait and headers that overtake.
TEST_P(TransportContractTest, LentBuffersArriveLikeAllOthers) {
  constexpr int kMessages = 300;
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  SeededRandom random(9);
  for (int i = 0; i < kMessages; ++i) {
    for (TransportSide* side : {&pair.client, &pair.server}) {
      const EndpointId to = side == &pair.client ? pair.at_client : pair.at_server;
      const size_t most = side->transport().send_buffer_bytes_max() + 2;
      const size_t limit = random.Below(8) == 0 ? std::min(most, size_t{2} << 20) : 60'000;
      TestMessage message{.id = NextMessageId(), .range_bytes = {1 + random.Below(limit)}};
      if (random.Below(4) == 0) message.range_bytes = {};
      if (message.range_bytes.empty() || random.Below(4) == 0) {
        side->Send(to, message);
      } else {
        side->SendLent(to, message);
      }
    }
    if (random.Below(3) == 0) pair.RunFor(0, static_cast<int>(random.Below(4)));
  }
  EXPECT_TRUE(pair.RunUntil("messages both ways", [&] {
    return pair.client.handler().delivered_count() == kMessages &&
           pair.server.handler().delivered_count() == kMessages &&
           pair.client.handler().sends_out() == 0 && pair.server.handler().sends_out() == 0;
  }));
  for (TransportSide* side : {&pair.client, &pair.server}) {
    EXPECT_EQ(side->lent_count() > 0, side->transport().send_buffer_bytes_max() > 0);
    for (const auto& [token, sent] : side->handler().sent()) FB_ASSERT_OK(sent.status) << token;
  }
}

// Both sides push far more than any buffer between them holds: neither may wait for the other to
// stop sending.
TEST_P(TransportContractTest, BulkBothWaysDoesNotDeadlock) {
  constexpr int kMessages = 12;
  constexpr size_t kBytes = 4 << 20;
  ConnectedPair pair(world());
  ASSERT_TRUE(pair.Connect());
  for (int i = 0; i < kMessages; ++i) {
    pair.client.SendPayload(pair.at_client, {kBytes, 13});
    pair.server.SendPayload(pair.at_server, {kBytes, 13});
  }
  EXPECT_TRUE(pair.RunUntil("bulk both ways", [&] {
    return pair.client.handler().delivered_count() == kMessages &&
           pair.server.handler().delivered_count() == kMessages &&
           pair.client.handler().sends_out() == 0 && pair.server.handler().sends_out() == 0;
  }));
}

// One endpoint whose peer reads slowly does not hold up another endpoint of the same transport.
TEST_P(TransportContractTest, AStalledPeerHoldsUpNobodyElse) {
  TransportOptions options;
  options.peer_timeout = 60 * kSecond;
  TransportSide server(world(), "server", options);
  TransportSide stalled(world(), "stalled", options);
  TransportSide lively(world(), "lively", options);
  const std::string address = server.Listen();
  const EndpointId to_stalled = stalled.Connect(address);
  ASSERT_TRUE(RunUntil(world(), {&server, &stalled}, "the first peer", [&] {
    return stalled.handler().connected(to_stalled) && server.handler().connected_count() == 1;
  }));
  const EndpointId server_to_stalled = server.handler().newest_endpoint();
  lively.Connect(address);
  ASSERT_TRUE(RunUntil(world(), {&server, &stalled, &lively}, "the second peer",
                       [&] { return server.handler().connected_count() == 2; }));
  const EndpointId server_to_lively = server.handler().newest_endpoint();

  for (int i = 0; i < 8; ++i) server.SendPayload(server_to_stalled, {4 << 20});
  for (int i = 0; i < 8; ++i) server.SendPayload(server_to_lively, {100'000});
  EXPECT_TRUE(RunUntil(world(), {&server, &lively}, "messages past a stalled peer",
                       [&] { return lively.handler().delivered_count() == 8; }));
  // And the stalled one gets what is its own when it wakes.
  EXPECT_TRUE(RunUntil(world(), {&server, &lively, &stalled}, "messages to the peer that woke",
                       [&] { return stalled.handler().delivered_count() == 8; }));
}

TEST_P(TransportContractTest, SendBeforeConnectedIsAnswered) {
  ConnectedPair pair(world());
  pair.address = pair.server.Listen();
  const EndpointId end = pair.client.Connect(pair.address);
  const uint64_t token = pair.client.SendPayload(end, {20'000});
  ASSERT_TRUE(pair.RunUntil("OnConnected and OnSent of an early message", [&] {
    return pair.client.handler().connected(end) && pair.client.handler().sent(token);
  }));
  const absl::Status status = pair.client.handler().sent(token)->status;
  if (status.ok()) {
    EXPECT_TRUE(pair.RunUntil("the early message",
                              [&] { return pair.server.handler().delivered_count() == 1; }));
  } else {
    EXPECT_THAT(status, HasCode(absl::StatusCode::kUnavailable));
    pair.RunFor(20 * kMillisecond);
    EXPECT_EQ(pair.server.handler().messages_count(), 0u);
  }
}

}  // namespace forebay::testing
