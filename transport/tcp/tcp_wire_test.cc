#include "transport/tcp/tcp_wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "transport/tcp/socket.h"

namespace forebay {
namespace {

using testing::HasCode;
using testing::HasStatus;
using ::testing::HasSubstr;
using testing::IsOk;

template <typename T>
std::string HexOf(const T& value) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(&value), sizeof(value)));
}

TcpFrameHead Head(FrameType type, uint32_t header, uint32_t chunk, uint32_t payload) {
  TcpFrameHead head;
  head.type = static_cast<uint8_t>(type);
  head.sequence = 7;
  head.header_bytes = header;
  head.header_checksum = 0x01020304;
  head.chunk_bytes = chunk;
  head.payload_bytes = payload;
  head.Seal();
  return head;
}

absl::Status Parse(const TcpFrameHead& head) {
  return ParseFrameHead(AsBytes(&head, sizeof(head))).status();
}

// Wire format: these bytes never change within a wire version.
TEST(TcpWireTest, GoldenHead) {
  EXPECT_EQ(HexOf(Head(FrameType::kBegin, 24, 0x40000, 0x100000)).substr(0, 56),
            "46425446"
            "02000000"
            "07000000"
            "18000000"
            "04030201"
            "00000400"
            "00001000");
  TcpFrameHead ping;
  ping.type = static_cast<uint8_t>(FrameType::kPing);
  ping.Seal();
  EXPECT_EQ(HexOf(ping), "4642544604000000000000000000000000000000000000000000000053494395");
}

TEST(TcpWireTest, GoldenHello) {
  TcpHello hello;
  hello.wire_version_min = 1;
  hello.wire_version_max = 2;
  hello.stream_index = 1;
  hello.stream_count = 3;
  for (size_t i = 0; i < 16; ++i) {
    hello.group[i] = static_cast<uint8_t>(i);
    hello.incarnation[i] = static_cast<uint8_t>(0xf0 + i);
  }
  hello.Seal();
  EXPECT_EQ(HexOf(hello).substr(0, 120),
            "46425448"
            "01000200"
            "01030000"
            "000102030405060708090a0b0c0d0e0f"
            "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
            "00000000000000000000000000000000");
  const auto parsed = ParseHello(AsBytes(&hello, sizeof(hello)), TcpHello::kMagic);
  FB_ASSERT_OK(parsed);
  EXPECT_EQ(parsed->stream_count, 3);
  EXPECT_THAT(ParseHello(AsBytes(&hello, sizeof(hello)), TcpHello::kReplyMagic),
              HasCode(absl::StatusCode::kDataLoss));
}

TEST(TcpWireTest, AHelloOfAnImpossibleStreamIsRefused) {
  struct Case {
    uint8_t index, count;
  };
  for (const Case& c : {Case{0, 0}, Case{1, 1}, Case{0, kStreamsMax + 1}, Case{255, 255}}) {
    TcpHello hello;
    hello.stream_index = c.index;
    hello.stream_count = c.count;
    hello.Seal();
    EXPECT_THAT(ParseHello(AsBytes(&hello, sizeof(hello)), TcpHello::kMagic),
                HasCode(absl::StatusCode::kDataLoss));
  }
}

TEST(TcpWireTest, AnySingleBitFlipIsFound) {
  const TcpFrameHead head = Head(FrameType::kWhole, 100, 5000, 5000);
  FB_ASSERT_OK(Parse(head));
  TcpHello hello;
  hello.Seal();
  for (size_t bit = 0; bit < 8 * sizeof(head); ++bit) {
    std::vector<std::byte> bytes(sizeof(head));
    std::memcpy(bytes.data(), &head, sizeof(head));
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    EXPECT_THAT(ParseFrameHead(bytes), HasCode(absl::StatusCode::kDataLoss)) << "bit " << bit;
  }
  for (size_t bit = 0; bit < 8 * sizeof(hello); ++bit) {
    std::vector<std::byte> bytes(sizeof(hello));
    std::memcpy(bytes.data(), &hello, sizeof(hello));
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    EXPECT_THAT(ParseHello(bytes, TcpHello::kMagic), HasCode(absl::StatusCode::kDataLoss));
  }
}

// A checksum that is right proves no good will: lengths are checked all the same.
TEST(TcpWireTest, SealedHeadsWithImpossibleLengthsAreRefused) {
  const uint32_t header_max = kHeaderBytesMax;
  const auto payload_max = static_cast<uint32_t>(kPayloadBytesMax);
  EXPECT_THAT(Parse(Head(FrameType::kWhole, header_max, payload_max, payload_max)), IsOk());
  EXPECT_THAT(Parse(Head(FrameType::kBegin, 1, 0, 1)), IsOk());
  EXPECT_THAT(Parse(Head(FrameType::kChunk, 0, 10, 10)), IsOk());
  EXPECT_THAT(Parse(Head(FrameType::kPong, 0, 0, 0)), IsOk());
  const TcpFrameHead bad[] = {Head(FrameType::kWhole, 0, 10, 10),
                              Head(FrameType::kWhole, header_max + 1, 0, 0),
                              Head(FrameType::kWhole, 8, 9, 10),
                              Head(FrameType::kWhole, 8, payload_max + 1, payload_max + 1),
                              Head(FrameType::kBegin, 8, 10, 10),
                              Head(FrameType::kBegin, 8, 11, 10),
                              Head(FrameType::kBegin, 0, 1, 10),
                              Head(FrameType::kChunk, 1, 1, 10),
                              Head(FrameType::kChunk, 0, 0, 10),
                              Head(FrameType::kChunk, 0, 11, 10),
                              Head(FrameType::kPing, 1, 0, 0),
                              Head(FrameType::kPong, 0, 1, 1),
                              Head(static_cast<FrameType>(0), 8, 0, 0),
                              Head(static_cast<FrameType>(6), 8, 0, 0)};
  for (const TcpFrameHead& head : bad) {
    EXPECT_THAT(Parse(head), HasCode(absl::StatusCode::kDataLoss)) << HexOf(head);
  }
  TcpFrameHead reserved = Head(FrameType::kWhole, 8, 0, 0);
  reserved.reserved[1] = 1;
  reserved.Seal();
  EXPECT_THAT(Parse(reserved), HasCode(absl::StatusCode::kDataLoss));
}

TEST(TcpAddressTest, WhatIsAnAddressIsReadAndWrittenAlike) {
  for (const char* address :
       {"tcp:127.0.0.1:7470", "tcp:0.0.0.0:0", "tcp:[::1]:65535", "tcp:[2001:db8::7]:1"}) {
    const auto parsed = ParseTcpAddress(address);
    FB_ASSERT_OK(parsed);
    EXPECT_EQ(parsed->ToString(), address);
  }
  const auto local = ParseTcpAddress("tcp:localhost:80");
  FB_ASSERT_OK(local);
  EXPECT_EQ(local->ToString(), "tcp:127.0.0.1:80");
  EXPECT_TRUE(local->is_loopback());
  EXPECT_FALSE(ParseTcpAddress("tcp:10.0.0.1:80")->is_loopback());
}

TEST(TcpAddressTest, WhatIsNoneIsRefusedWithTheReason) {
  struct Case {
    const char* address;
    const char* reason;
  };
  const Case cases[] = {{"", "does not start with tcp:"},
                        {"ucx:127.0.0.1:1", "does not start with tcp:"},
                        {"127.0.0.1:1", "does not start with tcp:"},
                        {"tcp:127.0.0.1", "no port"},
                        {"tcp:127.0.0.1:", "port"},
                        {"tcp:127.0.0.1:65536", "port"},
                        {"tcp:127.0.0.1:-1", "port"},
                        {"tcp:127.0.0.1:+1", "port"},
                        {"tcp:127.0.0.1: 1", "port"},
                        {"tcp:127.0.0.1:7x", "port"},
                        {"tcp::80", "no IPv4 address"},
                        {"tcp:256.0.0.1:80", "no IPv4 address"},
                        {"tcp:node7.cluster:80", "host names are not resolved"},
                        {"tcp:::1:80", "IPv6 addresses stand in []"},
                        {"tcp:[::1:80", "the [ has no ]"},
                        {"tcp:[node7]:80", "no IPv6 address"}};
  for (const Case& c : cases) {
    EXPECT_THAT(ParseTcpAddress(c.address),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr(c.reason)))
        << c.address;
  }
}

}  // namespace
}  // namespace forebay
