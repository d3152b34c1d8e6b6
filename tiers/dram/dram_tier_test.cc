#include "tiers/dram/dram_tier.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "base/failpoint.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

constexpr uint64_t kSlabBytes = 1 << 20;

std::unique_ptr<DramTier> MakeTier(uint64_t slabs = 4) {
  DramTier::Options options;
  options.capacity_bytes = slabs * kSlabBytes;
  options.slab_bytes = kSlabBytes;
  options.huge_pages = false;
  absl::StatusOr<std::unique_ptr<DramTier>> tier = DramTier::Create(options);
  EXPECT_THAT(tier, ::forebay::testing::IsOk());
  return *std::move(tier);
}

SlotRef Sealed(DramTier& tier, size_t bytes, int fill = 1) {
  const absl::StatusOr<SlotRef> ref = tier.Allocate(bytes);
  EXPECT_THAT(ref, ::forebay::testing::IsOk());
  std::memset(tier.FillMemory(*ref).data(), fill, bytes);
  FB_EXPECT_OK(tier.Seal(*ref));
  return *ref;
}

TEST(DramTierTest, StartsWithOneFreeSlotASlab) {
  const auto tier = MakeTier(4);
  EXPECT_EQ(tier->counts().free, 4u);
  EXPECT_EQ(tier->counts().total(), tier->slot_count());
  EXPECT_EQ(tier->capacity_bytes(), 4 * kSlabBytes);
  EXPECT_EQ(tier->used_bytes(), 0u);
}

TEST(DramTierTest, ReadsBackWhatWasFilled) {
  const auto tier = MakeTier();
  const SlotRef a = Sealed(*tier, 5000, 7);
  const SlotRef b = Sealed(*tier, 5000, 9);

  const absl::StatusOr<Bytes> read = tier->Read(a);
  FB_ASSERT_OK(read);
  EXPECT_EQ(read->size(), 5000u);
  EXPECT_EQ((*read)[0], std::byte{7});
  EXPECT_EQ((*read)[4999], std::byte{7});
  EXPECT_EQ((*tier->Read(b))[0], std::byte{9});
}

TEST(DramTierTest, AFillIsInvisibleUntilItIsSealed) {
  const auto tier = MakeTier();
  const SlotRef ref = *tier->Allocate(100);
  EXPECT_EQ(tier->StateOf(ref.slot), SlotState::kFilling);
  EXPECT_FALSE(tier->Holds(ref));
  EXPECT_THAT(tier->Pin(ref), HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(tier->Read(ref), HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(tier->Retire(ref), HasCode(absl::StatusCode::kFailedPrecondition));

  FB_EXPECT_OK(tier->Seal(ref));
  EXPECT_TRUE(tier->Holds(ref));
  EXPECT_THAT(tier->Seal(ref), HasCode(absl::StatusCode::kFailedPrecondition));
}

TEST(DramTierTest, RetiringAPinnedSlotKeepsItsBytes) {
  const auto tier = MakeTier();
  const SlotRef ref = Sealed(*tier, 100, 3);
  FB_EXPECT_OK(tier->Pin(ref));
  FB_EXPECT_OK(tier->Pin(ref));
  FB_EXPECT_OK(tier->Retire(ref));

  EXPECT_EQ(tier->StateOf(ref.slot), SlotState::kDraining);
  EXPECT_THAT(tier->Pin(ref), HasCode(absl::StatusCode::kFailedPrecondition));
  tier->Unpin(ref);
  EXPECT_TRUE(tier->Holds(ref));
  EXPECT_EQ((*tier->Read(ref))[0], std::byte{3});
  EXPECT_EQ(tier->counts().pins, 1u);

  tier->Unpin(ref);
  EXPECT_FALSE(tier->Holds(ref));
  EXPECT_EQ(tier->StateOf(ref.slot), SlotState::kFree);
  EXPECT_EQ(tier->counts().pins, 0u);
}

TEST(DramTierTest, AnAbortedFillWaitsForItsFence) {
  const auto tier = MakeTier(1);
  const SlotRef ref = *tier->Allocate(kSlabBytes);
  FB_EXPECT_OK(tier->Abort(ref));
  EXPECT_EQ(tier->StateOf(ref.slot), SlotState::kQuarantine);
  EXPECT_THAT(tier->Allocate(kSlabBytes), HasCode(absl::StatusCode::kResourceExhausted));

  FB_EXPECT_OK(tier->Fence(ref));
  EXPECT_THAT(tier->Fence(ref), HasCode(absl::StatusCode::kFailedPrecondition));
  FB_EXPECT_OK(tier->Allocate(kSlabBytes));
}

TEST(DramTierTest, AStaleReferenceIsKnownByItsGeneration) {
  const auto tier = MakeTier(1);
  const SlotRef old = Sealed(*tier, kSlabBytes);
  FB_EXPECT_OK(tier->Retire(old));
  const SlotRef fresh = Sealed(*tier, kSlabBytes);

  ASSERT_EQ(fresh.slot, old.slot);
  EXPECT_GT(fresh.generation, old.generation);
  EXPECT_FALSE(tier->Holds(old));
  EXPECT_TRUE(tier->Holds(fresh));
  EXPECT_THAT(tier->Pin(old), HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(tier->Read(old), HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(tier->Retire(old), HasCode(absl::StatusCode::kFailedPrecondition));
}

TEST(DramTierTest, AStaleReferenceIsKnownAfterItsSlabWasCutAnew) {
  const auto tier = MakeTier(1);
  std::vector<SlotRef> small;
  for (int i = 0; i < 100; ++i) small.push_back(Sealed(*tier, 1000));
  for (const SlotRef& ref : small) FB_EXPECT_OK(tier->Retire(ref));
  EXPECT_EQ(tier->counts().total(), 1u);
  const SlotRef large = Sealed(*tier, 200'000);

  for (const SlotRef& ref : small) {
    EXPECT_FALSE(tier->Holds(ref));
    EXPECT_THAT(tier->Fence(ref), HasCode(absl::StatusCode::kFailedPrecondition));
    EXPECT_LT(tier->LocationOf(ref.slot).offset, kSlabBytes);
  }
  EXPECT_TRUE(tier->Holds(large));
}

TEST(DramTierTest, AReferenceThatWasNeverGivenIsRefused) {
  const auto tier = MakeTier(1);
  for (const uint32_t slot : {0u, 1u, 70'000u, UINT32_MAX}) {
    const SlotRef ref{slot, 1};
    EXPECT_FALSE(tier->Holds(ref));
    EXPECT_THAT(tier->Seal(ref), HasCode(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(tier->Abort(ref), HasCode(absl::StatusCode::kFailedPrecondition));
    EXPECT_EQ(tier->StateOf(slot), SlotState::kFree);
    EXPECT_EQ(tier->LocationOf(slot).offset, 0u);
  }
}

TEST(DramTierTest, AnEmptySlabServesAnotherClass) {
  const auto tier = MakeTier(1);
  const SlotRef small = Sealed(*tier, 100);
  EXPECT_THAT(tier->Allocate(5000),
              HasStatus(absl::StatusCode::kResourceExhausted, HasSubstr("no free DRAM slot of 5")));
  FB_EXPECT_OK(tier->Retire(small));
  FB_EXPECT_OK(tier->Allocate(5000));
}

TEST(DramTierTest, FillsASlabWithDisjointSlots) {
  const auto tier = MakeTier(1);
  std::set<uint64_t> offsets;
  while (true) {
    const absl::StatusOr<SlotRef> ref = tier->Allocate(10'000);
    if (!ref.ok()) break;
    const DramTier::Location location = tier->LocationOf(ref->slot);
    EXPECT_EQ(tier->FillMemory(*ref).data(), tier->slabs()[0].memory.data() + location.offset);
    EXPECT_LE(location.offset + 10'000, kSlabBytes);
    EXPECT_TRUE(offsets.insert(location.offset).second);
  }
  EXPECT_GE(offsets.size(), kSlabBytes / 11'300);
  for (auto at = std::next(offsets.begin()); at != offsets.end(); ++at) {
    EXPECT_GE(*at - *std::prev(at), 10'000u);
  }
  EXPECT_EQ(tier->counts().filling, offsets.size());
  EXPECT_EQ(tier->counts().total(), tier->slot_count());
}

TEST(DramTierTest, RefusesFramesThatFitNoSlab) {
  const auto tier = MakeTier(1);
  EXPECT_THAT(tier->Allocate(0), HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(tier->Allocate(kSlabBytes + 1), HasCode(absl::StatusCode::kInvalidArgument));
}

TEST(DramTierTest, ASlabCanBeMappedForReadingAndNothingElse) {
  const auto tier = MakeTier(1);
  const SlotRef ref = Sealed(*tier, 100, 5);
  const int fd = tier->slabs()[0].fd;

  void* const seen = mmap(nullptr, kSlabBytes, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(seen, MAP_FAILED);
  EXPECT_EQ(static_cast<std::byte*>(seen)[tier->LocationOf(ref.slot).offset], std::byte{5});
  EXPECT_EQ(mprotect(seen, kSlabBytes, PROT_READ | PROT_WRITE), -1);
  munmap(seen, kSlabBytes);

  EXPECT_EQ(mmap(nullptr, kSlabBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd, 0), -1);
  EXPECT_EQ(ftruncate(fd, 2 * kSlabBytes), -1);
  EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kSlabBytes), -1);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(DramTierTest, EpochsOfTwoStartsDiffer) {
  EXPECT_NE(MakeTier(1)->boot_epoch(), MakeTier(1)->boot_epoch());
}

// Whether they are granted is the machine's affair; that the memory works is ours.
TEST(DramTierTest, WorksWithHugePagesAskedForAndPopulated) {
  DramTier::Options options;
  options.capacity_bytes = 4 << 20;
  options.slab_bytes = 2 << 20;
  options.populate = true;
  const auto tier = DramTier::Create(options);
  FB_ASSERT_OK(tier);
  for (int i = 0; i < 2; ++i) Sealed(**tier, 2 << 20, i);
}

TEST(DramTierTest, RefusesSizesThatMakeNoSense) {
  for (const auto& [capacity, slab] :
       std::initializer_list<std::pair<uint64_t, uint64_t>>{{1 << 20, 0},
                                                            {1 << 20, 1000},
                                                            {1 << 20, 2 << 20},
                                                            {0, 1 << 20},
                                                            {8ull << 30, 4ull << 30}}) {
    EXPECT_THAT(DramTier::Create({.capacity_bytes = capacity, .slab_bytes = slab}),
                HasCode(absl::StatusCode::kInvalidArgument))
        << capacity << " " << slab;
  }
  EXPECT_THAT(DramTier::Create({.capacity_bytes = 1ull << 30, .slab_bytes = 4096}),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("make slabs larger")));
}

TEST(DramTierTest, NamesTheLimitOnMemory) {
  EXPECT_THAT(DramTier::Create({.capacity_bytes = 1ull << 46, .slab_bytes = 1ull << 31}),
              HasStatus(absl::StatusCode::kResourceExhausted, HasSubstr("in the way: ")));
}

// Fewer slabs than descriptors, but some of these are taken: the kernel's own answer.
[[noreturn]] void CreateWithFewDescriptors() {
  const rlimit limit{16, 16};
  setrlimit(RLIMIT_NOFILE, &limit);
  const auto tier = DramTier::Create({.capacity_bytes = 15 << 20, .slab_bytes = 1 << 20});
  const bool named = tier.status().code() == absl::StatusCode::kResourceExhausted &&
                     tier.status().message().find("RLIMIT_NOFILE") != absl::string_view::npos;
  _exit(named ? 0 : 1);
}

TEST(DramTierDeathTest, NamesTheLimitOnOpenFiles) {
  EXPECT_EXIT(CreateWithFewDescriptors(), ::testing::ExitedWithCode(0), "");
}

TEST(DramTierTest, ReportsWhatItsFailpointsReport) {
  {
    failpoint::ScopedArm arm("tiers.dram.map", absl::ResourceExhaustedError("armed"));
    EXPECT_THAT(DramTier::Create({.capacity_bytes = 1 << 20, .slab_bytes = 1 << 20}),
                HasStatus(absl::StatusCode::kResourceExhausted, "armed"));
  }
  const auto tier = MakeTier(1);
  {
    failpoint::ScopedArm arm("tiers.dram.allocate", absl::ResourceExhaustedError("armed"));
    EXPECT_THAT(tier->Allocate(100), HasStatus(absl::StatusCode::kResourceExhausted, "armed"));
  }
  const SlotRef ref = *tier->Allocate(100);
  {
    failpoint::ScopedArm arm("tiers.dram.seal", absl::InternalError("armed"));
    EXPECT_THAT(tier->Seal(ref), HasStatus(absl::StatusCode::kInternal, "armed"));
    EXPECT_EQ(tier->StateOf(ref.slot), SlotState::kFilling);
  }
  FB_EXPECT_OK(tier->Seal(ref));
}

// A map that fails half way leaves no descriptor behind.
TEST(DramTierTest, AFailedCreationGivesBackItsDescriptors) {
  const auto next_fd = [] {
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(fd);
    return fd;
  };
  const int before = next_fd();
  failpoint::Action action;
  action.status = absl::ResourceExhaustedError("armed");
  action.skip_count = 3;
  failpoint::ScopedArm arm("tiers.dram.map", action);
  EXPECT_THAT(DramTier::Create({.capacity_bytes = 8 << 20, .slab_bytes = 1 << 20}),
              HasCode(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(next_fd(), before);
}

TEST(DramTierDeathTest, UnpinWithoutAPinAborts) {
  const auto tier = MakeTier(1);
  const SlotRef ref = Sealed(*tier, 100);
  EXPECT_DEATH(tier->Unpin(ref), "pins > 0");
  EXPECT_DEATH(tier->Unpin(SlotRef{ref.slot, ref.generation + 1}), "nullptr");
}

TEST(DramTierDeathTest, WritingToASealedSlotAborts) {
  const auto tier = MakeTier(1);
  const SlotRef ref = Sealed(*tier, 100);
  EXPECT_DEATH(tier->FillMemory(ref), "nullptr");
}

}  // namespace
}  // namespace forebay
