#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/checksum_kernel.h"
#include "base/random.h"

namespace forebay {
namespace {

constexpr size_t kPatternBytes = size_t{1} << 20;

std::vector<std::byte> Pattern() {
  std::vector<std::byte> bytes(kPatternBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + 3);
  return bytes;
}

Bytes First(const std::vector<std::byte>& bytes, size_t count) {
  return Bytes(bytes).subspan(0, count);
}

struct NamedKernel {
  std::string name;
  const ForebayChecksumKernel& kernel;
};

// Those that this processor can run.
std::vector<NamedKernel> Kernels() {
  std::vector<NamedKernel> kernels = {{"baseline", forebay_checksum_baseline}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) kernels.push_back({"avx2", forebay_checksum_avx2});
  if (__builtin_cpu_supports("avx512f")) kernels.push_back({"avx512", forebay_checksum_avx512});
#endif
  return kernels;
}

// Values from Debian's libxxhash0 0.8.1, called through Python's ctypes. The lengths are those
// where XXH3 changes its method, and both sides of a copy block.
TEST(ChecksumTest, IsXxh3OfSeedZero) {
  const struct {
    size_t bytes;
    uint64_t checksum;
  } kVectors[] = {
      {0, 0x2d06800538d394c2},     {1, 0x13e608bc156defed},     {3, 0xa9088dda485b481c},
      {16, 0xb8c859b0f030b585},    {17, 0x714a04408e79b80f},    {128, 0x67425a03650261bf},
      {129, 0xc664bf3311c6abc4},   {240, 0x64556dc6b462a6cf},   {241, 0x8beadd3a8874fe17},
      {256, 0x3c38817f6d79c0da},   {1024, 0x9b81661c641c72b1},  {16384, 0x27dfea7e2deaa657},
      {16385, 0xb716bd48da80dc1a}, {65549, 0x7dd545f843646032}, {1048576, 0x74823cf2cd45b0fe},
  };
  const std::vector<std::byte> pattern = Pattern();
  std::vector<std::byte> copy(kPatternBytes);
  for (const auto& vector : kVectors) {
    EXPECT_EQ(ChecksumOf(First(pattern, vector.bytes)), vector.checksum) << vector.bytes;
    EXPECT_EQ(CopyAndChecksum(copy.data(), pattern.data(), vector.bytes), vector.checksum)
        << vector.bytes;
    for (const NamedKernel& named : Kernels()) {
      EXPECT_EQ(named.kernel.hash(pattern.data(), vector.bytes), vector.checksum)
          << named.name << " " << vector.bytes;
    }
  }
}

TEST(ChecksumTest, CopyArrivesAndStopsWhereItShould) {
  const std::vector<std::byte> pattern = Pattern();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{16384}, size_t{16385}, size_t{70001}}) {
    std::vector<std::byte> copy(bytes + 1, std::byte{0xee});
    CopyAndChecksum(copy.data(), pattern.data(), bytes);
    EXPECT_EQ(std::memcmp(copy.data(), pattern.data(), bytes), 0) << bytes;
    EXPECT_EQ(copy[bytes], std::byte{0xee}) << bytes;
  }
}

// Cuts at random places give what one call gives.
TEST(ChecksumTest, PiecesAddUpToTheWhole) {
  const std::vector<std::byte> pattern = Pattern();
  SeededRandom random(1);
  for (int round = 0; round < 200; ++round) {
    const size_t total = random.Below(70'000);
    const uint64_t whole = ChecksumOf(First(pattern, total));
    std::vector<std::byte> copy(total + 1);
    RunningChecksum updated;
    RunningChecksum copied;
    for (size_t at = 0; at < total;) {
      const size_t piece = std::min(total - at, size_t{1} + random.Below(20'000));
      updated.Update(Bytes(pattern).subspan(at, piece));
      copied.CopyAndUpdate(copy.data() + at, pattern.data() + at, piece);
      at += piece;
    }
    EXPECT_EQ(updated.Digest(), whole) << total;
    EXPECT_EQ(copied.Digest(), whole) << total;
    EXPECT_EQ(updated.bytes(), total);
    EXPECT_EQ(std::memcmp(copy.data(), pattern.data(), total), 0);
  }
}

// The loop over long input, in each instruction set, from any place in a block and to any address.
TEST(ChecksumTest, KernelsEatAndCopyAlike) {
  const std::vector<std::byte> pattern = Pattern();
  const auto* from = reinterpret_cast<const unsigned char*>(pattern.data()) + 5;
  for (const NamedKernel& named : Kernels()) {
    SeededRandom random(3);
    for (int round = 0; round < 300; ++round) {
      alignas(64) uint64_t eaten[8], copied[8];
      named.kernel.begin(eaten);
      named.kernel.begin(copied);
      unsigned eaten_at = 0, copied_at = 0;
      size_t stripes = 0;
      while (stripes == 0 || random.Below(3) > 0) {
        const size_t now = random.Below(random.Below(4) == 0 ? 1200 : 20);
        const size_t shift = random.Below(2) == 0 ? 0 : random.Below(64);
        std::vector<unsigned char> space(64 * now + 256, 0xee);
        unsigned char* to = space.data();
        while (reinterpret_cast<uintptr_t>(to) % 64 != 0) ++to;
        to += shift;
        eaten_at = named.kernel.eat(eaten, eaten_at, from + 64 * stripes, now);
        copied_at = named.kernel.copy(copied, copied_at, to, from + 64 * stripes, now);
        ASSERT_EQ(eaten_at, copied_at) << named.name;
        ASSERT_EQ(std::memcmp(to, from + 64 * stripes, 64 * now), 0) << named.name << " " << now;
        ASSERT_EQ(to[64 * now], 0xee) << named.name << " wrote beyond the end";
        if (to > space.data()) {
          ASSERT_EQ(to[-1], 0xee) << named.name << " wrote before the start";
        }
        stripes += now;
      }
      ASSERT_EQ(std::memcmp(eaten, copied, sizeof(eaten)), 0) << named.name << " " << stripes;
      const size_t last = 1 + random.Below(64);  // of which 1 to 64 bytes are the end
      const size_t total = 64 * stripes + last;
      if (total <= 240) continue;
      EXPECT_EQ(named.kernel.digest(eaten, from + total - 64, total),
                named.kernel.hash(from, total))
          << named.name << " " << total;
    }
  }
}

// Every length about where the method changes, in two pieces cut at every place.
TEST(ChecksumTest, EveryCutOfAShortInput) {
  const std::vector<std::byte> pattern = Pattern();
  for (size_t total = 0; total <= 460; total += total < 230 || total > 270 ? 23 : 1) {
    const uint64_t whole = ChecksumOf(First(pattern, total));
    for (size_t cut = 0; cut <= total; ++cut) {
      std::vector<std::byte> copy(total + 1);  // so that it has an address
      RunningChecksum updated, copied;
      updated.Update(First(pattern, cut));
      updated.Update(Bytes(pattern).subspan(cut, total - cut));
      copied.CopyAndUpdate(copy.data(), pattern.data(), cut);
      copied.CopyAndUpdate(copy.data() + cut, pattern.data() + cut, total - cut);
      ASSERT_EQ(updated.Digest(), whole) << cut << " of " << total;
      ASSERT_EQ(copied.Digest(), whole) << cut << " of " << total;
      ASSERT_EQ(std::memcmp(copy.data(), pattern.data(), total), 0) << cut << " of " << total;
    }
  }
}

// A source that changes while it is copied: what was hashed is what arrived, whatever that is.
TEST(ChecksumTest, HashesWhatItWroteWhileTheSourceChanges) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the race is the point of it";
#endif
  constexpr size_t kBytes = size_t{256} << 10;
  std::vector<uint64_t> source(kBytes / 8);
  std::vector<std::byte> copy(kBytes + 64);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t value = 1; !stop.load(std::memory_order_relaxed); ++value) {
      for (uint64_t& word : source) std::atomic_ref(word).store(value, std::memory_order_relaxed);
    }
  });
  for (int round = 0; round < 200; ++round) {
    std::byte* const to = copy.data() + (round % 2 == 0 ? 0 : round % 64);
    const uint64_t checksum = CopyAndChecksum(to, source.data(), kBytes);
    EXPECT_EQ(checksum, ChecksumOf({to, kBytes})) << round;
  }
  stop.store(true);
  writer.join();
}

TEST(ChecksumTest, ACopiedStateGoesOnAlone) {
  const std::vector<std::byte> pattern = Pattern();
  RunningChecksum first;
  first.Update(Bytes(pattern).subspan(0, 5000));
  RunningChecksum second = first;
  first.Update(Bytes(pattern).subspan(5000, 1000));
  EXPECT_EQ(second.Digest(), ChecksumOf(First(pattern, 5000)));
  second.Update(Bytes(pattern).subspan(5000, 1000));
  EXPECT_EQ(second.Digest(), first.Digest());
  first.Reset();
  EXPECT_EQ(first.Digest(), ChecksumOf({}));
  EXPECT_EQ(first.bytes(), 0u);
}

TEST(ChecksumTest, EverySingleBitMatters) {
  std::vector<std::byte> bytes(64);
  const uint64_t sound = ChecksumOf(bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_NE(ChecksumOf(bytes), sound) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace forebay
