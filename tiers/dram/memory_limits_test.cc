#include "tiers/dram/memory_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace forebay {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(MemoryLimitsTest, NothingIsInTheWayWithoutLimits) {
  EXPECT_THAT(MemoryLimits().InTheWayOf(1 << 16, 1ull << 30), IsEmpty());
}

TEST(MemoryLimitsTest, NameTheLimitThatForbids) {
  MemoryLimits limits;
  limits.physical_bytes = 8ull << 30;
  EXPECT_THAT(limits.InTheWayOf(8, 1ull << 30), IsEmpty());
  EXPECT_THAT(limits.InTheWayOf(9, 1ull << 30), HasSubstr("physical memory of 8589934592"));

  limits.cgroup_bytes = 4ull << 30;
  EXPECT_THAT(limits.InTheWayOf(5, 1ull << 30), HasSubstr("cgroup memory limit of 4294967296"));

  limits.address_space_bytes = 2ull << 30;
  EXPECT_THAT(limits.InTheWayOf(3, 1ull << 30), HasSubstr("RLIMIT_AS of 2147483648"));

  limits.file_bytes = 1ull << 20;
  EXPECT_THAT(limits.InTheWayOf(1, 2ull << 20), HasSubstr("RLIMIT_FSIZE of 1048576"));

  limits.open_files = 20;
  EXPECT_THAT(limits.InTheWayOf(21, 1ull << 20), HasSubstr("RLIMIT_NOFILE of 20"));
}

// No product of the two may overflow on the way to the comparison.
TEST(MemoryLimitsTest, AnswerForSizesBeyondSixtyFourBits) {
  MemoryLimits limits;
  limits.physical_bytes = 8ull << 30;
  EXPECT_THAT(limits.InTheWayOf(1ull << 40, 1ull << 40), HasSubstr("physical memory"));
}

TEST(MemoryLimitsTest, ReadWhatThisMachineHas) {
  const MemoryLimits limits = MemoryLimits::Read();
  EXPECT_LT(limits.physical_bytes, UINT64_MAX);
  EXPECT_GT(limits.physical_bytes, 1ull << 20);
  EXPECT_GT(limits.cgroup_bytes, 1ull << 20);
  EXPECT_GT(limits.open_files, 3u);
}

}  // namespace
}  // namespace forebay
