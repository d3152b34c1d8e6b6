#include "transport/local/shared_area.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/failpoint.h"
#include "base/testing/status_matchers.h"
#include "transport/local/record_ring.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;

constexpr uint64_t kRegionBytes = 64 * 1024;
constexpr SharedArea::Sizes kSizes = {.ring_bytes = SharedArea::kRingBytesMin,
                                      .staging_bytes = SharedArea::kStagingBytesMin};

UniqueFd Memfd(uint64_t bytes, int seals) {
  UniqueFd fd(memfd_create("forebay-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(SharedAreaTest, BothMappingsAreTheSameMemoryInDisjointParts) {
  absl::StatusOr<SharedArea> made = SharedArea::Create(kSizes);
  FB_ASSERT_OK(made);
  absl::StatusOr<SharedArea> mapped = SharedArea::Map(UniqueFd(dup(made->fd())), kSizes);
  FB_ASSERT_OK(mapped);
  std::byte mark{1};
  for (const LocalSide side : {LocalSide::kAcceptor, LocalSide::kConnector}) {
    made->words(side).tail.store(static_cast<uint64_t>(mark));
    std::memset(made->ring(side).data(), static_cast<int>(mark), made->ring(side).size());
    mark = std::byte(static_cast<int>(mark) + 1);
    std::memset(made->staging(side).data(), static_cast<int>(mark), made->staging(side).size());
    mark = std::byte(static_cast<int>(mark) + 1);
  }
  std::byte expected{1};
  for (const LocalSide side : {LocalSide::kAcceptor, LocalSide::kConnector}) {
    EXPECT_EQ(mapped->words(side).tail.load(), static_cast<uint64_t>(expected));
    EXPECT_EQ(mapped->ring(side).front(), expected);
    EXPECT_EQ(mapped->ring(side).back(), expected);
    expected = std::byte(static_cast<int>(expected) + 1);
    EXPECT_EQ(mapped->staging(side).front(), expected);
    EXPECT_EQ(mapped->staging(side).back(), expected);
    expected = std::byte(static_cast<int>(expected) + 1);
  }
}

// Whoever has the descriptor can change no size, so that no access of the other side can fault.
TEST(SharedAreaTest, CannotBeShrunkOrGrown) {
  absl::StatusOr<SharedArea> made = SharedArea::Create(kSizes);
  FB_ASSERT_OK(made);
  EXPECT_EQ(ftruncate(made->fd(), 0), -1);
  EXPECT_EQ(ftruncate(made->fd(), 1 << 30), -1);
  EXPECT_EQ(fcntl(made->fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
}

TEST(SharedAreaTest, RefusesSizesOutOfRange) {
  for (const SharedArea::Sizes sizes :
       {SharedArea::Sizes{0, kSizes.staging_bytes}, SharedArea::Sizes{kSizes.ring_bytes, 0},
        SharedArea::Sizes{kSizes.ring_bytes + 32, kSizes.staging_bytes},
        SharedArea::Sizes{SharedArea::kRingBytesMax * 2, kSizes.staging_bytes},
        SharedArea::Sizes{kSizes.ring_bytes, kSizes.staging_bytes + 1},
        SharedArea::Sizes{kSizes.ring_bytes, ~0ull << 12}}) {
    EXPECT_THAT(SharedArea::Create(sizes), HasCode(absl::StatusCode::kInvalidArgument));
  }
}

TEST(SharedAreaTest, MapsNothingThatCouldShrink) {
  const uint64_t bytes = 4096 + 2 * (kSizes.ring_bytes + kSizes.staging_bytes);
  EXPECT_THAT(SharedArea::Map(Memfd(bytes, 0), kSizes),
              HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(SharedArea::Map(Memfd(bytes, F_SEAL_GROW), kSizes),
              HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(SharedArea::Map(Memfd(bytes - 1, F_SEAL_SHRINK | F_SEAL_GROW), kSizes),
              HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(SharedArea::Map(UniqueFd(open("/dev/zero", O_RDWR)), kSizes),
              HasCode(absl::StatusCode::kFailedPrecondition));
  FB_EXPECT_OK(SharedArea::Map(Memfd(bytes, F_SEAL_SHRINK | F_SEAL_GROW), kSizes));
}

TEST(SharedAreaTest, ReportsWhenThereIsNoMemory) {
#if defined(FOREBAY_FAILPOINTS)
  failpoint::ScopedArm arm("transport.local.share",
                           absl::ResourceExhaustedError("armed by a test"));
  EXPECT_THAT(SharedArea::Create(kSizes), HasCode(absl::StatusCode::kResourceExhausted));
#else
  GTEST_SKIP() << "built without failpoints";
#endif
}

TEST(ReadOnlyRegionTest, SeesLiveBytesAndCannotWriteThem) {
  UniqueFd fd = Memfd(kRegionBytes, 0);
  auto* own = static_cast<char*>(
      mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  ASSERT_NE(own, MAP_FAILED);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  FB_EXPECT_OK(CheckExportable(fd.get(), kRegionBytes));

  absl::StatusOr<ReadOnlyRegion> region = ReadOnlyRegion::Map(fd.get(), kRegionBytes);
  FB_ASSERT_OK(region);
  own[100] = 'x';
  EXPECT_EQ(region->bytes()[100], std::byte{'x'});
  auto* address = const_cast<std::byte*>(region->bytes().data());
  EXPECT_EQ(mprotect(address, kRegionBytes, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
  EXPECT_EQ(pwrite(fd.get(), "y", 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0),
            MAP_FAILED);
  munmap(own, kRegionBytes);
}

TEST(ReadOnlyRegionTest, RefusesWhatCouldShrinkUnderIt) {
  EXPECT_THAT(ReadOnlyRegion::Map(Memfd(kRegionBytes, F_SEAL_GROW).get(), kRegionBytes),
              HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(ReadOnlyRegion::Map(Memfd(kRegionBytes, F_SEAL_SHRINK).get(), kRegionBytes + 1),
              HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(ReadOnlyRegion::Map(Memfd(kRegionBytes, F_SEAL_SHRINK).get(), 0),
              HasCode(absl::StatusCode::kFailedPrecondition));
}

// An owner who forgot to forbid writing exports nothing.
TEST(ReadOnlyRegionTest, ExportableMeansThatNobodyCanWrite) {
  EXPECT_THAT(CheckExportable(Memfd(kRegionBytes, F_SEAL_SHRINK | F_SEAL_GROW).get(), kRegionBytes),
              HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(CheckExportable(-1, kRegionBytes), HasCode(absl::StatusCode::kFailedPrecondition));
}

class RecordRingTest : public ::testing::Test {
 protected:
  static constexpr size_t kRingBytes = 1024;

  std::vector<std::byte> ring_ = std::vector<std::byte>(kRingBytes);
  std::atomic<uint64_t> tail_{0};
  std::atomic<uint64_t> head_{0};
  RecordWriter writer_{absl::MakeSpan(ring_), tail_, head_};
  RecordReader reader_{ring_, tail_, head_};
};

// Headers of every length cross the ring's end at every place in it.
TEST_F(RecordRingTest, HeadersWrapAround) {
  for (size_t i = 0; i < 1000; ++i) {
    const std::vector<std::byte> header(1 + i * 7 % 500, static_cast<std::byte>(i));
    ASSERT_TRUE(writer_.Fits(header.size()));
    writer_.Write({.kind = RecordKind::kMessage,
                   .header_bytes = static_cast<uint32_t>(header.size()),
                   .payload_bytes = i},
                  header);
    EXPECT_FALSE(reader_.HasNews());
    writer_.Publish();
    ASSERT_TRUE(reader_.Refresh());
    const RecordHead head = reader_.Peek();
    EXPECT_EQ(head.payload_bytes, i);
    std::vector<std::byte> got(head.header_bytes);
    reader_.CopyHeader(absl::MakeSpan(got));
    EXPECT_EQ(got, header);
    reader_.Consume(head.header_bytes);
    EXPECT_TRUE(reader_.Publish());
    ASSERT_TRUE(writer_.Refresh());
    EXPECT_EQ(writer_.consumed(), writer_.tail());
  }
}

TEST_F(RecordRingTest, AFullRingTakesNoMore) {
  while (writer_.Fits(0)) writer_.Write({});
  EXPECT_EQ(writer_.tail(), kRingBytes);
  writer_.Publish();
  ASSERT_TRUE(reader_.Refresh());
  reader_.Consume(0);
  reader_.Publish();
  ASSERT_TRUE(writer_.Refresh());
  EXPECT_TRUE(writer_.Fits(0));
  EXPECT_FALSE(writer_.Fits(1));
}

TEST_F(RecordRingTest, ImpossibleWordsAreRefused) {
  writer_.Write({});
  writer_.Write({});
  writer_.Publish();
  ASSERT_TRUE(reader_.Refresh());
  for (const uint64_t tail :
       {uint64_t{0}, uint64_t{32}, uint64_t{65}, kRingBytes + 32, ~uint64_t{0}}) {
    tail_.store(tail);
    EXPECT_FALSE(reader_.Refresh()) << tail;
  }
  head_.store(32);
  ASSERT_TRUE(writer_.Refresh());
  for (const uint64_t head : {uint64_t{0}, uint64_t{65}, uint64_t{96}, ~uint64_t{0}}) {
    head_.store(head);
    EXPECT_FALSE(writer_.Refresh()) << head;
  }
}

}  // namespace
}  // namespace forebay
