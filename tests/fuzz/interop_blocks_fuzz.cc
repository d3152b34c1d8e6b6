// Blocks of other formats meet any bytes: a row is refused, or filled entirely with finite numbers
// that encode again; nothing else is touched.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "codec/interop/ggml_blocks.h"
#include "codec/interop/mx_blocks.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/guarded_memory.h"

namespace forebay::fuzz {
namespace {

constexpr DType kDTypes[] = {DType::kFp32, DType::kFp16, DType::kBf16};
constexpr GgmlBlock kGgml[] = {GgmlBlock::kQ80, GgmlBlock::kQ40, GgmlBlock::kQ41};
constexpr MxFormat kMx[] = {MxFormat::kMxFp8E4M3, MxFormat::kMxFp4, MxFormat::kNvFp4};
constexpr size_t kBlocksMax = 8;

struct Memory {
  GuardedMemory blocks{4096};
  GuardedMemory row{4096};
};

Memory& Places() {
  static auto* const memory = new Memory;
  return *memory;
}

MutableBytes TakeBlocks(FuzzInput& input, size_t bytes) {
  const MutableBytes blocks = Places().blocks.Last(bytes);
  input.Fill(blocks);
  return blocks;
}

// Over two backgrounds, so that a byte that was not written shows.
template <typename Decode>
bool FillsEntirely(MutableBytes row, Decode decode) {
  std::memset(row.data(), 0x5a, row.size());
  const absl::Status status = decode();
  FB_CHECK(status.ok() || !status.message().empty());
  if (!status.ok()) return false;
  const std::vector<std::byte> once(row.begin(), row.end());
  std::memset(row.data(), 0xa5, row.size());
  FB_CHECK(decode().ok());
  FB_CHECK(std::memcmp(once.data(), row.data(), row.size()) == 0);
  return true;
}

void CheckGgml(FuzzInput& input) {
  const GgmlBlock format = kGgml[input.Below(std::size(kGgml))];
  const DType dtype = kDTypes[input.Below(std::size(kDTypes))];
  const size_t count = 1 + input.Below(kBlocksMax);
  const MutableBytes blocks = TakeBlocks(input, count * GgmlBlockBytes(format));
  const MutableBytes row = Places().row.Last(count * kGgmlBlockElements * DTypeBytes(dtype));
  if (!FillsEntirely(row, [&] { return DecodeGgmlRow(format, blocks, dtype, row); })) return;
  // What was decoded is finite, so only a scale beyond fp16 may be in the way of coding it again.
  std::vector<std::byte> again(blocks.size());
  const absl::Status status = EncodeGgmlRow(format, dtype, row, absl::MakeSpan(again));
  FB_CHECK(status.ok() || status.code() == absl::StatusCode::kInvalidArgument);
}

void CheckMx(FuzzInput& input) {
  const MxFormat format = kMx[input.Below(std::size(kMx))];
  const MxLayout layout{static_cast<MxScales>(1 + input.Below(2)),
                        static_cast<MxNibbles>(1 + input.Below(2))};
  const DType dtype = kDTypes[input.Below(std::size(kDTypes))];
  const size_t count = 1 + input.Below(kBlocksMax);
  const auto scale = input.Take<float>();
  const float global = std::isfinite(scale) && scale > 0 ? scale : 1.0f;
  const MutableBytes blocks = TakeBlocks(input, count * MxBlockBytes(format));
  const MutableBytes row = Places().row.Last(count * MxBlockElements(format) * DTypeBytes(dtype));
  if (!FillsEntirely(row,
                     [&] { return DecodeMxRow(format, layout, blocks, dtype, row, global); })) {
    return;
  }
  std::vector<std::byte> again(blocks.size());
  FB_CHECK(EncodeMxRow(format, layout, dtype, row, absl::MakeSpan(again), global).ok());
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (size_t format = 0; format < 3; ++format) {
    for (size_t dtype = 0; dtype < 3; ++dtype) {
      SeedBuilder ggml;
      ggml.AddFlag(false).AddBelow(format).AddBelow(dtype).AddBelow(1);
      for (int i = 0; i < 68; ++i) ggml.Add(static_cast<uint8_t>(i % 34 == 1 ? 0x3c : i));
      seeds.push_back(ggml.Take());
      SeedBuilder mx;
      mx.AddFlag(true).AddBelow(format).AddBelow(1).AddBelow(0).AddBelow(dtype).AddBelow(1);
      mx.Add(1.0f);
      for (int i = 0; i < 66; ++i) mx.Add(static_cast<uint8_t>(i % 17 == 0 ? 0x7f : 3 * i));
      seeds.push_back(mx.Take());
    }
  }
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  if (input.Flag()) {
    forebay::fuzz::CheckMx(input);
  } else {
    forebay::fuzz::CheckGgml(input);
  }
  return 0;
}
