#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/kv_layout.h"
#include "codec/plane.h"
#include "codec/uniform/dictionary.h"

// Planes at one step each, and an entropy coder behind: no scale, no zero, no histogram travels
// with a page. What a group of another codec spends on them is the most of its bits; here they are
// in a dictionary that both sides have. The step is a continuous dial between rate and quality.
//
//   code = RNE((x - mean of the channel) / step of the channel)      codec/steps/uniform_quant.h
//   R32, the table by 2 * log2(sigma / step) of the channel          codec/entropy/rans32.h
//
// |x - decoded| is at most half the channel's step, and the rounding to the element's type.
//
// A payload, little endian:
//   u8 version = 1 | u8 0 x 3 | u32 escape_count | f32 steps[planes] | i8 shifts[planes]
//     | zeros up to a multiple of four
//   R32 blocks, each but the last after a u32 that has its bytes. A block has the planes from where
//     the last one ended until it has 32,768 symbols or more. A plane is one run, its elements in
//     the order of the raw bytes; in head-major order a run for each head.
//   u16 escapes[escape_count]: elements whose code is the escape, as they were
// One block for many small planes, since its states alone are 128 bytes.
//
// A plane that is louder or quieter than the calibration takes the tables of classes farther on, by
// its shift. What differs otherwise costs bits, never exactness.
//
// Threads  any; no state.
// Source   the per-channel tables of a KV codec: CacheGen, arXiv 2310.07240; that a uniform step
//          and an entropy coder are close to the best at any rate: see codec/steps/uniform_quant.h.
namespace forebay {

// A plane of a part.
struct UniformPlane {
  uint32_t layer = 0;       // of the dictionary
  Stream stream{};          // kKey or kValue
  uint32_t head_begin = 0;  // the first of shape.heads
  PlaneShape shape;
  float step = 0;  // for the encoder alone
};

// The planes of a part, in its order, with the dictionary's steps times the dials: larger is
// coarser. Nothing where a plane has no place in the dictionary, or is of another stream than
// kKeyValue, kKey and kValue: then the part stays raw. Requires dictionary.CheckLayout(layout).
std::vector<UniformPlane> UniformPlanesOf(const Dictionary& dictionary, const KvLayout& layout,
                                          const PartSpec& part, float k_dial, float v_dial);

// Encodes the planes, whose bytes follow one another in `raw`. The bytes written; nothing where
// that is not fewer than raw's, where a plane holds Inf or NaN, or a step is not sound: then
// `payload` is undefined, and the part has to stay raw. The same input gives the same bytes on
// every processor. Requires room for raw.size() bytes, and planes that the dictionary has.
std::optional<size_t> EncodeUniform(const Dictionary& dictionary,
                                    absl::Span<const UniformPlane> planes, Bytes raw,
                                    MutableBytes payload);

// Fills `raw` entirely, or fails, when it is undefined. The payload is not trusted.
//   DATA_LOSS  not exactly such a payload of those planes; what is wrong
absl::Status DecodeUniform(const Dictionary& dictionary, absl::Span<const UniformPlane> planes,
                           Bytes payload, MutableBytes raw);

}  // namespace forebay
