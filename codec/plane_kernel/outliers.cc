// Which elements are stored apart (codec/plane.h), and what is left.

#include <algorithm>
#include <memory>

#include "codec/plane_kernel/elements.h"
#include "codec/plane_kernel/plane_kernel.h"
#include "codec/plane_kernel/units.h"
#include "codec/plane_outliers.h"

// Compiled once for each instruction set that Highway knows of.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/plane_kernel/outliers.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace forebay::plane_kernel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// In this order: each needs those before it.
// clang-format off
#include "codec/plane_kernel/vectors.inc"
#include "codec/plane_kernel/groups.inc"
#include "codec/plane_kernel/ordered.inc"
// clang-format on

// The ends of a vector: keys whose order is that by which outliers are ranked, the first of equal
// ones before the others.
struct Ends {
  int16_t top[kOutliersMax + 1];
  uint16_t top_index[kOutliersMax + 1];
  int16_t bottom[kOutliersMax + 1];
  uint16_t bottom_index[kOutliersMax + 1];
};

// The `count` largest keys. Requires count <= length.
HWY_INLINE void LargestKeys(int16_t* keys, size_t length, size_t count, int16_t* top,
                            uint16_t* index) {
  constexpr int16_t kTaken = -0x8000;  // the key of a NaN, which is none of the others
  for (size_t k = 0; k < count; ++k) {
    size_t i = 0;
    int16_t most = kTaken;
#if FOREBAY_VECTORS
    const DOrdered d;
    auto mosts = hn::Set(d, kTaken);
    for (; i + hn::Lanes(d) <= length; i += hn::Lanes(d)) {
      mosts = hn::Max(mosts, hn::LoadU(d, keys + i));
    }
    most = hn::GetLane(hn::MaxOfLanes(d, mosts));
#endif
    for (; i < length; ++i) most = std::max(most, keys[i]);
    i = 0;
#if FOREBAY_VECTORS
    for (const auto wanted = hn::Set(d, most); i + hn::Lanes(d) <= length; i += hn::Lanes(d)) {
      const intptr_t lane = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, keys + i), wanted));
      if (lane < 0) continue;
      i += static_cast<size_t>(lane);
      break;
    }
#endif
    while (i + 1 < length && keys[i] != most) ++i;
    top[k] = most;
    index[k] = static_cast<uint16_t>(i);
    keys[i] = kTaken;
  }
  for (size_t k = count; k-- > 0;) keys[index[k]] = top[k];
}

// Of the vector at raw[element], elements `stride` apart.
HWY_INLINE void EndsOfVector(const uint8_t* raw, size_t element, size_t stride, size_t length,
                             bool affine, size_t outliers, int16_t* keys, Ends* ends) {
  size_t i = 0;
#if FOREBAY_VECTORS
  const DOrdered d;
  for (; stride == 1 && i + hn::Lanes(d) <= length; i += hn::Lanes(d)) {
    const auto words = hn::BitCast(d, LoadWords(raw, element + i));
    hn::StoreU(affine ? OrderedOf(d, words) : hn::And(words, hn::Set(d, 0x7fff)), d, keys + i);
  }
#endif
  for (; i < length; ++i) {
    const uint16_t word = LoadWord(raw, element + i * stride);
    keys[i] = affine ? Ordered(word) : static_cast<int16_t>(word & 0x7fff);
  }
  LargestKeys(keys, length, outliers + 1, ends->top, ends->top_index);
  if (!affine) return;
  i = 0;
#if FOREBAY_VECTORS
  for (; i + hn::Lanes(d) <= length; i += hn::Lanes(d)) {
    hn::StoreU(hn::Not(hn::LoadU(d, keys + i)), d, keys + i);
  }
#endif
  for (; i < length; ++i) keys[i] = static_cast<int16_t>(~keys[i]);
  LargestKeys(keys, length, outliers + 1, ends->bottom, ends->bottom_index);
  for (size_t k = 0; k <= outliers; ++k) ends->bottom[k] = static_cast<int16_t>(~ends->bottom[k]);
}

// The indices of the outliers, ascending. False where one is Inf or NaN.
template <class T>
HWY_INLINE bool ChooseOutliers(const Ends& ends, bool affine, size_t outliers, uint16_t* chosen) {
  const auto word = [&](int16_t key) {
    return affine ? static_cast<uint16_t>(Ordered(static_cast<uint16_t>(key)))
                  : static_cast<uint16_t>(key);
  };
  if ((word(ends.top[0]) & 0x7fff) >= T::kInf) return false;
  size_t from_above = outliers;
  if (affine) {
    if ((word(ends.bottom[0]) & 0x7fff) >= T::kInf) return false;
    float smallest = Fp32OfBits(kFp32InfBits);
    from_above = 0;
    for (size_t above = 0; above <= outliers; ++above) {
      const float range =
          AddFp32(T::Value(word(ends.top[above])), -T::Value(word(ends.bottom[outliers - above])));
      if (range < smallest) {
        smallest = range;
        from_above = above;
      }
    }
  }
  std::copy(ends.top_index, ends.top_index + from_above, chosen);
  std::copy(ends.bottom_index, ends.bottom_index + (outliers - from_above), chosen + from_above);
  std::sort(chosen, chosen + outliers);
  return true;
}

// Writes the outliers of one vector, and fills their slots.
HWY_INLINE void MoveOutliers(const uint16_t* chosen, size_t outliers, size_t length, size_t group,
                             uint8_t* dense, size_t element, size_t stride, uint8_t* to) {
  for (size_t i = 0; i < outliers; ++i, to += kOutlierBytes) {
    const size_t index = chosen[i];
    const uint16_t word = LoadWord(dense, element + index * stride);
    std::memcpy(to, &chosen[i], sizeof(chosen[i]));
    std::memcpy(to + 2, &word, sizeof(word));
  }
  for (size_t i = 0; i < outliers; ++i) {
    const size_t index = chosen[i];
    const size_t begin = index - index % group;
    const size_t end = std::min(begin + group, length);
    size_t neighbour = index;
    if (index > begin) {
      --neighbour;  // filled already, where it was one
    } else {
      for (size_t j = i; j < outliers && chosen[j] == neighbour; ++j) ++neighbour;
    }
    const uint16_t word = neighbour < end ? LoadWord(dense, element + neighbour * stride) : 0;
    StoreWord(word, dense, element + index * stride);
  }
}

#if FOREBAY_VECTORS

// Of as many channels as DOrdered has lanes, side by side: [rank][channel].
struct EndsOfColumns {
  static constexpr size_t kLanes = hn::MaxLanes(DOrdered());
  alignas(32) int16_t top[kOutliersMax + 1][kLanes];
  alignas(32) int16_t top_index[kOutliersMax + 1][kLanes];
  alignas(32) int16_t bottom[kOutliersMax + 1][kLanes];
  alignas(32) int16_t bottom_index[kOutliersMax + 1][kLanes];

  Ends Of(size_t lane, size_t outliers) const {
    Ends ends;
    for (size_t k = 0; k <= outliers; ++k) {
      ends.top[k] = top[k][lane];
      ends.top_index[k] = static_cast<uint16_t>(top_index[k][lane]);
      ends.bottom[k] = static_cast<int16_t>(~bottom[k][lane]);
      ends.bottom_index[k] = static_cast<uint16_t>(bottom_index[k][lane]);
    }
    return ends;
  }
};

// Puts each lane of `key` into its list, which descends; behind those equal to it.
HWY_INLINE void Insert(hn::Vec<DOrdered> key, hn::Vec<DOrdered> index, size_t count,
                       int16_t (*keys)[EndsOfColumns::kLanes],
                       int16_t (*indices)[EndsOfColumns::kLanes]) {
  const DOrdered d;
  auto larger = hn::Gt(key, hn::Load(d, keys[0]));
  for (size_t k = 0; k < count; ++k) {
    const auto old_key = hn::Load(d, keys[k]);
    const auto old_index = hn::Load(d, indices[k]);
    // From where it belongs on, all move: what comes down may equal the next.
    larger = hn::Or(larger, hn::Gt(key, old_key));
    hn::Store(hn::IfThenElse(larger, key, old_key), d, keys[k]);
    hn::Store(hn::IfThenElse(larger, index, old_index), d, indices[k]);
    key = hn::IfThenElse(larger, old_key, key);
    index = hn::IfThenElse(larger, old_index, index);
  }
}

HWY_INLINE void EndsOf(const uint8_t* raw, size_t element, size_t stride, size_t length,
                       bool affine, size_t outliers, EndsOfColumns* ends) {
  const DOrdered d;
  for (size_t k = 0; k <= outliers; ++k) {
    hn::Store(hn::Set(d, -0x8000), d, ends->top[k]);
    hn::Store(hn::Set(d, -0x8000), d, ends->bottom[k]);
    hn::Store(hn::Zero(d), d, ends->top_index[k]);
    hn::Store(hn::Zero(d), d, ends->bottom_index[k]);
  }
  for (size_t i = 0; i < length; ++i) {
    const auto words = hn::BitCast(d, LoadWords(raw, element + i * stride));
    const auto index = hn::Set(d, static_cast<int16_t>(i));
    if (!affine) {
      Insert(hn::And(words, hn::Set(d, 0x7fff)), index, outliers + 1, ends->top, ends->top_index);
      continue;
    }
    const auto key = OrderedOf(d, words);
    Insert(key, index, outliers + 1, ends->top, ends->top_index);
    Insert(hn::Not(key), index, outliers + 1, ends->bottom, ends->bottom_index);
  }
}

#endif  // FOREBAY_VECTORS

// `dense` is a copy of the plane; `keys` holds a vector.
template <class T>
bool TakeOutliersAs(const PlaneFormat& format, const PlaneShape& shape, uint8_t* dense,
                    uint8_t* outliers, int16_t* keys) {
  const bool affine = format.kind == PlaneKind::kInt4 || format.kind == PlaneKind::kInt2;
  const OutlierVectors vectors = OutlierVectorsOf(format, shape);
  const size_t count = vectors.outliers;
  if (count == 0) return true;
  const size_t group = format.group == 0 ? vectors.length : format.group;
  const auto move = [&](const Ends& ends, size_t v, const OutlierVector& vector) {
    uint16_t chosen[kOutliersMax];
    if (!ChooseOutliers<T>(ends, affine, count, chosen)) return false;
    MoveOutliers(chosen, count, vectors.length, group, dense, vector.first, vector.stride,
                 outliers + v * count * kOutlierBytes);
    return true;
  };
  for (size_t v = 0; v < vectors.count;) {
    const OutlierVector vector = OutlierVectorAt(format, shape, v);
#if FOREBAY_VECTORS
    constexpr size_t kLanes = EndsOfColumns::kLanes;
    if (format.axis == GroupAxis::kColumn && v % shape.dim + kLanes <= shape.dim) {
      EndsOfColumns columns;
      EndsOf(dense, vector.first, vector.stride, vectors.length, affine, count, &columns);
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const OutlierVector channel{vector.first + lane, vector.stride};
        if (!move(columns.Of(lane, count), v + lane, channel)) return false;
      }
      v += kLanes;
      continue;
    }
#endif
    Ends ends;
    EndsOfVector(dense, vector.first, vector.stride, vectors.length, affine, count, keys, &ends);
    if (!move(ends, v, vector)) return false;
    ++v;
  }
  return true;
}

bool TakeOutliersHere(const PlaneFormat& format, const PlaneShape& shape, uint8_t* dense,
                      uint8_t* outliers, int16_t* keys) {
  return shape.dtype == DType::kBf16 ? TakeOutliersAs<Bf16>(format, shape, dense, outliers, keys)
                                     : TakeOutliersAs<Fp16>(format, shape, dense, outliers, keys);
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay::plane_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::plane_kernel {

HWY_EXPORT(TakeOutliersHere);

bool TakeOutliers(const PlaneFormat& format, const PlaneShape& shape, const uint8_t* raw,
                  uint8_t* dense, uint8_t* outliers) {
  if (shape.element_count() == 0) return true;
  std::memcpy(dense, raw, shape.raw_bytes());
  const auto keys =
      std::make_unique_for_overwrite<int16_t[]>(OutlierVectorsOf(format, shape).length);
  return HWY_DYNAMIC_DISPATCH(TakeOutliersHere)(format, shape, dense, outliers, keys.get());
}

}  // namespace forebay::plane_kernel
#endif
