#pragma once

#include <cstddef>
#include <cstdint>

// The inner loops of the exponent split (codec/lossless/exponent_split.h), chosen for the processor
// at run time. Internal to codec/. No alignment is needed anywhere. Elements are the 16-bit words
// as they lie in memory; turned left by one bit, a word's high byte is its key byte, the exponent
// first, and its low byte the rest, the sign last.
//
// Threads  any; no state.
namespace forebay::exponent_split {

constexpr size_t kChunk = 1024;  // elements
constexpr size_t kCodebookMax = 16;

enum class Kind : uint8_t {
  kBf16,  // the key is the key byte; 16 codes of four bits
  kFp16,  // the key is the key byte's upper five bits; 8 codes of three bits
};

// Code -> key, and the other way for kEncode's loop: keys of equal upper halves share a table of
// 16, in which a code is one higher and zero means none.
struct Codebook {
  alignas(16) uint8_t keys[kCodebookMax];
  uint8_t group_count;
  uint8_t group_bases[kCodebookMax];
  alignas(16) uint8_t group_codes[kCodebookMax][16];
};

// Where the streams of one chunk lie. `crumbs` is kFp16's alone.
struct ChunkToWrite {
  uint8_t* nibbles;
  uint8_t* crumbs;
  uint8_t* rest;
  // Room for kChunk each: where in the chunk keys without a code stand, and those keys.
  uint16_t* escape_positions;
  uint8_t* escape_keys;
};
struct ChunkToRead {
  const uint8_t* nibbles;
  const uint8_t* crumbs;
  const uint8_t* rest;
};

// `count` <= kChunk elements. Returns how many escapes. Bits after the last code are zero.
size_t EncodeChunk(Kind kind, const Codebook& codebook, const uint8_t* raw, size_t count,
                   const ChunkToWrite& to);
// Escapes decode to some key; the caller puts them right.
void DecodeChunk(Kind kind, const Codebook& codebook, const ChunkToRead& from, size_t count,
                 uint8_t* raw);

// All key bytes and all rests, and back.
void SplitPlanes(const uint8_t* raw, size_t count, uint8_t* keys, uint8_t* rest);
void JoinPlanes(const uint8_t* keys, const uint8_t* rest, size_t count, uint8_t* raw);

// Adds the key bytes of `count` elements to `counts`, of 256.
void CountKeys(const uint8_t* raw, size_t count, uint64_t* counts);

}  // namespace forebay::exponent_split
