#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "codec/steps/float_formats.h"
#include "codec/testing/parts.h"
#include "codec/uniform/calibrator.h"
#include "codec/uniform/dictionary.h"
#include "codec/uniform/uniform_codec.h"

// What the tests of public reports share (docs/cases.md).
namespace forebay::testing {

inline float ElementAt(DType dtype, const std::vector<std::byte>& raw, size_t i) {
  uint16_t word;
  std::memcpy(&word, raw.data() + 2 * i, sizeof(word));
  return dtype == DType::kFp16 ? Fp16ToFp32(word) : Bf16ToFp32(word);
}
inline void SetElement(DType dtype, std::vector<std::byte>& raw, size_t i, float x) {
  const uint16_t word = dtype == DType::kFp16 ? Fp32ToFp16Saturated(x) : Fp32ToBf16(x);
  std::memcpy(raw.data() + 2 * i, &word, sizeof(word));
}

// Of the elements [begin, end), the root of the mean square against that of what was wanted.
inline double RelativeError(DType dtype, const std::vector<std::byte>& wanted,
                            const std::vector<std::byte>& got, size_t begin, size_t end) {
  double error = 0;
  double power = 0;
  for (size_t i = begin; i < end; ++i) {
    const double x = ElementAt(dtype, wanted, i);
    error += std::pow(x - ElementAt(dtype, got, i), 2);
    power += x * x;
  }
  return power == 0 ? std::sqrt(error) : std::sqrt(error / power);
}

// The numbers of a class that a page of ordinary numbers stays within.
inline double ErrorMax(QualityClass c) {
  switch (c) {
    case QualityClass::kExact:
      return 0;
    case QualityClass::kNear:
      return 0.05;
    case QualityClass::kFair:
      return 0.2;
    case QualityClass::kCoarse:
      return 0.9;
  }
  return 0;
}

// Through the codec and back by the frame alone; a failure fails the test.
inline std::vector<std::byte> Trip(const Codec& codec, const KvLayout& layout, const PartSpec& part,
                                   const std::vector<std::byte>& raw,
                                   EncodedFrame* frame = nullptr) {
  EncodedFrame own;
  EncodedFrame& made = frame == nullptr ? own : *frame;
  made = Encode(codec, layout, part, PartPlan(), raw);
  EXPECT_TRUE(made.status.ok()) << codec.name() << ": " << made.status;
  const absl::StatusOr<std::vector<std::byte>> back = Decode(layout, part, made);
  EXPECT_TRUE(back.ok()) << codec.name() << ": " << back.status();
  return back.ok() ? *back : std::vector<std::byte>(raw.size());
}

// A codec of uniform steps whose dictionary was made of other numbers of the same kind, and is in
// this process's store. The layout's parts have all heads.
inline std::unique_ptr<UniformCodec> UniformFor(const KvLayout& layout) {
  UniformCalibrator calibrator(layout);
  uint64_t seed = 1000;
  for (uint32_t layer = 0; layer < layout.layers.size(); ++layer) {
    const LayerSpec& spec = layout.layers[layer];
    for (const bool value : {false, true}) {
      const PlaneShape shape{layout.page_tokens, spec.kv_heads, value ? spec.v_dim : spec.k_dim,
                             layout.plane_order, spec.dtype};
      PartSpec plane;
      plane.dtype = spec.dtype;
      plane.raw_bytes = static_cast<uint32_t>(shape.raw_bytes());
      FB_CHECK(calibrator
                   .AddPlane(layer, value ? Stream::kValue : Stream::kKey, shape,
                             CacheBytes(plane, ++seed))
                   .ok());
    }
  }
  const auto dictionary = std::make_shared<const Dictionary>(*calibrator.Finish({}));
  DictionaryStore::Default().Add(dictionary);
  return std::make_unique<UniformCodec>("uniform", &DictionaryStore::Default(), dictionary, 1, 1);
}

}  // namespace forebay::testing
