// Strangers, liars and old incarnations at the door.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/wire_version.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/tcp/testing/raw_socket.h"
#include "transport/tcp/testing/tcp_world.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using testing::ConnectedPair;
using testing::HasStatus;
using ::testing::HasSubstr;
using testing::RawSocket;
using testing::TransportSide;

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

TcpHello Hello(uint8_t index = 0, uint8_t count = 1) {
  TcpHello hello;
  hello.wire_version_min = kWireVersionMin;
  hello.wire_version_max = kWireVersionMax;
  hello.stream_index = index;
  hello.stream_count = count;
  hello.group = RandomId();
  hello.incarnation = RandomId();
  hello.Seal();
  return hello;
}

std::string Frame(FrameType type, uint32_t sequence, const std::string& header,
                  uint32_t chunk_bytes, uint32_t payload_bytes) {
  TcpFrameHead head;
  head.type = static_cast<uint8_t>(type);
  head.sequence = sequence;
  head.header_bytes = static_cast<uint32_t>(header.size());
  head.header_checksum = header.empty() ? 0 : Checksum32Of(AsBytes(header.data(), header.size()));
  head.chunk_bytes = chunk_bytes;
  head.payload_bytes = payload_bytes;
  head.Seal();
  return BytesOf(head) + header;
}

// A hello and frames that are all in order: what garbage is made of by cutting and flipping.
std::string SoundConversation() {
  return absl::StrCat(BytesOf(Hello()), Frame(FrameType::kWhole, 0, "no message of a test", 0, 0),
                      Frame(FrameType::kBegin, 1, "a larger one", 100, 250), std::string(100, 'p'),
                      Frame(FrameType::kPing, 2, "", 0, 0),
                      Frame(FrameType::kChunk, 3, "", 150, 250), std::string(150, 'q'));
}

class TcpGarbageTest : public ::testing::Test {
 protected:
  // `bytes` on a connection of its own, held open for a few turns.
  void Offer(TransportSide& server, const std::string& address, const std::string& bytes) {
    RawSocket stranger = RawSocket::ConnectTo(address);
    size_t offered = std::min(bytes.size(), sizeof(TcpHello));
    stranger.Write(absl::string_view(bytes).substr(0, offered));
    for (int i = 0; i < 4; ++i) server.Poll();
    stranger.Write(absl::string_view(bytes).substr(offered));
    for (int i = 0; i < 3; ++i) server.Poll();
  }

  testing::TcpWorld world_;
};

TEST_F(TcpGarbageTest, ASoundConversationIsUnderstood) {
  TransportSide server(world_, "server");
  const std::string address = server.Listen();
  RawSocket peer = RawSocket::ConnectTo(address);
  peer.Write(SoundConversation());
  ASSERT_TRUE(RunUntil(world_, {&server}, "two messages",
                       [&] { return server.handler().delivered_count() == 2; }));
  EXPECT_EQ(server.handler().received()[0]->header, "no message of a test");
  EXPECT_EQ(server.handler().received()[1]->payload_bytes, 250u);
  EXPECT_EQ(CountsOf(server).base.protocol_errors, 0u);
}

// Random bytes, and sound conversations cut short or with a bit flipped, thousands of them, while
// an honest peer talks on. Nothing of it is taken for a message that nobody sent.
TEST_F(TcpGarbageTest, GarbageHarmsNobody) {
  constexpr int kConnections = 3000;
  ConnectedPair pair(world_);
  ASSERT_TRUE(pair.Connect());
  SeededRandom random(20260101);
  const size_t sound_header_bytes = std::string("a larger one").size();
  for (int i = 0; i < kConnections; ++i) {
    std::string bytes = SoundConversation();
    const uint64_t kind = random.Below(4);
    if (kind == 0) {
      bytes.assign(1 + random.Below(300), '\0');
      for (char& byte : bytes) byte = static_cast<char>(random.Next());
    } else if (kind == 1) {
      bytes.resize(random.Below(bytes.size()));
    } else if (kind == 2) {
      const uint64_t bit = random.Below(8 * bytes.size());
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    } else {
      const size_t after_hello = sizeof(TcpHello);
      for (size_t j = after_hello; j < bytes.size(); ++j) {
        bytes[j] = static_cast<char>(random.Next());
      }
    }
    Offer(pair.server, pair.address, bytes);
    if (i % 100 == 0) pair.client.SendPayload(pair.at_client, {10'000});
    if (i % 10 == 0) pair.client.Poll();
  }
  ASSERT_TRUE(pair.RunUntil("the honest peer's messages", [&] {
    uint64_t honest = 0;
    for (const auto& received : pair.server.handler().received()) {
      honest += received->endpoint == pair.at_server && received->landed ? 1 : 0;
    }
    return honest == kConnections / 100;
  }));
  for (const auto& received : pair.server.handler().received()) {
    if (received->id != 0) continue;
    EXPECT_TRUE(
        received->header == "no message of a test" ||
        (received->header.size() == sound_header_bytes && received->header == "a larger one"))
        << "a message that nobody sent: " << received->header;
  }
  EXPECT_FALSE(pair.client.handler().closed(pair.at_client));
  EXPECT_GT(CountsOf(pair.server).base.protocol_errors, 1000u);
  ASSERT_TRUE(pair.RunUntil("the end of every stranger",
                            [&] { return CountsOf(pair.server).base.endpoints_open == 1; }));
  pair.server.handler().VerifyMemory();
}

// Frames that are sound by themselves, at the wrong time.
TEST_F(TcpGarbageTest, FramesOutOfTurnCloseTheEndpoint) {
  const std::string bad[] = {
      Frame(FrameType::kPing, 1, "", 0, 0),     // the first is 0
      Frame(FrameType::kChunk, 0, "", 10, 10),  // of nothing
      Frame(FrameType::kBegin, 0, "h", 1, 10) + "p" + Frame(FrameType::kBegin, 1, "h", 1, 10),
      Frame(FrameType::kBegin, 0, "h", 1, 10) + "p" + Frame(FrameType::kChunk, 1, "", 9, 11),
      Frame(FrameType::kBegin, 0, "h", 5, 10) + "ppppp" + Frame(FrameType::kChunk, 1, "", 6, 10),
      Frame(FrameType::kPing, 0, "", 0, 0) + Frame(FrameType::kPing, 0, "", 0, 0),
  };
  TransportSide server(world_, "server");
  const std::string address = server.Listen();
  uint64_t closed = 0;
  for (const std::string& frames : bad) {
    RawSocket peer = RawSocket::ConnectTo(address);
    peer.Write(BytesOf(Hello()) + frames);
    ASSERT_TRUE(RunUntil(world_, {&server}, "OnClosed for a frame out of turn",
                         [&] { return server.handler().closed_count() == closed + 1; }));
    ++closed;
    EXPECT_EQ(CountsOf(server).base.protocol_errors, closed);
    EXPECT_THAT(server.handler().endpoint(server.handler().newest_endpoint())->why,
                HasStatus(absl::StatusCode::kUnavailable, HasSubstr("protocol error")));
  }
  EXPECT_EQ(server.handler().landings_out(), 0u);
}

// Those who connect and say nothing hold a place until the handshake's time is up, or until
// somebody new needs it.
TEST_F(TcpGarbageTest, SilentStrangersGiveWay) {
  TcpTransportOptions options;
  options.handshakes_max = 8;
  options.handshake_timeout = 150 * kMillisecond;
  world_.set_options(options);
  ConnectedPair pair(world_);
  pair.address = pair.server.Listen();
  std::vector<RawSocket> strangers;
  for (int i = 0; i < 50; ++i) {
    strangers.push_back(RawSocket::ConnectTo(pair.address));
    strangers.back().Write("F");
    pair.server.Poll();
  }
  for (int i = 0; i < 10; ++i) pair.server.Poll();
  EXPECT_GE(CountsOf(pair.server).handshakes_dropped, 42u);
  EXPECT_TRUE(strangers.front().AtEnd());
  EXPECT_FALSE(strangers.back().AtEnd());

  const EndpointId end = pair.client.Connect(pair.address);
  ASSERT_TRUE(pair.RunUntil("OnConnected past silent strangers",
                            [&] { return pair.client.handler().connected(end); }));
  ASSERT_TRUE(pair.RunUntil("the end of the last stranger", [&] {
    return std::all_of(strangers.begin(), strangers.end(),
                       [](const RawSocket& stranger) { return stranger.AtEnd(); });
  }));
  EXPECT_EQ(CountsOf(pair.server).handshakes_dropped, 50u);
  EXPECT_FALSE(pair.client.handler().closed(end));
}

TEST_F(TcpGarbageTest, AGroupThatNeverCompletesIsDropped) {
  TcpTransportOptions options;
  options.handshake_timeout = 100 * kMillisecond;
  world_.set_options(options);
  TransportSide server(world_, "server");
  RawSocket half = RawSocket::ConnectTo(server.Listen());
  half.Write(BytesOf(Hello(0, 2)));
  ASSERT_TRUE(RunUntil(world_, {&server}, "the end of half a group", [&] { return half.AtEnd(); }));
  EXPECT_EQ(server.handler().connected_count(), 0u);
  EXPECT_EQ(server.handler().closed_count(), 0u) << "nobody was told of it, so nobody loses it";
}

// A process restarts between its streams, or somebody guesses a group: never joined.
TEST_F(TcpGarbageTest, StreamsOfTwoIncarnationsAreNotJoined) {
  TransportSide server(world_, "server");
  const std::string address = server.Listen();
  TcpHello first = Hello(0, 2);
  TcpHello second = first;
  second.stream_index = 1;
  second.incarnation = RandomId();
  second.Seal();
  RawSocket before = RawSocket::ConnectTo(address);
  before.Write(BytesOf(first));
  for (int i = 0; i < 4; ++i) server.Poll();
  RawSocket after = RawSocket::ConnectTo(address);
  after.Write(BytesOf(second));
  std::string answer;
  ASSERT_TRUE(RunUntil(world_, {&server}, "an answer", [&] {
    answer += after.Read(sizeof(TcpHello) - answer.size());
    return answer.size() == sizeof(TcpHello);
  }));
  const auto reply = ParseHello(AsBytes(answer.data(), answer.size()), TcpHello::kReplyMagic);
  FB_ASSERT_OK(reply);
  EXPECT_EQ(reply->verdict, static_cast<uint8_t>(HelloVerdict::kGroup));
  EXPECT_EQ(server.handler().connected_count(), 0u);
}

// What a listener that is no TcpTransport, or another one by now, may answer.
class TcpReplyTest : public TcpGarbageTest {
 protected:
  // Connects to a listener in the test's hand, reads the hellos, and answers as `reply` says.
  absl::Status Outcome(int streams, const std::function<std::string(const TcpHello&)>& reply) {
    TcpTransportOptions options;
    options.streams_per_peer = streams;
    world_.set_options(options);
    TransportSide client(world_, "client");
    const RawSocket listener = RawSocket::Listening();
    const EndpointId end = client.Connect(listener.address());
    std::vector<RawSocket> accepted;
    std::vector<std::string> hellos;
    EXPECT_TRUE(RunUntil(world_, {&client}, "OnClosed", [&] {
      if (RawSocket next = listener.Accept(); next.valid()) {
        accepted.push_back(std::move(next));
        hellos.emplace_back();
      }
      for (size_t i = 0; i < accepted.size(); ++i) {
        if (hellos[i].size() == sizeof(TcpHello)) continue;
        hellos[i] += accepted[i].Read(sizeof(TcpHello) - hellos[i].size());
        if (hellos[i].size() < sizeof(TcpHello)) continue;
        const auto hello =
            ParseHello(AsBytes(hellos[i].data(), sizeof(TcpHello)), TcpHello::kMagic);
        EXPECT_THAT(hello, testing::IsOk());
        if (hello.ok()) accepted[i].Write(reply(*hello));
      }
      return client.handler().closed(end);
    }));
    EXPECT_FALSE(client.handler().connected(end));
    const auto* endpoint = client.handler().endpoint(end);
    return endpoint == nullptr ? absl::OkStatus() : endpoint->why;
  }

  static std::string Answer(TcpHello hello) {
    hello.magic = TcpHello::kReplyMagic;
    hello.Seal();
    return BytesOf(hello);
  }
};

TEST_F(TcpReplyTest, AnswersOfTwoIncarnationsAreNotJoined) {
  EXPECT_THAT(Outcome(2,
                      [](TcpHello hello) {
                        hello.incarnation = RandomId();
                        return Answer(hello);
                      }),
              HasStatus(absl::StatusCode::kUnavailable, HasSubstr("two incarnations")));
}

TEST_F(TcpReplyTest, NoVersionInCommonNamesBothRanges) {
  EXPECT_THAT(Outcome(1,
                      [](TcpHello hello) {
                        hello.verdict = static_cast<uint8_t>(HelloVerdict::kWireVersion);
                        hello.wire_version_min = 40;
                        hello.wire_version_max = 42;
                        return Answer(hello);
                      }),
              HasStatus(absl::StatusCode::kFailedPrecondition,
                        AllOf(HasSubstr("40 to 42"),
                              HasSubstr(absl::StrCat(kWireVersionMin, " to ", kWireVersionMax)))));
}

TEST_F(TcpReplyTest, AFullPeerSaysSo) {
  EXPECT_THAT(Outcome(1,
                      [](TcpHello hello) {
                        hello.verdict = static_cast<uint8_t>(HelloVerdict::kFull);
                        return Answer(hello);
                      }),
              HasStatus(absl::StatusCode::kResourceExhausted, HasSubstr("endpoints")));
}

TEST_F(TcpReplyTest, OtherProtocolsAreNamedAsSuch) {
  EXPECT_THAT(Outcome(1,
                      [](const TcpHello&) {
                        return "HTTP/1.1 400 Bad Request\r\n" + std::string(100, ' ');
                      }),
              HasStatus(absl::StatusCode::kUnavailable, HasSubstr("no hello of this protocol")));
  EXPECT_THAT(Outcome(1,
                      [](TcpHello hello) {
                        hello.group = RandomId();
                        return Answer(hello);
                      }),
              HasStatus(absl::StatusCode::kUnavailable, HasSubstr("another stream")));
  EXPECT_THAT(Outcome(1,
                      [](TcpHello hello) {
                        hello.verdict = 200;
                        return Answer(hello);
                      }),
              HasStatus(absl::StatusCode::kUnavailable, HasSubstr("unknown verdict")));
}

TEST_F(TcpGarbageTest, AnotherWireVersionIsAnsweredWithOurs) {
  TransportSide server(world_, "server");
  RawSocket peer = RawSocket::ConnectTo(server.Listen());
  TcpHello hello = Hello();
  hello.wire_version_min = kWireVersionMax + 1;
  hello.wire_version_max = kWireVersionMax + 1;
  hello.Seal();
  peer.Write(BytesOf(hello));
  std::string answer;
  ASSERT_TRUE(RunUntil(world_, {&server}, "an answer", [&] {
    answer += peer.Read(sizeof(TcpHello) - answer.size());
    return answer.size() == sizeof(TcpHello);
  }));
  const auto reply = ParseHello(AsBytes(answer.data(), answer.size()), TcpHello::kReplyMagic);
  FB_ASSERT_OK(reply);
  EXPECT_EQ(reply->verdict, static_cast<uint8_t>(HelloVerdict::kWireVersion));
  EXPECT_EQ(reply->wire_version_max, kWireVersionMax);
  EXPECT_TRUE(RunUntil(world_, {&server}, "the end", [&] { return peer.AtEnd(); }));
}

}  // namespace
}  // namespace forebay
