#pragma once

#include <cstddef>
#include <cstdint>

// The inner loops of R32 (codec/entropy/rans32.h), chosen for the processor at run time. Internal
// to codec/.
//
// Threads  any; no state.
namespace forebay::rans32 {

constexpr size_t kLanes = 32;
constexpr int kProbabilityBits = 11;
constexpr uint32_t kSlots = 1u << kProbabilityBits;
constexpr uint32_t kStateMin = 1u << 16;
constexpr size_t kWordBytes = 2;
// Symbols of one call. One costs at most kProbabilityBits, so that they have fewer words.
constexpr size_t kSymbolsMax = 4096;
// What Encode may write before the first word.
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

// Which of several tables each symbol takes: symbol i of a run that of bases[i % period] / 256.
// With no bases all take the first.
struct Classes {
  const uint16_t* bases = nullptr;
  size_t period = kLanes;  // a multiple of kLanes
};

// Encodes `count` symbols, at most kSymbolsMax, from the last to the first; the first is symbol
// `at` of its run, a multiple of kLanes. Words are written downwards from `words_end`; room for
// `count` + kEncodeSlackWords below it. Returns the first word; nullptr if a symbol has no
// frequency, when the states are undefined.
const uint16_t* Encode(const EncodeTable* tables, const Classes& classes, size_t at,
                       const uint8_t* symbols, size_t count, uint32_t states[kLanes],
                       uint16_t* words_end);

// A block on its way back.
struct Lanes {
  const uint8_t* words;  // the next, at any alignment
  const uint8_t* end;    // nothing is read from here on
  uint32_t states[kLanes];
};

// The way back. False if the words do not suffice: then the symbols and the lanes are undefined.
bool Decode(const DecodeTable* tables, const Classes& classes, size_t at, Lanes& lanes,
            uint8_t* symbols, size_t count);

// The same for two blocks of one table, side by side where that is faster.
bool DecodeTwo(const DecodeTable& table, Lanes* two, uint8_t* const* symbols, size_t count);

}  // namespace forebay::rans32
