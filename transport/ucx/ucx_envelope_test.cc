#include "transport/ucx/ucx_envelope.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "transport/transport.h"

namespace forebay {
namespace {

using testing::HasCode;

UcxEnvelope Sample() {
  UcxEnvelope envelope;
  envelope.kind = UcxEnvelope::Kind::kMessage;
  envelope.connection = 0x1122334455667788;
  envelope.message = 7;
  envelope.payload_bytes = 1000;
  envelope.header_bytes = 5;
  return envelope;
}

// The envelope's bytes and `rest_bytes` of the message's header behind it.
std::string Written(const UcxEnvelope& envelope, size_t rest_bytes) {
  std::string text(UcxEnvelope::kBytes + rest_bytes, 'h');
  envelope.Write(reinterpret_cast<uint8_t*>(text.data()));
  return text;
}

absl::StatusOr<UcxEnvelope> Parsed(const std::string& text, size_t data_bytes) {
  return ParseUcxEnvelope(AsBytes(text.data(), text.size()), data_bytes);
}

TEST(UcxEnvelopeTest, HasGoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(Written(Sample(), 0)),
            "4642414d"
            "01"
            "01"
            "0000"
            "8877665544332211"
            "0700000000000000"
            "e803000000000000"
            "0000000000000000"
            "05000000"
            "00000000");
}

TEST(UcxEnvelopeTest, ComesBackAsItWent) {
  const UcxEnvelope sent = Sample();
  const absl::StatusOr<UcxEnvelope> envelope = Parsed(Written(sent, 5), 1000);
  FB_ASSERT_OK(envelope);
  EXPECT_EQ(envelope->kind, sent.kind);
  EXPECT_EQ(envelope->connection, sent.connection);
  EXPECT_EQ(envelope->message, sent.message);
  EXPECT_EQ(envelope->payload_bytes, sent.payload_bytes);
  EXPECT_EQ(envelope->offset, sent.offset);
  EXPECT_EQ(envelope->header_bytes, sent.header_bytes);
}

TEST(UcxEnvelopeTest, RefusesWhatDoesNotAddUp) {
  struct Case {
    const char* what;
    void (*spoil)(UcxEnvelope&);
    size_t rest_bytes;
    size_t data_bytes;
  };
  const Case cases[] = {
      {"header longer than said", [](UcxEnvelope&) {}, 6, 1000},
      {"header shorter than said", [](UcxEnvelope&) {}, 4, 1000},
      {"no header", [](UcxEnvelope& e) { e.header_bytes = 0; }, 0, 1000},
      {"header over the limit", [](UcxEnvelope& e) { e.header_bytes = kHeaderBytesMax + 1; },
       kHeaderBytesMax + 1, 1000},
      {"more data than payload", [](UcxEnvelope&) {}, 5, 1001},
      {"payload over the limit", [](UcxEnvelope& e) { e.payload_bytes = kPayloadBytesMax + 1; }, 5,
       10},
      {"a message that begins late", [](UcxEnvelope& e) { e.offset = 1; }, 5, 10},
      {"a header cut short in the data",
       [](UcxEnvelope& e) { e.flags = UcxEnvelope::kFlagHeaderLeadsData; }, 0, 4},
      {"a header in both places",
       [](UcxEnvelope& e) { e.flags = UcxEnvelope::kFlagHeaderLeadsData; }, 5, 10},
      {"unknown flags", [](UcxEnvelope& e) { e.flags = 0x8000; }, 5, 10},
      {"unknown kind", [](UcxEnvelope& e) { e.kind = static_cast<UcxEnvelope::Kind>(9); }, 5, 10},
      {"an empty piece",
       [](UcxEnvelope& e) { e.kind = UcxEnvelope::Kind::kPiece, e.header_bytes = 0; }, 0, 0},
      {"a piece with a header", [](UcxEnvelope& e) { e.kind = UcxEnvelope::Kind::kPiece; }, 5, 10},
      {"a piece past the end",
       [](UcxEnvelope& e) {
         e.kind = UcxEnvelope::Kind::kPiece, e.header_bytes = 0, e.offset = 991;
       },
       0, 10},
      {"an offset that wraps around",
       [](UcxEnvelope& e) {
         e.kind = UcxEnvelope::Kind::kPiece, e.header_bytes = 0, e.offset = UINT64_MAX - 4;
       },
       0, 10},
      {"a ping with data", [](UcxEnvelope& e) { e.kind = UcxEnvelope::Kind::kPing; }, 0, 1},
  };
  for (const Case& c : cases) {
    UcxEnvelope envelope = Sample();
    c.spoil(envelope);
    EXPECT_THAT(Parsed(Written(envelope, c.rest_bytes), c.data_bytes),
                HasCode(absl::StatusCode::kDataLoss))
        << c.what;
  }
}

TEST(UcxEnvelopeTest, RefusesWhatIsCutShortOrOfAnotherVersion) {
  const std::string whole = Written(Sample(), 5);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(Parsed(whole.substr(0, bytes), 1000).ok()) << bytes;
  }
  for (const size_t at : {0, 1, 2, 3, 4}) {
    std::string other = whole;
    other[at] = static_cast<char>(other[at] ^ 0x10);
    EXPECT_FALSE(Parsed(other, 1000).ok()) << at;
  }
}

UcxHello SampleHello() {
  UcxHello hello;
  hello.serial = 3;
  hello.connection = 0x0102030405060708;
  hello.incarnation[0] = 0xaa;
  hello.worker_address = "where";
  return hello;
}

TEST(UcxHelloTest, HasGoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(SampleHello().Encode()),
            "46425558"
            "0100"
            "0100"
            "05000000"
            "03000000"
            "0807060504030201"
            "aa000000000000000000000000000000"
            "0000000000000000"
            "7768657265");
}

// A stream cuts where it likes, and brings several at once.
TEST(UcxHelloTest, ComesInPiecesAndInHeaps) {
  UcxHello ready;
  ready.kind = UcxHello::Kind::kReady;
  ready.serial = 9;
  const std::string stream = SampleHello().Encode() + ready.Encode();
  std::string buffer;
  std::vector<UcxHello> taken;
  for (const char c : stream) {
    buffer += c;
    UcxHello hello;
    const absl::StatusOr<bool> whole = TakeUcxHello(buffer, hello);
    FB_ASSERT_OK(whole);
    if (*whole) taken.push_back(hello);
  }
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(taken[0].worker_address, "where");
  EXPECT_EQ(taken[0].incarnation, SampleHello().incarnation);
  EXPECT_EQ(taken[0].connection, SampleHello().connection);
  EXPECT_EQ(taken[1].kind, UcxHello::Kind::kReady);
  EXPECT_EQ(taken[1].serial, 9u);
}

TEST(UcxHelloTest, RefusesGarbageAtTheFirstByte) {
  for (const char* garbage : {"G", "GET / HTTP/1.1\r\n", "\x16\x03\x01", "FBU!"}) {
    std::string buffer = garbage;
    UcxHello hello;
    EXPECT_THAT(TakeUcxHello(buffer, hello), HasCode(absl::StatusCode::kDataLoss)) << garbage;
  }
}

TEST(UcxHelloTest, RefusesWrongLengthsKindsAndVersions) {
  struct Case {
    size_t at;
    uint32_t value;
    size_t bytes;
    absl::StatusCode code;
  };
  const Case cases[] = {
      {4, 2, 2, absl::StatusCode::kFailedPrecondition},  // version
      {6, 0, 2, absl::StatusCode::kDataLoss},            // kind
      {6, 5, 2, absl::StatusCode::kDataLoss},
      {6, 2, 2, absl::StatusCode::kDataLoss},  // a ready with an address
      {8, 0, 4, absl::StatusCode::kDataLoss},  // a hello without one
      {8, UcxHello::kAddressBytesMax + 1, 4, absl::StatusCode::kDataLoss},
      {8, UINT32_MAX, 4, absl::StatusCode::kDataLoss},
  };
  for (const Case& c : cases) {
    std::string buffer = SampleHello().Encode();
    std::memcpy(buffer.data() + c.at, &c.value, c.bytes);
    UcxHello hello;
    EXPECT_THAT(TakeUcxHello(buffer, hello), HasCode(c.code)) << c.at << " " << c.value;
  }
}

// Whatever comes is answered, not obeyed: no crash, and nothing read past the end (asan).
TEST(UcxEnvelopeTest, SurvivesFlippedBits) {
  SeededRandom random(5);
  const std::string envelope = Written(Sample(), 5);
  const std::string hello = SampleHello().Encode();
  for (int i = 0; i < 20'000; ++i) {
    std::string text = i % 2 == 0 ? envelope : hello;
    for (uint64_t flips = 1 + random.Below(4); flips > 0; --flips) {
      text[random.Below(text.size())] ^= static_cast<char>(1 << random.Below(8));
    }
    text.resize(random.Below(text.size() + 1));
    const absl::StatusOr<UcxEnvelope> parsed = Parsed(text, random.Below(2000));
    if (parsed.ok()) {
      EXPECT_LE(parsed->offset, parsed->payload_bytes);
    }
    UcxHello taken;
    const absl::StatusOr<bool> whole = TakeUcxHello(text, taken);
    if (whole.ok() && *whole) {
      EXPECT_LE(taken.worker_address.size(), UcxHello::kAddressBytesMax);
    }
  }
}

}  // namespace
}  // namespace forebay
