#include "codec/plane_outliers.h"

#include <algorithm>
#include <cstring>

namespace forebay {

OutlierVectors OutlierVectorsOf(const PlaneFormat& format, const PlaneShape& shape) {
  if (format.outliers == 0) return {};
  OutlierVectors vectors;
  if (format.axis == GroupAxis::kColumn) {
    vectors.count = size_t{shape.heads} * shape.dim;
    vectors.length = CodedTokens(format, shape);
  } else {
    vectors.count = shape.row_count();
    vectors.length = shape.dim;
  }
  vectors.outliers = std::min<size_t>(format.outliers, vectors.length / 4);
  return vectors;
}

OutlierVector OutlierVectorAt(const PlaneFormat& format, const PlaneShape& shape, size_t i) {
  // Limits of a layout (base/kv_layout.h): heads and tokens to 65,535, dims to 65,536.
  const auto at = static_cast<uint32_t>(i);
  if (format.axis == GroupAxis::kColumn) {
    return {shape.RowAt(0, at / shape.dim) + at % shape.dim, shape.row_stride()};
  }
  return {shape.RowAt(at % shape.tokens, at / shape.tokens), 1};
}

bool PutOutliers(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* outliers,
                 uint8_t* raw) {
  const uint16_t inf = shape.dtype == DType::kBf16 ? 0x7f80 : 0x7c00;
  const OutlierVectors vectors = OutlierVectorsOf(format, shape);
  if (vectors.outliers == 0) return true;
  for (size_t v = 0; v < vectors.count; ++v) {
    const OutlierVector vector = OutlierVectorAt(format, shape, v);
    size_t next = 0;
    for (size_t i = 0; i < vectors.outliers; ++i, outliers += kOutlierBytes) {
      uint16_t index;
      uint16_t word;
      std::memcpy(&index, outliers, sizeof(index));
      std::memcpy(&word, outliers + 2, sizeof(word));
      if (index < next || index >= vectors.length || (word & 0x7fff) >= inf) return false;
      std::memcpy(raw + 2 * (vector.first + index * vector.stride), &word, sizeof(word));
      next = size_t{index} + 1;
    }
  }
  return true;
}

}  // namespace forebay
