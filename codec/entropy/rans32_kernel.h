#pragma once

#include <cstddef>
#include <cstdint>

// The inner loops of R32 (codec/entropy/rans32.h), chosen for the processor at run time. Internal
// to codec/: the bytes of a stream are checked by the caller, but for the words of one block.
//
// Threads  any; no state.
namespace forebay::rans32 {

constexpr size_t kLanes = 32;
constexpr int kProbabilityBits = 11;
constexpr uint32_t kSlots = 1u << kProbabilityBits;
constexpr uint32_t kStateMin = 1u << 16;
constexpr size_t kBlockSymbols = 4096;
constexpr size_t kWordBytes = 2;
// A symbol costs at most kProbabilityBits, so that a block has fewer words than symbols.
constexpr size_t kBlockWordsMax = kBlockSymbols;
// What DecodeBlock may read past the end of the words.
constexpr size_t kDecodeSlackBytes = kLanes * kWordBytes;
// What EncodeBlock may write before the first word.
constexpr size_t kEncodeSlackWords = 8;

// One entry for each value of the low bits of a state: frequency << 20 | offset << 8 | symbol, the
// offset counted from the symbol's first slot.
struct alignas(64) DecodeTable {
  uint32_t slots[kSlots];
};

// For each symbol: frequency | first slot << 16, zero for a symbol that cannot be encoded; and
// floor(2^32 / frequency), 2^32 - 1 for a frequency of one.
struct EncodeEntry {
  uint32_t range;
  uint32_t reciprocal;
};
struct alignas(64) EncodeTable {
  EncodeEntry entries[256];
};

// Encodes `count` symbols, at most kBlockSymbols, from the last to the first. Words are written
// downwards from `words_end`; room for `count` + kEncodeSlackWords below it. `states` are the lanes
// afterwards, where a decoder starts. Returns the first word; nullptr if a symbol has no frequency.
const uint16_t* EncodeBlock(const EncodeTable& table, const uint8_t* symbols, size_t count,
                            uint32_t states[kLanes], uint16_t* words_end);

// One block on its way back.
struct BlockToDecode {
  // The words, at any alignment, up to `end`; kDecodeSlackBytes more must be readable, of any
  // content. Afterwards where reading stopped: `end` if the block is sound; nullptr if the words
  // did not suffice, when the symbols are undefined.
  const uint8_t* words;
  const uint8_t* end;
  uint8_t* symbols;
  // Afterwards what they have come to.
  uint32_t states[kLanes];
};

void DecodeBlock(const DecodeTable& table, BlockToDecode& block, size_t count);
// Two whole blocks, faster than one after the other. If either has too few words, both fail.
void DecodeTwoBlocks(const DecodeTable& table, BlockToDecode blocks[2]);

}  // namespace forebay::rans32
