#include "tiers/eviction_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/random.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kNone = UINT32_MAX;

void Insert(EvictionPolicy& policy, uint32_t row, uint64_t hash = 0) {
  policy.OnInsert(row, hash == 0 ? row + 1 : hash, 0);
  policy.SetCandidate(row, true);
}

uint32_t Evict(EvictionPolicy& policy) {
  const uint32_t row = policy.PickVictim();
  if (row != kNone) policy.OnRemove(row, /*evicted=*/true);
  return row;
}

TEST(EvictionPolicyTest, NamesTheKnownOnes) {
  EXPECT_TRUE(MakeEvictionPolicy("lru").ok());
  EXPECT_TRUE(MakeEvictionPolicy("s3fifo").ok());
  EXPECT_THAT(MakeEvictionPolicy("random"),
              HasStatus(absl::StatusCode::kInvalidArgument,
                        AllOf(HasSubstr("random"), HasSubstr("lru"), HasSubstr("s3fifo"))));
}

class AnyEvictionPolicyTest : public ::testing::TestWithParam<const char*> {
 protected:
  AnyEvictionPolicyTest() : policy_(*MakeEvictionPolicy(GetParam())) {}
  std::unique_ptr<EvictionPolicy> policy_;
};

TEST_P(AnyEvictionPolicyTest, HasNoVictimWithoutCandidates) {
  EXPECT_EQ(policy_->PickVictim(), kNone);
  policy_->OnInsert(3, 1, 0);
  EXPECT_EQ(policy_->PickVictim(), kNone);
  policy_->SetCandidate(3, true);
  EXPECT_EQ(policy_->PickVictim(), 3u);
  policy_->SetCandidate(3, false);
  EXPECT_EQ(policy_->PickVictim(), kNone);
}

TEST_P(AnyEvictionPolicyTest, NamesTheSameVictimUntilSomethingHappens) {
  for (uint32_t row = 0; row < 50; ++row) Insert(*policy_, row);
  for (uint32_t row = 0; row < 50; row += 3) policy_->OnTouch(row, 0);
  const uint32_t victim = policy_->PickVictim();
  EXPECT_EQ(policy_->PickVictim(), victim);
}

// Whatever the order of events: each victim is a candidate, and as long as there is one, one is
// named.
TEST_P(AnyEvictionPolicyTest, NamesCandidatesAndOnlyThese) {
  SeededRandom random(21);
  std::map<uint32_t, bool> rows;
  for (int step = 0; step < 50'000; ++step) {
    const uint32_t row = static_cast<uint32_t>(random.Below(300));
    const auto at = rows.find(row);
    if (at == rows.end()) {
      policy_->OnInsert(row, random.Below(1000), 0);
      rows[row] = false;
    } else if (random.Chance(0.3)) {
      at->second = !at->second;
      policy_->SetCandidate(row, at->second);
    } else if (random.Chance(0.6)) {
      policy_->OnTouch(row, 0);
    } else if (random.Chance(0.2)) {
      policy_->OnRemove(row, false);
      rows.erase(at);
    }
    if (!random.Chance(0.2)) continue;
    const uint32_t victim = policy_->PickVictim();
    if (victim == kNone) {
      for (const auto& [other, candidate] : rows) ASSERT_FALSE(candidate) << other;
      continue;
    }
    ASSERT_TRUE(rows.at(victim));
    policy_->OnRemove(victim, true);
    rows.erase(victim);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, AnyEvictionPolicyTest, ::testing::Values("lru", "s3fifo"));

TEST(LruPolicyTest, NamesTheRowUsedLongestAgo) {
  const auto policy = MakeLruPolicy();
  for (uint32_t row = 0; row < 4; ++row) Insert(*policy, row);
  policy->OnTouch(0, 0);
  policy->OnTouch(2, 0);
  EXPECT_EQ(Evict(*policy), 1u);
  EXPECT_EQ(Evict(*policy), 3u);
  EXPECT_EQ(Evict(*policy), 0u);
  EXPECT_EQ(Evict(*policy), 2u);
}

// Exactly, for any events: beside a model that looks at every row.
TEST(LruPolicyTest, IsExact) {
  SeededRandom random(22);
  const auto policy = MakeLruPolicy();
  struct Row {
    uint64_t used;
    bool candidate;
  };
  std::map<uint32_t, Row> rows;
  for (uint64_t step = 1; step < 60'000; ++step) {
    const uint32_t row = static_cast<uint32_t>(random.Below(200));
    const auto at = rows.find(row);
    if (at == rows.end()) {
      policy->OnInsert(row, 0, 0);
      rows[row] = {step, false};
    } else if (random.Chance(0.4)) {
      policy->OnTouch(row, 0);
      at->second.used = step;
    } else if (random.Chance(0.8)) {
      at->second.candidate = !at->second.candidate;
      policy->SetCandidate(row, at->second.candidate);
    } else {
      policy->OnRemove(row, false);
      rows.erase(at);
    }
    uint32_t oldest = kNone;
    for (const auto& [other, r] : rows) {
      if (r.candidate && (oldest == kNone || r.used < rows[oldest].used)) oldest = other;
    }
    ASSERT_EQ(policy->PickVictim(), oldest);
  }
}

TEST(S3FifoPolicyTest, RowsUsedOnceGoFirst) {
  const auto policy = MakeS3FifoPolicy();
  for (uint32_t row = 0; row < 10; ++row) Insert(*policy, row);
  for (const uint32_t row : {1u, 4u}) {
    policy->OnTouch(row, 0);
    policy->OnTouch(row, 0);
  }
  std::set<uint32_t> first;
  for (int i = 0; i < 8; ++i) first.insert(Evict(*policy));
  EXPECT_EQ(first.count(1), 0u);
  EXPECT_EQ(first.count(4), 0u);
}

TEST(S3FifoPolicyTest, AScanDoesNotPushOutWhatIsUsed) {
  const auto policy = MakeS3FifoPolicy();
  for (uint32_t row = 0; row < 100; ++row) {
    Insert(*policy, row);
    policy->OnTouch(row, 0);
    policy->OnTouch(row, 0);
  }
  // A scan of a thousand pages, each used once, through a pool that is full.
  std::vector<uint32_t> scanned;
  int lost = 0;
  for (uint32_t i = 0; i < 1000; ++i) {
    const uint32_t row = 100 + i;
    Insert(*policy, row, /*hash=*/10'000 + i);
    if (Evict(*policy) < 100) ++lost;
  }
  EXPECT_LE(lost, 10);
}

TEST(S3FifoPolicyTest, ARowThatComesBackSoonIsSparedTheSmallQueue) {
  const auto policy = MakeS3FifoPolicy();
  for (uint32_t row = 0; row < 20; ++row) Insert(*policy, row, /*hash=*/100 + row);
  const uint32_t gone = Evict(*policy);
  Insert(*policy, gone, /*hash=*/100 + gone);  // It comes back, and goes to the main queue.
  std::vector<uint32_t> order;
  for (int i = 0; i < 20; ++i) order.push_back(Evict(*policy));
  // While the small queue holds a tenth of the rows, it is emptied first.
  EXPECT_GE(std::find(order.begin(), order.end(), gone) - order.begin(), 9);
}

// Rows that are no candidates must not be walked over again and again: a hundred thousand parents
// in front of one leaf, many picks.
TEST(S3FifoPolicyTest, AndLruPickInSpiteOfManyParents) {
  for (const char* name : {"lru", "s3fifo"}) {
    const auto policy = *MakeEvictionPolicy(name);
    constexpr uint32_t kParents = 100'000;
    for (uint32_t row = 0; row < kParents; ++row) policy->OnInsert(row, row, 0);
    for (uint32_t i = 0; i < 100'000; ++i) {
      Insert(*policy, kParents + i % 10, /*hash=*/kParents + i);
      ASSERT_EQ(Evict(*policy), kParents + i % 10);
    }
  }
}

}  // namespace
}  // namespace forebay
