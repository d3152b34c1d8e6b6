#include "tiers/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "base/random.h"
#include "base/testing/manual_clock.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::ManualClock;

constexpr uint64_t kAlice = 1;
constexpr uint64_t kBob = 2;

LeaseHolding Holding(uint32_t pages, uint32_t parts = 2) {
  LeaseHolding holding;
  holding.slots_per_page = parts;
  for (uint32_t p = 0; p < pages; ++p) {
    holding.pages.push_back({p, 7});
    for (uint32_t s = 0; s < parts; ++s) holding.slots.push_back({p * parts + s, 70});
  }
  return holding;
}

TEST(LeaseTableTest, AReleaseInTimeIsValidAndHandsTheHoldingBack) {
  LeaseTable table({});
  const LeaseId lease = *table.Grant(kAlice, Holding(3), 100, 50);
  EXPECT_NE(lease, 0u);
  ASSERT_NE(table.Find(kAlice, lease, 149), nullptr);
  EXPECT_EQ(table.Find(kAlice, lease, 149)->pages.size(), 3u);

  const LeaseTable::Released released = table.Release(kAlice, lease, 0, 149);
  EXPECT_EQ(released.verdict, LeaseVerdict::kValid);
  EXPECT_EQ(released.holding.slots.size(), 6u);
  EXPECT_EQ(table.lease_count(), 0u);
  EXPECT_EQ(table.NextDeadline(), kForever);
  EXPECT_EQ(table.Release(kAlice, lease, 0, 149).verdict, LeaseVerdict::kUnknown);
}

TEST(LeaseTableTest, ADeadlineIsTheFirstMomentTooLate) {
  LeaseTable table({});
  const LeaseId lease = *table.Grant(kAlice, Holding(1), 100, 50);
  EXPECT_EQ(table.Find(kAlice, lease, 150), nullptr);
  EXPECT_THAT(table.Renew(kAlice, lease, 150, 50), HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(table.Expire(149).empty());

  const LeaseTable::Released released = table.Release(kAlice, lease, 0, 150);
  EXPECT_EQ(released.verdict, LeaseVerdict::kExpired) << "though Expire has not come round";
  EXPECT_EQ(released.holding.pages.size(), 1u);
  EXPECT_TRUE(table.Expire(1000).empty()) << "the holding was handed out";
}

// A reader is stopped for an hour after its read and before its release. The daemon lets go of the
// pages meanwhile, and other bytes come into the slot. What the reader holds proves nothing.
TEST(LeaseTableTest, APausedHolderLearnsThatItIsTooLate) {
  const auto tier =
      *DramTier::Create({.capacity_bytes = 1 << 20, .slab_bytes = 1 << 20, .huge_pages = false});
  const auto publish = [&](int fill) {
    const SlotRef ref = *tier->Allocate(1 << 20);
    std::memset(tier->FillMemory(ref).data(), fill, 1 << 20);
    FB_EXPECT_OK(tier->Seal(ref));
    return ref;
  };
  const SlotRef slot = publish(1);
  FB_EXPECT_OK(tier->Pin(slot));
  ManualClock clock;
  LeaseTable table({});
  LeaseHolding holding;
  holding.pages.push_back({0, 1});
  holding.slots.push_back(slot);
  holding.slots_per_page = 1;
  const LeaseId lease = *table.Grant(kAlice, std::move(holding), clock.Now(), 50 * kMillisecond);

  FB_EXPECT_OK(tier->Retire(slot));
  EXPECT_TRUE(tier->Holds(slot)) << "leased bytes stay";
  clock.Advance(3600 * kSecond);
  const std::vector<LeaseTable::Expired> expired = table.Expire(clock.Now());
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].session, kAlice);
  EXPECT_EQ(expired[0].lease, lease);
  for (const SlotRef& ref : expired[0].holding.slots) tier->Unpin(ref);
  const SlotRef other = publish(2);
  ASSERT_EQ(other.slot, slot.slot);

  EXPECT_EQ(table.Release(kAlice, lease, 0, clock.Now()).verdict, LeaseVerdict::kExpired);
  EXPECT_FALSE(tier->Holds(slot));
  EXPECT_EQ(tier->counts().pins, 0u);
}

TEST(LeaseTableTest, ALeaseMeansNothingToAnotherSession) {
  LeaseTable table({});
  const LeaseId lease = *table.Grant(kAlice, Holding(1), 0, 50);
  EXPECT_EQ(table.Find(kBob, lease, 1), nullptr);
  EXPECT_EQ(table.Release(kBob, lease, 0, 1).verdict, LeaseVerdict::kUnknown);
  EXPECT_THAT(table.Renew(kBob, lease, 1, 50), HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_NE(table.Find(kAlice, lease, 1), nullptr);

  table.Expire(100);
  EXPECT_EQ(table.Release(kBob, lease, 0, 100).verdict, LeaseVerdict::kUnknown);
  EXPECT_EQ(table.Release(kAlice, lease, 0, 100).verdict, LeaseVerdict::kExpired);
}

TEST(LeaseTableTest, KeepsTheLeadingPagesThatAReleaseNames) {
  LeaseTable table({});
  const LeaseId lease = *table.Grant(kAlice, Holding(5, 3), 0, 50);
  const LeaseTable::Released tail = table.Release(kAlice, lease, 2, 1);
  EXPECT_EQ(tail.verdict, LeaseVerdict::kValid);
  ASSERT_EQ(tail.holding.pages.size(), 3u);
  EXPECT_EQ(tail.holding.pages[0].row, 2u);
  ASSERT_EQ(tail.holding.slots.size(), 9u);
  EXPECT_EQ(tail.holding.slots[0].slot, 6u);

  EXPECT_TRUE(table.Release(kAlice, lease, 2, 1).holding.pages.empty());
  EXPECT_TRUE(table.Release(kAlice, lease, 99, 1).holding.pages.empty());
  const LeaseTable::Released rest = table.Release(kAlice, lease, 0, 1);
  EXPECT_EQ(rest.verdict, LeaseVerdict::kValid);
  EXPECT_EQ(rest.holding.pages.size(), 2u);
  EXPECT_EQ(rest.holding.slots.size(), 6u);
}

TEST(LeaseTableTest, AnExpiredLeaseEndsWholeWhateverAReleaseKeeps) {
  LeaseTable table({});
  const LeaseId lease = *table.Grant(kAlice, Holding(5), 0, 50);
  const LeaseTable::Released released = table.Release(kAlice, lease, 2, 60);
  EXPECT_EQ(released.verdict, LeaseVerdict::kExpired);
  EXPECT_EQ(released.holding.pages.size(), 5u);
  EXPECT_EQ(table.lease_count(), 0u);
}

TEST(LeaseTableTest, RenewalExtendsAndNeverBeyondTheAgeLimit) {
  LeaseTable table({.ttl_max = 100, .age_max = 250});
  const LeaseId lease = *table.Grant(kAlice, Holding(1), 0, 80);
  EXPECT_EQ(*table.Renew(kAlice, lease, 10, 20), 80) << "never back";
  EXPECT_EQ(*table.Renew(kAlice, lease, 10, 1000), 110) << "cut to the longest";
  EXPECT_EQ(*table.Renew(kAlice, lease, 100, 100), 200);
  EXPECT_EQ(*table.Renew(kAlice, lease, 190, 100), 250) << "cut to the age limit";
  EXPECT_EQ(*table.Renew(kAlice, lease, 249, 100), 250);
  EXPECT_EQ(table.NextDeadline(), 250);
  EXPECT_TRUE(table.Expire(249).empty());
  EXPECT_EQ(table.Expire(250).size(), 1u);
}

TEST(LeaseTableTest, RefusesTimesThatMakeNoSenseAndSurvivesTheEndOfTime) {
  LeaseTable table({.ttl_max = kForever, .age_max = kForever});
  EXPECT_THAT(table.Grant(kAlice, Holding(1), 0, 0), HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(table.Grant(kAlice, Holding(1), 0, -5), HasCode(absl::StatusCode::kInvalidArgument));
  const LeaseId lease = *table.Grant(kAlice, Holding(1), kForever - 5, kForever);
  EXPECT_THAT(table.Renew(kAlice, lease, 10, 0), HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(*table.Renew(kAlice, lease, kForever - 5, kForever), kForever);
}

TEST(LeaseTableTest, ASessionHoldsSoManyLeasesAndNoMore) {
  LeaseTable table({.leases_per_session_max = 2});
  const LeaseId first = *table.Grant(kAlice, Holding(1), 0, 50);
  FB_EXPECT_OK(table.Grant(kAlice, Holding(1), 0, 50));
  LeaseHolding refused = Holding(4);
  EXPECT_THAT(table.Grant(kAlice, std::move(refused), 0, 50),
              HasCode(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(refused.pages.size(), 4u) << "a refused holding stays with the caller";
  FB_EXPECT_OK(table.Grant(kBob, Holding(1), 0, 50));
  table.Release(kAlice, first, 0, 1);
  FB_EXPECT_OK(table.Grant(kAlice, Holding(1), 1, 50));
}

TEST(LeaseTableTest, DroppingASessionGivesBackAllItHeldAndNothingElse) {
  LeaseTable table({});
  FB_EXPECT_OK(table.Grant(kAlice, Holding(1), 0, 50));
  FB_EXPECT_OK(table.Grant(kAlice, Holding(2), 0, 60));
  const LeaseId other = *table.Grant(kBob, Holding(1), 0, 50);
  EXPECT_EQ(table.DropSession(kAlice).size(), 2u);
  EXPECT_TRUE(table.DropSession(kAlice).empty());
  EXPECT_EQ(table.LeaseCountOf(kAlice), 0u);
  EXPECT_EQ(table.Release(kBob, other, 0, 1).verdict, LeaseVerdict::kValid);
  EXPECT_TRUE(table.Expire(1000).empty());
}

TEST(LeaseTableTest, WhatIsForgottenIsStillNotValid) {
  LeaseTable table({.remembered_max = 2});
  std::vector<LeaseId> leases;
  for (int i = 0; i < 3; ++i) leases.push_back(*table.Grant(kAlice, Holding(1), 0, 10 + i));
  table.Expire(100);
  EXPECT_EQ(table.Release(kAlice, leases[0], 0, 100).verdict, LeaseVerdict::kUnknown);
  EXPECT_EQ(table.Release(kAlice, leases[1], 0, 100).verdict, LeaseVerdict::kExpired);
  EXPECT_EQ(table.Release(kAlice, leases[2], 0, 100).verdict, LeaseVerdict::kExpired);
}

TEST(LeaseTableTest, IdsNeitherRepeatNorFollowFromEachOther) {
  LeaseTable table({.leases_per_session_max = UINT32_MAX});
  std::set<LeaseId> ids;
  std::map<uint64_t, int> steps;
  LeaseId before = 0;
  constexpr int kCount = 20'000;
  for (int i = 0; i < kCount; ++i) {
    const LeaseId id = *table.Grant(kAlice, {}, 0, 50);
    EXPECT_NE(id, 0u);
    ids.insert(id);
    ++steps[id - before];
    before = id;
  }
  EXPECT_EQ(ids.size(), size_t{kCount});
  EXPECT_GT(steps.size(), size_t{kCount} - 10) << "no step repeats";

  LeaseTable other({});
  EXPECT_EQ(ids.count(*other.Grant(kAlice, {}, 0, 50)), 0u) << "two starts have two keys";
}

TEST(LeaseTableDeathTest, AHoldingOfTheWrongShapeAborts) {
  LeaseTable table({});
  LeaseHolding holding = Holding(2);
  holding.slots.pop_back();
  EXPECT_DEATH(static_cast<void>(table.Grant(kAlice, std::move(holding), 0, 50)), "slots_per_page");
}

// A lease table beside a std::map. Every page that went in comes out exactly once.
class LeaseModel {
 public:
  void Step() {
    now_ += static_cast<Nanos>(random_.Below(4));
    switch (random_.Below(5)) {
      case 0:
      case 1:
        return Grant();
      case 2:
        return Release();
      case 3:
        return Renew();
      default:
        return random_.Chance(0.02) ? DropSession() : Expire();
    }
  }

  void Finish() {
    now_ = kForever;
    Expire();
    EXPECT_EQ(pages_in_, pages_out_);
    EXPECT_EQ(table_.lease_count(), 0u);
    EXPECT_GT(expired_.size(), 100u);
  }

 private:
  static constexpr uint32_t kLeasesMax = 40;
  static constexpr Nanos kTtlMax = 80;
  static constexpr Nanos kAgeMax = 300;
  struct Lease {
    uint64_t session = 0;
    Nanos granted = 0, deadline = 0;
    size_t pages = 0;
  };

  uint64_t RandomSession() { return random_.Below(4); }
  Nanos RandomTtl() { return static_cast<Nanos>(1 + random_.Below(120)); }
  std::map<LeaseId, Lease>::iterator RandomLease() {
    auto at = live_.begin();
    if (!live_.empty()) std::advance(at, random_.Below(live_.size()));
    return at;
  }

  void Grant() {
    const uint64_t session = RandomSession();
    const uint32_t pages = static_cast<uint32_t>(random_.Below(4));
    const Nanos ttl = RandomTtl();
    const size_t held = table_.LeaseCountOf(session);
    const auto lease = table_.Grant(session, Holding(pages), now_, ttl);
    ASSERT_EQ(lease.ok(), held < kLeasesMax);
    if (!lease.ok()) return;
    ASSERT_EQ(live_.count(*lease) + expired_.count(*lease), 0u);
    live_[*lease] = {session, now_, now_ + std::min(ttl, kTtlMax), pages};
    pages_in_ += pages;
  }

  void Release() {
    const auto at = RandomLease();
    if (at == live_.end()) return;
    const uint64_t session = RandomSession();
    const bool own = at->second.session == session;
    const bool in_time = now_ < at->second.deadline;
    const uint32_t keep = static_cast<uint32_t>(random_.Below(3));
    const auto released = table_.Release(session, at->first, keep, now_);
    pages_out_ += released.holding.pages.size();
    if (!own) {
      ASSERT_EQ(released.verdict, LeaseVerdict::kUnknown);
      return;
    }
    ASSERT_EQ(released.verdict, in_time ? LeaseVerdict::kValid : LeaseVerdict::kExpired);
    at->second.pages -= released.holding.pages.size();
    if (in_time && keep > 0) return;
    ASSERT_EQ(at->second.pages, 0u);
    if (!in_time) expired_.insert(at->first);
    live_.erase(at);
  }

  void Renew() {
    const auto at = RandomLease();
    if (at == live_.end()) return;
    Lease& lease = at->second;
    const Nanos ttl = RandomTtl();
    const auto renewed = table_.Renew(lease.session, at->first, now_, ttl);
    ASSERT_EQ(renewed.ok(), now_ < lease.deadline);
    if (!renewed.ok()) return;
    const Nanos wished = std::min(now_ + std::min(ttl, kTtlMax), lease.granted + kAgeMax);
    lease.deadline = std::max(lease.deadline, wished);
    ASSERT_EQ(*renewed, lease.deadline);
  }

  void Expire() {
    for (const LeaseTable::Expired& e : table_.Expire(now_)) {
      ASSERT_LE(live_.at(e.lease).deadline, now_);
      ASSERT_EQ(live_.at(e.lease).session, e.session);
      ASSERT_EQ(live_.at(e.lease).pages, e.holding.pages.size());
      pages_out_ += e.holding.pages.size();
      live_.erase(e.lease);
      expired_.insert(e.lease);
    }
    for (const auto& [id, lease] : live_) ASSERT_GT(lease.deadline, now_);
    ASSERT_EQ(table_.lease_count(), live_.size());
  }

  void DropSession() {
    const uint64_t session = RandomSession();
    for (const LeaseHolding& holding : table_.DropSession(session)) {
      pages_out_ += holding.pages.size();
    }
    std::erase_if(live_, [&](const auto& lease) { return lease.second.session == session; });
    ASSERT_EQ(table_.LeaseCountOf(session), 0u);
  }

  SeededRandom random_{31};
  LeaseTable table_{{.leases_per_session_max = kLeasesMax, .ttl_max = kTtlMax, .age_max = kAgeMax}};
  std::map<LeaseId, Lease> live_;
  std::set<LeaseId> expired_;
  Nanos now_ = 0;
  size_t pages_in_ = 0, pages_out_ = 0;
};

TEST(LeaseTableTest, AgreesWithAMap) {
  LeaseModel model;
  for (int step = 0; step < 40'000; ++step) {
    model.Step();
    if (HasFailure()) FAIL() << "at step " << step;
  }
  model.Finish();
}

}  // namespace
}  // namespace forebay
