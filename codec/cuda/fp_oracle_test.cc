// The narrow formats of codec/steps/float_formats.h against the conversions of CUDA's own headers,
// which work on the host. In a build without CUDA this is skipped: the search for the nearest value
// in codec/steps/float_formats_test.cc runs everywhere.

#include <gtest/gtest.h>

#if defined(FOREBAY_CUDA_HEADERS)
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include "base/random.h"
#include "codec/steps/float_formats.h"

namespace forebay {
namespace {

// All bf16, all fp16, and random fp32; up to the first that fails.
template <typename Check>
void ForEachInput(Check check) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    if (::testing::Test::HasFatalFailure()) return;
    check(Bf16ToFp32(static_cast<uint16_t>(code)));
    check(Fp16ToFp32(static_cast<uint16_t>(code)));
  }
  SeededRandom random(9);
  for (int i = 0; i < 1'000'000; ++i) {
    if (::testing::Test::HasFatalFailure()) return;
    check(Fp32OfBits(static_cast<uint32_t>(random.Next())));
  }
}

TEST(FpOracleTest, E4M3EncodesAsCudaDoes) {
  ForEachInput([](float x) {
    ASSERT_EQ(Fp32ToE4M3(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)) << x;
  });
}

TEST(FpOracleTest, E5M2EncodesAsCudaDoes) {
  ForEachInput([](float x) {
    ASSERT_EQ(Fp32ToE5M2(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)) << x;
  });
}

// From the 16-bit formats themselves, which CUDA converts without the detour.
TEST(FpOracleTest, SixteenBitInputsEncodeAsCudaDoes) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto word = static_cast<uint16_t>(code);
    __nv_bfloat16_raw bf16;
    bf16.x = word;
    __half_raw fp16;
    fp16.x = word;
    for (const auto kind : {__NV_E4M3, __NV_E5M2}) {
      const auto encode = kind == __NV_E4M3 ? Fp32ToE4M3 : Fp32ToE5M2;
      ASSERT_EQ(encode(Bf16ToFp32(word)), __nv_cvt_bfloat16raw_to_fp8(bf16, __NV_SATFINITE, kind))
          << code;
      ASSERT_EQ(encode(Fp16ToFp32(word)), __nv_cvt_halfraw_to_fp8(fp16, __NV_SATFINITE, kind))
          << code;
    }
  }
}

TEST(FpOracleTest, E2M1EncodesAsCudaDoes) {
  ForEachInput([](float x) {
    ASSERT_EQ(Fp32ToE2M1(x), __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest)) << x;
  });
}

TEST(FpOracleTest, EveryCodeDecodesAsCudaDoes) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    for (const auto kind : {__NV_E4M3, __NV_E5M2}) {
      const float ours = kind == __NV_E4M3 ? E4M3ToFp32(byte) : E5M2ToFp32(byte);
      const float theirs = Fp16ToFp32(__nv_cvt_fp8_to_halfraw(byte, kind).x);
      if (IsNanFp32(theirs)) {
        ASSERT_TRUE(IsNanFp32(ours)) << code;
      } else {
        ASSERT_EQ(BitsOfFp32(ours), BitsOfFp32(theirs)) << code;
      }
    }
    const float scale = Bf16ToFp32(__nv_cvt_e8m0_to_bf16raw(byte).x);
    ASSERT_EQ(IsNanFp32(E8M0ToFp32(byte)), IsNanFp32(scale)) << code;
    if (!IsNanFp32(scale)) {
      ASSERT_EQ(E8M0ToFp32(byte), scale) << code;
    }
  }
  for (uint8_t code = 0; code < 16; ++code) {
    const float theirs = Fp16ToFp32(__nv_cvt_fp4_to_halfraw(code, __NV_E2M1).x);
    ASSERT_EQ(BitsOfFp32(E2M1ToFp32(code)), BitsOfFp32(theirs)) << int{code};
  }
}

TEST(FpOracleTest, SixteenBitFormatsRoundAsCudaDoes) {
  ForEachInput([](float x) {
    const __half fp16 = __float2half_rn(x);
    const __nv_bfloat16 bf16 = __float2bfloat16_rn(x);
    if (IsNanFp32(x)) return;  // CUDA has one NaN, and we keep payloads
    ASSERT_EQ(Fp32ToFp16(x), static_cast<__half_raw>(fp16).x) << x;
    ASSERT_EQ(Fp32ToBf16(x), static_cast<__nv_bfloat16_raw>(bf16).x) << x;
  });
}

}  // namespace
}  // namespace forebay

#else

TEST(FpOracleTest, IsLeftOut) { GTEST_SKIP() << "built without CUDA: the oracle is left out"; }

#endif
