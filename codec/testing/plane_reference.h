#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/random.h"
#include "codec/plane.h"
#include "codec/steps/compact_scale.h"
#include "codec/steps/hadamard.h"
#include "codec/steps/level_quant.h"

// Planes of integer and Lloyd-Max codes once more, one vector after the other with no thought of
// speed: the bytes, what they decode to, and how far off that may be.
namespace forebay::testing {

using Words = std::vector<uint16_t>;

inline float Value(DType dtype, uint16_t word) {
  return dtype == DType::kBf16 ? Bf16ToFp32(word) : Fp16ToFp32(word);
}
inline uint16_t Word(DType dtype, float x) {
  return dtype == DType::kBf16 ? Fp32ToBf16(x) : Fp32ToFp16Saturated(x);
}
inline bool Fits(DType dtype, float x) {
  return IsFiniteFp32(x) && IsFiniteFp32(Value(dtype, Word(dtype, x)));
}
// Their order is that of the numbers, -0 below +0.
inline int Rank(uint16_t word) { return word < 0x8000 ? word : 0x7fff - int{word}; }

enum class Data { kNormal, kOutliers, kSubnormal, kConstant, kZero, kHuge, kOffset, kFew };
inline constexpr int kDataCount = 8;

inline Words Fill(const PlaneShape& shape, Data data, uint64_t seed) {
  SeededRandom random(seed);
  const auto uniform = [&] { return static_cast<float>(random.Below(1 << 20)) / (1 << 19) - 1.0f; };
  const float largest = shape.dtype == DType::kBf16 ? 1e38f : 60000.0f;
  const float smallest = shape.dtype == DType::kBf16 ? 1e-39f : 1e-6f;
  const auto constant = static_cast<float>(1 + random.Below(7));
  Words words(shape.element_count());
  for (size_t i = 0; i < words.size(); ++i) {
    const float normal = uniform() + uniform() + uniform();
    float x = normal;
    if (data == Data::kOutliers) x *= random.Below(50) == 0 || i % shape.dim == 3 ? 30.0f : 1.0f;
    if (data == Data::kSubnormal) x = smallest * uniform();
    if (data == Data::kConstant) x = constant;
    if (data == Data::kZero) x = random.Below(2) == 0 ? 0.0f : -0.0f;
    if (data == Data::kHuge) x = largest * uniform();
    if (data == Data::kOffset) x = 100.0f * static_cast<float>(i % shape.dim % 3) + normal;
    if (data == Data::kFew) x = static_cast<float>(random.Below(3)) - 1.0f;  // many are equal
    words[i] = Word(shape.dtype, x);
  }
  return words;
}

// ---- the reference ----

inline int BitsOf(PlaneKind kind) {
  switch (kind) {
    case PlaneKind::kInt4:
    case PlaneKind::kLloyd4:
      return 4;
    case PlaneKind::kLloyd3:
      return 3;
    case PlaneKind::kInt2:
    case PlaneKind::kLloyd2:
      return 2;
    default:
      return 8;
  }
}
inline bool IsAffine(PlaneKind kind) {
  return kind == PlaneKind::kInt4 || kind == PlaneKind::kInt2;
}

// A row, or a channel over the coded tokens: its elements.
inline std::vector<std::vector<size_t>> VectorsOf(const PlaneFormat& format,
                                                  const PlaneShape& shape) {
  std::vector<std::vector<size_t>> vectors;
  const bool columns = format.axis == GroupAxis::kColumn;
  const uint32_t tokens = CodedTokens(format, shape);
  for (uint32_t head = 0; head < shape.heads; ++head) {
    for (uint32_t v = 0; v < (columns ? shape.dim : tokens); ++v) {
      std::vector<size_t>& vector = vectors.emplace_back();
      for (uint32_t i = 0; i < (columns ? tokens : shape.dim); ++i) {
        vector.push_back(columns ? shape.RowAt(i, head) + v : shape.RowAt(v, head) + i);
      }
    }
  }
  return vectors;
}

inline std::vector<size_t> Chosen(const PlaneFormat& format, DType dtype, const Words& x) {
  const size_t count = std::min<size_t>(format.outliers, x.size() / 4);
  std::vector<size_t> falling(x.size());
  std::iota(falling.begin(), falling.end(), 0);
  std::vector<size_t> rising = falling;
  const auto rank = [&](size_t i) {
    return IsAffine(format.kind) ? Rank(x[i]) : static_cast<int>(x[i] & 0x7fff);
  };
  std::stable_sort(falling.begin(), falling.end(),
                   [&](size_t a, size_t b) { return rank(a) > rank(b); });
  std::stable_sort(rising.begin(), rising.end(),
                   [&](size_t a, size_t b) { return rank(a) < rank(b); });
  size_t above = count;
  if (IsAffine(format.kind) && count > 0) {
    float best = INFINITY;
    above = 0;
    for (size_t n = 0; n <= count; ++n) {
      const float range = Value(dtype, x[falling[n]]) - Value(dtype, x[rising[count - n]]);
      if (range < best) {
        best = range;
        above = n;
      }
    }
  }
  std::vector<size_t> chosen(falling.begin(), falling.begin() + above);
  chosen.insert(chosen.end(), rising.begin(), rising.begin() + (count - above));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

inline Words Rotated(const PlaneShape& shape, const Words& words, float limit, bool* sound) {
  Words rotated(words.size());
  for (size_t row = 0; row < words.size(); row += shape.dim) {
    std::vector<float> x;
    for (size_t c = 0; c < shape.dim; ++c) x.push_back(Value(shape.dtype, words[row + c]));
    for (const float value : x) *sound &= std::fabs(value) <= limit;
    for (size_t begin = 0; begin < shape.dim;) {
      const size_t n = HadamardBlock(shape.dim - begin);
      HadamardRotate(x.data() + begin, n);
      begin += n;
    }
    for (size_t c = 0; c < shape.dim; ++c) {
      *sound &= limit > 0x1p64f || shape.dtype == DType::kBf16 || std::fabs(x[c]) <= 65504;
      rotated[row + c] = Word(shape.dtype, x[c]);
    }
  }
  return rotated;
}

struct CodedGroup {
  bool codable = true;
  std::vector<std::byte> scale;
  std::vector<std::byte> zero;
  std::vector<uint8_t> codes;
  std::vector<float> values;
  std::vector<float> bound;  // of each, against the value before it is rounded
};

inline std::vector<std::byte> ScaleBytes(float x, ScaleFormat format) {
  const uint16_t word = Fp32ToBf16(x);
  std::vector<std::byte> bytes(format == ScaleFormat::kBf16 ? 2 : 4);
  std::memcpy(bytes.data(), format == ScaleFormat::kBf16 ? static_cast<const void*>(&word) : &x,
              bytes.size());
  return bytes;
}

template <int kBits>
CodedGroup CodeAffine(const PlaneFormat& format, DType dtype, const std::vector<float>& x,
                      const CompactUnit& unit) {
  CodedGroup coded;
  const auto [min, max] = std::minmax_element(x.begin(), x.end());
  AffineGroup group;
  if (format.scale == ScaleFormat::kCompact) {
    const CompactGroup stored = CompactGroupOfRange<kBits>(*min, *max, unit);
    group = AffineGroupOfCompact<kBits>(stored, unit.unit);
    coded.scale = {static_cast<std::byte>(stored.scale)};
    coded.zero = {static_cast<std::byte>(stored.zero)};
  } else {
    group = AffineGroupOfRange<kBits>(*min, *max, format.scale);
    coded.scale = ScaleBytes(group.scale, format.scale);
    coded.zero = ScaleBytes(group.zero, format.scale);
  }
  coded.codable = Fits(dtype, group.zero) &&
                  Fits(dtype, AffineValue((1 << kBits) - 1, group.scale, group.zero));
  const bool rounded = format.scale == ScaleFormat::kBf16;
  for (const float value : x) {
    coded.codes.push_back(AffineCode<kBits>(value, group));
    coded.values.push_back(AffineValue(coded.codes.back(), group.scale, group.zero));
    coded.bound.push_back(0.5001f * group.scale + 1e-6f * (std::fabs(*min) + std::fabs(*max)) +
                          (rounded ? 15.0f / 256 * group.scale + std::fabs(*min) / 255 : 0.0f) +
                          127 * 0x1p-126f);
  }
  return coded;
}

template <int kBits>
CodedGroup CodeLevels(const PlaneFormat& format, DType dtype, const std::vector<float>& x) {
  constexpr LevelTable<kBits> kTable = LloydMaxLevels<kBits>();
  CodedGroup coded;
  coded.codes.resize(x.size());
  const float scale =
      EncodeLevelGroup<kBits>(x.data(), x.size(), kTable, format.scale, coded.codes.data());
  coded.scale = ScaleBytes(scale, format.scale);
  coded.codable = Fits(dtype, MultiplyFp32(kTable.largest(), scale));
  for (size_t i = 0; i < x.size(); ++i) {
    coded.values.push_back(LevelValue<kBits>(coded.codes[i], scale, kTable));
    float nearest = INFINITY;
    for (uint8_t code = 0; code < 1 << kBits; ++code) {
      nearest = std::min(nearest, std::fabs(x[i] - LevelValue<kBits>(code, scale, kTable)));
    }
    coded.bound.push_back(nearest * 1.0001f + 1e-6f * scale + 127 * 0x1p-126f);
  }
  return coded;
}

inline CodedGroup CodeInt8(const PlaneFormat& format, DType dtype, const std::vector<float>& x) {
  CodedGroup coded;
  const SymmetricGroup group = SymmetricGroupOfAmax(GroupAmax(x.data(), x.size(), 1), format.scale);
  coded.scale = ScaleBytes(group.scale, format.scale);
  coded.codable = group.codable && Fits(dtype, MultiplyFp32(127, group.scale));
  for (const float value : x) {
    const int8_t code = SymmetricCode(value, group);
    coded.codes.push_back(static_cast<uint8_t>(code));
    coded.values.push_back(SymmetricValue(code, group.scale));
    coded.bound.push_back(0.5001f * group.scale + 127 * 0x1p-126f);
  }
  return coded;
}

inline CodedGroup CodeGroup(const PlaneFormat& format, DType dtype, const std::vector<float>& x,
                            const CompactUnit& unit) {
  switch (format.kind) {
    case PlaneKind::kInt4:
      return CodeAffine<4>(format, dtype, x, unit);
    case PlaneKind::kInt2:
      return CodeAffine<2>(format, dtype, x, unit);
    case PlaneKind::kLloyd4:
      return CodeLevels<4>(format, dtype, x);
    case PlaneKind::kLloyd3:
      return CodeLevels<3>(format, dtype, x);
    case PlaneKind::kLloyd2:
      return CodeLevels<2>(format, dtype, x);
    default:
      return CodeInt8(format, dtype, x);
  }
}

using Stream = std::vector<std::byte>;
inline void Append(Stream& to, const void* from, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(from);
  to.insert(to.end(), first, first + bytes);
}

struct Reference {
  bool codable = true;
  std::vector<std::byte> payload;
  Words decoded;
  std::vector<float> bound;  // by element, of the dense plane that is coded
};

struct ReferenceCoder {
  const PlaneFormat& format;
  const PlaneShape& shape;
  const Words& words;
  const bool columns = format.axis == GroupAxis::kColumn;
  Reference made{true, {}, Words(words.size()), std::vector<float>(words.size())};
  Words dense = words;
  Stream codes{}, scales{}, zeros{}, units{}, outliers{}, rest{};
  std::vector<std::pair<size_t, uint16_t>> exact{};

  // Takes the outliers of one vector, fills their slots.
  void TakeOutliers(const std::vector<size_t>& vector) {
    Words x;
    for (const size_t element : vector) x.push_back(words[element]);
    const size_t group = format.group == 0 ? vector.size() : format.group;
    const std::vector<size_t> chosen = Chosen(format, shape.dtype, x);
    const auto is_chosen = [&](size_t i) {
      return std::binary_search(chosen.begin(), chosen.end(), i);
    };
    for (const size_t i : chosen) {
      exact.emplace_back(vector[i], x[i]);
      const auto index = static_cast<uint16_t>(i);
      Append(outliers, &index, 2);
      Append(outliers, &x[i], 2);
      const size_t begin = i / group * group;
      const size_t end = std::min(begin + group, vector.size());
      size_t from = i;
      while (from > begin && is_chosen(from)) --from;
      if (is_chosen(from)) from = i;
      while (from < end && is_chosen(from)) ++from;
      dense[vector[i]] = from < end ? x[from] : 0;
    }
  }

  CompactUnit UnitOf(size_t first, size_t count,
                     const std::vector<std::vector<size_t>>& vectors) const {
    float amax = 0;
    for (size_t v = first; v < first + count; ++v) {
      for (const size_t e : vectors[v])
        amax = std::max(amax, std::fabs(Value(shape.dtype, dense[e])));
    }
    return CompactUnitOfAmax(amax);
  }

  // Codes of one group, in their bytes: a row's follow one another, of columns one byte a channel.
  std::vector<uint8_t> Code(const std::vector<size_t>& elements, const CompactUnit& unit) {
    std::vector<float> x;
    for (const size_t element : elements) x.push_back(Value(shape.dtype, dense[element]));
    const CodedGroup coded = CodeGroup(format, shape.dtype, x, unit);
    made.codable &= coded.codable;
    Append(scales, coded.scale.data(), coded.scale.size());
    Append(zeros, coded.zero.data(), coded.zero.size());
    for (size_t i = 0; i < elements.size(); ++i) {
      made.decoded[elements[i]] = Word(shape.dtype, coded.values[i]);
      made.bound[elements[i]] = coded.bound[i];
    }
    return coded.codes;
  }

  static std::vector<uint8_t> Packed(const std::vector<uint8_t>& codes, int bits) {
    std::vector<uint8_t> bytes((codes.size() * bits + 7) / 8);
    for (size_t bit = 0; bit < codes.size() * bits; ++bit) {
      if (codes[bit / bits] >> bit % bits & 1) bytes[bit / 8] |= static_cast<uint8_t>(1 << bit % 8);
    }
    return bytes;
  }

  void CodeHead(size_t first, size_t count, const std::vector<std::vector<size_t>>& vectors) {
    const CompactUnit unit = UnitOf(first, count, vectors);
    Append(units, &unit.unit, 4);
    const int bits = BitsOf(format.kind);
    const size_t length = vectors[first].size();
    const size_t group = format.group == 0 ? length : format.group;
    if (!columns) {
      for (size_t v = first; v < first + count; ++v) {
        std::vector<uint8_t> row;
        for (size_t begin = 0; begin < length; begin += group) {
          const auto from = vectors[v].begin() + begin;
          const auto coded = Code({from, from + std::min(group, length - begin)}, unit);
          row.insert(row.end(), coded.begin(), coded.end());
        }
        const auto bytes = Packed(row, bits);
        Append(codes, bytes.data(), bytes.size());
      }
      return;
    }
    for (size_t begin = 0; begin < length; begin += group) {
      std::vector<std::vector<uint8_t>> by_channel;
      for (size_t v = first; v < first + count; ++v) {
        const auto from = vectors[v].begin() + begin;
        by_channel.push_back(
            Packed(Code({from, from + std::min(group, length - begin)}, unit), bits));
      }
      for (size_t j = 0; j < by_channel[0].size(); ++j) {
        for (const auto& channel : by_channel) Append(codes, &channel[j], 1);
      }
    }
  }

  Reference Run() {
    for (const uint16_t word : words) made.codable &= IsFiniteFp32(Value(shape.dtype, word));
    if (!made.codable) return made;
    const auto vectors = VectorsOf(format, shape);
    if (format.outliers > 0) {
      for (const auto& vector : vectors) TakeOutliers(vector);
    }
    if (format.transform == PlaneTransform::kHadamard) {
      dense = Rotated(shape, words, 0x1p64f, &made.codable);
      if (!made.codable) return made;
    }
    const size_t per_head = vectors.size() / shape.heads;
    for (uint32_t head = 0; head < shape.heads; ++head) {
      if (!vectors[head * per_head].empty()) CodeHead(head * per_head, per_head, vectors);
      for (uint32_t token = CodedTokens(format, shape); token < shape.tokens; ++token) {
        const size_t row = shape.RowAt(token, head);
        Append(rest, &words[row], 2 * size_t{shape.dim});
        std::copy_n(words.begin() + row, shape.dim, made.decoded.begin() + row);
      }
    }
    for (const auto& [element, word] : exact) {
      made.decoded[element] = word;
      made.bound[element] = 0;
    }
    bool back = true;
    if (format.transform != PlaneTransform::kNone) {
      made.decoded = Rotated(shape, made.decoded, 0x1p96f, &back);
    }
    EXPECT_TRUE(back);
    if (format.scale != ScaleFormat::kCompact) units.clear();
    for (Stream* stream : {&codes, &scales, &zeros, &units, &outliers, &rest}) {
      stream->resize((stream->size() + 15) / 16 * 16);
      made.payload.insert(made.payload.end(), stream->begin(), stream->end());
    }
    return made;
  }
};

}  // namespace forebay::testing
