// The handler is a judge: here it meets every crime that it must see.

#include "transport/testing/recording_handler.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace forebay::testing {
namespace {

constexpr EndpointId kEnd = 7;
constexpr uint64_t kToken = 5;

// The handler under test as a transport sees it; static, since EXPECT_NONFATAL_FAILURE takes no
// locals.
class Judge {
 public:
  explicit Judge(size_t payload_bytes = 1000) {
    handler.set_in_poll(true);
    handler.OnConnected(kEnd, {});
    message = {.id = 42, .range_bytes = {payload_bytes}};
  }
  Landing Arrive() {
    const std::string header = message.Header();
    return handler.OnMessage(kEnd, AsBytes(header.data(), header.size()), message.payload_bytes());
  }
  // Lands the payload as it should, with byte `flipped` damaged.
  static void Fill(const Landing& landing, const TestMessage& message, int64_t flipped = -1) {
    std::vector<std::byte> payload(message.payload_bytes());
    FillPattern(message.id, AsMutableBytes(payload.data(), payload.size()));
    if (flipped >= 0) payload[static_cast<size_t>(flipped)] ^= std::byte{1};
    size_t at = 0;
    for (const LandingSegment& segment : landing.segments) {
      segment.checksum->CopyAndUpdate(segment.bytes.data(), payload.data() + at,
                                      segment.bytes.size());
      at += segment.bytes.size();
    }
  }
  RecordingHandler handler{"judged"};
  TestMessage message;
};

TEST(RecordingHandlerTest, AcceptsAnHonestTransport) {
  Judge judge;
  const Landing landing = judge.Arrive();
  Judge::Fill(landing, judge.message);
  judge.handler.OnLanded(kEnd, landing.token, absl::OkStatus());
  judge.handler.ExpectSent(kEnd, kToken);
  judge.handler.OnSent(kEnd, kToken, absl::OkStatus());
  judge.handler.OnClosed(kEnd, absl::OkStatus());
  judge.handler.VerifyMemory();
  EXPECT_EQ(judge.handler.delivered_count(), 1u);
  EXPECT_NE(judge.handler.ToString().find("1 closed"), std::string::npos);
}

TEST(RecordingHandlerTest, SeesACallbackOutsidePoll) {
  static Judge judge;
  judge.handler.set_in_poll(false);
  EXPECT_NONFATAL_FAILURE(judge.handler.OnClosed(kEnd, absl::OkStatus()), "outside Poll()");
}

TEST(RecordingHandlerTest, SeesAMessageDeliveredTwice) {
  static Judge judge;
  judge.Arrive();
  EXPECT_NONFATAL_FAILURE(judge.Arrive(), "was delivered again");
}

TEST(RecordingHandlerTest, SeesAMessageAfterOnClosed) {
  static Judge judge;
  judge.handler.OnClosed(kEnd, absl::OkStatus());
  EXPECT_NONFATAL_FAILURE(judge.Arrive(), "OnMessage after OnClosed");
}

TEST(RecordingHandlerTest, SeesADamagedHeader) {
  static Judge judge;
  EXPECT_NONFATAL_FAILURE(
      {
        TestMessage longer = judge.message;
        longer.header_bytes = 500;
        std::string header = longer.Header();
        header[400] ^= 1;
        judge.handler.OnMessage(kEnd, AsBytes(header.data(), header.size()), 1000);
      },
      "is damaged");
}

TEST(RecordingHandlerTest, SeesWrongBytes) {
  static Judge judge;
  static Landing landing = judge.Arrive();
  Judge::Fill(landing, judge.message, /*flipped=*/999);
  EXPECT_FATAL_FAILURE(judge.handler.OnLanded(kEnd, landing.token, absl::OkStatus()),
                       "wrong bytes");
}

TEST(RecordingHandlerTest, SeesAChecksumThatIsNotOfTheBytes) {
  static Judge judge;
  static Landing landing = judge.Arrive();
  Judge::Fill(landing, judge.message);
  landing.segments[0].checksum->Update(AsBytes("x", 1));
  EXPECT_NONFATAL_FAILURE(
      {
        // Both the count of bytes and the digest are off; the message is right.
        judge.handler.set_expect_damage(true);
        ::testing::TestPartResultArray ignored;
        {
          ::testing::ScopedFakeTestPartResultReporter fake(
              ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &ignored);
          judge.handler.OnLanded(kEnd, landing.token, absl::OkStatus());
        }
        bool found = false;
        for (int i = 0; i < ignored.size(); ++i) {
          found |=
              std::strstr(ignored.GetTestPartResult(i).message(), "is not of its bytes") != nullptr;
        }
        if (found) ADD_FAILURE() << "seen";
      },
      "seen");
}

TEST(RecordingHandlerTest, SeesASecondOnLandedAndAnUnknownOne) {
  static Judge judge;
  static Landing landing = judge.Arrive();
  Judge::Fill(landing, judge.message);
  judge.handler.OnLanded(kEnd, landing.token, absl::OkStatus());
  EXPECT_FATAL_FAILURE(judge.handler.OnLanded(kEnd, landing.token, absl::OkStatus()),
                       "is no landing or was handed back already");
}

TEST(RecordingHandlerTest, SeesASecondOnSent) {
  static Judge judge;
  judge.handler.ExpectSent(kEnd, kToken);
  judge.handler.OnSent(kEnd, kToken, absl::OkStatus());
  EXPECT_FATAL_FAILURE(judge.handler.OnSent(kEnd, kToken, absl::OkStatus()), "handed back already");
}

TEST(RecordingHandlerTest, SeesWhatIsNotHandedBackBeforeOnClosed) {
  static Judge with_landing;
  with_landing.Arrive();
  EXPECT_NONFATAL_FAILURE(with_landing.handler.OnClosed(kEnd, absl::OkStatus()),
                          "before its OnLanded");
  static Judge with_send;
  with_send.handler.ExpectSent(kEnd, kToken);
  EXPECT_NONFATAL_FAILURE(with_send.handler.OnClosed(kEnd, absl::OkStatus()), "before OnSent of 5");
}

TEST(RecordingHandlerTest, SeesMemoryTouchedAfterOnLanded) {
  static Judge judge;
  static Landing landing = judge.Arrive();
  judge.handler.OnLanded(kEnd, landing.token, absl::CancelledError(""));
  judge.handler.VerifyMemory();
  landing.segments.back().bytes.back() = std::byte{1};
  EXPECT_NONFATAL_FAILURE(judge.handler.VerifyMemory(), "changed after OnLanded");
}

TEST(RecordingHandlerTest, SeesBytesBesideTheSegments) {
  static Judge judge;
  static Landing landing = judge.Arrive();
  Judge::Fill(landing, judge.message);
  judge.handler.OnLanded(kEnd, landing.token, absl::OkStatus());
  *(landing.segments[0].bytes.data() - 1) = std::byte{0};
  EXPECT_NONFATAL_FAILURE(judge.handler.VerifyMemory(), "landed outside its segments");
}

}  // namespace
}  // namespace forebay::testing
