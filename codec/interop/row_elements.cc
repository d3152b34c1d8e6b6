#include "codec/interop/row_elements.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "codec/steps/float_formats.h"

namespace forebay {
namespace {

template <typename Word>
Word WordAt(const std::byte* row, size_t index) {
  Word word;
  std::memcpy(&word, row + index * sizeof(Word), sizeof(Word));
  return word;
}

template <typename Word>
void PutWordAt(std::byte* row, size_t index, Word word) {
  std::memcpy(row + index * sizeof(Word), &word, sizeof(Word));
}

float ElementAt(DType dtype, const std::byte* row, size_t index) {
  switch (dtype) {
    case DType::kFp16:
      return Fp16ToFp32(WordAt<uint16_t>(row, index));
    case DType::kBf16:
      return Bf16ToFp32(WordAt<uint16_t>(row, index));
    default:
      return WordAt<float>(row, index);
  }
}

// Returns what a reader will find, for the caller to see whether it overflowed.
float PutElementAt(DType dtype, std::byte* row, size_t index, float value) {
  switch (dtype) {
    case DType::kFp16:
      PutWordAt(row, index, Fp32ToFp16(value));
      break;
    case DType::kBf16:
      PutWordAt(row, index, Fp32ToBf16(value));
      break;
    default:
      PutWordAt(row, index, value);
  }
  return ElementAt(dtype, row, index);
}

}  // namespace

absl::StatusOr<size_t> RowElements(absl::string_view format, DType dtype, size_t row_bytes,
                                   size_t block_elements) {
  if (dtype != DType::kFp32 && dtype != DType::kFp16 && dtype != DType::kBf16) {
    return absl::InvalidArgumentError(
        absl::StrCat("a row of ", format, " is fp32, fp16 or bf16, not ", DTypeName(dtype)));
  }
  const size_t element_bytes = DTypeBytes(dtype);
  if (row_bytes % element_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a row of ", row_bytes, " bytes is no whole number of ", DTypeName(dtype)));
  }
  const size_t elements = row_bytes / element_bytes;
  if (elements % block_elements != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a row of ", elements,
                                                   " elements is no multiple of ", block_elements,
                                                   ", the block of ", format));
  }
  return elements;
}

absl::Status ReadElements(DType dtype, Bytes row, size_t first, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ElementAt(dtype, row.data(), first + i);
    if (!IsFiniteFp32(values[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("element ", first + i, " of the row is ", values[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteElements(DType dtype, absl::Span<const float> values, size_t first,
                           MutableBytes row) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!IsFiniteFp32(values[i])) {
      return absl::DataLossError(absl::StrCat("element ", first + i, " decodes to ", values[i]));
    }
    if (!IsFiniteFp32(PutElementAt(dtype, row.data(), first + i, values[i]))) {
      return absl::InvalidArgumentError(absl::StrCat("element ", first + i, " decodes to ",
                                                     values[i], ", beyond ", DTypeName(dtype)));
    }
  }
  return absl::OkStatus();
}

}  // namespace forebay
