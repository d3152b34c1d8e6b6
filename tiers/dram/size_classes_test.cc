#include "tiers/dram/size_classes.h"

#include <gtest/gtest.h>

namespace forebay {
namespace {

constexpr uint64_t kSlabSizes[] = {4096, 64 << 10, 1 << 20, 32 << 20, 1 << 30};

TEST(SizeClassesTest, GrowStrictlyAndEndWithAWholeSlab) {
  for (const uint64_t slab_bytes : kSlabSizes) {
    const SizeClasses classes(slab_bytes);
    for (uint32_t i = 0; i < classes.count(); ++i) {
      EXPECT_EQ(classes[i].slot_bytes % 64, 0u);
      EXPECT_GE(classes[i].slots_per_slab, 1u);
      EXPECT_LE(classes[i].slots_per_slab, SizeClasses::kSlotsPerSlabMax);
      EXPECT_LE(classes[i].slot_bytes * classes[i].slots_per_slab, slab_bytes);
      if (i > 0) {
        EXPECT_GT(classes[i].slot_bytes, classes[i - 1].slot_bytes);
      }
    }
    EXPECT_EQ(classes[classes.count() - 1].slot_bytes, slab_bytes);
  }
}

TEST(SizeClassesTest, GiveTheSmallestSlotThatHoldsTheFrame) {
  for (const uint64_t slab_bytes : kSlabSizes) {
    const SizeClasses classes(slab_bytes);
    for (uint64_t frame = 1; frame <= slab_bytes; frame += 1 + frame / 37) {
      const uint32_t c = classes.ClassOf(frame);
      EXPECT_GE(classes[c].slot_bytes, frame);
      if (c > 0) {
        EXPECT_LT(classes[c - 1].slot_bytes, frame);
      }
    }
  }
}

// An eighth, and up to a page more where slots are whole pages.
TEST(SizeClassesTest, WasteAnEighthAtMost) {
  const SizeClasses classes(32 << 20);
  for (uint64_t frame = 640; frame <= (32 << 20) / 16; frame += 1 + frame / 97) {
    const uint64_t slot_bytes = classes[classes.ClassOf(frame)].slot_bytes;
    const uint64_t rounding = slot_bytes >= 128 << 10 ? 4096 : 64;
    EXPECT_LE(slot_bytes, frame + frame / 8 + rounding) << frame;
  }
}

// The frames that engines make: a header of 64 bytes before a power of two.
TEST(SizeClassesTest, FitAHeaderBeforeAPowerOfTwo) {
  const SizeClasses classes(32 << 20);
  for (uint64_t payload = 1024; payload <= 64 << 10; payload *= 2) {
    EXPECT_EQ(classes[classes.ClassOf(payload + 64)].slot_bytes, payload + 64);
  }
  for (uint64_t payload = 128 << 10; payload <= 1 << 20; payload *= 2) {
    EXPECT_EQ(classes[classes.ClassOf(payload + 64)].slot_bytes, payload + 4096);
  }
}

TEST(SizeClassesTest, AreOneWhereASlabHoldsEquallyMany) {
  const SizeClasses classes(32 << 20);
  const uint32_t more_than_half = classes.ClassOf((16 << 20) + 1);
  EXPECT_EQ(more_than_half, classes.ClassOf(32 << 20));
  EXPECT_EQ(classes[more_than_half].slots_per_slab, 1u);
}

TEST(SizeClassesDeathTest, RefuseAFrameLargerThanASlab) {
  const SizeClasses classes(1 << 20);
  EXPECT_DEATH(classes.ClassOf((1 << 20) + 1), "classes_.end");
}

}  // namespace
}  // namespace forebay
