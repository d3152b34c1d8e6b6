#include "codec/entropy/rans32.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

using rans32::kBlockSymbols;
using rans32::kBlockWordsMax;
using rans32::kLanes;
using rans32::kSlots;
using rans32::kStateMin;
using rans32::kWordBytes;

using Frequencies = std::array<uint16_t, 256>;
using TableKind = Rans32Writer::TableKind;

constexpr uint8_t kVersion = 1;
constexpr size_t kStatesBytes = kLanes * sizeof(uint32_t);

struct Header {
  uint8_t version;
  uint8_t table_kind;
  uint16_t table_bytes;
  uint32_t symbol_count;
  uint32_t table_check;
  uint32_t word_count;
};
static_assert(sizeof(Header) == kRans32HeaderBytes);

constexpr size_t UpToFour(size_t bytes) { return (bytes + 3) & ~size_t{3}; }

constexpr size_t BlocksOf(size_t symbol_count) {
  return (symbol_count + kBlockSymbols - 1) / kBlockSymbols;
}

const uint8_t* At(Bytes bytes, size_t at) {
  return reinterpret_cast<const uint8_t*>(bytes.data()) + at;
}

template <typename T>
T Load(Bytes bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

template <typename T>
void Store(MutableBytes bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

// Whether a slot more is worth more to a than to b: the gain is close to count / (frequency + 1/2).
bool GainsMore(uint64_t count_a, uint32_t frequency_a, uint64_t count_b, uint32_t frequency_b) {
  return count_a * (2 * frequency_b + 1) > count_b * (2 * frequency_a + 1);
}

// Rounded shares, then slot by slot to or from where it costs least. Integers alone, so that every
// machine makes the same table.
Frequencies Normalized(absl::Span<const uint64_t> counts) {
  FB_CHECK(counts.size() == 256);
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  Frequencies frequencies{};
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

absl::StatusOr<Frequencies> ParseFrequencies(Bytes in) {
  Frequencies frequencies{};
  size_t symbol = 0;
  size_t at = 0;
  uint32_t sum = 0;
  while (sum < kSlots) {
    if (at == in.size()) return absl::DataLossError("a table that ends early");
    const uint32_t first = static_cast<uint8_t>(in[at++]);
    uint32_t frequency = first;
    if (first == 0 || first >= 128) {
      if (at == in.size()) return absl::DataLossError("a table that ends early");
      const uint32_t second = static_cast<uint8_t>(in[at++]);
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
    frequencies[symbol++] = static_cast<uint16_t>(frequency);
  }
  if (at != in.size()) {
    return absl::DataLossError(absl::StrCat(in.size() - at, " bytes after a table"));
  }
  return frequencies;
}

void Fill(const Frequencies& frequencies, rans32::EncodeTable& table) {
  uint32_t first_slot = 0;
  for (size_t s = 0; s < 256; ++s) {
    const uint32_t frequency = frequencies[s];
    table.entries[s].range = frequency == 0 ? 0 : frequency | first_slot << 16;
    table.entries[s].reciprocal =
        frequency <= 1 ? ~uint32_t{0} : static_cast<uint32_t>((uint64_t{1} << 32) / frequency);
    first_slot += frequency;
  }
}

void Fill(const Frequencies& frequencies, rans32::DecodeTable& table) {
  uint32_t* slot = table.slots;
  for (uint32_t s = 0; s < 256; ++s) {
    const uint32_t entry = static_cast<uint32_t>(frequencies[s]) << 20 | s;
    for (uint32_t offset = 0; offset < frequencies[s]; ++offset) *slot++ = entry | offset << 8;
  }
}

size_t Stored(Bytes symbols, MutableBytes out) {
  Header header{};
  header.version = kVersion;
  header.table_kind = static_cast<uint8_t>(TableKind::kStored);
  header.symbol_count = static_cast<uint32_t>(symbols.size());
  Store(out, 0, header);
  if (!symbols.empty()) {
    std::memcpy(out.data() + kRans32HeaderBytes, symbols.data(), symbols.size());
  }
  return kRans32HeaderBytes + symbols.size();
}

size_t Encode(const Rans32Table& table, TableKind kind, Bytes symbols, MutableBytes out) {
  FB_CHECK(symbols.size() <= UINT32_MAX);
  FB_CHECK(out.size() >= Rans32BytesMax(symbols.size()));
  Rans32Writer writer(table, kind, symbols.size(), out.first(Rans32BytesMax(symbols.size())));
  bool fits = !symbols.empty();
  for (size_t at = 0; fits && at < symbols.size(); at += kBlockSymbols) {
    fits = writer.Add(symbols.subspan(at, kBlockSymbols));
  }
  if (fits) {
    const size_t bytes = writer.Finish();
    if (bytes < Rans32BytesMax(symbols.size())) return bytes;
  }
  return Stored(symbols, out);
}

}  // namespace

Rans32Table::Rans32Table(const Frequencies& frequencies)
    : frequencies_(frequencies),
      check_(static_cast<uint32_t>(ChecksumOf(AsBytes(&frequencies, sizeof(frequencies))))) {
  Fill(frequencies_, encode_);
  Fill(frequencies_, decode_);
}

Rans32Table Rans32Table::OfCounts(absl::Span<const uint64_t> counts) {
  return Rans32Table(Normalized(counts));
}

absl::StatusOr<Rans32Table> Rans32Table::Parse(Bytes serialized) {
  FB_ASSIGN_OR_RETURN(const Frequencies frequencies, ParseFrequencies(serialized));
  return Rans32Table(frequencies);
}

size_t Rans32Table::Serialize(MutableBytes out) const {
  FB_CHECK(out.size() >= kSerializedBytesMax);
  size_t at = 0;
  uint32_t sum = 0;
  for (size_t s = 0; sum < kSlots; ++s) {
    const uint32_t frequency = frequencies_[s];
    if (frequency == 0) {
      size_t run = 1;
      while (frequencies_[s + run] == 0) ++run;
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

size_t Rans32Encode(Bytes symbols, MutableBytes out) {
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
  return Encode(Rans32Table::OfCounts(counts), TableKind::kOwn, symbols, out);
}

size_t Rans32Encode(const Rans32Table& table, Bytes symbols, MutableBytes out) {
  return Encode(table, TableKind::kKnown, symbols, out);
}

absl::Status Rans32Decode(Bytes stream, MutableBytes symbols, const Rans32Table* table) {
  Rans32Reader reader;
  FB_RETURN_IF_ERROR(reader.Open(stream, symbols.size(), table));
  return reader.Next(symbols);
}

Rans32Writer::Rans32Writer(const Rans32Table& table, TableKind kind, size_t symbol_count,
                           MutableBytes out)
    : table_(table), out_(out) {
  FB_CHECK(kind != TableKind::kStored);
  FB_CHECK(symbol_count <= UINT32_MAX);
  Header header{};
  header.version = kVersion;
  header.table_kind = static_cast<uint8_t>(kind);
  header.symbol_count = static_cast<uint32_t>(symbol_count);
  std::byte serialized[Rans32Table::kSerializedBytesMax] = {};
  if (kind == TableKind::kOwn) {
    header.table_bytes = static_cast<uint16_t>(table.Serialize(absl::MakeSpan(serialized)));
  } else {
    header.table_check = table.check();
  }
  lengths_at_ = kRans32HeaderBytes + UpToFour(header.table_bytes);
  states_at_ = lengths_at_ + UpToFour(BlocksOf(symbol_count) * sizeof(uint16_t));
  words_at_ = states_at_ + BlocksOf(symbol_count) * kStatesBytes;
  used_bytes_ = words_at_;
  if (used_bytes_ > out_.size()) return;
  Store(out_, 0, header);
  std::memcpy(out_.data() + kRans32HeaderBytes, serialized, lengths_at_ - kRans32HeaderBytes);
  // What fills up to the states.
  std::memset(out_.data() + states_at_ - sizeof(uint16_t), 0, sizeof(uint16_t));
}

bool Rans32Writer::Add(Bytes block) {
  if (used_bytes_ > out_.size()) return false;
  uint16_t words[rans32::kEncodeSlackWords + kBlockWordsMax];
  uint32_t states[kLanes];
  uint16_t* const end = words + std::size(words);
  const uint16_t* const begin =
      rans32::EncodeBlock(table_.encode_, At(block, 0), block.size(), states, end);
  if (begin == nullptr) return false;
  const auto count = static_cast<size_t>(end - begin);
  if (count * kWordBytes > out_.size() - used_bytes_) {
    used_bytes_ = out_.size() + 1;
    return false;
  }
  std::memcpy(out_.data() + used_bytes_, begin, count * kWordBytes);
  used_bytes_ += count * kWordBytes;
  Store(out_, lengths_at_ + block_ * sizeof(uint16_t), static_cast<uint16_t>(count));
  std::memcpy(out_.data() + states_at_ + block_ * kStatesBytes, states, kStatesBytes);
  ++block_;
  return true;
}

size_t Rans32Writer::Finish() {
  Store(out_, offsetof(Header, word_count),
        static_cast<uint32_t>((used_bytes_ - words_at_) / kWordBytes));
  return used_bytes_;
}

absl::Status Rans32Reader::Open(Bytes stream, size_t symbol_count, const Rans32Table* table) {
  if (stream.size() < kRans32HeaderBytes) {
    return absl::DataLossError(absl::StrCat("an R32 stream of ", stream.size(), " bytes"));
  }
  const auto header = Load<Header>(stream, 0);
  if (header.version != kVersion) {
    return absl::DataLossError(absl::StrCat("an R32 stream of version ", header.version));
  }
  if (header.symbol_count != symbol_count) {
    return absl::DataLossError(absl::StrCat("an R32 stream of ", header.symbol_count,
                                            " symbols where ", symbol_count, " are due"));
  }
  stream_ = stream;
  symbol_count_ = symbol_count;
  stored_ = header.table_kind == static_cast<uint8_t>(TableKind::kStored);
  if (stored_) {
    at_ = kRans32HeaderBytes;
    if (header.table_bytes == 0 && header.table_check == 0 && header.word_count == 0 &&
        stream.size() - at_ == symbol_count) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat("a stored R32 stream of ", stream.size(), " bytes for ",
                                            symbol_count, " symbols"));
  }
  if (header.table_kind == static_cast<uint8_t>(TableKind::kKnown)) {
    if (header.table_bytes != 0) return absl::DataLossError("a table that should be known");
    if (table == nullptr) return absl::DataLossError("an R32 stream without its table");
    if (table->check() != header.table_check) {
      return absl::FailedPreconditionError(
          absl::StrCat("an R32 stream of another table, ", absl::Hex(header.table_check)));
    }
    decode_ = &table->decode_;
  } else if (header.table_kind == static_cast<uint8_t>(TableKind::kOwn)) {
    if (header.table_check != 0) return absl::DataLossError("a table of both kinds");
    if (header.table_bytes > stream.size() - kRans32HeaderBytes) {
      return absl::DataLossError("an R32 stream that ends in its table");
    }
    FB_ASSIGN_OR_RETURN(const Frequencies frequencies,
                        ParseFrequencies(stream.subspan(kRans32HeaderBytes, header.table_bytes)));
    Fill(frequencies, own_);
    decode_ = &own_;
  } else {
    return absl::DataLossError(absl::StrCat("an R32 table of kind ", header.table_kind));
  }
  return OpenBlocks(header.table_bytes, header.word_count);
}

absl::Status Rans32Reader::OpenBlocks(size_t table_bytes, size_t word_count) {
  const size_t blocks = BlocksOf(symbol_count_);
  lengths_at_ = kRans32HeaderBytes + UpToFour(table_bytes);
  states_at_ = lengths_at_ + UpToFour(blocks * sizeof(uint16_t));
  at_ = states_at_ + blocks * kStatesBytes;
  if (stream_.size() != at_ + word_count * kWordBytes) {
    return absl::DataLossError(absl::StrCat("an R32 stream of ", stream_.size(), " bytes where ",
                                            at_ + word_count * kWordBytes, " are due"));
  }
  size_t sum = 0;
  for (size_t block = 0; block < blocks; ++block) {
    const auto words = Load<uint16_t>(stream_, lengths_at_ + block * sizeof(uint16_t));
    if (words > kBlockWordsMax) {
      return absl::DataLossError(absl::StrCat("block ", block, " of ", words, " words"));
    }
    sum += words;
  }
  if (sum != word_count) {
    return absl::DataLossError(
        absl::StrCat("blocks of ", sum, " words in a stream of ", word_count));
  }
  return absl::OkStatus();
}

absl::Status Rans32Reader::Next(MutableBytes symbols) {
  FB_CHECK(symbols.size() <= symbol_count_ - done_);
  FB_CHECK(symbols.size() % kBlockSymbols == 0 || symbols.size() == symbol_count_ - done_);
  auto* const to = reinterpret_cast<uint8_t*>(symbols.data());
  size_t at = 0;
  if (stored_) {
    if (!symbols.empty()) std::memcpy(to, stream_.data() + at_, symbols.size());
    at_ += symbols.size();
    at = symbols.size();
  }
  for (; symbols.size() - at >= 2 * kBlockSymbols; at += 2 * kBlockSymbols) {
    FB_RETURN_IF_ERROR(DecodeTwo(to + at));
  }
  for (; at < symbols.size(); at += kBlockSymbols) {
    FB_RETURN_IF_ERROR(DecodeOne(to + at, std::min(kBlockSymbols, symbols.size() - at)));
  }
  done_ += symbols.size();
  return absl::OkStatus();
}

absl::Status Rans32Reader::Begin(rans32::BlockToDecode& block, uint8_t* to) {
  const size_t bytes =
      kWordBytes * Load<uint16_t>(stream_, lengths_at_ + block_ * sizeof(uint16_t));
  std::memcpy(block.states, stream_.data() + states_at_ + block_ * kStatesBytes, kStatesBytes);
  for (const uint32_t state : block.states) {
    if (state < kStateMin) {
      return absl::DataLossError(absl::StrCat("block ", block_, " starts in state ", state));
    }
  }
  block.words = At(stream_, at_);
  block.end = block.words + bytes;
  block.symbols = to;
  at_ += bytes;
  ++block_;
  return absl::OkStatus();
}

absl::Status Rans32Reader::End(const rans32::BlockToDecode& block, size_t number) const {
  if (block.words != block.end) {
    return absl::DataLossError(absl::StrCat("block ", number, " has too ",
                                            block.words == nullptr ? "few" : "many", " words"));
  }
  for (const uint32_t state : block.states) {
    if (state != kStateMin) {
      return absl::DataLossError(absl::StrCat("block ", number, " ends in state ", state));
    }
  }
  return absl::OkStatus();
}

absl::Status Rans32Reader::DecodeOne(uint8_t* to, size_t count) {
  rans32::BlockToDecode block;
  FB_RETURN_IF_ERROR(Begin(block, to));
  // The kernel reads past the end of a block: the last ones are copied to where it may.
  uint8_t copy[kBlockWordsMax * kWordBytes + rans32::kDecodeSlackBytes];
  if (stream_.size() - at_ < rans32::kDecodeSlackBytes) {
    const auto bytes = static_cast<size_t>(block.end - block.words);
    std::memcpy(copy, block.words, bytes);
    std::memset(copy + bytes, 0, rans32::kDecodeSlackBytes);
    block.words = copy;
    block.end = copy + bytes;
  }
  rans32::DecodeBlock(*decode_, block, count);
  return End(block, block_ - 1);
}

absl::Status Rans32Reader::DecodeTwo(uint8_t* to) {
  rans32::BlockToDecode blocks[2];
  FB_RETURN_IF_ERROR(Begin(blocks[0], to));
  FB_RETURN_IF_ERROR(Begin(blocks[1], to + kBlockSymbols));
  uint8_t copies[2][kBlockWordsMax * kWordBytes + rans32::kDecodeSlackBytes];
  for (size_t b = 0; b < 2; ++b) {
    if (static_cast<size_t>(At(stream_, stream_.size()) - blocks[b].end) >=
        rans32::kDecodeSlackBytes) {
      continue;
    }
    const auto bytes = static_cast<size_t>(blocks[b].end - blocks[b].words);
    std::memcpy(copies[b], blocks[b].words, bytes);
    std::memset(copies[b] + bytes, 0, rans32::kDecodeSlackBytes);
    blocks[b].words = copies[b];
    blocks[b].end = copies[b] + bytes;
  }
  rans32::DecodeTwoBlocks(*decode_, blocks);
  FB_RETURN_IF_ERROR(End(blocks[0], block_ - 2));
  return End(blocks[1], block_ - 1);
}

}  // namespace forebay
