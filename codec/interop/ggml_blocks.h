#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/dtype.h"

// Rows of fp32, fp16 or bf16 <-> the quantized blocks of ggml, byte for byte.
//
// A block is 32 consecutive elements: an fp16 scale d, for q4_1 an fp16 minimum m, then codes. Four
// bits each: byte j holds element j below and element j + 16 above.
//
//          bytes   of a block   an element x
//   q8_0   34      d codes      d * code,        code in [-127, 127]
//   q4_0   18      d codes      d * (code - 8),  code in [0, 15]
//   q4_1   20      d m codes    d * code + m,    code in [0, 15]
//
// Rounding is that of ggml's reference, not Forebay's own: codes are computed with the fp32 scale
// and rounded half away from zero (q8_0) or half up (q4_0, q4_1), and only then the scale is
// rounded to fp16. ggml's SIMD encoders round q8_0 to even, so theirs may differ by 1 at an exact
// half. A scale below 2^-25 becomes 0 in fp16 and loses its block, in ggml as here.
//
// Where ggml writes a block that decodes to Inf or NaN, this refuses.
//
// Errors   statuses that name the length, the element or the block that is wrong.
// Threads  pure functions.
// Source   ggml-quants.c of ggml, commit 01243c58: the definitions, as facts.
namespace forebay {

enum class GgmlBlock : uint8_t {
  kQ80 = 1,  // q8_0
  kQ40 = 2,  // q4_0
  kQ41 = 3,  // q4_1
};

inline constexpr size_t kGgmlBlockElements = 32;

absl::string_view GgmlBlockName(GgmlBlock format);
// Of one block.
size_t GgmlBlockBytes(GgmlBlock format);
// Bytes of the blocks of a row. INVALID_ARGUMENT: `elements` is no multiple of 32.
absl::StatusOr<size_t> GgmlRowBytes(GgmlBlock format, size_t elements);

// Fills `blocks`, which must be exactly as long as GgmlRowBytes says.
//   INVALID_ARGUMENT   the lengths; or an element is Inf or NaN; or a scale or a minimum is beyond
//                      fp16: which
absl::Status EncodeGgmlRow(GgmlBlock format, DType dtype, Bytes row, MutableBytes blocks);

// Fills `row`, whose length says how many blocks there must be. `blocks` are not trusted. What was
// written of `row` before an error means nothing.
//   INVALID_ARGUMENT   the lengths; or a value is beyond `dtype`: q8_0 of 65,504 decodes to 65,532,
//                      more than fp16 holds
//   DATA_LOSS          a value is Inf or NaN
absl::Status DecodeGgmlRow(GgmlBlock format, Bytes blocks, DType dtype, MutableBytes row);

}  // namespace forebay
