#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/dtype.h"

// Rows of fp32, fp16 or bf16 <-> block formats whose scales are one byte, byte for byte.
//
//            block   element   scale                                        bytes of a block
//   MXFP8    32      E4M3      E8M0, OCP's floor rule                       33
//   MXFP4    32      E2M1      E8M0, OCP's floor rule                       17
//   NVFP4    16      E2M1      UE4M3 of amax / 6 / g; one fp32 g a tensor   9
//
// An element is scale * code (MX) or g * scale * code (NVFP4). Encoders multiply by the inverse of
// the stored scale and round to nearest, ties to the even code. The floor rule saturates what lies
// between the largest code and the next power of two: 448 to 512 times the scale in MXFP8, 6 to 8
// in MXFP4. A block of zeros has scale code 0, and so has a block of NVFP4 that is too small for
// UE4M3: it decodes to zeros.
//
// ggml reads what is written here in kGgmlMxLayout. Its own encoder of MXFP4 breaks ties toward
// zero, so that its bytes may differ at an exact half.
//
// Errors   statuses that name the length, the element or the block that is wrong.
// Threads  pure functions.
// Source   OCP Microscaling Formats (MX) 1.0; the NVFP4 of cuda_fp4.h and its users.
namespace forebay {

enum class MxFormat : uint8_t { kMxFp8E4M3 = 1, kMxFp4 = 2, kNvFp4 = 3 };

// Where the scales of a row stand.
enum class MxScales : uint8_t {
  kInBlock = 1,  // each block is its scale, then its codes
  kApart = 2,    // the codes of all blocks, then their scales
};

// Which two elements of a block share a byte, where codes have four bits.
enum class MxNibbles : uint8_t {
  kEvenLow = 1,      // byte j holds element 2j below and 2j + 1 above
  kSplitHalves = 2,  // byte j holds element j below and, above, j + half the block
};

struct MxLayout {
  MxScales scales = MxScales::kApart;
  MxNibbles nibbles = MxNibbles::kEvenLow;  // MXFP8 has none
};

// Of MXFP4; ggml has no MXFP8, and its NVFP4 joins four blocks.
inline constexpr MxLayout kGgmlMxLayout{MxScales::kInBlock, MxNibbles::kSplitHalves};

absl::string_view MxFormatName(MxFormat format);
// Elements of one block.
size_t MxBlockElements(MxFormat format);
// Of one block, its scale among them.
size_t MxBlockBytes(MxFormat format);
// Bytes of the blocks of a row. INVALID_ARGUMENT: `elements` is no whole number of blocks.
absl::StatusOr<size_t> MxRowBytes(MxFormat format, size_t elements);

// The global scale g of a tensor whose largest magnitude is `amax`: its largest block gets the
// largest scale. 1 for a tensor of zeros, or of numbers too small to have a g.
float NvFp4GlobalScale(float amax);

// Fills `blocks`, which must be exactly as long as MxRowBytes says. `global_scale` is of NVFP4; the
// others ignore it.
//   INVALID_ARGUMENT   the lengths; or an element is Inf or NaN: which; or a global scale that is
//                      not finite and above zero
absl::Status EncodeMxRow(MxFormat format, MxLayout layout, DType dtype, Bytes row,
                         MutableBytes blocks, float global_scale = 1.0f);

// Fills `row`, whose length says how many blocks there must be. `blocks` are not trusted. What was
// written of `row` before an error means nothing.
//   INVALID_ARGUMENT   the lengths; the global scale; or a value is beyond `dtype`: which
//   DATA_LOSS          a value is Inf or NaN, or a scale of NVFP4 has a sign
absl::Status DecodeMxRow(MxFormat format, MxLayout layout, Bytes blocks, DType dtype,
                         MutableBytes row, float global_scale = 1.0f);

}  // namespace forebay
