#include "client/codec_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace forebay {
namespace {

using ::testing::HasSubstr;

constexpr QualityBound kExact;
constexpr QualityBound kNear{QualityClass::kNear, QualityClass::kNear};
constexpr QualityBound kFair{QualityClass::kFair, QualityClass::kFair};
constexpr QualityBound kAny{QualityClass::kCoarse, QualityClass::kCoarse};
constexpr uint64_t kBytes = 64 << 20;
constexpr uint64_t kChunk = 1 << 20;

std::vector<CodecCandidate> Candidates() {
  return {{"raw", kExact, {1, 0, 0}},
          {"lossless", kExact, {1.5, 0.8, 1.6}},
          {"lossless_fast", kExact, {1.32, 5, 8}},
          {"int8", kNear, {1.97, 6, 9}},
          {"int4", kFair, {3.56, 4, 8}},
          {"int2", kAny, {7.1, 3, 6}}};
}

PathRates Tcp(double gbit_per_s) {
  return {gbit_per_s / 8, 100 * kMicrosecond, 4, 0, 0, false, false};
}

std::string Choose(const PathRates& path, const QualityBound& bound,
                   const std::string& current = "") {
  return ChooseCodec(Candidates(), bound, path, kBytes, kChunk, current).name;
}

TEST(CodecChoiceTest, TheContractIsNeverLeft) {
  for (double gbit : {0.1, 1.0, 10.0, 100.0, 400.0}) {
    const std::string exact = Choose(Tcp(gbit), kExact);
    EXPECT_TRUE(exact == "raw" || exact == "lossless" || exact == "lossless_fast") << exact;
    const std::string near = Choose(Tcp(gbit), kNear);
    EXPECT_TRUE(near != "int4" && near != "int2") << near;
  }
}

TEST(CodecChoiceTest, ASlowLinkTakesTheSmallestAndAFastOneRaw) {
  EXPECT_EQ(Choose(Tcp(1), kExact), "lossless");
  EXPECT_EQ(Choose(Tcp(1), kNear), "int8");
  EXPECT_EQ(Choose(Tcp(1), kFair), "int4");
  EXPECT_EQ(Choose(Tcp(1), kAny), "int2");
  // At 10 Gbit/s rANS on one core holds the link up.
  EXPECT_EQ(Choose(Tcp(10), kExact), "lossless_fast");
  EXPECT_EQ(Choose(Tcp(400), kAny), "raw");
}

TEST(CodecChoiceTest, OverSharedMemoryACopyIsHardToBeat) {
  PathRates shared{10, 0, 0, 0, 0, false, true};
  EXPECT_EQ(Choose(shared, kAny), "raw");
  // A codec faster than the copies that it saves would win: one core does both.
  std::vector<CodecCandidate> candidates = Candidates();
  candidates[3].rates = {2, 100, 100};
  EXPECT_EQ(ChooseCodec(candidates, kNear, shared, kBytes, kChunk, "").name, "int8");
}

// Threads beside the one that moves bytes: more of them, more rate; and moving costs no time of
// theirs. Over shared memory they are not counted on, since all share the memory's bandwidth.
TEST(CodecChoiceTest, ThreadsOfTheirOwnEncodeAndDecodeMeanwhile) {
  const std::vector<CodecCandidate> candidates = {{"raw", kExact, {1, 0, 0}},
                                                  {"half", kNear, {2, 1, 1}}};
  PathRates path{2, 0, 4, 0, 0, false, false};
  const auto half = [&]() -> double {
    const CodecChoice choice = ChooseCodec(candidates, kNear, path, 4'000'000, 1000, "");
    return static_cast<double>(choice.estimates[1].total_ns);
  };
  // In turns: 1 ns a byte to encode, 1/8 to copy what is left; 4,000 chunks hide the rest.
  EXPECT_NEAR(half(), 4'000'000 * 1.125, 4'000);
  path.codec_threads = 1;
  EXPECT_NEAR(half(), 4'000'000 * 1.0, 4'000);
  path.codec_threads = 4;
  EXPECT_NEAR(half(), 4'000'000 * 0.25, 4'000);
  path.codec_threads = 100;  // bound by the link
  EXPECT_NEAR(half(), 4'000'000 * 0.25, 4'000);
  path.shared_memory = true;
  EXPECT_NEAR(half(), 4'000'000 * 1.25, 4'000);
}

// Two threads and a copy want three processors; of two they get two thirds, and less where the
// other end copies on them too.
TEST(CodecChoiceTest, AnEndHasNoMoreThanItsProcessors) {
  const std::vector<CodecCandidate> candidates = {{"raw", kExact, {1, 0, 0}},
                                                  {"half", kNear, {2, 1, 1}}};
  PathRates path{100, 0, 1, 2, 0, false, false};
  const auto time_of = [&](size_t i) {
    const CodecChoice choice = ChooseCodec(candidates, kNear, path, 4'000'000, 1000, "");
    return static_cast<double>(choice.estimates[i].total_ns) / 4'000'000;
  };
  EXPECT_NEAR(time_of(1), 0.5, 0.01);
  path.processors = 2;
  EXPECT_NEAR(time_of(0), 1, 0.01);
  EXPECT_NEAR(time_of(1), 0.75, 0.01);
  path.same_host = true;
  EXPECT_NEAR(time_of(0), 1, 0.01);
  EXPECT_NEAR(time_of(1), 1, 0.01);
  path.processors = 16;
  EXPECT_NEAR(time_of(1), 0.5, 0.01);
}

// The model against a count by hand: 4 chunks, of which the crossing is the slowest stage.
TEST(CodecChoiceTest, TheEstimateIsThePipelinedTime) {
  const std::vector<CodecCandidate> candidates = {{"raw", kExact, {1, 0, 0}},
                                                  {"half", kNear, {2, 4, 8}}};
  const PathRates path{0.1, 1000, 0, 0, 0, false, false};
  const CodecChoice choice = ChooseCodec(candidates, kNear, path, 4000, 1000, "");
  ASSERT_EQ(choice.estimates.size(), 2u);
  const CodecEstimate& half = choice.estimates[1];
  EXPECT_EQ(half.encode_ns, 1000);
  EXPECT_EQ(half.cross_ns, 20'000);
  EXPECT_EQ(half.decode_ns, 500);
  EXPECT_EQ(half.total_ns, 1000 + (1000 + 20'000 + 500) / 4 + 15'000);
  EXPECT_EQ(choice.estimates[0].total_ns, 1000 + 40'000);
  EXPECT_EQ(choice.name, "half");
  EXPECT_THAT(choice.reason, HasSubstr("0.52 of raw's time, bound by the link"));
}

TEST(CodecChoiceTest, ATieGoesToTheMoreExact) {
  std::vector<CodecCandidate> candidates = {
      {"raw", kExact, {1, 0, 0}}, {"near", kNear, {2, 0, 0}}, {"any", kAny, {2.08, 0, 0}}};
  const PathRates path{1, 0, 0, 0, 0, false, false};
  EXPECT_EQ(ChooseCodec(candidates, kAny, path, kBytes, kChunk, "").name, "near");
  candidates[2].rates.ratio = 2.12;
  EXPECT_EQ(ChooseCodec(candidates, kAny, path, kBytes, kChunk, "").name, "any");
}

// Raw holds nothing up, so what is taken instead must be worth it; but one that is taken stays
// while it saves something.
TEST(CodecChoiceTest, RawGivesWayToWhatSavesClearly) {
  std::vector<CodecCandidate> candidates = {{"raw", kExact, {1, 0, 0}},
                                            {"near", kNear, {1.15, 0, 0}}};
  const PathRates path{1, 0, 0, 0, 0, false, false};
  const auto chosen = [&](const std::string& current) {
    return ChooseCodec(candidates, kAny, path, kBytes, kChunk, current).name;
  };
  EXPECT_EQ(chosen(""), "raw");
  EXPECT_EQ(chosen("raw"), "raw");
  EXPECT_EQ(chosen("near"), "near");
  candidates[1].rates.ratio = 1.2;
  EXPECT_EQ(chosen(""), "near");
  EXPECT_EQ(chosen("raw"), "near");
  candidates[1].rates.ratio = 1.04;
  EXPECT_EQ(chosen("near"), "raw");
}

TEST(CodecChoiceTest, AChoiceStaysUntilAnotherSavesATenth) {
  std::vector<CodecCandidate> candidates = {
      {"raw", kExact, {1, 0, 0}}, {"near", kNear, {2, 0, 0}}, {"any", kAny, {2.18, 0, 0}}};
  const PathRates path{1, 0, 0, 0, 0, false, false};
  for (const char* current : {"near", "any"}) {
    EXPECT_EQ(ChooseCodec(candidates, kAny, path, kBytes, kChunk, current).name, current);
  }
  EXPECT_THAT(ChooseCodec(candidates, kAny, path, kBytes, kChunk, "near").reason,
              HasSubstr("kept"));
  candidates[2].rates.ratio = 2.4;
  EXPECT_EQ(ChooseCodec(candidates, kAny, path, kBytes, kChunk, "near").name, "any");
  // What the contract does not allow (any more) is not kept.
  EXPECT_EQ(ChooseCodec(candidates, kExact, path, kBytes, kChunk, "near").name, "raw");
}

// Over all links between 10 Mbit/s and 1 Tbit/s, what is chosen is never predicted slower than raw.
TEST(CodecChoiceTest, NeverSlowerThanRaw) {
  for (double gbit = 0.01; gbit < 1000; gbit *= 1.5) {
    for (const QualityBound& bound : {kExact, kNear, kFair, kAny}) {
      for (bool shared : {false, true}) {
        PathRates path = Tcp(gbit);
        path.shared_memory = shared;
        const CodecChoice choice = ChooseCodec(Candidates(), bound, path, kBytes, kChunk, "");
        for (const CodecEstimate& estimate : choice.estimates) {
          if (estimate.name != choice.name) continue;
          EXPECT_LE(estimate.total_ns, choice.estimates[0].total_ns);
          EXPECT_TRUE(estimate.allowed);
        }
      }
    }
  }
}

}  // namespace
}  // namespace forebay
