#include "tests/oracle/page_stamp.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"

namespace forebay::testing {
namespace {

constexpr uint64_t kMagic = 0x3145474150594246;  // "FBYPAGE1"

// The header as it lies in memory; this machine is little endian, and so is the format.
struct RawHeader {
  uint64_t magic;
  uint64_t tenant;
  uint64_t key[2];
  uint32_t part;
  uint32_t writer;
  uint64_t attempt;
  uint32_t offset;
  uint32_t page_bytes;
  uint64_t hash;
};
static_assert(sizeof(RawHeader) == kPageBlockHeaderBytes);

uint64_t Scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Cheap, and each input bit changes about half of the result.
uint64_t HashOf(const RawHeader& raw) {
  uint64_t words[7];
  std::memcpy(words, &raw, sizeof(words));
  uint64_t hash = 0x9e3779b97f4a7c15ull;
  for (const uint64_t word : words) hash = Scramble(hash + word);
  return hash;
}

RawHeader RawOf(const BlockHeader& header) {
  RawHeader raw{};
  raw.magic = kMagic;
  raw.tenant = header.stamp.tenant;
  std::memcpy(raw.key, header.stamp.key.data(), sizeof(raw.key));
  raw.part = header.stamp.part;
  raw.writer = header.stamp.writer;
  raw.attempt = header.stamp.attempt;
  raw.offset = header.offset;
  raw.page_bytes = header.page_bytes;
  raw.hash = HashOf(raw);
  return raw;
}

// Eight xorshift generators side by side, seeded apart: 64 bytes a step, and the compiler makes
// vectors of it without a multiplication, which SSE2 has none of for 64 bits.
constexpr size_t kLanes = 8;
constexpr size_t kRowBytes = kLanes * sizeof(uint64_t);
static_assert(kRowBytes == kPageBlockHeaderBytes);
using Row = uint64_t __attribute__((vector_size(kRowBytes)));

void SeedLanes(uint64_t seed, Row& lanes) {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    // Zero is the one state that a xorshift never leaves.
    lanes[lane] = Scramble(seed + lane * 0x9e3779b97f4a7c15ull) | 1;
  }
}

// Calls visit(at, row) for each 64 bytes of a block that `header` names.
template <typename Visit>
inline void ForEachRow(size_t block_bytes, const BlockHeader& header, const Visit& visit) {
  const RawHeader raw = RawOf(header);
  Row lanes;
  SeedLanes(raw.hash, lanes);
  size_t at = 0;
  if (block_bytes >= kPageBlockHeaderBytes) {
    Row first;
    std::memcpy(&first, &raw, sizeof(first));
    visit(at, first);
    at += kRowBytes;
  }
  for (; at < block_bytes; at += kRowBytes) {
    lanes ^= lanes << 13;
    lanes ^= lanes >> 7;
    lanes ^= lanes << 17;
    visit(at, lanes);
  }
}

}  // namespace

std::string PageStamp::ToString() const {
  return absl::StrCat("tenant ", absl::Hex(tenant, absl::kZeroPad16), " key ",
                      absl::BytesToHexString(
                          absl::string_view(reinterpret_cast<const char*>(key.data()), key.size())),
                      " part ", part, " writer ", writer, " attempt ", attempt);
}

uint64_t PageStamp::TenantOf(absl::string_view name) {
  return ChecksumOf(AsBytes(name.data(), name.size()));
}

PageStamp PageStamp::Of(absl::string_view tenant, const PageKey& key, uint32_t part,
                        uint32_t writer, uint64_t attempt) {
  PageStamp stamp;
  stamp.tenant = TenantOf(tenant);
  std::copy_n(key.bytes.begin(), stamp.key.size(), stamp.key.begin());
  stamp.part = part;
  stamp.writer = writer;
  stamp.attempt = attempt;
  return stamp;
}

void FillPage(MutableBytes page, const PageStamp& stamp) {
  FB_CHECK(page.size() <= UINT32_MAX);
  BlockHeader header{stamp, 0, static_cast<uint32_t>(page.size())};
  for (size_t at = 0; at < page.size(); at += kPageBlockBytes) {
    header.offset = static_cast<uint32_t>(at);
    FillBlock(page.subspan(at, kPageBlockBytes), header);
  }
}

void FillBlock(MutableBytes block, const BlockHeader& header) {
  std::byte* const to = block.data();
  const size_t whole_bytes = block.size() / kRowBytes * kRowBytes;
  ForEachRow(block.size(), header, [&](size_t at, const Row& row) {
    std::memcpy(to + at, &row, at < whole_bytes ? kRowBytes : block.size() - at);
  });
}

bool ParseBlockHeader(const std::byte* block, BlockHeader& header) {
  RawHeader raw;
  std::memcpy(&raw, block, sizeof(raw));
  if (raw.magic != kMagic || raw.hash != HashOf(raw)) return false;
  header.stamp.tenant = raw.tenant;
  std::memcpy(header.stamp.key.data(), raw.key, sizeof(raw.key));
  header.stamp.part = raw.part;
  header.stamp.writer = raw.writer;
  header.stamp.attempt = raw.attempt;
  header.offset = raw.offset;
  header.page_bytes = raw.page_bytes;
  return true;
}

bool ParseDamagedBlockHeader(const std::byte* block, BlockHeader& header) {
  std::array<std::byte, kPageBlockHeaderBytes> copy;
  std::memcpy(copy.data(), block, copy.size());
  if (ParseBlockHeader(copy.data(), header)) return true;
  for (size_t bit = 0; bit < copy.size() * 8; ++bit) {
    const std::byte mask{static_cast<unsigned char>(1u << (bit % 8))};
    copy[bit / 8] ^= mask;
    if (ParseBlockHeader(copy.data(), header)) return true;
    copy[bit / 8] ^= mask;
  }
  return false;
}

bool BlockMatches(Bytes block, const BlockHeader& header) {
  const std::byte* const from = block.data();
  const size_t whole_bytes = block.size() / kRowBytes * kRowBytes;
  Row difference{};
  bool tail_equal = true;
  ForEachRow(block.size(), header, [&](size_t at, const Row& row) {
    if (at < whole_bytes) {
      Row found;
      std::memcpy(&found, from + at, kRowBytes);
      difference |= found ^ row;
    } else {
      tail_equal = std::memcmp(from + at, &row, block.size() - at) == 0;
    }
  });
  uint64_t bits = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) bits |= difference[lane];
  return tail_equal && bits == 0;
}

}  // namespace forebay::testing
