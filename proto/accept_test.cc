#include "proto/accept.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

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

  absl::Status Accept() const {
    return AcceptFrame(frame_, {layout_, parts_[1], key_, 3u, quality_});
  }

  const KvLayout layout_ = KvLayout::Uniform(/*layer_count=*/2, /*kv_heads=*/2, /*head_dim=*/4,
                                             DType::kBf16, /*page_tokens=*/8,
                                             /*layers_per_part=*/1);
  const std::vector<PartSpec> parts_ = layout_.Parts();
  PageKey key_;
  QualityContract quality_;
  ArrivedFrame frame_;
};

// What a frame lost must be what its reader allowed, in K and in V apart.
TEST_F(AcceptFrameTest, AQualityBelowTheContractIsRefused) {
  constexpr QualityClass kClasses[] = {QualityClass::kExact, QualityClass::kNear,
                                       QualityClass::kFair, QualityClass::kCoarse};
  frame_.header.codec = static_cast<uint8_t>(CodecId::kPlanes);
  frame_.payload_bytes_arrived = frame_.header.payload_bytes = parts_[1].raw_bytes / 2;
  for (QualityClass k : kClasses) {
    for (QualityClass v : kClasses) {
      frame_.header.codec_param = PackQuality({k, v});
      frame_.header.Seal();
      for (QualityClass allowed_k : kClasses) {
        for (QualityClass allowed_v : kClasses) {
          quality_.bound = {allowed_k, allowed_v};
          EXPECT_EQ(Accept().ok(), k <= allowed_k && v <= allowed_v);
        }
      }
    }
  }
  // The bound is that of the part's own layer, which is 1.
  frame_.header.codec_param = PackQuality({QualityClass::kFair, QualityClass::kFair});
  frame_.header.Seal();
  const QualityBound fair{QualityClass::kFair, QualityClass::kFair};
  quality_.bound = {};
  quality_.layers = {{1, 1, fair}};
  FB_EXPECT_OK(Accept());
  quality_.layers = {{0, 1, fair}};
  EXPECT_THAT(Accept(), HasStatus(absl::StatusCode::kDataLoss, HasSubstr("fair/fair")));
}

TEST_F(AcceptFrameTest, DroppedTokensAreRefusedWhereTheContractDoesNotNameThem) {
  frame_.header.codec = static_cast<uint8_t>(CodecId::kPlanes);
  frame_.payload_bytes_arrived = frame_.header.payload_bytes = parts_[1].raw_bytes / 2;
  frame_.header.flags = kFrameRetentionMask;
  frame_.header.Seal();
  EXPECT_THAT(Accept(), HasStatus(absl::StatusCode::kDataLoss, HasSubstr("dropped")));
  quality_.retention = true;
  FB_EXPECT_OK(Accept());
}

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
  EXPECT_THAT(AcceptFrame(frame_, {layout_, parts_[1], other, 3u, quality_}),
              HasCode(absl::StatusCode::kDataLoss));
  EXPECT_THAT(AcceptFrame(frame_, {layout_, parts_[1], key_, 4u, quality_}),
              HasCode(absl::StatusCode::kDataLoss));
  EXPECT_THAT(AcceptFrame(frame_, {layout_, parts_[0], key_, 3u, quality_}),
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
