#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "tests/oracle/page_stamp.h"

// The judge of what a cache answered: is it the page that was asked for, and if not, what is it?
namespace forebay::testing {

enum class PageVerdict : uint8_t {
  kOk = 1,
  kOtherTenant,  // a sound page of somebody else
  kOtherKey,     // a sound page of this tenant, but another key or part
  kStale,        // the right page from an attempt or writer that is not allowed (any more)
  kTorn,         // pieces of two pages, or of two attempts at one
  kMisplaced,    // sound blocks of the right page, but not where they belong, or of another length
  kFlipped,      // the right page, but for damaged bits
  kUnwritten,    // memory that nobody filled: runs of one byte value
  kUnknown,      // nothing that this library ever wrote
};

absl::string_view NameOf(PageVerdict verdict);

// What a reader may get. Pages are immutable and the first of two equal puts wins, so that a reader
// knows the page but seldom which put it came from.
struct PageExpectation {
  uint64_t tenant = 0;
  std::array<uint8_t, 16> key{};
  uint32_t part = 0;
  std::optional<uint32_t> writer;  // any
  uint64_t attempt_min = 0;
  uint64_t attempt_max = UINT64_MAX;

  // Exactly this one.
  static PageExpectation Only(const PageStamp& stamp);
  // This page, whoever put it.
  static PageExpectation AnyAttempt(const PageStamp& stamp);
};

struct PageFinding {
  PageVerdict verdict = PageVerdict::kOk;
  uint64_t bad_offset = 0;         // of the first wrong byte; 0 when kOk
  std::optional<PageStamp> found;  // whose the first wrong block is; when kOk, whose the page is
  uint64_t flipped_bits = 0;       // kFlipped

  bool ok() const { return verdict == PageVerdict::kOk; }
  // "torn at 8192: tenant …".
  std::string ToString() const;
};

// Classifies `page`, which must be whole. One pass at memory speed when it is right; at leisure
// when it is not.
//
// What it cannot tell: whose attempt a page of one block was whose header has two flipped bits (it
// is unknown then), and a last block of less than 64 bytes carries no header, so that there another
// page looks unknown or, next to sound blocks, torn.
PageFinding CheckPage(Bytes page, const PageExpectation& expected);

// A stretch of blocks of one origin: for people, and for files of unknown content.
struct PageRun {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::optional<BlockHeader> header;  // of the first block, where it has a sound one
  bool sound = false;                 // all blocks are exactly what their headers name
  bool unwritten = false;

  std::string ToString() const;
};
std::vector<PageRun> DescribePage(Bytes page);

}  // namespace forebay::testing
