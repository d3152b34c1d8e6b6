#include "base/random.h"

#include <gtest/gtest.h>

#include <set>

namespace forebay {
namespace {

TEST(RandomTest, IdsDiffer) {
  std::set<Uint128Bytes> ids;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(ids.insert(RandomId()).second);
}

// The first outputs of splitmix64 from seed 1234567, as its reference implementation prints them.
TEST(RandomTest, SeededRandomIsSplitmix64) {
  SeededRandom random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
}

TEST(RandomTest, BelowAndChanceStayInRange) {
  SeededRandom random(7);
  int hits = 0;
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_LT(random.Below(10), 10u);
    hits += random.Chance(0.25) ? 1 : 0;
    EXPECT_FALSE(random.Chance(0));
    EXPECT_TRUE(random.Chance(1));
  }
  EXPECT_GT(hits, 2300);
  EXPECT_LT(hits, 2700);
}

}  // namespace
}  // namespace forebay
