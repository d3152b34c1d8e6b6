#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/page_key.h"

// Self-describing test pages: whoever reads one knows whose it is, without asking anybody.
//
// A page is cut into blocks of 4 KiB (the last may be shorter). Each block begins with 64 bytes
// that name the page and the block's place in it; the rest is a pseudo-random function of the same.
// So any 4 KiB of a wrong answer tell which page they came from, and every other bit is known.
//
// The first 64 bytes of a block, little endian; a last block of less than 64 bytes has none:
//    0  8  magic "FBYPAGE1"       40  8  attempt
//    8  8  tenant                 48  4  offset of the block in the page
//   16 16  key                    52  4  bytes of the whole page
//   32  4  part                   56  8  hash of the 56 bytes before
//   36  4  writer
namespace forebay::testing {

inline constexpr size_t kPageBlockBytes = 4096;
inline constexpr size_t kPageBlockHeaderBytes = 64;

// Whose a page is. Two puts of one page differ in writer and attempt alone.
struct PageStamp {
  uint64_t tenant = 0;            // or namespace; TenantOf
  std::array<uint8_t, 16> key{};  // the first bytes of the PageKey
  uint32_t part = 0;
  uint32_t writer = 0;   // which client
  uint64_t attempt = 0;  // which try, or generation, of that key

  friend bool operator==(const PageStamp&, const PageStamp&) = default;
  // "tenant 1f… key 00… part 0 writer 3 attempt 9"
  std::string ToString() const;

  static uint64_t TenantOf(absl::string_view name);
  static PageStamp Of(absl::string_view tenant, const PageKey& key, uint32_t part, uint32_t writer,
                      uint64_t attempt);
};

// What the header of a block says.
struct BlockHeader {
  PageStamp stamp;
  uint32_t offset = 0;
  uint32_t page_bytes = 0;
};

// Fills `page`, of at most 4 GiB - 1 bytes, for `stamp`.
void FillPage(MutableBytes page, const PageStamp& stamp);

// Whether the 64 bytes at `block` are a sound block header; `header` is set when they are.
bool ParseBlockHeader(const std::byte* block, BlockHeader& header);
// The same where one bit of the header may have flipped. Slow.
bool ParseDamagedBlockHeader(const std::byte* block, BlockHeader& header);
// Whether `block` (at most 4 KiB, at `header.offset` of its page) is exactly what `header` names.
bool BlockMatches(Bytes block, const BlockHeader& header);
// The block that `header` names, in full.
void FillBlock(MutableBytes block, const BlockHeader& header);

}  // namespace forebay::testing
