#include "codec/interop/mx_blocks.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "codec/interop/row_elements.h"
#include "codec/steps/float_formats.h"

namespace forebay {
namespace {

constexpr size_t kBlockElementsMax = 32;
constexpr float kE2M1Largest = 6.0f;
constexpr float kUE4M3Largest = 448.0f;

bool HasNibbles(MxFormat format) { return format != MxFormat::kMxFp8E4M3; }

// Where the parts of each block stand in a row of blocks.
struct Places {
  size_t block_count;
  size_t codes_begin;
  size_t codes_stride;
  size_t scales_begin;
  size_t scales_stride;

  size_t CodesOf(size_t block) const { return codes_begin + block * codes_stride; }
  size_t ScaleOf(size_t block) const { return scales_begin + block * scales_stride; }
};

Places PlacesOf(MxFormat format, MxScales scales, size_t block_count) {
  const size_t block_bytes = MxBlockBytes(format);
  if (scales == MxScales::kInBlock) return {block_count, 1, block_bytes, 0, block_bytes};
  const size_t codes_bytes = block_bytes - 1;
  return {block_count, 0, codes_bytes, block_count * codes_bytes, 1};
}

absl::Status CheckLayout(MxFormat format, MxLayout layout) {
  if (MxBlockBytes(format) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no MX format has the number ", static_cast<int>(format)));
  }
  if (layout.scales != MxScales::kInBlock && layout.scales != MxScales::kApart) {
    return absl::InvalidArgumentError(
        absl::StrCat("no place of scales has the number ", static_cast<int>(layout.scales)));
  }
  if (layout.nibbles != MxNibbles::kEvenLow && layout.nibbles != MxNibbles::kSplitHalves) {
    return absl::InvalidArgumentError(
        absl::StrCat("no order of nibbles has the number ", static_cast<int>(layout.nibbles)));
  }
  return absl::OkStatus();
}

// What both directions check before they touch memory.
absl::StatusOr<Places> CheckedPlaces(MxFormat format, MxLayout layout, DType dtype,
                                     size_t row_bytes, size_t blocks_bytes, float global_scale) {
  FB_RETURN_IF_ERROR(CheckLayout(format, layout));
  FB_ASSIGN_OR_RETURN(const size_t elements,
                      RowElements(MxFormatName(format), dtype, row_bytes, MxBlockElements(format)));
  FB_ASSIGN_OR_RETURN(const size_t due, MxRowBytes(format, elements));
  if (blocks_bytes != due) {
    return absl::InvalidArgumentError(absl::StrCat(blocks_bytes, " bytes of ", MxFormatName(format),
                                                   " where ", due, " are due for ", elements,
                                                   " elements"));
  }
  if (format == MxFormat::kNvFp4 && (!IsFiniteFp32(global_scale) || global_scale <= 0.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a global scale of ", global_scale, ", which is no finite number above 0"));
  }
  return PlacesOf(format, layout.scales, elements / MxBlockElements(format));
}

// A scale as its byte, and what to multiply an element with to get its code.
struct EncoderScale {
  uint8_t code;
  float inverse;
};

EncoderScale ScaleOfAmax(MxFormat format, float amax, float global_scale) {
  if (format != MxFormat::kNvFp4) {
    const int exponent_max = HasNibbles(format) ? kE2M1ExponentMax : kE4M3ExponentMax;
    const uint8_t code = E8M0OfAmax(amax, exponent_max);
    return {code, E8M0Inverse(code)};
  }
  const uint8_t code = Fp32ToUE4M3(amax / kE2M1Largest / global_scale);
  const float scale = UE4M3ToFp32(code) * global_scale;
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  // Too small to be divided by is too small to be told from zero.
  if (!IsFiniteFp32(inverse) || inverse == 0.0f) return {0, 0.0f};
  return {code, inverse};
}

float DecoderScale(MxFormat format, uint8_t code, float global_scale) {
  return format == MxFormat::kNvFp4 ? UE4M3ToFp32(code) * global_scale : E8M0ToFp32(code);
}

// The two elements of byte `j`.
struct Pair {
  size_t low;
  size_t high;
};

Pair PairOf(MxNibbles nibbles, size_t j, size_t block_elements) {
  if (nibbles == MxNibbles::kEvenLow) return {2 * j, 2 * j + 1};
  return {j, j + block_elements / 2};
}

void EncodeCodes(MxFormat format, MxNibbles nibbles, absl::Span<const float> x, float inverse,
                 std::byte* codes) {
  if (!HasNibbles(format)) {
    for (size_t i = 0; i < x.size(); ++i) {
      codes[i] = static_cast<std::byte>(Fp32ToE4M3(x[i] * inverse));
    }
    return;
  }
  for (size_t j = 0; j < x.size() / 2; ++j) {
    const Pair pair = PairOf(nibbles, j, x.size());
    const int low = Fp32ToE2M1(x[pair.low] * inverse);
    const int high = Fp32ToE2M1(x[pair.high] * inverse);
    codes[j] = static_cast<std::byte>(low | (high << 4));
  }
}

void DecodeCodes(MxFormat format, MxNibbles nibbles, const std::byte* codes, float scale,
                 absl::Span<float> x) {
  if (!HasNibbles(format)) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = E4M3ToFp32(static_cast<uint8_t>(codes[i])) * scale;
    }
    return;
  }
  for (size_t j = 0; j < x.size() / 2; ++j) {
    const Pair pair = PairOf(nibbles, j, x.size());
    const auto byte = static_cast<uint8_t>(codes[j]);
    x[pair.low] = E2M1ToFp32(byte & 0xf) * scale;
    x[pair.high] = E2M1ToFp32(byte >> 4) * scale;
  }
}

float AmaxOf(absl::Span<const float> x) {
  uint32_t bits = 0;
  for (const float value : x) {
    const uint32_t magnitude = MagnitudeBits(value);
    bits = magnitude > bits ? magnitude : bits;
  }
  return Fp32OfBits(bits);
}

}  // namespace

absl::string_view MxFormatName(MxFormat format) {
  switch (format) {
    case MxFormat::kMxFp8E4M3:
      return "MXFP8";
    case MxFormat::kMxFp4:
      return "MXFP4";
    case MxFormat::kNvFp4:
      return "NVFP4";
  }
  return "";
}

size_t MxBlockElements(MxFormat format) {
  switch (format) {
    case MxFormat::kMxFp8E4M3:
    case MxFormat::kMxFp4:
      return 32;
    case MxFormat::kNvFp4:
      return 16;
  }
  return 0;
}

size_t MxBlockBytes(MxFormat format) {
  switch (format) {
    case MxFormat::kMxFp8E4M3:
      return 1 + 32;
    case MxFormat::kMxFp4:
      return 1 + 32 / 2;
    case MxFormat::kNvFp4:
      return 1 + 16 / 2;
  }
  return 0;
}

absl::StatusOr<size_t> MxRowBytes(MxFormat format, size_t elements) {
  const size_t block_elements = MxBlockElements(format);
  if (block_elements == 0 || elements % block_elements != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a row of ", elements,
                                                   " elements is no multiple of ", block_elements,
                                                   ", the block of ", MxFormatName(format)));
  }
  return elements / block_elements * MxBlockBytes(format);
}

float NvFp4GlobalScale(float amax) {
  const float scale = amax / (kUE4M3Largest * kE2M1Largest);
  return scale > 0.0f ? scale : 1.0f;
}

absl::Status EncodeMxRow(MxFormat format, MxLayout layout, DType dtype, Bytes row,
                         MutableBytes blocks, float global_scale) {
  FB_ASSIGN_OR_RETURN(const Places places, CheckedPlaces(format, layout, dtype, row.size(),
                                                         blocks.size(), global_scale));
  std::array<float, kBlockElementsMax> buffer;
  const absl::Span<float> values(buffer.data(), MxBlockElements(format));
  for (size_t block = 0; block < places.block_count; ++block) {
    FB_RETURN_IF_ERROR(ReadElements(dtype, row, block * values.size(), values));
    const EncoderScale scale = ScaleOfAmax(format, AmaxOf(values), global_scale);
    blocks[places.ScaleOf(block)] = static_cast<std::byte>(scale.code);
    EncodeCodes(format, layout.nibbles, values, scale.inverse,
                blocks.data() + places.CodesOf(block));
  }
  return absl::OkStatus();
}

absl::Status DecodeMxRow(MxFormat format, MxLayout layout, Bytes blocks, DType dtype,
                         MutableBytes row, float global_scale) {
  FB_ASSIGN_OR_RETURN(const Places places, CheckedPlaces(format, layout, dtype, row.size(),
                                                         blocks.size(), global_scale));
  std::array<float, kBlockElementsMax> buffer;
  const absl::Span<float> values(buffer.data(), MxBlockElements(format));
  for (size_t block = 0; block < places.block_count; ++block) {
    const auto scale_code = static_cast<uint8_t>(blocks[places.ScaleOf(block)]);
    if (format == MxFormat::kNvFp4 && (scale_code & 0x80) != 0) {
      return absl::DataLossError(
          absl::StrCat("the scale ", scale_code, " of block ", block, " has a sign"));
    }
    DecodeCodes(format, layout.nibbles, blocks.data() + places.CodesOf(block),
                DecoderScale(format, scale_code, global_scale), values);
    FB_RETURN_IF_ERROR(WriteElements(dtype, values, block * values.size(), row));
  }
  return absl::OkStatus();
}

}  // namespace forebay
