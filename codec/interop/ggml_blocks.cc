#include "codec/interop/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "codec/interop/row_elements.h"
#include "codec/steps/float_formats.h"

namespace forebay {
namespace {

using BlockValues = std::array<float, kGgmlBlockElements>;

constexpr size_t kHalf = kGgmlBlockElements / 2;
constexpr size_t kFp16Bytes = 2;

float Fp16At(const std::byte* at) {
  uint16_t code;
  std::memcpy(&code, at, sizeof(code));
  return Fp16ToFp32(code);
}

absl::Status PutFp16(absl::string_view what, float value, size_t block, std::byte* at) {
  const uint16_t code = Fp32ToFp16(value);
  if (!IsFiniteFp32(Fp16ToFp32(code))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", what, " of block ", block, " is ", value, ", beyond fp16"));
  }
  std::memcpy(at, &code, sizeof(code));
  return absl::OkStatus();
}

// 0 for a scale whose inverse overflows, where ggml converts Inf to an integer. Such a scale is 0
// in fp16, so that no code counts.
float InverseOf(float scale) {
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  return IsFiniteFp32(inverse) ? inverse : 0.0f;
}

absl::Status EncodeQ8_0(const BlockValues& x, size_t block, std::byte* out) {
  float amax = 0;
  for (const float value : x) amax = std::max(amax, std::fabs(value));
  const float scale = amax / 127.0f;
  FB_RETURN_IF_ERROR(PutFp16("scale", scale, block, out));
  const float inverse = InverseOf(scale);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto code = static_cast<int8_t>(std::round(x[i] * inverse));
    out[kFp16Bytes + i] = static_cast<std::byte>(code);
  }
  return absl::OkStatus();
}

// Cuts off the fraction of what the caller raised by a half, and at 15.
std::byte Nibble(float raised) {
  const int code = static_cast<int>(raised);
  return static_cast<std::byte>(code < 15 ? code : 15);
}

absl::Status EncodeQ4_0(const BlockValues& x, size_t block, std::byte* out) {
  float amax = 0;
  float extreme = 0;  // with its sign; the first of equals
  for (const float value : x) {
    if (std::fabs(value) > amax) {
      amax = std::fabs(value);
      extreme = value;
    }
  }
  const float scale = extreme / -8.0f;
  FB_RETURN_IF_ERROR(PutFp16("scale", scale, block, out));
  const float inverse = InverseOf(scale);
  for (size_t j = 0; j < kHalf; ++j) {
    const std::byte low = Nibble(x[j] * inverse + 8.5f);
    const std::byte high = Nibble(x[j + kHalf] * inverse + 8.5f);
    out[kFp16Bytes + j] = low | (high << 4);
  }
  return absl::OkStatus();
}

absl::Status EncodeQ4_1(const BlockValues& x, size_t block, std::byte* out) {
  float min = x[0];
  float max = x[0];
  for (const float value : x) {
    min = value < min ? value : min;
    max = value > max ? value : max;
  }
  const float scale = (max - min) / 15.0f;
  FB_RETURN_IF_ERROR(PutFp16("scale", scale, block, out));
  FB_RETURN_IF_ERROR(PutFp16("minimum", min, block, out + kFp16Bytes));
  const float inverse = InverseOf(scale);
  for (size_t j = 0; j < kHalf; ++j) {
    const std::byte low = Nibble((x[j] - min) * inverse + 0.5f);
    const std::byte high = Nibble((x[j + kHalf] - min) * inverse + 0.5f);
    out[2 * kFp16Bytes + j] = low | (high << 4);
  }
  return absl::OkStatus();
}

absl::Status EncodeBlock(GgmlBlock format, const BlockValues& x, size_t block, std::byte* out) {
  switch (format) {
    case GgmlBlock::kQ80:
      return EncodeQ8_0(x, block, out);
    case GgmlBlock::kQ40:
      return EncodeQ4_0(x, block, out);
    case GgmlBlock::kQ41:
      return EncodeQ4_1(x, block, out);
  }
  return absl::InternalError("no such block");  // RowElements came first
}

int LowCode(std::byte pair) { return static_cast<int>(pair & std::byte{0xf}); }
int HighCode(std::byte pair) { return static_cast<int>(pair >> 4); }

void DecodeBlock(GgmlBlock format, const std::byte* in, BlockValues& x) {
  const float scale = Fp16At(in);
  if (format == GgmlBlock::kQ80) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(static_cast<int8_t>(in[kFp16Bytes + i])) * scale;
    }
    return;
  }
  const bool has_minimum = format == GgmlBlock::kQ41;
  const std::byte* codes = in + (has_minimum ? 2 : 1) * kFp16Bytes;
  const int middle = has_minimum ? 0 : 8;
  for (size_t j = 0; j < kHalf; ++j) {
    x[j] = static_cast<float>(LowCode(codes[j]) - middle) * scale;
    x[j + kHalf] = static_cast<float>(HighCode(codes[j]) - middle) * scale;
  }
  if (!has_minimum) return;
  const float minimum = Fp16At(in + kFp16Bytes);
  for (float& value : x) value = value + minimum;
}

// The number of blocks, once the row and `blocks_bytes` agree about it.
absl::StatusOr<size_t> BlocksOf(GgmlBlock format, DType dtype, size_t row_bytes,
                                size_t blocks_bytes) {
  if (GgmlBlockBytes(format) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ggml block has the number ", static_cast<int>(format)));
  }
  FB_ASSIGN_OR_RETURN(const size_t elements,
                      RowElements(GgmlBlockName(format), dtype, row_bytes, kGgmlBlockElements));
  FB_ASSIGN_OR_RETURN(const size_t due, GgmlRowBytes(format, elements));
  if (blocks_bytes != due) {
    return absl::InvalidArgumentError(absl::StrCat(blocks_bytes, " bytes of ",
                                                   GgmlBlockName(format), " where ", due,
                                                   " are due for ", elements, " elements"));
  }
  return elements / kGgmlBlockElements;
}

}  // namespace

absl::string_view GgmlBlockName(GgmlBlock format) {
  switch (format) {
    case GgmlBlock::kQ80:
      return "q8_0";
    case GgmlBlock::kQ40:
      return "q4_0";
    case GgmlBlock::kQ41:
      return "q4_1";
  }
  return "";
}

size_t GgmlBlockBytes(GgmlBlock format) {
  switch (format) {
    case GgmlBlock::kQ80:
      return kFp16Bytes + kGgmlBlockElements;
    case GgmlBlock::kQ40:
      return kFp16Bytes + kHalf;
    case GgmlBlock::kQ41:
      return 2 * kFp16Bytes + kHalf;
  }
  return 0;
}

absl::StatusOr<size_t> GgmlRowBytes(GgmlBlock format, size_t elements) {
  if (elements % kGgmlBlockElements != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a row of ", elements, " elements is no multiple of ", kGgmlBlockElements,
                     ", the block of ", GgmlBlockName(format)));
  }
  return elements / kGgmlBlockElements * GgmlBlockBytes(format);
}

absl::Status EncodeGgmlRow(GgmlBlock format, DType dtype, Bytes row, MutableBytes blocks) {
  FB_ASSIGN_OR_RETURN(const size_t count, BlocksOf(format, dtype, row.size(), blocks.size()));
  BlockValues values;
  for (size_t block = 0; block < count; ++block) {
    FB_RETURN_IF_ERROR(
        ReadElements(dtype, row, block * kGgmlBlockElements, absl::MakeSpan(values)));
    FB_RETURN_IF_ERROR(
        EncodeBlock(format, values, block, blocks.data() + block * GgmlBlockBytes(format)));
  }
  return absl::OkStatus();
}

absl::Status DecodeGgmlRow(GgmlBlock format, Bytes blocks, DType dtype, MutableBytes row) {
  FB_ASSIGN_OR_RETURN(const size_t count, BlocksOf(format, dtype, row.size(), blocks.size()));
  BlockValues values;
  for (size_t block = 0; block < count; ++block) {
    DecodeBlock(format, blocks.data() + block * GgmlBlockBytes(format), values);
    FB_RETURN_IF_ERROR(WriteElements(dtype, values, block * kGgmlBlockElements, row));
  }
  return absl::OkStatus();
}

}  // namespace forebay
