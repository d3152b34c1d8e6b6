#include "base/retention_mask.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace forebay {
namespace {

TEST(RetentionMaskTest, BitsAreTokens) {
  RetentionMask mask = RetentionMask::DropAll(/*tokens=*/70, /*scopes=*/2);
  mask.Keep(0, 0);
  mask.Keep(0, 69);
  mask.Keep(1, 64);
  EXPECT_EQ(mask.words, (std::vector<uint64_t>{1, 1u << 5, 0, 1}));
  EXPECT_EQ(mask.Kept(0), 2u);
  EXPECT_EQ(mask.Kept(1), 1u);
  EXPECT_TRUE(mask.Keeps(0, 69));
  EXPECT_FALSE(mask.Keeps(1, 69));
}

TEST(RetentionMaskTest, KeepAllSetsNoBitPastTheLastToken) {
  for (const uint32_t tokens : {0u, 1u, 63u, 64u, 65u, 128u}) {
    const RetentionMask mask = RetentionMask::KeepAll(tokens, 3);
    RetentionMask same = RetentionMask::DropAll(tokens, 3);
    for (uint32_t scope = 0; scope < 3; ++scope) {
      EXPECT_EQ(mask.Kept(scope), tokens);
      for (uint32_t token = 0; token < tokens; ++token) same.Keep(scope, token);
    }
    EXPECT_EQ(mask, same);
  }
}

TEST(RetentionMaskTest, OneScopeDecidesForEachHead) {
  EXPECT_EQ(RetentionMask::KeepAll(1, 1).ScopeOf(7), 0u);
  EXPECT_EQ(RetentionMask::KeepAll(1, 8).ScopeOf(7), 7u);
}

TEST(RetentionMaskTest, ASliceIsTheMaskOfItsTokens) {
  SeededRandom random(1);
  RetentionMask mask = RetentionMask::DropAll(200, 2);
  for (uint32_t token = 0; token < 200; ++token) {
    for (uint32_t scope = 0; scope < 2; ++scope) {
      if (random.Chance(0.5)) mask.Keep(scope, token);
    }
  }
  for (const auto& [begin, end] :
       {std::pair(0u, 200u), {64u, 128u}, {3u, 131u}, {199u, 200u}, {70u, 70u}}) {
    const RetentionMask slice = mask.Slice(begin, end);
    ASSERT_EQ(slice.tokens, end - begin);
    ASSERT_EQ(slice.words.size(), 2 * slice.word_count());
    for (uint32_t scope = 0; scope < 2; ++scope) {
      uint32_t kept = 0;
      for (uint32_t token = begin; token < end; ++token) {
        EXPECT_EQ(slice.Keeps(scope, token - begin), mask.Keeps(scope, token));
        kept += mask.Keeps(scope, token) ? 1 : 0;
      }
      EXPECT_EQ(slice.Kept(scope), kept);
    }
  }
  EXPECT_EQ(mask.Slice(0, 200), mask);
}

}  // namespace
}  // namespace forebay
