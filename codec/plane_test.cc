#include "codec/plane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "codec/testing/targets.h"

namespace forebay {
namespace {

using ::forebay::testing::EveryTarget;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

float Value(DType dtype, uint16_t word) {
  return dtype == DType::kBf16 ? Bf16ToFp32(word) : Fp16ToFp32(word);
}
uint16_t Word(DType dtype, float x) {
  return dtype == DType::kBf16 ? Fp32ToBf16(x) : Fp32ToFp16Saturated(x);
}

enum class Data { kNormal, kOutliers, kSubnormal, kConstant, kZero, kHuge, kOffset };
constexpr Data kAllData[] = {Data::kNormal, Data::kOutliers, Data::kSubnormal, Data::kConstant,
                             Data::kZero,   Data::kHuge,     Data::kOffset};

std::vector<uint16_t> Fill(const PlaneShape& shape, Data data, uint64_t seed) {
  SeededRandom random(seed);
  const auto uniform = [&] { return static_cast<float>(random.Below(1 << 20)) / (1 << 19) - 1.0f; };
  const float largest = shape.dtype == DType::kBf16 ? 1e38f : 60000.0f;
  const float smallest = shape.dtype == DType::kBf16 ? 1e-39f : 1e-6f;
  const auto constant = static_cast<float>(1 + random.Below(7));
  std::vector<uint16_t> words(shape.element_count());
  for (uint16_t& word : words) {
    const float normal = uniform() + uniform() + uniform();
    float x = normal;
    if (data == Data::kOutliers && random.Below(50) == 0) x = 30 * normal;
    if (data == Data::kSubnormal) x = smallest * uniform();
    if (data == Data::kConstant) x = constant;
    if (data == Data::kZero) x = random.Below(2) == 0 ? 0.0f : -0.0f;
    if (data == Data::kHuge) x = largest * uniform();
    if (data == Data::kOffset) x = 100 + normal;
    word = Word(shape.dtype, x);
  }
  return words;
}

// The format once more, a group at a time, with no thought of speed: a list of the groups' elements
// and where their codes and scales belong.
struct Reference {
  bool codable = true;
  std::vector<std::byte> payload;
  std::vector<float> decoded;    // by element, before it is rounded to the dtype
  std::vector<float> half_step;  // how far from its element a decoded one may be
};

size_t Aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

int BitsOf(PlaneKind kind) {
  return kind == PlaneKind::kInt4 ? 4 : kind == PlaneKind::kInt2 ? 2 : 8;
}

struct Group {
  std::vector<size_t> elements;
  std::vector<std::pair<size_t, int>> codes;  // byte and shift of each
};

std::vector<Group> GroupsOf(const PlaneFormat& format, const PlaneShape& shape,
                            size_t* code_bytes) {
  const int bits = BitsOf(format.kind);
  const size_t per_byte = 8 / bits;
  std::vector<Group> groups;
  size_t at = 0;
  const size_t row_bytes = (shape.dim + per_byte - 1) / per_byte;
  for (uint32_t head = 0; head < shape.heads; ++head) {
    if (format.axis == GroupAxis::kColumn) {
      const uint32_t group = format.group == 0 ? shape.tokens : format.group;
      for (uint32_t begin = 0; begin < shape.tokens; begin += group) {
        const uint32_t tokens = std::min(group, shape.tokens - begin);
        if (tokens < kColumnTokensMin) break;
        for (uint32_t c = 0; c < shape.dim; ++c) {
          Group& made = groups.emplace_back();
          for (uint32_t t = 0; t < tokens; ++t) {
            made.elements.push_back(shape.RowAt(begin + t, head) + c);
            made.codes.emplace_back(at + t / per_byte * shape.dim + c,
                                    static_cast<int>(t % per_byte) * bits);
          }
        }
        at += (tokens + per_byte - 1) / per_byte * shape.dim;
      }
      continue;
    }
    if (format.axis != GroupAxis::kRow) groups.emplace_back();
    for (uint32_t token = 0; token < shape.tokens; ++token) {
      const uint32_t group = format.group == 0 ? shape.dim : format.group;
      for (uint32_t c = 0; c < shape.dim; ++c) {
        if (format.axis == GroupAxis::kRow && c % group == 0) groups.emplace_back();
        groups.back().elements.push_back(shape.RowAt(token, head) + c);
        groups.back().codes.emplace_back(at + c / per_byte, static_cast<int>(c % per_byte) * bits);
      }
      at += row_bytes;
    }
  }
  *code_bytes = at;
  return groups;
}

bool FitsIn(DType dtype, float x) {
  return IsFiniteFp32(x) && IsFiniteFp32(Value(dtype, Word(dtype, x)));
}

// One group's scale, zero, codes and values.
struct CodedGroup {
  bool codable = false;
  float scale = 1;
  float zero = 0;
  std::vector<uint8_t> codes;
  std::vector<float> values;
};

template <int kBits>
CodedGroup CodeAffine(const std::vector<float>& x, ScaleFormat scale, DType dtype) {
  CodedGroup coded;
  coded.codes.resize(x.size());
  const AffineGroup group =
      EncodeAffineGroup<kBits>(x.data(), x.size(), 1, scale, coded.codes.data());
  coded.scale = group.scale;
  coded.zero = group.zero;
  coded.codable = group.codable && FitsIn(dtype, group.zero) &&
                  FitsIn(dtype, AffineValue((1 << kBits) - 1, group.scale, group.zero));
  for (const uint8_t code : coded.codes) {
    coded.values.push_back(AffineValue(code, group.scale, group.zero));
  }
  return coded;
}

CodedGroup CodeGroup(const PlaneFormat& format, DType dtype, const std::vector<float>& x) {
  if (format.kind == PlaneKind::kInt4) return CodeAffine<4>(x, format.scale, dtype);
  if (format.kind == PlaneKind::kInt2) return CodeAffine<2>(x, format.scale, dtype);
  CodedGroup coded;
  const float amax = GroupAmax(x.data(), x.size(), 1);
  if (format.kind == PlaneKind::kInt8) {
    const SymmetricGroup group = SymmetricGroupOfAmax(amax, format.scale);
    coded.scale = group.scale;
    coded.codable = group.codable && FitsIn(dtype, MultiplyFp32(127, group.scale));
    for (const float value : x) {
      const int8_t code = SymmetricCode(value, group);
      coded.codes.push_back(static_cast<uint8_t>(code));
      coded.values.push_back(SymmetricValue(code, group.scale));
    }
    return coded;
  }
  const bool is_e4m3 = format.kind == PlaneKind::kFp8E4M3;
  float inverse = 1;
  if (is_e4m3) {
    coded.scale = ScaleToStore(DivideFp32(amax, 448), format.scale);
    inverse = InverseOfScale(coded.scale);
    coded.codable = FitsIn(dtype, MultiplyFp32(448, coded.scale));
  } else {
    coded.codable = amax <= 57344;
  }
  for (const float value : x) {
    const float y = MultiplyFp32(value, inverse);
    const uint8_t code = is_e4m3 ? Fp32ToE4M3(y) : Fp32ToE5M2(y);
    coded.codes.push_back(code);
    coded.values.push_back(
        MultiplyFp32(is_e4m3 ? E4M3ToFp32(code) : E5M2ToFp32(code), coded.scale));
  }
  return coded;
}

void PutScale(float x, ScaleFormat format, size_t at, std::vector<std::byte>& to) {
  const uint16_t word = Fp32ToBf16(x);
  if (format == ScaleFormat::kBf16) {
    std::memcpy(to.data() + at, &word, 2);
  } else {
    std::memcpy(to.data() + at, &x, 4);
  }
}

Reference Encode(const PlaneFormat& format, const PlaneShape& shape,
                 const std::vector<uint16_t>& words) {
  Reference made;
  size_t code_bytes = 0;
  const std::vector<Group> groups = GroupsOf(format, shape, &code_bytes);
  const size_t width = format.scale == ScaleFormat::kBf16 ? 2 : 4;
  const bool scaled = format.axis != GroupAxis::kNone;
  const bool affine = BitsOf(format.kind) < 8;
  const size_t scale_bytes = scaled ? Aligned(groups.size() * width) : 0;
  const size_t scales = Aligned(code_bytes);
  made.payload.resize(scales + scale_bytes * (affine ? 2 : 1));
  made.decoded.resize(words.size());
  made.half_step.resize(words.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<float> x;
    for (const size_t element : groups[g].elements) x.push_back(Value(shape.dtype, words[element]));
    const CodedGroup coded = CodeGroup(format, shape.dtype, x);
    made.codable &= coded.codable;
    if (scaled) PutScale(coded.scale, format.scale, scales + g * width, made.payload);
    if (affine) PutScale(coded.zero, format.scale, scales + scale_bytes + g * width, made.payload);
    for (size_t i = 0; i < x.size(); ++i) {
      const auto [byte, shift] = groups[g].codes[i];
      made.payload[byte] |= static_cast<std::byte>(coded.codes[i] << shift);
      made.decoded[groups[g].elements[i]] = coded.values[i];
      const float magnitude = std::fabs(x[i]);
      float bound = 0.5f * coded.scale;
      if (format.kind == PlaneKind::kFp8E4M3) {
        bound = std::max(magnitude / 16, coded.scale * 0x1p-10f);
      } else if (format.kind == PlaneKind::kFp8E5M2) {
        bound = std::max(magnitude / 8, 0x1p-17f);
      }
      // A scale or a zero in bf16 moves the ends of the range; one below 2^-126 is stored as 0.
      bound += affine ? std::fabs(coded.zero) / 128 + 15 * coded.scale / 128 : magnitude / 128;
      made.half_step[groups[g].elements[i]] = bound + 2 * 127 * 0x1p-126f;
      if (shape.dtype == DType::kFp16) made.half_step[groups[g].elements[i]] += 0x1p-24f;
    }
  }
  // The rest of a column stays as it is.
  const uint32_t coded = CodedTokens(format, shape);
  const size_t rest = made.payload.size();
  const size_t row_bytes = 2 * size_t{shape.dim};
  made.payload.resize(rest + Aligned(row_bytes * shape.heads * (shape.tokens - coded)));
  size_t at = rest;
  for (uint32_t head = 0; head < shape.heads; ++head) {
    for (uint32_t token = coded; token < shape.tokens; ++token, at += row_bytes) {
      const size_t row = shape.RowAt(token, head);
      std::memcpy(made.payload.data() + at, words.data() + row, row_bytes);
      for (size_t c = row; c < row + shape.dim; ++c) made.decoded[c] = Value(shape.dtype, words[c]);
    }
  }
  return made;
}

std::vector<PlaneFormat> AllFormats() {
  std::vector<PlaneFormat> formats = {{PlaneKind::kFp8E5M2, GroupAxis::kNone, 0}};
  for (const ScaleFormat scale : {ScaleFormat::kBf16, ScaleFormat::kFp32}) {
    for (const PlaneKind kind : {PlaneKind::kFp8E4M3, PlaneKind::kInt8}) {
      formats.push_back({kind, GroupAxis::kHead, 0, scale});
      for (const uint8_t group : std::initializer_list<uint8_t>{0, 32, 64}) {
        formats.push_back({kind, GroupAxis::kRow, group, scale});
      }
    }
    for (const PlaneKind kind : {PlaneKind::kInt4, PlaneKind::kInt2}) {
      for (const GroupAxis axis : {GroupAxis::kRow, GroupAxis::kColumn}) {
        for (const uint8_t group : std::initializer_list<uint8_t>{0, 32, 64, 128})
          formats.push_back({kind, axis, group, scale});
      }
    }
  }
  return formats;
}

std::vector<PlaneShape> SomeShapes() {
  std::vector<PlaneShape> shapes;
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    for (const PlaneOrder order : {PlaneOrder::kTokenMajor, PlaneOrder::kHeadMajor}) {
      for (const uint32_t dim : {1u, 7u, 16u, 70u, 128u}) {
        for (const uint32_t tokens : {1u, 5u, 33u, 64u}) {
          shapes.push_back({tokens, dim == 16 ? 3u : 1u, dim, order, dtype});
        }
      }
    }
  }
  return shapes;
}

absl::Status Decode(const PlaneFormat& format, const PlaneShape& shape, Bytes payload,
                    std::vector<uint16_t>& words) {
  const absl::Status status =
      DecodePlane(format, shape, &payload, AsMutableBytes(words.data(), words.size() * 2));
  if (status.ok() && !payload.empty()) return absl::InternalError("bytes are left over");
  return status;
}

Bytes RawBytes(const std::vector<uint16_t>& words) {
  return AsBytes(words.data(), words.size() * 2);
}

TEST(PlaneTest, EachTargetGivesTheBytesOfTheReferenceAndStaysInItsBound) {
  EveryTarget([](const char* target) {
    SCOPED_TRACE(target);
    uint64_t seed = 0;
    for (const PlaneShape& shape : SomeShapes()) {
      for (const PlaneFormat& format : AllFormats()) {
        const Data data = kAllData[++seed % std::size(kAllData)];
        const std::vector<uint16_t> words = Fill(shape, data, seed);
        const Reference want = Encode(format, shape, words);
        const std::string what =
            absl::StrCat(format.ToString(), " of ", shape.tokens, " x ", shape.heads, " x ",
                         shape.dim, " ", DTypeName(shape.dtype), ", data ", static_cast<int>(data));
        ASSERT_EQ(PlaneBytesMax(format, shape), want.payload.size()) << what;
        std::vector<std::byte> payload(want.payload.size(), std::byte{0xee});
        const auto bytes = EncodePlane(format, shape, RawBytes(words), absl::MakeSpan(payload));
        ASSERT_EQ(bytes.has_value(), want.codable) << what;
        if (!want.codable) continue;
        ASSERT_EQ(*bytes, payload.size());
        ASSERT_EQ(payload, want.payload) << what;
        std::vector<uint16_t> decoded(words.size());
        FB_ASSERT_OK(Decode(format, shape, payload, decoded));
        for (size_t i = 0; i < words.size(); ++i) {
          ASSERT_EQ(decoded[i], Word(shape.dtype, want.decoded[i])) << what << " at " << i;
          const float x = Value(shape.dtype, words[i]);
          const float y = Value(shape.dtype, decoded[i]);
          ASSERT_LE(std::fabs(x - y), want.half_step[i] * 1.01f + std::fabs(x) / 256)
              << what << ": " << x;
        }
      }
    }
  });
}

TEST(PlaneTest, TheSplitIsExactForWhateverBits) {
  for (const PlaneKind kind : {PlaneKind::kRaw, PlaneKind::kSplitFixed, PlaneKind::kSplitEntropy}) {
    for (const PlaneShape& shape : SomeShapes()) {
      const PlaneFormat format{kind};
      std::vector<uint16_t> words = Fill(shape, Data::kNormal, 2);
      words[0] = 0x7fc1;
      words.back() = 0xffff;
      std::vector<std::byte> payload(PlaneBytesMax(format, shape));
      const auto bytes = EncodePlane(format, shape, RawBytes(words), absl::MakeSpan(payload));
      ASSERT_TRUE(bytes.has_value());
      ASSERT_EQ(*bytes % 16, 0u);
      std::vector<uint16_t> decoded(words.size());
      FB_ASSERT_OK(Decode(format, shape, Bytes(payload).first(*bytes), decoded));
      ASSERT_EQ(decoded, words);
      for (size_t cut = 0; cut < *bytes; cut += 1 + cut / 3) {
        EXPECT_THAT(Decode(format, shape, Bytes(payload).first(cut), decoded),
                    HasCode(absl::StatusCode::kDataLoss));
      }
    }
  }
}

constexpr uint16_t kNotFinite[] = {0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81, 0xffff};

TEST(PlaneTest, InfAndNanAreNeverCoded) {
  EveryTarget([](const char* target) {
    SCOPED_TRACE(target);
    const PlaneShape shape{64, 2, 70, PlaneOrder::kTokenMajor, DType::kBf16};
    SeededRandom random(5);
    for (const PlaneFormat& format : AllFormats()) {
      std::vector<std::byte> payload(PlaneBytesMax(format, shape));
      for (const uint16_t bad : kNotFinite) {
        std::vector<uint16_t> words = Fill(shape, Data::kNormal, 1);
        ASSERT_TRUE(EncodePlane(format, shape, RawBytes(words), absl::MakeSpan(payload)));
        words[random.Below(words.size())] = bad;
        EXPECT_FALSE(EncodePlane(format, shape, RawBytes(words), absl::MakeSpan(payload)))
            << format.ToString() << " took " << bad;
      }
    }
  });
}

TEST(PlaneTest, DecodingTwiceChangesNothingMore) {
  const PlaneShape shape{64, 2, 128, PlaneOrder::kTokenMajor, DType::kBf16};
  for (const PlaneFormat& format :
       {PlaneFormat{PlaneKind::kInt8, GroupAxis::kRow, 0, ScaleFormat::kFp32},
        PlaneFormat{PlaneKind::kFp8E5M2, GroupAxis::kNone, 0}}) {
    std::vector<uint16_t> words = Fill(shape, Data::kOutliers, 3);
    std::vector<std::byte> payload(PlaneBytesMax(format, shape));
    std::vector<uint16_t> once(words.size());
    std::vector<uint16_t> twice(words.size());
    ASSERT_TRUE(EncodePlane(format, shape, RawBytes(words), absl::MakeSpan(payload)));
    FB_ASSERT_OK(Decode(format, shape, payload, once));
    ASSERT_TRUE(EncodePlane(format, shape, RawBytes(once), absl::MakeSpan(payload)));
    FB_ASSERT_OK(Decode(format, shape, payload, twice));
    EXPECT_EQ(once, twice) << format.ToString();
  }
}

TEST(PlaneTest, HostilePayloadsAreRefusedOrDecodeToFiniteNumbers) {
  EveryTarget([](const char* target) {
    SCOPED_TRACE(target);
    const PlaneShape shape{33, 1, 70, PlaneOrder::kTokenMajor, DType::kBf16};
    SeededRandom random(9);
    for (const PlaneFormat& format : AllFormats()) {
      std::vector<std::byte> payload(PlaneBytesMax(format, shape));
      std::vector<uint16_t> raw(shape.element_count());
      EXPECT_THAT(Decode(format, shape, Bytes(payload).subspan(1), raw),
                  HasStatus(absl::StatusCode::kDataLoss, HasSubstr("ends after")));
      int refused = 0;
      for (int round = 0; round < 50; ++round) {
        for (std::byte& byte : payload) byte = static_cast<std::byte>(random.Next());
        const absl::Status status = Decode(format, shape, payload, raw);
        if (!status.ok()) {
          EXPECT_THAT(status, HasCode(absl::StatusCode::kDataLoss));
          ++refused;
          continue;
        }
        for (const uint16_t word : raw) ASSERT_TRUE(IsFiniteFp32(Bf16ToFp32(word)));
      }
      EXPECT_GT(refused, 0) << format.ToString();
    }
  });
}

TEST(PlaneTest, FormatsThatAreNoneAreNamed) {
  const auto check = [](PlaneKind kind, GroupAxis axis, uint8_t group, DType dtype) {
    return CheckPlaneFormat({kind, axis, group}, dtype);
  };
  FB_EXPECT_OK(check(PlaneKind::kInt4, GroupAxis::kColumn, 64, DType::kBf16));
  FB_EXPECT_OK(check(PlaneKind::kRaw, GroupAxis::kNone, 0, DType::kOpaque8));
  EXPECT_THAT(check(static_cast<PlaneKind>(99), GroupAxis::kRow, 0, DType::kBf16),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("(99, 1, 0, 2, 0, 0, 0)")));
  EXPECT_THAT(check(PlaneKind::kInt4, GroupAxis::kHead, 0, DType::kBf16),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("axis")));
  EXPECT_THAT(check(PlaneKind::kInt4, GroupAxis::kColumn, 1, DType::kBf16),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("multiple of 16")));
  EXPECT_THAT(check(PlaneKind::kInt8, GroupAxis::kRow, 0, DType::kFp8E4M3),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("fp8_e4m3")));
}

}  // namespace
}  // namespace forebay
