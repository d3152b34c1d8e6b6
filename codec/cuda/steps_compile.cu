// Every codec step, in one kernel for each header: nvcc must take them for each architecture. That
// they give the bits of the host is for a test on a GPU to show.
#include <cstddef>
#include <cstdint>

#include "codec/steps/compact_scale.h"
#include "codec/steps/float_formats.h"
#include "codec/steps/hadamard.h"
#include "codec/steps/host_device.h"
#include "codec/steps/int_quant.h"
#include "codec/steps/level_quant.h"
#include "codec/steps/uniform_quant.h"

namespace forebay {

// As constants too: tables of device code.
__constant__ const float kE2M1Values[] = {E2M1ToFp32(0), E2M1ToFp32(1), E2M1ToFp32(7)};
static_assert(Fp32ToE4M3(448.0f) == 0x7e);
static_assert(RoundToInt(2.5f) == 2);

__global__ void FloatFormatSteps(const float* x, float* y, size_t count) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float sum = AddFp32(kE2M1Values[i % 3], Bf16ToFp32(Fp32ToBf16(x[i])));
  sum = AddFp32(sum, Fp16ToFp32(Fp32ToFp16(x[i])));
  sum = AddFp32(sum, Fp16ToFp32(Fp32ToFp16Saturated(x[i])));
  sum = AddFp32(sum, E4M3ToFp32(Fp32ToE4M3(x[i])));
  sum = AddFp32(sum, E5M2ToFp32(Fp32ToE5M2(x[i])));
  sum = AddFp32(sum, E2M1ToFp32(Fp32ToE2M1(x[i])));
  sum = AddFp32(sum, UE4M3ToFp32(Fp32ToUE4M3(x[i])));
  const uint8_t scale = E8M0OfAmax(x[i], kE2M1ExponentMax);
  sum = MultiplyFp32(sum, MultiplyFp32(E8M0ToFp32(scale), E8M0Inverse(scale)));
  y[i] = IsFiniteFp32(sum) && !IsNanFp32(sum) ? sum : DivideFp32(sum, WithSign(sum, 0));
}

template <int kBits>
__device__ float AffineSteps(const float* x, size_t count, uint8_t* codes, uint8_t* packed) {
  const AffineGroup group = EncodeAffineGroup<kBits>(x, count, 1, ScaleFormat::kBf16, codes);
  packed[0] = PackedByte<kBits>(codes);
  const float value = AffineValue(CodeAt<kBits>(packed, 0), group.scale, group.zero);
  return group.codable ? value : x[0];
}

// One thread a group of `count`.
__global__ void IntQuantSteps(const float* x, float* y, uint8_t* codes, uint8_t* packed,
                              int8_t* symmetric, size_t count) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const float* group = x + i * count;
  float sum = AffineSteps<2>(group, count, codes + i * count, packed + i);
  sum = AddFp32(sum, AffineSteps<4>(group, count, codes + i * count, packed + i));
  sum = AddFp32(sum, AffineSteps<8>(group, count, codes + i * count, packed + i));
  const SymmetricGroup scale =
      EncodeSymmetricGroup(group, count, 1, ScaleFormat::kFp32, symmetric + i * count);
  y[i] = AddFp32(sum, SymmetricValue(symmetric[i * count], scale.scale));
}

template <int kBits>
__device__ float CompactSteps(const GroupRange& range, const CompactUnit& unit, float x) {
  const CompactGroup stored = CompactGroupOfRange<kBits>(range.min, range.max, unit);
  const AffineGroup group = AffineGroupOfCompact<kBits>(stored, unit.unit);
  return AffineValue(AffineCode<kBits>(x, group), group.scale, group.zero);
}

// One thread a group of `count`.
__global__ void CompactScaleSteps(const float* x, float* y, size_t count) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const GroupRange range = RangeOfGroup(x + i * count, count, 1);
  const CompactUnit unit = CompactUnitOfAmax(GroupAmax(x + i * count, count, 1));
  y[i] = AddFp32(CompactSteps<2>(range, unit, x[i]), CompactSteps<4>(range, unit, x[i]));
}

template <int kBits>
__device__ float LevelSteps(const float* x, size_t count, uint8_t* codes) {
  constexpr LevelTable<kBits> kTable = LloydMaxLevels<kBits>();
  const float scale = EncodeLevelGroup<kBits>(x, count, kTable, ScaleFormat::kBf16, codes);
  const uint64_t packed = PackedEight<kBits>(codes[0] | static_cast<uint64_t>(codes[1]) << 8);
  const uint64_t eight = EightCodes<kBits>(packed);
  return LevelValue<kBits>(static_cast<uint8_t>(eight), scale, kTable);
}

// One thread a group of `count` >= 8, which it rotates first.
__global__ void LevelQuantSteps(float* x, float* y, uint8_t* codes, size_t count) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  HadamardRotate(x + i * count, HadamardBlock(count));
  float sum = LevelSteps<2>(x + i * count, count, codes + i * count);
  sum = AddFp32(sum, LevelSteps<3>(x + i * count, count, codes + i * count));
  y[i] = AddFp32(sum, LevelSteps<4>(x + i * count, count, codes + i * count));
}

__global__ void UniformQuantSteps(const float* x, float* y, int8_t* codes, size_t count) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count || !UniformStepIsSound(x[i])) return;
  const int32_t eighths = Log2Eighths(x[i]);
  UniformChannel channel;
  channel.step = Exp2Eighths(eighths);
  channel.inverse = DivideFp32(1.0f, channel.step);
  channel.reach = static_cast<float>(UniformClass(eighths, 0));
  codes[i] = static_cast<int8_t>(UniformCode(x[i], channel));
  y[i] = UniformValue(codes[i], channel);
}

}  // namespace forebay
