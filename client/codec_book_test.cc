#include "client/codec_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

TEST(CodecBookTest, AnUnknownNameIsRefusedByTheKnownOnes) {
  FB_EXPECT_OK(CheckCodecName("auto"));
  FB_EXPECT_OK(CheckCodecName("k8v4"));
  EXPECT_THAT(CheckCodecName("zip"),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("k8v4")));
}

// The chooser takes them in this order: a tie goes to the one before.
TEST(CodecBookTest, CandidatesAreTheMostExactFirst) {
  const CodecBook book("auto", {}, nullptr);
  ASSERT_TRUE(book.automatic());
  ASSERT_EQ(book.candidates().size(), AutoCodecs().size());
  EXPECT_EQ(book.candidates().front().name, "raw");
  QualityBound last;
  for (const CodecCandidate& candidate : book.candidates()) {
    EXPECT_TRUE(candidate.quality.Allows(last)) << candidate.name;
    last = candidate.quality;
  }
}

TEST(CodecBookTest, WhatIsMeasuredIsOfThisMachine) {
  const MeasuredRates rates = MeasureCodecRates(SystemClock(), 2);
  ASSERT_EQ(rates.codecs.size(), AutoCodecs().size());
  EXPECT_GT(rates.copy_bytes_per_ns, 0);
  for (size_t i = 0; i < rates.codecs.size(); ++i) {
    if (AutoCodecs()[i] == "raw") continue;
    EXPECT_GT(rates.codecs[i].ratio, 1.1) << AutoCodecs()[i];
    EXPECT_GT(rates.codecs[i].encode_bytes_per_ns, 0) << AutoCodecs()[i];
    EXPECT_GT(rates.codecs[i].decode_bytes_per_ns, 0) << AutoCodecs()[i];
  }
}

TEST(CodecBookTest, RatesFollowWhatCodecsReallyDid) {
  CodecBook book("auto", {}, nullptr);
  const Codec& codec = CodecBook::Find("int8");
  const auto rates = [&] {
    for (const CodecCandidate& candidate : book.candidates()) {
      if (candidate.name == "int8") return candidate.rates;
    }
    return CodecRates{};
  };
  for (int i = 0; i < 200; ++i) {
    book.NoteEncode(codec, 4000, 1000, 500);
    book.NoteDecode(codec, 4000, 250);
  }
  EXPECT_NEAR(rates().ratio, 4, 0.01);
  EXPECT_NEAR(rates().encode_bytes_per_ns, 8, 0.01);
  EXPECT_NEAR(rates().decode_bytes_per_ns, 16, 0.01);
  // Virtual time stands still while a codec works, which says nothing of it.
  book.NoteEncode(codec, 4000, 1000, 0);
  EXPECT_NEAR(rates().encode_bytes_per_ns, 8, 0.01);
}

}  // namespace
}  // namespace forebay
