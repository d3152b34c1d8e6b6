#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/plane.h"

// The elements of a plane that are stored exactly, apart from the codes. Internal to codec/.
namespace forebay {

inline constexpr size_t kOutlierBytes = 4;  // u16 index, u16 element

// The vectors that outliers are taken from: rows, or channels over the coded tokens.
struct OutlierVectors {
  size_t count = 0;
  size_t length = 0;
  size_t outliers = 0;  // of each
};
OutlierVectors OutlierVectorsOf(const PlaneFormat& format, const PlaneShape& shape);

// Element of the plane where vector `i` begins, and from one element of it to the next.
struct OutlierVector {
  size_t first = 0;
  size_t stride = 1;
};
OutlierVector OutlierVectorAt(const PlaneFormat& format, const PlaneShape& shape, size_t i);

// Puts them back where they were. False for one that is Inf, NaN or out of its vector, or whose
// index does not ascend.
bool PutOutliers(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* outliers,
                 uint8_t* raw);

}  // namespace forebay
