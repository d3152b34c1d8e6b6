// Addresses in use, full queues, fragments, fairness.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "transport/tcp/testing/raw_socket.h"
#include "transport/tcp/testing/tcp_world.h"

namespace forebay {
namespace {

using testing::ConnectedPair;
using testing::HasCode;
using testing::HasStatus;
using ::testing::HasSubstr;
using testing::RawSocket;
using testing::TransportSide;

TEST(TcpLimitsTest, APortInUseIsNamed) {
  testing::TcpWorld world;
  TransportSide first(world, "first");
  TransportSide second(world, "second");
  const std::string address = first.Listen();
  EXPECT_THAT(second.transport().Listen(address),
              HasStatus(absl::StatusCode::kAlreadyExists, HasSubstr(address)));
  EXPECT_THAT(first.transport().Listen(address),
              HasStatus(absl::StatusCode::kAlreadyExists, HasSubstr(address)));
  first.Kill();
  EXPECT_THAT(second.transport().Listen(address), testing::IsOk());
}

// 192.0.2.0/24 is for documents: no host has it.
TEST(TcpLimitsTest, AnAddressThatIsNotOursIsNamed) {
  testing::TcpWorld world;
  TransportSide side(world, "side");
  EXPECT_THAT(side.transport().Listen("tcp:192.0.2.7:7470"),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("192.0.2.7:7470")));
  EXPECT_THAT(side.transport().Connect("tcp:127.0.0.1:0", kForever),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("port 0")));
}

TEST(TcpLimitsTest, Ipv6) {
  testing::TcpWorld world;
  ConnectedPair pair(world);
  const auto address = pair.server.transport().Listen("tcp:[::1]:0");
  if (!address.ok()) GTEST_SKIP() << "no IPv6 here: " << address.status();
  const EndpointId end = pair.client.Connect(*address);
  ASSERT_TRUE(pair.RunUntil("OnConnected", [&] { return pair.client.handler().connected(end); }));
  EXPECT_EQ(pair.client.handler().endpoint(end)->peer.address, *address);
  EXPECT_TRUE(pair.client.handler().endpoint(end)->peer.same_host);
}

TEST(TcpLimitsTest, OptionsThatMakeNoSenseAreRefused) {
  const SystemClock clock;
  testing::RecordingHandler handler("handler");
  TcpTransportOptions options;
  options.streams_per_peer = kStreamsMax + 1;
  EXPECT_THAT(TcpTransport::Create(clock, handler, options),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("streams_per_peer")));
  options = TcpTransportOptions();
  options.chunk_bytes = 1;
  EXPECT_THAT(TcpTransport::Create(clock, handler, options),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("chunk_bytes")));
  options = TcpTransportOptions();
  options.base.peer_timeout = 0;
  EXPECT_THAT(TcpTransport::Create(clock, handler, options),
              HasCode(absl::StatusCode::kInvalidArgument));
}

// More than 2 GiB in one batch: what is over send_queue_bytes_max is refused at once and by name,
// and what was taken is handed back by Close().
TEST(TcpLimitsTest, ThreeGibibytesAreMoreThanTheQueueTakes) {
  constexpr size_t kRangeBytes = 256 << 20;
  // Never written, so that it costs no memory.
  void* zeros = mmap(nullptr, kRangeBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     /*fd=*/-1, /*offset=*/0);
  ASSERT_NE(zeros, MAP_FAILED);
  testing::TcpWorld world;
  ConnectedPair pair(world);
  ASSERT_TRUE(pair.Connect());
  const std::string header = "part";
  for (uint64_t token = 1; token <= 12; ++token) {
    OutgoingMessage message;
    message.header = AsBytes(header.data(), header.size());
    message.payload.push_back(AsBytes(zeros, kRangeBytes));
    message.token = token;
    pair.client.handler().ExpectSent(pair.at_client, token);
    pair.client.transport().Send(pair.at_client, std::move(message));
  }
  pair.client.Poll();
  uint64_t refused = 0;
  for (const auto& [token, sent] : pair.client.handler().sent()) {
    EXPECT_THAT(sent.status, HasStatus(absl::StatusCode::kResourceExhausted,
                                       HasSubstr("send queue of " + pair.address)));
    ++refused;
  }
  EXPECT_EQ(refused, 9u);
  pair.client.transport().Close(pair.at_client);
  ASSERT_TRUE(
      pair.RunUntil("OnClosed", [&] { return pair.client.handler().closed(pair.at_client); }));
  EXPECT_EQ(pair.client.handler().sends_out(), 0u);
  munmap(zeros, kRangeBytes);
}

// Moves one byte at a time, each way.
class ByteRelay {
 public:
  explicit ByteRelay(std::string to) : to_(std::move(to)), listener_(RawSocket::Listening()) {}
  std::string address() const { return listener_.address(); }

  void Turn() {
    if (!near_.valid()) {
      near_ = listener_.Accept();
      if (near_.valid()) far_ = RawSocket::ConnectTo(to_);
      return;
    }
    moved_ += Move(near_, far_, upward_) + Move(far_, near_, downward_);
  }
  uint64_t moved() const { return moved_; }

 private:
  static size_t Move(const RawSocket& from, const RawSocket& to, std::string& held) {
    if (held.empty()) held = from.Read(1);
    if (held.empty() || to.Write(held) == 0) return 0;
    held.clear();
    return 1;
  }

  const std::string to_;
  const RawSocket listener_;
  RawSocket near_;
  RawSocket far_;
  std::string upward_;
  std::string downward_;
  uint64_t moved_ = 0;
};

TEST(TcpLimitsTest, AByteAtATimeIsUnderstood) {
  TcpTransportOptions options;
  options.chunk_bytes = 4096;
  testing::TcpWorld world(options);
  ConnectedPair pair(world);
  ByteRelay relay(pair.server.Listen());
  const EndpointId end = pair.client.Connect(relay.address());
  pair.client.SendPayload(end, {0});
  pair.client.SendPayload(end, {1});
  pair.client.SendPayload(end, {9000, 1000});
  bool answered = false;
  ASSERT_TRUE(pair.RunUntil("messages through a relay of single bytes", [&] {
    // Several turns a poll, so that polls see heads in every state of incompleteness.
    for (int i = 0; i < 3; ++i) relay.Turn();
    if (!answered && pair.server.handler().connected_count() == 1) {
      answered = true;
      pair.server.SendPayload(pair.server.handler().newest_endpoint(), {5000});
    }
    return pair.server.handler().delivered_count() == 3 &&
           pair.client.handler().delivered_count() == 1;
  }));
  EXPECT_GT(relay.moved(), 15'000u);
}

// A small message does not wait for the large payload that was queued before it.
TEST(TcpLimitsTest, ASmallMessageOvertakesALargePayload) {
  for (const int streams : {1, 2}) {
    TcpTransportOptions options;
    options.streams_per_peer = streams;
    testing::TcpWorld world(options);
    ConnectedPair pair(world);
    ASSERT_TRUE(pair.Connect());
    uint64_t large_left = 0;
    pair.server.handler().on_message = [&](testing::RecordingHandler::Received& received) {
      if (received.payload_bytes == 100) large_left = pair.server.handler().landings_out();
    };
    pair.client.SendPayload(pair.at_client, {64 << 20});
    for (int i = 0; i < 3; ++i) pair.client.Poll();
    pair.client.SendPayload(pair.at_client, {100});
    ASSERT_TRUE(
        pair.RunUntil("both", [&] { return pair.server.handler().delivered_count() == 2; }));
    EXPECT_EQ(large_left, 2u) << "the small one waited for all of the large one, streams "
                              << streams;
  }
}

// Nor does a large one wait for ever behind a stream of small ones.
TEST(TcpLimitsTest, SmallMessagesDoNotStarveALargeOne) {
  testing::TcpWorld world;
  ConnectedPair pair(world);
  ASSERT_TRUE(pair.Connect());
  bool large_done = false;
  uint64_t small_count = 0;
  pair.client.on_sent = [&](EndpointId end, uint64_t, const absl::Status&) {
    // There are always sixteen small ones queued.
    if (!large_done && ++small_count < 20'000) pair.client.SendPayload(end, {30'000});
  };
  pair.server.handler().on_landed = [&](testing::RecordingHandler::Received& received) {
    large_done |= received.payload_bytes == (4 << 20);
  };
  for (int i = 0; i < 16; ++i) pair.client.SendPayload(pair.at_client, {30'000});
  pair.client.SendPayload(pair.at_client, {4 << 20});
  ASSERT_TRUE(pair.RunUntil("the large one", [&] { return large_done; }));
  EXPECT_LT(small_count, 2000u);
}

}  // namespace
}  // namespace forebay
