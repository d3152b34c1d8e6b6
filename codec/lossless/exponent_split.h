#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/dtype.h"

// Lossless forms of a plane of bf16 or fp16: few exponents occur, and only they are worth coding.
// Exact for every bit pattern: NaN payloads, infinities, subnormals, -0.
//
// A word turned left by one bit has its exponent on top and its sign at the bottom:
//   bf16   eeeeeeee mmmmmmms   key byte: the exponent
//   fp16   eeeeemmm mmmmmmms   key byte: the exponent and the mantissa's upper three bits
// The low byte, the rest, is close to random and is stored.
//
// A payload is streams, little-endian, each at a multiple of 16 bytes from its start, zeros
// between:
//   header, 16 bytes: u8 version = 2 | u8 form | u8 dtype (base/dtype.h) | u8 flags
//     | u32 element_count n | u32 escape_count | u32 payload bytes, this header's too
//   form 0, raw: the elements, as they were
//   form 1, fixed: bits of an element do not depend on its value
//     u8 codebook[16]: exponents by code, of fp16 the first 8
//     u8 nibbles[ceil(n / 2)]: element i in byte i / 2, even elements in the lower half. bf16: the
//       code. fp16: the code times two, plus the mantissa's top bit
//     fp16 alone: u8 crumbs[ceil(n / 4)]: element i in byte i / 4, the first lowest: the next two
//       bits of the mantissa
//     u8 rest[n]
//     u16 escapes[ceil(n / 1024)]: how many each chunk of 1,024 elements has
//     u16 positions[escape_count]: within the chunk, rising: elements whose exponent has no code;
//       their code is 0
//     u8 exponents[escape_count]
//     12 bits and 24 for each escape; fp16, of whose mantissa nothing can be saved: 14
//   form 2, entropy: order 0, but for what a channel knows
//     with flag 1: ceilings of each run: u8 base | u8 nibbles[ceil(channels / 2)], the first lower.
//       A channel's ceiling is base + nibble, of fp16 eight times that plus 7; the key bytes become
//       the ceiling less themselves, modulo 256. Without the flag they stay.
//     u8 rest[n - 64]
//     the n key bytes as an R32 stream (codec/entropy/rans32.h), whose tail is the last 64 rests
// A ceiling is the largest exponent of its channel, or near it, so that channels of all sizes have
// one distribution. They are there where they save more than they cost.
//
// The codebook is of the exponents that are most frequent in a sample of at most 1 element in 16;
// of all elements where that leaves many without a code.
//
// Ratios on the keys and values of two small trained models, planes of 64 tokens and of 2,048 and
// 8,192 elements: bf16 1.32 to 1.33 fixed, 1.48 and 1.57 entropy; fp16 1.06 to 1.11, and 1.14 and
// 1.21.
//
// Limits   raw bytes below 2^32 - 16.
// Threads  any; no state.
// Source   the exponent's low entropy: "DFloat11", arXiv 2504.11651; 4-bit codes with escapes for
//          what is left: "SplitZip", arXiv 2605.01708; the layout is our own.
namespace forebay {

enum class SplitForm : uint8_t { kRaw = 0, kFixed = 1, kEntropy = 2 };

// How channels lie in a plane: element i of a run of `run` elements is of channel i % channels.
// Zeros: nothing is known of that.
struct SplitChannels {
  size_t channels = 0;
  size_t run = 0;
};

constexpr size_t kSplitHeaderBytes = 16;
constexpr size_t ExponentSplitBytesMax(size_t raw_bytes) { return kSplitHeaderBytes + raw_bytes; }

// Encodes `raw`, whole elements of `dtype`, kBf16 or kFp16. The bytes written; the same for the
// same input. Falls back to the raw form where `form` is no smaller. Requires `payload` of
// ExponentSplitBytesMax, of any alignment, as raw.
size_t ExponentSplitEncode(DType dtype, SplitForm form, Bytes raw, MutableBytes payload,
                           const SplitChannels& channels = {});

// The bytes of the payload that is at the front of `payload`. DATA_LOSS: there is none.
absl::StatusOr<size_t> ExponentSplitBytes(Bytes payload);

// Fills `raw` entirely, or fails, when it is undefined. The payload is not trusted. `channels` as
// for the encoder.
//   DATA_LOSS  not exactly such a payload of that many elements; what is wrong
absl::Status ExponentSplitDecode(DType dtype, Bytes payload, MutableBytes raw,
                                 const SplitChannels& channels = {});

}  // namespace forebay
