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
// Symbols come in runs; symbol i of a run belongs to lane i % 32. A lane is a 32-bit state x,
// 2^16 <= x < 2^32. A symbol of frequency f and first slot c, out of 2^11 slots, is decoded by
//   slot = x % 2^11;  x = f * (x / 2^11) + slot - c;  if x < 2^16 then x = x * 2^16 + next word
// All lanes of a row decode, then those below 2^16 take the next words of the block, the lowest
// lane first: a GPU ranks them by a ballot. The encoder does the reverse, from the last symbol.
//
// A block, little-endian: u32 states[32], where its decoder starts, and u16 words. At its end every
// lane is 2^16 plus 16 bits, which are the caller's: they would be zeros otherwise, and lost.
//
// A stream of one run, with its own table:
//   u8 kind: 0 stored: the symbols, and no more
//            1 coded: a table; zeros up to a multiple of four from the stream's start; blocks of
//              32,768 symbols, each but the last after a u32 that has its bytes
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

// The frequencies of all symbols, of 2^11 in all.
struct Rans32Frequencies {
  static constexpr size_t kSerializedBytesMax = 512;

  // Close to the entropy of `counts` (256 of them, each below 2^32); every symbol that occurs gets
  // a frequency. With no count at all, symbol 0 gets everything.
  static Rans32Frequencies OfCounts(absl::Span<const uint64_t> counts);
  // Takes a table from the front of `in`. DATA_LOSS: there is none.
  static absl::StatusOr<Rans32Frequencies> Parse(Bytes* in);

  // Bytes written. Requires room for kSerializedBytesMax.
  size_t Serialize(MutableBytes out) const;

  // Tables for the kernels.
  void Fill(rans32::EncodeTable& table) const;
  void Fill(rans32::DecodeTable& table) const;

  std::array<uint16_t, 256> of{};
};

// 16 bits of the caller for each lane.
using Rans32Tail = std::array<uint16_t, rans32::kLanes>;

// Writes one block, from its last symbol to its first.
//
// Borrows  `room`, at whose end the block will be.
class Rans32BlockWriter {
 public:
  explicit Rans32BlockWriter(MutableBytes room, const Rans32Tail& tail = {});

  // Takes symbols that stand before those that it has: `at` and those that follow of a run, at most
  // rans32::kSymbolsMax. `at` is a multiple of 32. False if there is no room, or a table lacks a
  // symbol: the block is void.
  bool Prepend(const rans32::EncodeTable* tables, const rans32::Classes& classes, size_t at,
               Bytes symbols);
  // The bytes of the block; 0 if there is no room for it.
  size_t Finish();

 private:
  MutableBytes room_;
  size_t begin_;
  std::array<uint32_t, rans32::kLanes> states_;
};

// Reads a block that is not trusted.
//
// Borrows  the block.
class Rans32BlockReader {
 public:
  // DATA_LOSS: too short, or a state that there is not.
  absl::Status Open(Bytes block);
  // Fills `symbols`, which are symbol `at` and those that follow of a run. `at` is a multiple
  // of 32.
  //   DATA_LOSS  the words do not suffice; the reader is void
  absl::Status Next(const rans32::DecodeTable* tables, const rans32::Classes& classes, size_t at,
                    MutableBytes symbols);
  // Next for two blocks of one table and as many symbols, faster than one by one.
  static absl::Status NextOfTwo(const rans32::DecodeTable& table, Rans32BlockReader& a,
                                MutableBytes symbols_a, Rans32BlockReader& b,
                                MutableBytes symbols_b);
  // After the last symbol.
  //   DATA_LOSS  words are left over, or a lane is at no end
  absl::Status Finish(Rans32Tail& tail) const;
  // The same for a block without a tail.
  absl::Status Finish() const;

 private:
  rans32::Lanes lanes_;
};

// Largest stream of `symbol_count` symbols.
constexpr size_t Rans32BytesMax(size_t symbol_count) { return 1 + symbol_count; }

// Encodes `symbols`, with a table of their own. The bytes written; the same for the same input.
// Stores them where that is no longer. Requires `out` of Rans32BytesMax.
size_t Rans32Encode(Bytes symbols, MutableBytes out);

// Fills `symbols` entirely, or fails. The stream is not trusted.
//   DATA_LOSS  not exactly such a stream of that many symbols; what is wrong
absl::Status Rans32Decode(Bytes stream, MutableBytes symbols);

// Writes a coded stream from its last symbols to its first, for a caller that never has all of them
// in one place.
//
// Borrows  the frequencies and `room`.
class Rans32Writer {
 public:
  // `tail` is the last block's. `room` may be of any size: what does not fit fails.
  Rans32Writer(const Rans32Frequencies& frequencies, size_t symbol_count, MutableBytes room,
               const Rans32Tail& tail = {});

  // The start of the symbols that Prepend wants next: a multiple of rans32::kSymbolsMax.
  size_t next() const { return (left_ - 1) / rans32::kSymbolsMax * rans32::kSymbolsMax; }
  bool done() const { return left_ == 0; }
  // From next() to where the last call began. False if there is no room, or a symbol has no
  // frequency: the stream is void.
  bool Prepend(Bytes symbols);
  // Puts the stream at the front of the room. Its bytes; 0 if there is no room for it.
  size_t Finish();

 private:
  const Rans32Frequencies& frequencies_;
  MutableBytes room_;
  size_t left_;   // symbols
  size_t begin_;  // of what is written
  Rans32BlockWriter block_;
  rans32::EncodeTable table_;
};

// Reads a stream that is not trusted.
//
// Borrows  the stream.
class Rans32Reader {
 public:
  // Of each block but the last. Of a plane of 64 tokens, eight heads and 128 channels two: the
  // states cost little, and there are enough blocks for a GPU.
  static constexpr size_t kBlockSymbols = 32768;

  // DATA_LOSS: the stream is not sound.
  absl::Status Open(Bytes stream, size_t symbol_count);
  // Fills `symbols`, a multiple of 32 of them or all that are left, or fails. Fastest by twice
  // kBlockSymbols.
  //   DATA_LOSS  a block is not sound; the reader is void
  absl::Status Next(MutableBytes symbols);
  // After the last symbol: what the writer was given, or zeros where it was stored.
  const Rans32Tail& tail() const { return tail_; }

 private:
  absl::Status OpenBlock(size_t at, Rans32BlockReader& block);
  absl::Status CloseBlock(const Rans32BlockReader& block);
  absl::Status NextTwoBlocks(MutableBytes symbols);

  Bytes stream_;  // what is left
  size_t symbol_count_ = 0;
  size_t done_ = 0;  // symbols
  bool stored_ = false;
  Rans32BlockReader block_;
  Rans32Tail tail_{};
  rans32::DecodeTable table_;
};

}  // namespace forebay
