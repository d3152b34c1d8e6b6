#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/dtype.h"

// Rows of fp32, fp16 or bf16 in raw memory, read and written as fp32: what the transcoders of
// foreign block formats share. Rows are little-endian and need no alignment.
//
// Threads  pure functions.
namespace forebay {

// Elements of a row of `row_bytes`, or
//   INVALID_ARGUMENT   `dtype` is none of the three; the bytes are no whole elements; or these are
//                      no multiple of `block_elements`, the block of `format`
absl::StatusOr<size_t> RowElements(absl::string_view format, DType dtype, size_t row_bytes,
                                   size_t block_elements);

// Reads elements [first, first + values.size()) of a row that holds them.
//   INVALID_ARGUMENT   one of them is Inf or NaN, which no block format here can carry: its index
absl::Status ReadElements(DType dtype, Bytes row, size_t first, absl::Span<float> values);

// Writes elements [first, first + values.size()) of a row that has room for them.
//   DATA_LOSS          a value is Inf or NaN: no encoder here wrote what it came from
//   INVALID_ARGUMENT   a value is beyond the largest of `dtype`
absl::Status WriteElements(DType dtype, absl::Span<const float> values, size_t first,
                           MutableBytes row);

}  // namespace forebay
