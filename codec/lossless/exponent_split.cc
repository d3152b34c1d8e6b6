#include "codec/lossless/exponent_split.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "codec/lossless/exponent_entropy.h"
#include "codec/lossless/exponent_split_kernel.h"

namespace forebay {
namespace {

using exponent_split::Codebook;
using exponent_split::kChunk;
using exponent_split::kCodebookMax;
using exponent_split::Kind;

constexpr uint8_t kVersion = 2;
constexpr uint8_t kHasCeilings = 1;
constexpr size_t kElementBytes = 2;

struct Header {
  uint8_t version;
  uint8_t form;
  uint8_t dtype;
  uint8_t flags;
  uint32_t element_count;
  uint32_t escape_count;
  uint32_t payload_bytes;
};
static_assert(sizeof(Header) == kSplitHeaderBytes);

constexpr size_t Aligned(size_t bytes) { return (bytes + 15) & ~size_t{15}; }

size_t ChunksOf(size_t element_count) { return (element_count + kChunk - 1) / kChunk; }

// Offsets of the streams of the fixed form.
struct FixedLayout {
  FixedLayout(Kind kind, size_t n) {
    nibbles = kSplitHeaderBytes + kCodebookMax;
    crumbs = nibbles + Aligned((n + 1) / 2);
    rest = crumbs + (kind == Kind::kFp16 ? Aligned((n + 3) / 4) : 0);
    escapes = rest + Aligned(n);
    positions = escapes + Aligned(ChunksOf(n) * sizeof(uint16_t));
  }
  size_t ExponentsAt(size_t escape_count) const {
    return positions + Aligned(escape_count * sizeof(uint16_t));
  }

  size_t nibbles;
  size_t crumbs;
  size_t rest;
  size_t escapes;
  size_t positions;
};

uint8_t* At(MutableBytes bytes, size_t at) { return reinterpret_cast<uint8_t*>(bytes.data()) + at; }
const uint8_t* At(Bytes bytes, size_t at) {
  return reinterpret_cast<const uint8_t*>(bytes.data()) + at;
}

Kind KindOf(DType dtype) {
  FB_CHECK(dtype == DType::kBf16 || dtype == DType::kFp16);
  return dtype == DType::kBf16 ? Kind::kBf16 : Kind::kFp16;
}

// The payload's bytes.
size_t StoreHeader(DType dtype, SplitForm form, uint8_t flags, size_t element_count,
                   size_t escape_count, size_t payload_bytes, MutableBytes payload) {
  Header header{};
  header.version = kVersion;
  header.form = static_cast<uint8_t>(form);
  header.dtype = static_cast<uint8_t>(dtype);
  header.flags = flags;
  header.element_count = static_cast<uint32_t>(element_count);
  header.escape_count = static_cast<uint32_t>(escape_count);
  header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  std::memcpy(payload.data(), &header, sizeof(header));
  return payload_bytes;
}

size_t EncodeRaw(DType dtype, Bytes raw, MutableBytes payload) {
  if (!raw.empty()) std::memcpy(payload.data() + kSplitHeaderBytes, raw.data(), raw.size());
  return StoreHeader(dtype, SplitForm::kRaw, 0, raw.size() / kElementBytes, 0,
                     kSplitHeaderBytes + raw.size(), payload);
}

// Counts exponents. Of each chunk 64 elements, at places that move from chunk to chunk, so that no
// channel of a head is left out, and no more than 64 Ki or so in all, each of which may have to
// come from memory; every element when `every`.
void CountExponents(Kind kind, Bytes raw, bool every, uint64_t counts[256]) {
  constexpr size_t kSample = 64;
  constexpr size_t kSampledChunks = 1024;
  constexpr size_t kMove = 5;  // odd, so that all 16 places have their turn
  uint64_t key_bytes[256] = {};
  const size_t n = raw.size() / kElementBytes;
  if (every || n <= 2 * kChunk) {
    exponent_split::CountKeys(At(raw, 0), n, key_bytes);
  } else {
    uint8_t sample[4 * kChunk * kElementBytes];
    size_t taken = 0;
    const size_t chunks = n / kChunk;
    const size_t step = std::max<size_t>(1, chunks / kSampledChunks);
    for (size_t i = 0; i * step < chunks; ++i) {
      const size_t at = i * step * kChunk + i * kMove % (kChunk / kSample) * kSample;
      std::memcpy(sample + taken, At(raw, at * kElementBytes), kSample * kElementBytes);
      taken += kSample * kElementBytes;
      if (taken < sizeof(sample) && (i + 1) * step < chunks) continue;
      exponent_split::CountKeys(sample, taken / kElementBytes, key_bytes);
      taken = 0;
    }
  }
  for (size_t key = 0; key < 256; ++key) {
    counts[kind == Kind::kBf16 ? key : key >> 3] += key_bytes[key];
  }
}

// Fills the inverse of `keys`.
void FillGroups(size_t size, Codebook& codebook) {
  codebook.group_count = 0;
  for (size_t code = 0; code < size; ++code) {
    const uint8_t base = codebook.keys[code] & 0xf0;
    size_t g = 0;
    while (g < codebook.group_count && codebook.group_bases[g] != base) ++g;
    if (g == codebook.group_count) {
      codebook.group_bases[g] = base;
      std::memset(codebook.group_codes[g], 0, sizeof(codebook.group_codes[g]));
      ++codebook.group_count;
    }
    codebook.group_codes[g][codebook.keys[code] & 0x0f] = static_cast<uint8_t>(code + 1);
  }
}

// The most frequent exponents, in rising order; zeros, which pad pages, earn their slot like
// others. Slots to spare go to the neighbours of those that occur, the zeros aside.
Codebook Choose(Kind kind, const uint64_t counts[256]) {
  const size_t size = kind == Kind::kBf16 ? 16 : 8;
  const int exponent_count = kind == Kind::kBf16 ? 256 : 32;
  // Those that occur, the most frequent first.
  int ranked[256];
  int occurring = 0;
  for (int e = 0; e < exponent_count; ++e) {
    if (counts[e] > 0) ranked[occurring++] = e;
  }
  std::sort(ranked, ranked + occurring, [counts](int a, int b) {
    return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
  });
  bool chosen[256] = {};
  size_t count = 0;
  int lowest = exponent_count;
  int highest = -1;
  for (; count < size && count < static_cast<size_t>(occurring); ++count) {
    chosen[ranked[count]] = true;
    if (ranked[count] == 0) continue;
    lowest = std::min(lowest, ranked[count]);
    highest = std::max(highest, ranked[count]);
  }
  if (highest < 0) lowest = highest = 0;
  for (int distance = 1; count < size; ++distance) {
    for (const int e : {lowest - distance, highest + distance}) {
      if (count == size || e < 0 || e >= exponent_count || chosen[e]) continue;
      chosen[e] = true;
      ++count;
    }
    // With nothing around them left, those between are.
    if (distance < exponent_count) continue;
    for (int e = 0; count < size; ++e) {
      if (chosen[e]) continue;
      chosen[e] = true;
      ++count;
    }
  }
  Codebook codebook{};
  size_t code = 0;
  for (int e = 0; e < exponent_count; ++e) {
    if (chosen[e]) codebook.keys[code++] = static_cast<uint8_t>(e);
  }
  FillGroups(size, codebook);
  return codebook;
}

// Every stream but the header. The escapes; `escapes_max` + 1 if there are more.
size_t EncodeChunks(Kind kind, const Codebook& codebook, Bytes raw, size_t escapes_max,
                    MutableBytes payload) {
  const size_t n = raw.size() / kElementBytes;
  const FixedLayout layout(kind, n);
  // Exponents wait at the end of the payload until it is known where the positions end.
  uint8_t* const waiting = At(payload, ExponentSplitBytesMax(raw.size()) - escapes_max);
  size_t escape_count = 0;
  for (size_t at = 0; at < n; at += kChunk) {
    uint16_t positions[kChunk];
    uint8_t exponents[kChunk];
    const exponent_split::ChunkToWrite to = {
        .nibbles = At(payload, layout.nibbles + at / 2),
        .crumbs = At(payload, layout.crumbs + at / 4),
        .rest = At(payload, layout.rest + at),
        .escape_positions = positions,
        .escape_keys = exponents,
    };
    const auto escapes = static_cast<uint16_t>(exponent_split::EncodeChunk(
        kind, codebook, At(raw, at * kElementBytes), std::min(kChunk, n - at), to));
    std::memcpy(At(payload, layout.escapes + at / kChunk * sizeof(escapes)), &escapes,
                sizeof(escapes));
    if (escapes == 0) continue;
    if (escapes > escapes_max - escape_count) return escapes_max + 1;
    std::memcpy(At(payload, layout.positions + escape_count * sizeof(uint16_t)), positions,
                escapes * sizeof(uint16_t));
    std::memcpy(waiting + escape_count, exponents, escapes);
    escape_count += escapes;
  }
  std::memmove(At(payload, layout.ExponentsAt(escape_count)), waiting, escape_count);
  return escape_count;
}

// Zeros from `begin` to the next stream.
void Pad(MutableBytes payload, size_t begin) {
  std::memset(At(payload, begin), 0, Aligned(begin) - begin);
}

size_t EncodeFixed(DType dtype, Bytes raw, MutableBytes payload) {
  const Kind kind = KindOf(dtype);
  const size_t n = raw.size() / kElementBytes;
  const FixedLayout layout(kind, n);
  if (layout.positions >= raw.size()) return EncodeRaw(dtype, raw, payload);
  // Not to be longer than raw, with room for the padding between positions and exponents.
  const size_t escapes_max = (raw.size() - layout.positions) / 3;
  // More than these are the sample's fault, or cannot be helped. Eight exponents leave more over.
  const size_t escapes_few = std::min(escapes_max, kind == Kind::kBf16 ? n / 64 : n / 12);
  size_t escape_count = 0;
  Codebook codebook;
  for (const bool every : {false, true}) {
    uint64_t counts[256] = {};
    CountExponents(kind, raw, every, counts);
    codebook = Choose(kind, counts);
    escape_count = EncodeChunks(kind, codebook, raw, every ? escapes_max : escapes_few, payload);
    if (escape_count <= escapes_few) break;
  }
  if (escape_count > escapes_max) return EncodeRaw(dtype, raw, payload);
  std::memcpy(At(payload, kSplitHeaderBytes), codebook.keys, kCodebookMax);
  Pad(payload, layout.nibbles + (n + 1) / 2);
  if (kind == Kind::kFp16) Pad(payload, layout.crumbs + (n + 3) / 4);
  Pad(payload, layout.rest + n);
  Pad(payload, layout.escapes + ChunksOf(n) * sizeof(uint16_t));
  const size_t positions_end = layout.positions + escape_count * sizeof(uint16_t);
  Pad(payload, positions_end);
  return StoreHeader(dtype, SplitForm::kFixed, 0, n, escape_count,
                     layout.ExponentsAt(escape_count) + escape_count, payload);
}

size_t EncodeEntropy(DType dtype, const SplitChannels& channels, Bytes raw, MutableBytes payload) {
  const exponent_split::EntropyForm form = exponent_split::EncodeEntropy(
      KindOf(dtype), channels, raw, payload.subspan(kSplitHeaderBytes));
  if (form.bytes == 0) return EncodeRaw(dtype, raw, payload);
  return StoreHeader(dtype, SplitForm::kEntropy, form.has_ceilings ? kHasCeilings : 0,
                     raw.size() / kElementBytes, 0, kSplitHeaderBytes + form.bytes, payload);
}

// Puts the exponents of a chunk's escapes right.
absl::Status Mend(Kind kind, const uint8_t* positions, const uint8_t* exponents, size_t escapes,
                  size_t count, uint8_t* raw) {
  size_t next = 0;
  for (size_t i = 0; i < escapes; ++i) {
    uint16_t position;
    std::memcpy(&position, positions + i * sizeof(position), sizeof(position));
    if (position < next || position >= count) {
      return absl::DataLossError(
          absl::StrCat("an escape at ", position, " after ", next, " of ", count));
    }
    next = position + 1u;
    const uint32_t exponent = exponents[i];
    if (kind == Kind::kFp16 && exponent > 31) {
      return absl::DataLossError(absl::StrCat("an exponent of ", exponent, " in fp16"));
    }
    uint16_t word;
    std::memcpy(&word, raw + position * kElementBytes, sizeof(word));
    word = static_cast<uint16_t>(kind == Kind::kBf16 ? (word & 0x807f) | exponent << 7
                                                     : (word & 0x83ff) | exponent << 10);
    std::memcpy(raw + position * kElementBytes, &word, sizeof(word));
  }
  return absl::OkStatus();
}

absl::Status DecodeFixed(Kind kind, size_t escape_count, Bytes payload, MutableBytes raw) {
  const size_t n = raw.size() / kElementBytes;
  const FixedLayout layout(kind, n);
  const size_t exponents_at = layout.ExponentsAt(escape_count);
  if (payload.size() != exponents_at + escape_count) {
    return absl::DataLossError(absl::StrCat("a fixed split of ", payload.size(), " bytes where ",
                                            exponents_at + escape_count, " are due"));
  }
  Codebook codebook{};
  std::memcpy(codebook.keys, At(payload, kSplitHeaderBytes), kCodebookMax);
  if (kind == Kind::kFp16) {
    for (size_t code = 0; code < 8; ++code) {
      if (codebook.keys[code] > 31) return absl::DataLossError("a codebook that is not of fp16");
    }
  }
  size_t done = 0;
  for (size_t at = 0; at < n; at += kChunk) {
    const size_t count = std::min(kChunk, n - at);
    uint16_t escapes;
    std::memcpy(&escapes, At(payload, layout.escapes + at / kChunk * sizeof(escapes)),
                sizeof(escapes));
    if (escapes > escape_count - done) {
      return absl::DataLossError(absl::StrCat("more than ", escape_count, " escapes"));
    }
    const exponent_split::ChunkToRead from = {
        .nibbles = At(payload, layout.nibbles + at / 2),
        .crumbs = At(payload, layout.crumbs + at / 4),
        .rest = At(payload, layout.rest + at),
    };
    uint8_t* const to = At(raw, at * kElementBytes);
    exponent_split::DecodeChunk(kind, codebook, from, count, to);
    FB_RETURN_IF_ERROR(Mend(kind, At(payload, layout.positions + done * sizeof(uint16_t)),
                            At(payload, exponents_at + done), escapes, count, to));
    done += escapes;
  }
  if (done != escape_count) {
    return absl::DataLossError(absl::StrCat(done, " escapes where ", escape_count, " are due"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Header> ParseHeader(Bytes payload) {
  if (payload.size() < kSplitHeaderBytes) {
    return absl::DataLossError(absl::StrCat("an exponent split of ", payload.size(), " bytes"));
  }
  Header header;
  std::memcpy(&header, payload.data(), sizeof(header));
  if (header.version != kVersion) {
    return absl::DataLossError(absl::StrCat("an exponent split of version ", header.version));
  }
  if (header.payload_bytes < kSplitHeaderBytes || header.payload_bytes > payload.size()) {
    return absl::DataLossError(absl::StrCat("an exponent split of ", header.payload_bytes,
                                            " bytes in a payload of ", payload.size()));
  }
  return header;
}

}  // namespace

size_t ExponentSplitEncode(DType dtype, SplitForm form, Bytes raw, MutableBytes payload,
                           const SplitChannels& channels) {
  KindOf(dtype);
  FB_CHECK(raw.size() % kElementBytes == 0);
  FB_CHECK(raw.size() <= UINT32_MAX - kSplitHeaderBytes);
  FB_CHECK(payload.size() >= ExponentSplitBytesMax(raw.size()));
  if (form == SplitForm::kFixed) return EncodeFixed(dtype, raw, payload);
  if (form == SplitForm::kEntropy) return EncodeEntropy(dtype, channels, raw, payload);
  return EncodeRaw(dtype, raw, payload);
}

absl::StatusOr<size_t> ExponentSplitBytes(Bytes payload) {
  FB_ASSIGN_OR_RETURN(const Header header, ParseHeader(payload));
  return header.payload_bytes;
}

absl::Status ExponentSplitDecode(DType dtype, Bytes payload, MutableBytes raw,
                                 const SplitChannels& channels) {
  const Kind kind = KindOf(dtype);
  FB_ASSIGN_OR_RETURN(const Header header, ParseHeader(payload));
  if (header.payload_bytes != payload.size()) {
    return absl::DataLossError(
        absl::StrCat(payload.size() - header.payload_bytes, " bytes after an exponent split"));
  }
  if (header.dtype != static_cast<uint8_t>(dtype)) {
    return absl::DataLossError(absl::StrCat("an exponent split of dtype ", header.dtype, " where ",
                                            static_cast<int>(dtype), " is due"));
  }
  if (raw.size() != header.element_count * uint64_t{kElementBytes}) {
    return absl::DataLossError(absl::StrCat("an exponent split of ", header.element_count,
                                            " elements for ", raw.size(), " bytes"));
  }
  const bool is_entropy = header.form == static_cast<uint8_t>(SplitForm::kEntropy);
  if (header.flags > (is_entropy ? kHasCeilings : 0)) {
    return absl::DataLossError(absl::StrCat("flags ", header.flags, " in form ", header.form));
  }
  if (header.form == static_cast<uint8_t>(SplitForm::kFixed)) {
    return DecodeFixed(kind, header.escape_count, payload, raw);
  }
  if (header.escape_count != 0) {
    return absl::DataLossError(absl::StrCat("escapes in form ", header.form));
  }
  payload.remove_prefix(kSplitHeaderBytes);
  if (is_entropy) {
    return exponent_split::DecodeEntropy(kind, channels, header.flags == kHasCeilings, payload,
                                         raw);
  }
  if (header.form != static_cast<uint8_t>(SplitForm::kRaw)) {
    return absl::DataLossError(absl::StrCat("an exponent split of form ", header.form));
  }
  if (payload.size() != raw.size()) {
    return absl::DataLossError(
        absl::StrCat("raw elements of ", payload.size(), " bytes where ", raw.size(), " are due"));
  }
  if (!raw.empty()) std::memcpy(raw.data(), payload.data(), raw.size());
  return absl::OkStatus();
}

}  // namespace forebay
