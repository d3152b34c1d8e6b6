#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "codec/entropy/rans32_kernel.h"

// R32: an order-0 entropy coder of bytes, made for 32 lanes: a warp, or four AVX2 vectors. One bit
// stream for every processor, byte for byte.
//
// Symbol i of a block belongs to lane i % 32. A lane is a 32-bit state x, 2^16 <= x < 2^32, 2^16
// where its decoding ends. A symbol of frequency f and first slot c, out of 2^11 slots, is decoded
// by
//   slot = x % 2^11;  x = f * (x / 2^11) + slot - c;  if x < 2^16 then x = x * 2^16 + next word
// All lanes of a row decode, then those below 2^16 take the next words of the block, the lowest
// lane first: a GPU ranks them by a ballot. The encoder does the reverse, from the last symbol.
//
// A stream, little-endian, its fields at multiples of four bytes from its start:
//   u8 version = 1 | u8 table kind | u16 table_bytes | u32 symbol_count | u32 table_check
//     | u32 word_count
//   table kind 0, stored: the symbols, and no more; the other fields are 0
//   table kind 1, its own table: table_bytes of it, zeros up to a multiple of four; table_check is
//   0 table kind 2, a table known to both sides, named by table_check: no table u16
//   block_words[blocks], zeros up to a multiple of four; blocks = ceil(symbol_count / 4096) u32
//   states[blocks][32]: where each block's decoder starts u16 words[word_count]: of the first
//   block, then of the second, ...
// A table is the frequencies of the symbols from 0 on, up to where their sum is 2^11:
//   0, n            n + 1 symbols that do not occur
//   1 to 127        that frequency
//   128 + h, l      256 * h + l, of 128 or more
//
// Limits   2^32 - 1 symbols.
// Threads  any; a table does not change.
// Source   J. Duda, "Asymmetric numeral systems", arXiv 1311.2540, its range variant; F. Giesen,
//          "Interleaved entropy coders", arXiv 1402.3392, for lanes that share one sequence of
//          words.
namespace forebay {

// The frequencies of all symbols, of 2^11 in all, ready to encode and decode.
class Rans32Table {
 public:
  static constexpr size_t kSerializedBytesMax = 512;

  // Close to the entropy of `counts` (256 of them, each below 2^32); every symbol that occurs gets
  // a frequency. With no count at all, symbol 0 gets everything.
  static Rans32Table OfCounts(absl::Span<const uint64_t> counts);
  // DATA_LOSS: no table, or bytes after it.
  static absl::StatusOr<Rans32Table> Parse(Bytes serialized);

  // Bytes written. Requires room for kSerializedBytesMax.
  size_t Serialize(MutableBytes out) const;
  uint32_t frequency(uint8_t symbol) const { return frequencies_[symbol]; }
  // Tells this table from others; no defence against a forger.
  uint32_t check() const { return check_; }

 private:
  friend class Rans32Writer;
  friend class Rans32Reader;

  explicit Rans32Table(const std::array<uint16_t, 256>& frequencies);

  std::array<uint16_t, 256> frequencies_;
  uint32_t check_;
  rans32::EncodeTable encode_;
  rans32::DecodeTable decode_;
};

// Largest stream of `symbol_count` symbols.
constexpr size_t kRans32HeaderBytes = 16;
constexpr size_t Rans32BytesMax(size_t symbol_count) { return kRans32HeaderBytes + symbol_count; }

// Encodes `symbols`, with a table of their own. The bytes written; the same for the same input.
// Stores them where that is no longer. Requires `out` of Rans32BytesMax.
size_t Rans32Encode(Bytes symbols, MutableBytes out);
// With a table that the decoder knows. Stores them too where the table lacks one of them.
size_t Rans32Encode(const Rans32Table& table, Bytes symbols, MutableBytes out);

// Fills `symbols` entirely, or fails. The stream is not trusted. `table` is the one that the
// encoder was given, if it was given one.
//   DATA_LOSS            not exactly such a stream of that many symbols; what is wrong
//   FAILED_PRECONDITION  the stream needs another table than `table`
absl::Status Rans32Decode(Bytes stream, MutableBytes symbols, const Rans32Table* table = nullptr);

// Writes a stream block by block, for a caller that never has all the symbols in one place.
//
// Borrows  the table and `out`.
class Rans32Writer {
 public:
  enum class TableKind : uint8_t { kStored = 0, kOwn = 1, kKnown = 2 };

  // `kind` is kOwn or kKnown. `out` may be of any size: what does not fit fails.
  Rans32Writer(const Rans32Table& table, TableKind kind, size_t symbol_count, MutableBytes out);

  // The next 4,096 symbols, or as many as are left. False if there is no room, or the table lacks a
  // symbol: the stream is void.
  bool Add(Bytes block);
  // After the last block: the bytes of the stream.
  size_t Finish();

 private:
  const Rans32Table& table_;
  MutableBytes out_;
  size_t lengths_at_ = 0;
  size_t states_at_ = 0;
  size_t words_at_ = 0;
  size_t used_bytes_ = 0;
  size_t block_ = 0;
};

// Reads a stream that is not trusted, block by block.
//
// Borrows  the stream and the table.
class Rans32Reader {
 public:
  // Errors as of Rans32Decode.
  absl::Status Open(Bytes stream, size_t symbol_count, const Rans32Table* table = nullptr);
  // Fills `symbols`, whole blocks of 4,096 or all that is left, or fails. Fastest with an even
  // number of blocks.
  //   DATA_LOSS  a block is not sound; the reader is void
  absl::Status Next(MutableBytes symbols);

 private:
  absl::Status OpenBlocks(size_t table_bytes, size_t word_count);
  absl::Status DecodeOne(uint8_t* to, size_t count);
  absl::Status DecodeTwo(uint8_t* to);
  absl::Status Begin(rans32::BlockToDecode& block, uint8_t* to);
  absl::Status End(const rans32::BlockToDecode& block, size_t number) const;

  Bytes stream_;
  size_t symbol_count_ = 0;
  size_t done_ = 0;  // symbols
  bool stored_ = false;
  size_t block_ = 0;
  size_t lengths_at_ = 0;
  size_t states_at_ = 0;
  size_t at_ = 0;  // of the next word, or stored symbol
  const rans32::DecodeTable* decode_ = nullptr;
  rans32::DecodeTable own_;
};

}  // namespace forebay
