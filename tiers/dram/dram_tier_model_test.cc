// Random operations on a DRAM tier beside the simplest model of it: a map from reference to what
// that reference should see. After each operation the counts must add up; what is read must be
// whole.

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "tiers/dram/dram_tier.h"

namespace forebay {
namespace {

constexpr uint64_t kSlabBytes = 256 << 10;
constexpr uint64_t kSlabs = 6;
constexpr int kSteps = 20'000;

struct ModelSlot {
  SlotRef ref;
  SlotState state = SlotState::kFilling;
  size_t bytes = 0;
  uint32_t pins = 0;
};

class DramTierModelTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  DramTierModelTest()
      : random_(GetParam()),
        tier_(*DramTier::Create({.capacity_bytes = kSlabs * kSlabBytes,
                                 .slab_bytes = kSlabBytes,
                                 .huge_pages = false})) {}

  // Every byte says its generation, so that an overlap of two slots is seen.
  static std::byte Mark(const SlotRef& ref) { return std::byte(ref.generation * 151 + 13); }

  void Allocate() {
    static constexpr size_t kSizes[] = {100, 1088, 4160, 9000, 33'000, 100'000, kSlabBytes};
    const size_t bytes = kSizes[random_.Below(std::size(kSizes))];
    const absl::StatusOr<SlotRef> ref = tier_->Allocate(bytes);
    if (!ref.ok()) {
      EXPECT_EQ(ref.status().code(), absl::StatusCode::kResourceExhausted);
      return;
    }
    EXPECT_GT(ref->generation, newest_) << "generations only grow";
    newest_ = ref->generation;
    const MutableBytes memory = tier_->FillMemory(*ref);
    ASSERT_EQ(memory.size(), bytes);
    std::memset(memory.data(), static_cast<int>(Mark(*ref)), bytes);
    slots_[ref->generation] = {*ref, SlotState::kFilling, bytes, 0};
  }

  void Check(const ModelSlot& slot) {
    const bool readable = slot.state == SlotState::kSealed || slot.state == SlotState::kDraining;
    EXPECT_EQ(tier_->Holds(slot.ref), readable);
    EXPECT_EQ(tier_->StateOf(slot.ref.slot), slot.state);
    const absl::StatusOr<Bytes> read = tier_->Read(slot.ref);
    ASSERT_EQ(read.ok(), readable);
    if (!readable) return;
    ASSERT_EQ(read->size(), slot.bytes);
    const std::byte mark = Mark(slot.ref);
    EXPECT_EQ(read->front(), mark);
    EXPECT_EQ((*read)[slot.bytes / 2], mark);
    EXPECT_EQ(read->back(), mark);
  }

  void Forget(std::map<uint64_t, ModelSlot>::iterator at) {
    stale_.push_back(at->second.ref);
    slots_.erase(at);
  }

  // One random operation on a random slot, which must answer as the model does.
  void Operate() {
    auto at = slots_.lower_bound(random_.Below(newest_ + 1));
    if (at == slots_.end()) return;
    ModelSlot& slot = at->second;
    Check(slot);
    switch (random_.Below(6)) {
      case 0:
      case 1:
        EXPECT_EQ(tier_->Seal(slot.ref).ok(), slot.state == SlotState::kFilling);
        if (slot.state == SlotState::kFilling) slot.state = SlotState::kSealed;
        break;
      case 2: {
        EXPECT_EQ(tier_->Pin(slot.ref).ok(), slot.state == SlotState::kSealed);
        if (slot.state == SlotState::kSealed) ++slot.pins;
        break;
      }
      case 3:
        if (slot.pins == 0) break;
        tier_->Unpin(slot.ref);
        if (--slot.pins == 0 && slot.state == SlotState::kDraining) Forget(at);
        break;
      case 4:
        EXPECT_EQ(tier_->Retire(slot.ref).ok(), slot.state == SlotState::kSealed);
        if (slot.state != SlotState::kSealed) break;
        slot.state = SlotState::kDraining;
        if (slot.pins == 0) Forget(at);
        break;
      default:
        if (slot.state == SlotState::kQuarantine) {
          EXPECT_TRUE(tier_->Fence(slot.ref).ok());
          Forget(at);
          break;
        }
        EXPECT_EQ(tier_->Abort(slot.ref).ok(), slot.state == SlotState::kFilling);
        if (slot.state == SlotState::kFilling) slot.state = SlotState::kQuarantine;
    }
  }

  void CheckStale() {
    if (stale_.empty()) return;
    const SlotRef ref = stale_[random_.Below(stale_.size())];
    EXPECT_FALSE(tier_->Holds(ref));
    EXPECT_FALSE(tier_->Pin(ref).ok());
    EXPECT_FALSE(tier_->Read(ref).ok());
    EXPECT_FALSE(tier_->Seal(ref).ok());
    EXPECT_FALSE(tier_->Abort(ref).ok());
    EXPECT_FALSE(tier_->Retire(ref).ok());
    EXPECT_FALSE(tier_->Fence(ref).ok());
  }

  void CheckCounts() {
    SlotCounts want;
    for (const auto& [generation, slot] : slots_) {
      want.filling += slot.state == SlotState::kFilling;
      want.sealed += slot.state == SlotState::kSealed;
      want.draining += slot.state == SlotState::kDraining;
      want.quarantine += slot.state == SlotState::kQuarantine;
      want.pins += slot.pins;
    }
    const SlotCounts counts = tier_->counts();
    ASSERT_EQ(counts.filling, want.filling);
    ASSERT_EQ(counts.sealed, want.sealed);
    ASSERT_EQ(counts.draining, want.draining);
    ASSERT_EQ(counts.quarantine, want.quarantine);
    ASSERT_EQ(counts.pins, want.pins);
    ASSERT_EQ(counts.total(), tier_->slot_count());
  }

  SeededRandom random_;
  std::unique_ptr<DramTier> tier_;
  std::map<uint64_t, ModelSlot> slots_;  // by generation; those that are not FREE
  std::vector<SlotRef> stale_;
  uint64_t newest_ = 0;
};

TEST_P(DramTierModelTest, AgreesWithTheModel) {
  for (int step = 0; step < kSteps && !HasFailure(); ++step) {
    if (random_.Chance(0.3)) Allocate();
    Operate();
    CheckStale();
    CheckCounts();
  }
  // All of it can be had back, and then the tier is as new.
  for (auto& [generation, slot] : slots_) {
    if (slot.state == SlotState::kFilling) {
      FB_EXPECT_OK(tier_->Abort(slot.ref));
    }
    if (slot.state == SlotState::kFilling || slot.state == SlotState::kQuarantine) {
      FB_EXPECT_OK(tier_->Fence(slot.ref));
      continue;
    }
    if (slot.state == SlotState::kSealed) {
      FB_EXPECT_OK(tier_->Retire(slot.ref));
    }
    while (slot.pins-- > 0) tier_->Unpin(slot.ref);
  }
  EXPECT_EQ(tier_->counts().free, kSlabs);
  EXPECT_EQ(tier_->counts().total(), kSlabs);
  EXPECT_EQ(tier_->counts().pins, 0u);
  EXPECT_EQ(tier_->used_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DramTierModelTest, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace forebay
