#include "codec/entropy/rans32.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

using rans32::kLanes;
using rans32::kSlots;
using rans32::kStateMin;
using rans32::kSymbolsMax;
using rans32::kWordBytes;

constexpr std::byte kStored{0};
constexpr std::byte kCoded{1};
constexpr size_t kBlockSymbols = Rans32Reader::kBlockSymbols;
constexpr size_t kStatesBytes = kLanes * sizeof(uint32_t);
constexpr size_t kLengthBytes = sizeof(uint32_t);

constexpr size_t UpToFour(size_t bytes) { return (bytes + 3) & ~size_t{3}; }

const uint8_t* At(Bytes bytes, size_t at) {
  return reinterpret_cast<const uint8_t*>(bytes.data()) + at;
}

// Whether a slot more is worth more to a than to b: the gain is close to count / (frequency + 1/2).
bool GainsMore(uint64_t count_a, uint32_t frequency_a, uint64_t count_b, uint32_t frequency_b) {
  return count_a * (2 * frequency_b + 1) > count_b * (2 * frequency_a + 1);
}

// Rounded shares, then slot by slot to or from where it costs least. Integers alone, so that every
// machine makes the same table.
std::array<uint16_t, 256> Normalized(absl::Span<const uint64_t> counts) {
  FB_CHECK(counts.size() == 256);
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  std::array<uint16_t, 256> frequencies{};
  if (total == 0) {
    frequencies[0] = kSlots;
    return frequencies;
  }
  uint8_t occurring[256];
  size_t occurring_count = 0;
  uint32_t sum = 0;
  for (size_t s = 0; s < 256; ++s) {
    if (counts[s] == 0) continue;
    occurring[occurring_count++] = static_cast<uint8_t>(s);
    const uint64_t share = (counts[s] * kSlots + total / 2) / total;
    frequencies[s] = static_cast<uint16_t>(std::max<uint64_t>(share, 1));
    sum += frequencies[s];
  }
  const absl::Span<const uint8_t> symbols(occurring, occurring_count);
  for (; sum < kSlots; ++sum) {
    uint8_t best = symbols[0];
    for (const uint8_t s : symbols) {
      if (GainsMore(counts[s], frequencies[s], counts[best], frequencies[best])) best = s;
    }
    ++frequencies[best];
  }
  for (; sum > kSlots; --sum) {
    int best = -1;
    for (const uint8_t s : symbols) {
      if (frequencies[s] < 2) continue;
      if (best < 0 ||
          GainsMore(counts[best], frequencies[best] - 1u, counts[s], frequencies[s] - 1u)) {
        best = s;
      }
    }
    --frequencies[best];
  }
  return frequencies;
}

}  // namespace

Rans32Frequencies Rans32Frequencies::OfCounts(absl::Span<const uint64_t> counts) {
  return {Normalized(counts)};
}

absl::StatusOr<Rans32Frequencies> Rans32Frequencies::Parse(Bytes* in) {
  Rans32Frequencies frequencies;
  size_t symbol = 0;
  size_t at = 0;
  uint32_t sum = 0;
  while (sum < kSlots) {
    if (at == in->size()) return absl::DataLossError("a table that ends early");
    const uint32_t first = static_cast<uint8_t>((*in)[at++]);
    uint32_t frequency = first;
    if (first == 0 || first >= 128) {
      if (at == in->size()) return absl::DataLossError("a table that ends early");
      const uint32_t second = static_cast<uint8_t>((*in)[at++]);
      if (first == 0) {
        symbol += second + 1;
        continue;
      }
      frequency = (first - 128) << 8 | second;
      if (frequency < 128) {
        return absl::DataLossError(absl::StrCat("a frequency of ", frequency, " in its long form"));
      }
    }
    if (symbol > 255) return absl::DataLossError("a table of more than 256 symbols");
    sum += frequency;
    if (sum > kSlots) {
      return absl::DataLossError(absl::StrCat("frequencies of more than ", kSlots, " in all"));
    }
    frequencies.of[symbol++] = static_cast<uint16_t>(frequency);
  }
  in->remove_prefix(at);
  return frequencies;
}

size_t Rans32Frequencies::Serialize(MutableBytes out) const {
  FB_CHECK(out.size() >= kSerializedBytesMax);
  size_t at = 0;
  uint32_t sum = 0;
  for (size_t s = 0; sum < kSlots; ++s) {
    const uint32_t frequency = of[s];
    if (frequency == 0) {
      size_t run = 1;
      while (of[s + run] == 0) ++run;
      out[at++] = std::byte{0};
      out[at++] = static_cast<std::byte>(run - 1);
      s += run - 1;
      continue;
    }
    if (frequency >= 128) out[at++] = static_cast<std::byte>(128 | frequency >> 8);
    out[at++] = static_cast<std::byte>(frequency);
    sum += frequency;
  }
  return at;
}

void Rans32Frequencies::Fill(rans32::EncodeTable& table) const {
  uint32_t first_slot = 0;
  for (size_t s = 0; s < 256; ++s) {
    const uint32_t frequency = of[s];
    table.entries[s].range = frequency == 0 ? 0 : frequency | first_slot << 16;
    table.entries[s].reciprocal =
        frequency <= 1 ? ~uint32_t{0} : static_cast<uint32_t>((uint64_t{1} << 32) / frequency);
    first_slot += frequency;
  }
}

void Rans32Frequencies::Fill(rans32::DecodeTable& table) const {
  uint32_t* slot = table.slots;
  for (uint32_t s = 0; s < 256; ++s) {
    const uint32_t entry = static_cast<uint32_t>(of[s]) << 20 | s;
    for (uint32_t offset = 0; offset < of[s]; ++offset) *slot++ = entry | offset << 8;
  }
}

Rans32BlockWriter::Rans32BlockWriter(MutableBytes room, const Rans32Tail& tail)
    : room_(room), begin_(room.size()) {
  for (size_t lane = 0; lane < kLanes; ++lane) states_[lane] = kStateMin | tail[lane];
}

bool Rans32BlockWriter::Prepend(const rans32::EncodeTable* tables, const rans32::Classes& classes,
                                size_t at, Bytes symbols) {
  FB_CHECK(symbols.size() <= kSymbolsMax);
  FB_CHECK(at % kLanes == 0);
  uint16_t words[rans32::kEncodeSlackWords + kSymbolsMax];
  uint16_t* const end = words + std::size(words);
  const uint16_t* const begin =
      rans32::Encode(tables, classes, at, At(symbols, 0), symbols.size(), states_.data(), end);
  if (begin == nullptr) return false;
  const size_t bytes = static_cast<size_t>(end - begin) * kWordBytes;
  if (bytes > begin_) return false;
  begin_ -= bytes;
  std::memcpy(room_.data() + begin_, begin, bytes);
  return true;
}

size_t Rans32BlockWriter::Finish() {
  if (begin_ < kStatesBytes) return 0;
  begin_ -= kStatesBytes;
  std::memcpy(room_.data() + begin_, states_.data(), kStatesBytes);
  return room_.size() - begin_;
}

absl::Status Rans32BlockReader::Open(Bytes block) {
  if (block.size() < kStatesBytes || block.size() % kWordBytes != 0) {
    return absl::DataLossError(absl::StrCat("an R32 block of ", block.size(), " bytes"));
  }
  std::memcpy(lanes_.states, block.data(), kStatesBytes);
  for (const uint32_t state : lanes_.states) {
    if (state < kStateMin) {
      return absl::DataLossError(absl::StrCat("an R32 block that starts in state ", state));
    }
  }
  lanes_.words = At(block, kStatesBytes);
  lanes_.end = At(block, block.size());
  return absl::OkStatus();
}

absl::Status Rans32BlockReader::Next(const rans32::DecodeTable* tables,
                                     const rans32::Classes& classes, size_t at,
                                     MutableBytes symbols) {
  FB_CHECK(at % kLanes == 0);
  if (rans32::Decode(tables, classes, at, lanes_, reinterpret_cast<uint8_t*>(symbols.data()),
                     symbols.size())) {
    return absl::OkStatus();
  }
  return absl::DataLossError("an R32 block with too few words");
}

absl::Status Rans32BlockReader::NextOfTwo(const rans32::DecodeTable& table, Rans32BlockReader& a,
                                          MutableBytes symbols_a, Rans32BlockReader& b,
                                          MutableBytes symbols_b) {
  FB_CHECK(symbols_a.size() == symbols_b.size());
  rans32::Lanes two[] = {a.lanes_, b.lanes_};
  uint8_t* const symbols[] = {reinterpret_cast<uint8_t*>(symbols_a.data()),
                              reinterpret_cast<uint8_t*>(symbols_b.data())};
  if (!rans32::DecodeTwo(table, two, symbols, symbols_a.size())) {
    return absl::DataLossError("an R32 block with too few words");
  }
  a.lanes_ = two[0];
  b.lanes_ = two[1];
  return absl::OkStatus();
}

absl::Status Rans32BlockReader::Finish(Rans32Tail& tail) const {
  if (lanes_.words != lanes_.end) return absl::DataLossError("an R32 block with too many words");
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t state = lanes_.states[lane];
    if (state >= 2 * kStateMin) {
      return absl::DataLossError(absl::StrCat("an R32 block that ends in state ", state));
    }
    tail[lane] = static_cast<uint16_t>(state);
  }
  return absl::OkStatus();
}

absl::Status Rans32BlockReader::Finish() const {
  Rans32Tail tail;
  FB_RETURN_IF_ERROR(Finish(tail));
  if (tail == Rans32Tail{}) return absl::OkStatus();
  return absl::DataLossError("an R32 block with a tail where there is none");
}

size_t Rans32Encode(Bytes symbols, MutableBytes out) {
  FB_CHECK(symbols.size() <= UINT32_MAX);
  FB_CHECK(out.size() >= Rans32BytesMax(symbols.size()));
  // Neighbours are often equal: counting them in different places spares the wait for the first.
  uint64_t places[4][256] = {};
  size_t i = 0;
  for (; i + 4 <= symbols.size(); i += 4) {
    for (size_t p = 0; p < 4; ++p) ++places[p][static_cast<uint8_t>(symbols[i + p])];
  }
  for (; i < symbols.size(); ++i) ++places[0][static_cast<uint8_t>(symbols[i])];
  uint64_t counts[256];
  for (size_t s = 0; s < 256; ++s) {
    counts[s] = places[0][s] + places[1][s] + places[2][s] + places[3][s];
  }
  const Rans32Frequencies frequencies = Rans32Frequencies::OfCounts(counts);
  Rans32Writer writer(frequencies, symbols.size(), out.first(symbols.size()));
  bool fits = !symbols.empty();
  while (fits && !writer.done()) {
    const size_t at = writer.next();
    fits = writer.Prepend(symbols.subspan(at, kSymbolsMax));
  }
  if (fits) {
    if (const size_t bytes = writer.Finish(); bytes > 0) return bytes;
  }
  out[0] = kStored;
  if (!symbols.empty()) std::memcpy(out.data() + 1, symbols.data(), symbols.size());
  return 1 + symbols.size();
}

absl::Status Rans32Decode(Bytes stream, MutableBytes symbols) {
  Rans32Reader reader;
  FB_RETURN_IF_ERROR(reader.Open(stream, symbols.size()));
  FB_RETURN_IF_ERROR(reader.Next(symbols));
  if (reader.tail() == Rans32Tail{}) return absl::OkStatus();
  return absl::DataLossError("an R32 block with a tail where there is none");
}

Rans32Writer::Rans32Writer(const Rans32Frequencies& frequencies, size_t symbol_count,
                           MutableBytes room, const Rans32Tail& tail)
    : frequencies_(frequencies),
      room_(room),
      left_(symbol_count),
      begin_(room.size()),
      block_(room, tail) {
  FB_CHECK(symbol_count <= UINT32_MAX);
  frequencies_.Fill(table_);
}

bool Rans32Writer::Prepend(Bytes symbols) {
  const size_t at = next();
  FB_CHECK(symbols.size() == left_ - at);
  if (!block_.Prepend(&table_, {}, at, symbols)) return false;
  left_ = at;
  if (at % kBlockSymbols != 0) return true;
  const bool last = begin_ == room_.size();
  const size_t bytes = block_.Finish();
  if (bytes == 0) return false;
  begin_ -= bytes;
  if (!last) {
    if (begin_ < kLengthBytes) return false;
    begin_ -= kLengthBytes;
    const auto length = static_cast<uint32_t>(bytes);
    std::memcpy(room_.data() + begin_, &length, sizeof(length));
  }
  block_ = Rans32BlockWriter(room_.first(begin_));
  return true;
}

size_t Rans32Writer::Finish() {
  FB_CHECK(done());
  std::byte front[1 + Rans32Frequencies::kSerializedBytesMax + 3] = {kCoded};
  const size_t table_bytes = frequencies_.Serialize(absl::MakeSpan(front).subspan(1));
  const size_t front_bytes = UpToFour(1 + table_bytes);
  std::fill(front + 1 + table_bytes, front + front_bytes, std::byte{0});
  if (front_bytes > begin_) return 0;
  const size_t bytes = room_.size() - begin_;
  std::memmove(room_.data() + front_bytes, room_.data() + begin_, bytes);
  std::memcpy(room_.data(), front, front_bytes);
  return front_bytes + bytes;
}

absl::Status Rans32Reader::Open(Bytes stream, size_t symbol_count) {
  if (stream.empty()) return absl::DataLossError("an R32 stream of no bytes");
  symbol_count_ = symbol_count;
  const std::byte kind = stream[0];
  stream_ = stream.subspan(1);
  stored_ = kind == kStored;
  if (stored_) {
    if (stream_.size() == symbol_count) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("a stored R32 stream of ", stream_.size(), " symbols for ", symbol_count));
  }
  if (kind != kCoded) {
    return absl::DataLossError(absl::StrCat("an R32 stream of kind ", static_cast<int>(kind)));
  }
  if (symbol_count == 0) return absl::DataLossError("a coded R32 stream of no symbols");
  FB_ASSIGN_OR_RETURN(const Rans32Frequencies frequencies, Rans32Frequencies::Parse(&stream_));
  frequencies.Fill(table_);
  const size_t table_end = stream.size() - stream_.size();
  for (size_t at = table_end; at < UpToFour(table_end); ++at) {
    if (stream_.empty() || stream_[0] != std::byte{0}) {
      return absl::DataLossError("an R32 stream without the zeros after its table");
    }
    stream_.remove_prefix(1);
  }
  return absl::OkStatus();
}

absl::Status Rans32Reader::OpenBlock(size_t at, Rans32BlockReader& reader) {
  Bytes block = stream_;
  if (symbol_count_ - at > kBlockSymbols) {
    if (stream_.size() < kLengthBytes) return absl::DataLossError("an R32 stream that ends early");
    uint32_t length;
    std::memcpy(&length, stream_.data(), sizeof(length));
    stream_.remove_prefix(kLengthBytes);
    if (stream_.size() < length) {
      return absl::DataLossError(
          absl::StrCat("an R32 block of ", length, " bytes where ", stream_.size(), " are left"));
    }
    block = stream_.first(length);
  }
  stream_.remove_prefix(block.size());
  return reader.Open(block);
}

// After symbol done_ - 1.
absl::Status Rans32Reader::CloseBlock(const Rans32BlockReader& block) {
  return done_ == symbol_count_ ? block.Finish(tail_) : block.Finish();
}

absl::Status Rans32Reader::NextTwoBlocks(MutableBytes symbols) {
  Rans32BlockReader second;
  FB_RETURN_IF_ERROR(OpenBlock(done_, block_));
  FB_RETURN_IF_ERROR(OpenBlock(done_ + kBlockSymbols, second));
  FB_RETURN_IF_ERROR(Rans32BlockReader::NextOfTwo(table_, block_, symbols.first(kBlockSymbols),
                                                  second, symbols.subspan(kBlockSymbols)));
  FB_RETURN_IF_ERROR(block_.Finish());
  done_ += 2 * kBlockSymbols;
  return CloseBlock(second);
}

absl::Status Rans32Reader::Next(MutableBytes symbols) {
  FB_CHECK(symbols.size() <= symbol_count_ - done_);
  FB_CHECK(symbols.size() % kLanes == 0 || symbols.size() == symbol_count_ - done_);
  if (stored_) {
    if (!symbols.empty()) std::memcpy(symbols.data(), stream_.data(), symbols.size());
    stream_.remove_prefix(symbols.size());
    done_ += symbols.size();
    return absl::OkStatus();
  }
  while (!symbols.empty()) {
    const size_t at = done_ % kBlockSymbols;
    if (at == 0 && symbols.size() >= 2 * kBlockSymbols) {
      FB_RETURN_IF_ERROR(NextTwoBlocks(symbols.first(2 * kBlockSymbols)));
      symbols.remove_prefix(2 * kBlockSymbols);
      continue;
    }
    if (at == 0) FB_RETURN_IF_ERROR(OpenBlock(done_, block_));
    const MutableBytes now = symbols.subspan(0, kBlockSymbols - at);
    FB_RETURN_IF_ERROR(block_.Next(&table_, {}, at, now));
    symbols.remove_prefix(now.size());
    done_ += now.size();
    if (done_ % kBlockSymbols == 0 || done_ == symbol_count_) {
      FB_RETURN_IF_ERROR(CloseBlock(block_));
    }
  }
  return absl::OkStatus();
}

}  // namespace forebay
