#include "base/dtype.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace forebay {
namespace {

struct DTypeRow {
  DType dtype;
  size_t bytes;
  absl::string_view name;
};

constexpr DTypeRow kRows[] = {
    {DType::kFp32, 4, "fp32"},        {DType::kFp16, 2, "fp16"},        {DType::kBf16, 2, "bf16"},
    {DType::kFp8E4M3, 1, "fp8_e4m3"}, {DType::kFp8E5M2, 1, "fp8_e5m2"}, {DType::kInt8, 1, "int8"},
    {DType::kOpaque8, 1, "opaque8"},
};

}  // namespace

size_t DTypeBytes(DType dtype) {
  for (const DTypeRow& row : kRows) {
    if (row.dtype == dtype) return row.bytes;
  }
  return 0;
}

absl::string_view DTypeName(DType dtype) {
  for (const DTypeRow& row : kRows) {
    if (row.dtype == dtype) return row.name;
  }
  return "unknown";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  std::string known;
  for (const DTypeRow& row : kRows) {
    if (row.name == name) return row.dtype;
    absl::StrAppend(&known, known.empty() ? "" : ", ", row.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no dtype is named \"", name, "\"; known ones: ", known));
}

}  // namespace forebay
