#include "tests/oracle/page_check.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace forebay::testing {
namespace {

// Above this share of wrong bits in the wrong stretch it is no damage but other data: two unrelated
// stretches differ in half of their bits.
constexpr double kFlippedShareMax = 0.2;
// And a stretch this long with fewer flips than the share says is still judged bit by bit.
constexpr size_t kRunBytesForTear = 32;

// What one block of a page turned out to be.
struct BlockFinding {
  enum class Kind : uint8_t { kMine, kForeign, kMisplaced, kUnwritten, kFlipped, kMixed, kUnknown };
  Kind kind = Kind::kMine;
  uint64_t bad_offset = 0;  // in the page
  std::optional<PageStamp> found;
  uint64_t flipped_bits = 0;
};
using Kind = BlockFinding::Kind;

bool Allows(const PageExpectation& expected, const PageStamp& stamp) {
  return stamp.tenant == expected.tenant && stamp.key == expected.key &&
         stamp.part == expected.part && (!expected.writer || stamp.writer == *expected.writer) &&
         stamp.attempt >= expected.attempt_min && stamp.attempt <= expected.attempt_max;
}

bool AllOneByte(Bytes bytes) {
  return bytes.empty() || std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

// Compares `block` with what it should be, from its first wrong byte on.
BlockFinding CompareWith(Bytes block, const BlockHeader& mine) {
  std::vector<std::byte> should_be(block.size());
  FillBlock(AsMutableBytes(should_be.data(), should_be.size()), mine);
  const auto first = static_cast<size_t>(
      std::mismatch(block.begin(), block.end(), should_be.begin()).first - block.begin());
  BlockFinding finding;
  finding.bad_offset = mine.offset + first;
  if (first == block.size()) return finding;

  size_t last = block.size();
  while (block[last - 1] == should_be[last - 1]) --last;
  uint64_t bits = 0;
  for (size_t i = first; i < last; ++i) {
    bits +=
        static_cast<uint64_t>(std::popcount(std::to_integer<unsigned>(block[i] ^ should_be[i])));
  }
  const size_t wrong_bytes = last - first;
  const double share = static_cast<double>(bits) / static_cast<double>(wrong_bytes * 8);
  if (wrong_bytes >= kRunBytesForTear && AllOneByte(block.subspan(first, wrong_bytes))) {
    finding.kind = Kind::kUnwritten;
  } else if (wrong_bytes < kRunBytesForTear || share <= kFlippedShareMax) {
    finding.kind = Kind::kFlipped;
    finding.flipped_bits = bits;
  } else {
    finding.kind = first == 0 && last == block.size() ? Kind::kUnknown : Kind::kMixed;
  }
  return finding;
}

BlockFinding ClassifyBlock(Bytes block, const BlockHeader& mine) {
  BlockFinding finding;
  finding.bad_offset = mine.offset;
  if (BlockMatches(block, mine)) return finding;
  BlockHeader header;
  const bool named =
      block.size() >= kPageBlockHeaderBytes && ParseBlockHeader(block.data(), header);
  if (!named) {
    finding = CompareWith(block, mine);
    if (block.size() >= kRunBytesForTear && AllOneByte(block)) finding.kind = Kind::kUnwritten;
    return finding;
  }
  finding.found = header.stamp;
  const bool same_place = header.offset == mine.offset && header.page_bytes == mine.page_bytes;
  if (header.stamp == mine.stamp && same_place) {
    finding = CompareWith(block, mine);
    finding.found = header.stamp;
    return finding;
  }
  finding.kind = header.stamp == mine.stamp ? Kind::kMisplaced : Kind::kForeign;
  // A foreign head on a body that is not its own.
  if (!BlockMatches(block, header)) {
    const BlockFinding body = CompareWith(block, header);
    if (body.kind == Kind::kMixed || body.kind == Kind::kUnwritten) finding.kind = Kind::kMixed;
  }
  return finding;
}

// Under which stamp to judge the page: what its blocks say most often among those allowed; else
// what was expected, in its plainest form.
PageStamp StampToJudgeBy(Bytes page, const PageExpectation& expected) {
  std::vector<std::pair<PageStamp, size_t>> votes;
  for (size_t at = 0; at + kPageBlockHeaderBytes <= page.size(); at += kPageBlockBytes) {
    BlockHeader header;
    if (!ParseDamagedBlockHeader(page.data() + at, header)) continue;
    if (!Allows(expected, header.stamp)) continue;
    const auto it = std::find_if(votes.begin(), votes.end(),
                                 [&](const auto& vote) { return vote.first == header.stamp; });
    if (it == votes.end()) {
      votes.emplace_back(header.stamp, 1);
    } else {
      ++it->second;
    }
  }
  const auto best = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (best != votes.end()) return best->first;
  PageStamp stamp;
  stamp.tenant = expected.tenant;
  stamp.key = expected.key;
  stamp.part = expected.part;
  stamp.writer = expected.writer.value_or(0);
  stamp.attempt = expected.attempt_min;
  return stamp;
}

bool Matches(Bytes page, const PageStamp& stamp) {
  BlockHeader header{stamp, 0, static_cast<uint32_t>(page.size())};
  for (size_t at = 0; at < page.size(); at += kPageBlockBytes) {
    header.offset = static_cast<uint32_t>(at);
    if (!BlockMatches(page.subspan(at, kPageBlockBytes), header)) return false;
  }
  return true;
}

PageVerdict VerdictOnForeign(const PageExpectation& expected, const PageStamp& stamp) {
  if (stamp.tenant != expected.tenant) return PageVerdict::kOtherTenant;
  if (stamp.key != expected.key || stamp.part != expected.part) return PageVerdict::kOtherKey;
  return PageVerdict::kStale;
}

// What the blocks of a wrong page say together.
struct Tally {
  size_t mine = 0;
  size_t count[7] = {};  // by Kind
  std::vector<PageStamp> foreign;
  std::optional<BlockFinding> first_bad;
  uint64_t flipped_bits = 0;

  size_t of(Kind kind) const { return count[static_cast<size_t>(kind)]; }
};

Tally TallyOf(Bytes page, const PageStamp& stamp) {
  Tally tally;
  BlockHeader mine{stamp, 0, static_cast<uint32_t>(page.size())};
  for (size_t at = 0; at < page.size(); at += kPageBlockBytes) {
    mine.offset = static_cast<uint32_t>(at);
    const BlockFinding finding = ClassifyBlock(page.subspan(at, kPageBlockBytes), mine);
    ++tally.count[static_cast<size_t>(finding.kind)];
    if (finding.kind == Kind::kMine) continue;
    tally.flipped_bits += finding.flipped_bits;
    if (!tally.first_bad) tally.first_bad = finding;
    if (finding.kind != Kind::kForeign) continue;
    if (std::find(tally.foreign.begin(), tally.foreign.end(), *finding.found) ==
        tally.foreign.end()) {
      tally.foreign.push_back(*finding.found);
    }
  }
  return tally;
}

PageVerdict VerdictOn(const Tally& tally, const PageExpectation& expected) {
  const size_t bare = tally.of(Kind::kUnknown) + tally.of(Kind::kUnwritten);
  const bool some_mine =
      tally.of(Kind::kMine) + tally.of(Kind::kFlipped) + tally.of(Kind::kMisplaced) > 0;
  if (tally.of(Kind::kMixed) > 0 || tally.foreign.size() > 1) return PageVerdict::kTorn;
  if (tally.foreign.size() == 1) {
    // A last block without a header says nothing, so that it cannot speak against the rest.
    const bool only_foreign = !some_mine && bare <= 1 && tally.of(Kind::kUnwritten) == 0;
    return only_foreign ? VerdictOnForeign(expected, tally.foreign[0]) : PageVerdict::kTorn;
  }
  if (tally.of(Kind::kUnknown) > 0) return some_mine ? PageVerdict::kTorn : PageVerdict::kUnknown;
  if (tally.of(Kind::kUnwritten) > 0) return PageVerdict::kUnwritten;
  if (tally.of(Kind::kMisplaced) > 0) return PageVerdict::kMisplaced;
  return PageVerdict::kFlipped;
}

}  // namespace

absl::string_view NameOf(PageVerdict verdict) {
  switch (verdict) {
    case PageVerdict::kOk:
      return "ok";
    case PageVerdict::kOtherTenant:
      return "other tenant";
    case PageVerdict::kOtherKey:
      return "other key";
    case PageVerdict::kStale:
      return "stale";
    case PageVerdict::kTorn:
      return "torn";
    case PageVerdict::kMisplaced:
      return "misplaced";
    case PageVerdict::kFlipped:
      return "flipped";
    case PageVerdict::kUnwritten:
      return "unwritten";
    case PageVerdict::kUnknown:
      return "unknown";
  }
  return "?";
}

PageExpectation PageExpectation::Only(const PageStamp& stamp) {
  PageExpectation expected = AnyAttempt(stamp);
  expected.writer = stamp.writer;
  expected.attempt_min = expected.attempt_max = stamp.attempt;
  return expected;
}

PageExpectation PageExpectation::AnyAttempt(const PageStamp& stamp) {
  PageExpectation expected;
  expected.tenant = stamp.tenant;
  expected.key = stamp.key;
  expected.part = stamp.part;
  return expected;
}

std::string PageFinding::ToString() const {
  std::string text(NameOf(verdict).data(), NameOf(verdict).size());
  if (!ok()) absl::StrAppend(&text, " at ", bad_offset);
  if (flipped_bits > 0) absl::StrAppend(&text, ", ", flipped_bits, " bits");
  if (found) absl::StrAppend(&text, ": ", found->ToString());
  return text;
}

PageFinding CheckPage(Bytes page, const PageExpectation& expected) {
  PageFinding result;
  if (page.empty()) return result;
  BlockHeader first;
  // The common case: the first block names an allowed put, and all else follows from it.
  if (page.size() >= kPageBlockHeaderBytes && ParseBlockHeader(page.data(), first) &&
      Allows(expected, first.stamp) && Matches(page, first.stamp)) {
    result.found = first.stamp;
    return result;
  }
  const PageStamp stamp = StampToJudgeBy(page, expected);
  const Tally tally = TallyOf(page, stamp);
  if (!tally.first_bad) {
    result.found = stamp;
    return result;
  }
  result.verdict = VerdictOn(tally, expected);
  result.bad_offset = tally.first_bad->bad_offset;
  result.found = tally.first_bad->found;
  if (result.verdict == PageVerdict::kFlipped) result.flipped_bits = tally.flipped_bits;
  return result;
}

std::string PageRun::ToString() const {
  std::string text = absl::StrCat(offset, " to ", offset + bytes, ": ");
  if (unwritten) return absl::StrCat(text, "unwritten");
  if (!header) return absl::StrCat(text, "unknown");
  return absl::StrCat(text, sound ? "" : "damaged ", header->stamp.ToString(), " from offset ",
                      header->offset, " of ", header->page_bytes);
}

std::vector<PageRun> DescribePage(Bytes page) {
  std::vector<PageRun> runs;
  for (size_t at = 0; at < page.size(); at += kPageBlockBytes) {
    const Bytes block = page.subspan(at, kPageBlockBytes);
    PageRun run{at, block.size(), std::nullopt, false, AllOneByte(block)};
    BlockHeader header;
    if (block.size() >= kPageBlockHeaderBytes && ParseBlockHeader(block.data(), header)) {
      run.header = header;
      run.sound = BlockMatches(block, header);
    } else if (!runs.empty() && runs.back().header && at + block.size() == page.size()) {
      // A last block without a header goes by the blocks before it.
      header = *runs.back().header;
      header.offset += static_cast<uint32_t>(at - runs.back().offset);
      run.sound = BlockMatches(block, header);
      if (run.sound) run.header = header;
    }
    PageRun* const last = runs.empty() ? nullptr : &runs.back();
    const bool continues =
        last != nullptr && last->sound == run.sound && last->unwritten == run.unwritten &&
        last->header.has_value() == run.header.has_value() &&
        (!run.header || (run.header->stamp == last->header->stamp &&
                         run.header->page_bytes == last->header->page_bytes &&
                         run.header->offset == last->header->offset + last->bytes));
    if (continues) {
      last->bytes += run.bytes;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace forebay::testing
