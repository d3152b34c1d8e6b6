#include "tests/oracle/page_check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"

namespace forebay::testing {
namespace {

constexpr size_t kPageBytes = 10 * kPageBlockBytes + 1000;

PageStamp Stamp() {
  PageKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<uint8_t>(i + 1);
  return PageStamp::Of("acme", key, /*part=*/3, /*writer=*/7, /*attempt=*/100);
}

std::vector<std::byte> Filled(const PageStamp& stamp, size_t bytes = kPageBytes) {
  std::vector<std::byte> page(bytes);
  FillPage(AsMutableBytes(page.data(), bytes), stamp);
  return page;
}

PageFinding Check(const std::vector<std::byte>& page, const PageExpectation& expected) {
  return CheckPage(AsBytes(page.data(), page.size()), expected);
}

// `page` with the bytes from `begin` to `end` taken from `other`.
std::vector<std::byte> Mixed(std::vector<std::byte> page, const std::vector<std::byte>& other,
                             size_t begin, size_t end) {
  std::copy(other.begin() + static_cast<std::ptrdiff_t>(begin),
            other.begin() + static_cast<std::ptrdiff_t>(end),
            page.begin() + static_cast<std::ptrdiff_t>(begin));
  return page;
}

TEST(PageCheckTest, AcceptsThePageThatWasAskedForInEverySize) {
  for (const size_t bytes :
       {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{127}, size_t{4095}, size_t{4096},
        size_t{4097}, size_t{4160}, size_t{65'536}, size_t{1'000'003}}) {
    const PageFinding finding = Check(Filled(Stamp(), bytes), PageExpectation::Only(Stamp()));
    EXPECT_EQ(finding.verdict, PageVerdict::kOk) << bytes << ": " << finding.ToString();
    EXPECT_EQ(finding.found, Stamp());
  }
  EXPECT_TRUE(Check({}, PageExpectation::Only(Stamp())).ok());
}

TEST(PageCheckTest, AcceptsAnyAttemptWhereAnyWillDo) {
  PageStamp other = Stamp();
  other.writer = 9;
  other.attempt = 5;
  const PageFinding finding = Check(Filled(other), PageExpectation::AnyAttempt(Stamp()));
  EXPECT_TRUE(finding.ok()) << finding.ToString();
  EXPECT_EQ(finding.found, other);
}

TEST(PageCheckTest, TellsAnotherTenantsPage) {
  PageStamp other = Stamp();
  other.tenant = PageStamp::TenantOf("evil");
  const PageFinding finding = Check(Filled(other), PageExpectation::AnyAttempt(Stamp()));
  EXPECT_EQ(finding.verdict, PageVerdict::kOtherTenant) << finding.ToString();
  EXPECT_EQ(finding.bad_offset, 0u);
  EXPECT_EQ(finding.found, other);
}

TEST(PageCheckTest, TellsAnotherKeyAndAnotherPart) {
  PageStamp other_key = Stamp();
  other_key.key[15] ^= 1;
  EXPECT_EQ(Check(Filled(other_key), PageExpectation::AnyAttempt(Stamp())).verdict,
            PageVerdict::kOtherKey);
  PageStamp other_part = Stamp();
  other_part.part = 4;
  EXPECT_EQ(Check(Filled(other_part), PageExpectation::AnyAttempt(Stamp())).verdict,
            PageVerdict::kOtherKey);
}

TEST(PageCheckTest, TellsAStalePage) {
  PageExpectation newer = PageExpectation::AnyAttempt(Stamp());
  newer.attempt_min = 101;
  const PageFinding finding = Check(Filled(Stamp()), newer);
  EXPECT_EQ(finding.verdict, PageVerdict::kStale) << finding.ToString();
  PageStamp other_writer = Stamp();
  other_writer.writer = 8;
  EXPECT_EQ(Check(Filled(other_writer), PageExpectation::Only(Stamp())).verdict,
            PageVerdict::kStale);
}

// A tear may lie between blocks or within one, at any place, and the other piece may be another
// page, another tenant's, or another attempt at this one: even where each of the two alone would be
// right.
TEST(PageCheckTest, TellsATornPage) {
  PageStamp attempt = Stamp();
  attempt.attempt = 101;
  PageStamp key = Stamp();
  key.key[0] ^= 0x80;
  PageStamp tenant = Stamp();
  tenant.tenant += 1;
  for (const PageStamp& other : {attempt, key, tenant}) {
    const std::vector<std::byte> mine = Filled(Stamp());
    const std::vector<std::byte> foreign = Filled(other);
    for (const size_t at : {size_t{64}, size_t{1000}, size_t{4096}, size_t{5000}, size_t{20'480},
                            size_t{33'333}, 10 * kPageBlockBytes, kPageBytes - 500}) {
      for (const bool mine_first : {true, false}) {
        const std::vector<std::byte> torn = mine_first ? Mixed(mine, foreign, at, kPageBytes)
                                                       : Mixed(foreign, mine, at, kPageBytes);
        const PageFinding finding = Check(torn, PageExpectation::AnyAttempt(Stamp()));
        EXPECT_EQ(finding.verdict, PageVerdict::kTorn)
            << "at " << at << (mine_first ? " mine first: " : " foreign first: ")
            << finding.ToString() << "; other: " << other.ToString();
      }
    }
  }
}

TEST(PageCheckTest, TellsAHoleOfAnotherPage) {
  PageStamp other = Stamp();
  other.key[3] = 0;
  const std::vector<std::byte> torn = Mixed(Filled(Stamp()), Filled(other), 12'288, 16'384);
  const PageFinding finding = Check(torn, PageExpectation::Only(Stamp()));
  EXPECT_EQ(finding.verdict, PageVerdict::kTorn) << finding.ToString();
  EXPECT_EQ(finding.bad_offset, 12'288u);
  EXPECT_EQ(finding.found, other);
}

// Each single bit of a page, one by one, whichever field of a header or byte of a body it is in.
TEST(PageCheckTest, TellsEachFlippedBit) {
  const size_t bytes = kPageBlockBytes + 200;
  std::vector<std::byte> page = Filled(Stamp(), bytes);
  for (size_t bit = 0; bit < bytes * 8; bit += bit < 1024 || bit > 32'000 ? 1 : 37) {
    page[bit / 8] ^= std::byte{static_cast<unsigned char>(1u << (bit % 8))};
    const PageFinding finding = Check(page, PageExpectation::AnyAttempt(Stamp()));
    ASSERT_EQ(finding.verdict, PageVerdict::kFlipped)
        << "bit " << bit << ": " << finding.ToString();
    ASSERT_EQ(finding.bad_offset, bit / 8);
    ASSERT_EQ(finding.flipped_bits, 1u);
    page[bit / 8] ^= std::byte{static_cast<unsigned char>(1u << (bit % 8))};
  }
}

TEST(PageCheckTest, TellsAFlippedBitInAPageOfOneBlockOfAnyAttempt) {
  std::vector<std::byte> page = Filled(Stamp(), kPageBlockBytes);
  for (size_t bit = 0; bit < 8 * kPageBlockHeaderBytes; ++bit) {
    page[bit / 8] ^= std::byte{static_cast<unsigned char>(1u << (bit % 8))};
    EXPECT_EQ(Check(page, PageExpectation::AnyAttempt(Stamp())).verdict, PageVerdict::kFlipped);
    page[bit / 8] ^= std::byte{static_cast<unsigned char>(1u << (bit % 8))};
  }
}

TEST(PageCheckTest, TellsManyScatteredFlips) {
  SeededRandom random(3);
  std::vector<std::byte> page = Filled(Stamp());
  for (int i = 0; i < 100; ++i) page[random.Below(page.size())] ^= std::byte{4};
  const PageFinding finding = Check(page, PageExpectation::Only(Stamp()));
  EXPECT_EQ(finding.verdict, PageVerdict::kFlipped) << finding.ToString();
  EXPECT_GT(finding.flipped_bits, 90u);
}

TEST(PageCheckTest, TellsMemoryThatNobodyWrote) {
  for (const std::byte value : {std::byte{0}, std::byte{0xa5}}) {
    const std::vector<std::byte> untouched(kPageBytes, value);
    EXPECT_EQ(Check(untouched, PageExpectation::Only(Stamp())).verdict, PageVerdict::kUnwritten);
    for (const size_t from : {size_t{0}, size_t{4096}, size_t{6000}, kPageBytes - 400}) {
      const std::vector<std::byte> half = Mixed(Filled(Stamp()), untouched, from, kPageBytes);
      const PageFinding finding = Check(half, PageExpectation::Only(Stamp()));
      EXPECT_EQ(finding.verdict, PageVerdict::kUnwritten) << from << ": " << finding.ToString();
      // A byte of the page may happen to be of that value.
      EXPECT_GE(finding.bad_offset, from);
      EXPECT_LE(finding.bad_offset, from + 3);
    }
  }
}

TEST(PageCheckTest, TellsBlocksInTheWrongPlaceAndPagesOfAnotherLength) {
  std::vector<std::byte> page = Filled(Stamp());
  std::swap_ranges(page.begin() + 4096, page.begin() + 8192, page.begin() + 12'288);
  PageFinding finding = Check(page, PageExpectation::Only(Stamp()));
  EXPECT_EQ(finding.verdict, PageVerdict::kMisplaced) << finding.ToString();
  EXPECT_EQ(finding.bad_offset, 4096u);

  std::vector<std::byte> cut = Filled(Stamp());
  cut.resize(8 * kPageBlockBytes);
  finding = Check(cut, PageExpectation::Only(Stamp()));
  EXPECT_EQ(finding.verdict, PageVerdict::kMisplaced) << finding.ToString();
}

TEST(PageCheckTest, TellsWhatIsNoTestPageAtAll) {
  SeededRandom random(9);
  std::vector<std::byte> noise(kPageBytes);
  for (std::byte& b : noise) b = static_cast<std::byte>(random.Next());
  EXPECT_EQ(Check(noise, PageExpectation::Only(Stamp())).verdict, PageVerdict::kUnknown);
  EXPECT_EQ(
      Check(Mixed(Filled(Stamp()), noise, 8192, 20'480), PageExpectation::Only(Stamp())).verdict,
      PageVerdict::kTorn);
}

// No two blocks are alike, whichever field of the stamp or place differs: else a wrong one could
// pass.
TEST(PageCheckTest, EveryFieldChangesTheWholeBlock) {
  std::vector<PageStamp> stamps(6, Stamp());
  stamps[1].tenant ^= 1;
  stamps[2].key[7] ^= 1;
  stamps[3].part ^= 1;
  stamps[4].writer ^= 1;
  stamps[5].attempt ^= 1;
  for (size_t a = 0; a < stamps.size(); ++a) {
    for (size_t b = a + 1; b < stamps.size(); ++b) {
      const std::vector<std::byte> x = Filled(stamps[a], 8192);
      const std::vector<std::byte> y = Filled(stamps[b], 8192);
      size_t equal = 0;
      for (size_t i = kPageBlockHeaderBytes; i < 4096; ++i) equal += x[i] == y[i] ? 1 : 0;
      EXPECT_LT(equal, 60u) << a << " " << b;  // 4,032 / 256 is 16 by chance
    }
  }
  const std::vector<std::byte> page = Filled(Stamp(), 8192);
  size_t equal = 0;
  for (size_t i = kPageBlockHeaderBytes; i < 4096; ++i) equal += page[i] == page[4096 + i] ? 1 : 0;
  EXPECT_LT(equal, 60u);
}

// The format is written down, and files of it outlive a build: golden bytes.
TEST(PageCheckTest, GoldenBytes) {
  const std::vector<std::byte> page = Filled(Stamp(), 128);
  std::string hex;
  for (const std::byte b : page) {
    static constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[std::to_integer<int>(b) >> 4];
    hex += kDigits[std::to_integer<int>(b) & 15];
  }
  EXPECT_EQ(hex.substr(0, 16), "4642595041474531");  // "FBYPAGE1"
  EXPECT_EQ(hex.substr(32, 32), "0102030405060708090a0b0c0d0e0f10");
  EXPECT_EQ(hex.substr(64, 48),
            "0300000007000000640000000000000000000000"
            "80000000");
  EXPECT_EQ(hex.substr(112),
            "69fc9ff6432633fd"
            "ce59b394dfee6195b164d86a0bc91eae75628c0696080335a24f397a38b4c2a5"
            "0a40e8bce5c25c546bb8bc636cc2147d0b0970b8428edd83109d48593777f073");
}

TEST(PageCheckTest, DescribesWhatAFileHolds) {
  PageStamp other = Stamp();
  other.part = 9;
  std::vector<std::byte> page = Mixed(Filled(Stamp()), Filled(other), 8192, 16'384);
  std::fill(page.begin() + 20'480, page.begin() + 24'576, std::byte{0});
  const std::vector<PageRun> runs = DescribePage(AsBytes(page.data(), page.size()));
  ASSERT_EQ(runs.size(), 5u);
  EXPECT_EQ(runs[0].bytes, 8192u);
  EXPECT_TRUE(runs[0].sound);
  EXPECT_EQ(runs[1].header->stamp, other);
  EXPECT_EQ(runs[2].bytes, 4096u);
  EXPECT_TRUE(runs[3].unwritten);
  EXPECT_EQ(runs[4].offset + runs[4].bytes, kPageBytes);
  EXPECT_NE(runs[1].ToString().find("part 9"), std::string::npos);
  EXPECT_NE(runs[3].ToString().find("unwritten"), std::string::npos);
}

}  // namespace
}  // namespace forebay::testing
