#include "proto/accept.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;

// A frame that is right in every respect; each test spoils one thing.
class AcceptFrameTest : public ::testing::Test {
 protected:
  AcceptFrameTest() {
    key_.bytes.fill(7);
    frame_.header = MakeFrameHeader(layout_, parts_[1], key_, /*page_index=*/3, CodecId::kRaw,
                                    parts_[1].raw_bytes, /*payload_checksum=*/42);
    frame_.payload_bytes_arrived = parts_[1].raw_bytes;
    frame_.checksum = 42;
  }

  absl::Status Accept() const { return AcceptFrame(frame_, {layout_, parts_[1], key_, 3u}); }

  const KvLayout layout_ = KvLayout::Uniform(/*layer_count=*/2, /*kv_heads=*/2, /*head_dim=*/4,
                                             DType::kBf16, /*page_tokens=*/8,
                                             /*layers_per_part=*/1);
  const std::vector<PartSpec> parts_ = layout_.Parts();
  PageKey key_;
  ArrivedFrame frame_;
};

TEST_F(AcceptFrameTest, TheRightFrameIsAccepted) { FB_EXPECT_OK(Accept()); }

TEST_F(AcceptFrameTest, AFailedTransportIsNoFrame) {
  frame_.transport = absl::UnavailableError("cut");
  EXPECT_THAT(Accept(), HasCode(absl::StatusCode::kUnavailable));
}

TEST_F(AcceptFrameTest, AnotherLengthIsRefused) {
  --frame_.payload_bytes_arrived;
  EXPECT_THAT(Accept(), HasCode(absl::StatusCode::kDataLoss));
}

TEST_F(AcceptFrameTest, AnotherChecksumIsRefused) {
  frame_.checksum = 43;
  EXPECT_THAT(Accept(), HasCode(absl::StatusCode::kDataLoss));
}

TEST_F(AcceptFrameTest, AnotherPageAnotherPlaceAndAnotherPartAreRefused) {
  PageKey other = key_;
  other.bytes[0] ^= 1;
  EXPECT_THAT(AcceptFrame(frame_, {layout_, parts_[1], other, 3u}),
              HasCode(absl::StatusCode::kDataLoss));
  EXPECT_THAT(AcceptFrame(frame_, {layout_, parts_[1], key_, 4u}),
              HasCode(absl::StatusCode::kDataLoss));
  EXPECT_THAT(AcceptFrame(frame_, {layout_, parts_[0], key_, 3u}),
              HasCode(absl::StatusCode::kDataLoss));
}

TEST_F(AcceptFrameTest, WithoutAChecksumOnlyAValidReleaseCounts) {
  frame_.checksum.reset();
  EXPECT_THAT(Accept(), HasCode(absl::StatusCode::kFailedPrecondition));
  frame_.leased = ArrivedFrame::LeasedRead{/*deadline=*/100, /*read_end=*/50, false};
  EXPECT_THAT(Accept(), HasCode(absl::StatusCode::kFailedPrecondition));
  frame_.leased->released_valid = true;
  FB_EXPECT_OK(Accept());
}

TEST_F(AcceptFrameTest, ALeasedReadMustEndBeforeTheLease) {
  frame_.leased = ArrivedFrame::LeasedRead{/*deadline=*/100, /*read_end=*/100, false};
  FB_EXPECT_OK(Accept());
  frame_.leased->read_end = 101;
  EXPECT_THAT(Accept(), HasCode(absl::StatusCode::kFailedPrecondition));
  frame_.leased->released_valid = true;
  FB_EXPECT_OK(Accept());
}

// Torn because it came too late: no word about the stored frame, so nobody is told that it is bad.
TEST_F(AcceptFrameTest, ALateReadIsNoEvidenceAgainstTheFrame) {
  frame_.leased = ArrivedFrame::LeasedRead{/*deadline=*/100, /*read_end=*/101, false};
  frame_.checksum = 43;
  EXPECT_THAT(Accept(), HasCode(absl::StatusCode::kFailedPrecondition));
}

TEST(LeaseDeadlineTest, ItEndsBeforeTheDaemonsOwnExpiry) {
  EXPECT_EQ(LeaseDeadline(/*asked_at=*/kSecond, /*lease_ms=*/2000),
            kSecond + 2 * kSecond - 20 * kMillisecond - 5 * kMillisecond);
}

}  // namespace
}  // namespace forebay
