#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/checksum.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "codec/steps/float_formats.h"
#include "codec/steps/uniform_quant.h"
#include "codec/testing/targets.h"
#include "codec/uniform/calibrator.h"
#include "codec/uniform/dictionary.h"
#include "codec/uniform/uniform_planes.h"

namespace forebay {
namespace {

using ::forebay::testing::EveryTarget;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

using Buffer = std::vector<std::byte>;

struct Model {
  KvLayout layout;
  PartSpec part;
};

Model ModelOf(uint32_t layers, uint32_t heads, uint32_t dim, uint32_t tokens,
              DType dtype = DType::kBf16, PlaneOrder order = PlaneOrder::kTokenMajor) {
  Model model;
  model.layout = KvLayout::Uniform(layers, heads, dim, dtype, tokens, layers);
  model.layout.plane_order = order;
  model.part = model.layout.Parts()[0];
  return model;
}

uint16_t WordOf(DType dtype, float x) {
  return dtype == DType::kBf16 ? Fp32ToBf16(x) : Fp32ToFp16Saturated(x);
}
float ValueOf(DType dtype, uint16_t word) {
  return dtype == DType::kBf16 ? Bf16ToFp32(word) : Fp16ToFp32(word);
}
uint16_t LoadWord(const Buffer& raw, size_t element) {
  uint16_t word;
  std::memcpy(&word, raw.data() + 2 * element, sizeof(word));
  return word;
}
void StoreWord(Buffer& raw, size_t element, uint16_t word) {
  std::memcpy(raw.data() + 2 * element, &word, sizeof(word));
}

// Close to normal, times a size and around a mean of the channel's.
float Draw(SeededRandom& random, size_t channel) {
  float sum = -6;
  for (int i = 0; i < 12; ++i) sum += static_cast<float>(random.Below(1 << 20)) * 0x1p-20f;
  return sum * std::ldexp(1.0f, static_cast<int>(channel % 7) - 3) +
         static_cast<float>(channel % 5) - 2;
}

// A part like those that the dictionary was made of, `loudness` times as large.
Buffer Part(const Model& model, uint64_t seed, float loudness = 1) {
  SeededRandom random(seed);
  Buffer raw(model.part.raw_bytes);
  size_t base = 0;
  for (uint32_t plane = 0; plane < 2u * model.part.layer_count; ++plane) {
    const LayerSpec& layer = model.layout.layers[0];
    const PlaneShape shape{model.layout.page_tokens, layer.kv_heads, layer.k_dim,
                           model.layout.plane_order, layer.dtype};
    for (uint32_t t = 0; t < shape.tokens; ++t) {
      for (uint32_t h = 0; h < shape.heads; ++h) {
        for (uint32_t c = 0; c < shape.dim; ++c) {
          const float x = loudness * Draw(random, h * size_t{shape.dim} + c);
          StoreWord(raw, base + shape.RowAt(t, h) + c, WordOf(shape.dtype, x));
        }
      }
    }
    base += shape.element_count();
  }
  return raw;
}

Dictionary DictionaryOf(const Model& model, const UniformCalibrator::Options& options = {}) {
  UniformCalibrator calibrator(model.layout);
  const LayerSpec& layer = model.layout.layers[0];
  const PlaneShape shape{model.layout.page_tokens, layer.kv_heads, layer.k_dim,
                         model.layout.plane_order, layer.dtype};
  for (uint64_t seed = 100; seed < 102; ++seed) {
    const Buffer raw = Part(model, seed);
    for (uint32_t plane = 0; plane < 2u * model.part.layer_count; ++plane) {
      const Stream stream = plane % 2 == 0 ? Stream::kKey : Stream::kValue;
      const Bytes bytes = Bytes(raw).subspan(plane * shape.raw_bytes(), shape.raw_bytes());
      EXPECT_TRUE(calibrator.AddPlane(plane / 2, stream, shape, bytes).ok());
    }
  }
  absl::StatusOr<Dictionary> dictionary = calibrator.Finish(options);
  EXPECT_TRUE(dictionary.ok()) << dictionary.status();
  return *std::move(dictionary);
}

Buffer Encoded(const Dictionary& dictionary, absl::Span<const UniformPlane> planes,
               const Buffer& raw) {
  Buffer payload(raw.size(), std::byte{0xee});
  const std::optional<size_t> bytes =
      EncodeUniform(dictionary, planes, raw, absl::MakeSpan(payload));
  payload.resize(bytes.value_or(0));
  return payload;
}

// What is decoded lies in a buffer of its very size, so that AddressSanitizer sees a step beyond.
absl::Status Decoded(const Dictionary& dictionary, absl::Span<const UniformPlane> planes,
                     const Buffer& payload, Buffer& raw) {
  const Buffer exact(payload);
  return DecodeUniform(dictionary, planes, exact, absl::MakeSpan(raw));
}

// Each element within half its channel's step, the rounding of its type aside; or exact.
void ExpectWithinHalfAStep(const Dictionary& dictionary, absl::Span<const UniformPlane> planes,
                           const Buffer& raw, const Buffer& back) {
  size_t base = 0;
  for (const UniformPlane& plane : planes) {
    const Dictionary::Layer& layer = dictionary.layers()[plane.layer];
    const Dictionary::Plane& entry = plane.stream == Stream::kKey ? layer.k : layer.v;
    const DType dtype = plane.shape.dtype;
    for (uint32_t t = 0; t < plane.shape.tokens; ++t) {
      for (uint32_t h = 0; h < plane.shape.heads; ++h) {
        for (uint32_t c = 0; c < plane.shape.dim; ++c) {
          const size_t at = base + plane.shape.RowAt(t, h) + c;
          const size_t channel = (plane.head_begin + h) * size_t{plane.shape.dim} + c;
          const float x = ValueOf(dtype, LoadWord(raw, at));
          const float y = ValueOf(dtype, LoadWord(back, at));
          const float step = plane.step * Exp2Eighths(entry.weights[channel]);
          const float mean = Bf16ToFp32(entry.means[channel]);
          const float places = dtype == DType::kBf16 ? 0x1p-8f : 0x1p-11f;
          const float rounding =
              std::abs(y) * places + 0x1p-25f + (std::abs(x) + std::abs(mean)) * 0x1p-22f;
          ASSERT_LE(std::abs(x - y), step * 0.50001f + rounding) << at << " " << x << " " << y;
        }
      }
    }
    base += plane.shape.element_count();
  }
}

TEST(UniformPlanesTest, DecodesToWithinHalfAStep) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    for (const PlaneOrder order : {PlaneOrder::kTokenMajor, PlaneOrder::kHeadMajor}) {
      for (const uint32_t dim : {8u, 64u, 80u, 128u, 5u}) {
        const Model model = ModelOf(1, 2, dim, dim == 5 ? 37 : 64, dtype, order);
        const Dictionary dictionary = DictionaryOf(model);
        FB_EXPECT_OK(dictionary.CheckLayout(model.layout));
        const Buffer raw = Part(model, 1);
        for (const float dial : {0.25f, 1.0f, 5.0f, 40.0f}) {
          const auto planes =
              UniformPlanesOf(dictionary, model.layout, model.part, dial, dial * 1.5f);
          ASSERT_EQ(planes.size(), 2);
          const Buffer payload = Encoded(dictionary, planes, raw);
          ASSERT_FALSE(payload.empty());
          Buffer back(raw.size());
          FB_ASSERT_OK(Decoded(dictionary, planes, payload, back));
          ExpectWithinHalfAStep(dictionary, planes, raw, back);
          // Decoded values are what they are.
          const Buffer again = Encoded(dictionary, planes, back);
          Buffer back_again(raw.size());
          FB_ASSERT_OK(Decoded(dictionary, planes, again, back_again));
          if (dial > 1) {
            EXPECT_TRUE(back_again == back) << dim << " " << dial;
          }
        }
      }
    }
  }
}

// Half the step is a bit more, for every step alike: what makes it a dial.
TEST(UniformPlanesTest, TheStepIsADial) {
  const Model model = ModelOf(1, 8, 128, 64);
  const Dictionary dictionary = DictionaryOf(model);
  const Buffer raw = Part(model, 2);
  const auto bits = [&](float dial) {
    const auto planes = UniformPlanesOf(dictionary, model.layout, model.part, dial, dial);
    return 16.0 * static_cast<double>(Encoded(dictionary, planes, raw).size()) /
           static_cast<double>(raw.size());
  };
  EXPECT_NEAR(bits(1), 4.5, 0.1) << "what it was calibrated for";
  EXPECT_NEAR(bits(1) - bits(2), 1, 0.2);
  EXPECT_GT(bits(0.9f), bits(1));
  EXPECT_GT(bits(1), bits(1.1f));
  EXPECT_LT(bits(8), 2.1);
}

TEST(UniformPlanesTest, BearsWhatItWasNotCalibratedFor) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    const Model model = ModelOf(2, 2, 64, 64, dtype);
    const Dictionary dictionary = DictionaryOf(model);
    const auto planes = UniformPlanesOf(dictionary, model.layout, model.part, 1, 1);
    const size_t usual = Encoded(dictionary, planes, Part(model, 3)).size();
    const size_t n = model.part.raw_bytes / 2;
    std::vector<Buffer> parts = {Part(model, 3, 1.5f), Part(model, 3, 2.0f),
                                 Buffer(model.part.raw_bytes)};
    Buffer outliers = Part(model, 4);
    Buffer subnormal = Part(model, 4);
    Buffer constant(model.part.raw_bytes);
    for (size_t i = 0; i < n; ++i) {
      if (i % 1001 == 0) {
        StoreWord(outliers, i, WordOf(dtype, i % 2 == 0 ? 60000.0f : -1e30f));
      }
      if (i % 3 == 0) StoreWord(subnormal, i, static_cast<uint16_t>(i % 31 | (i % 2) << 15));
      StoreWord(constant, i, WordOf(dtype, 1.25f));
    }
    parts.insert(parts.end(), {outliers, subnormal, constant});
    for (size_t i = 0; i < parts.size(); ++i) {
      const Buffer payload = Encoded(dictionary, planes, parts[i]);
      ASSERT_FALSE(payload.empty()) << i;
      if (i < 2) {
        EXPECT_GT(payload.size(), usual) << i;
      }
      Buffer back(parts[i].size());
      FB_ASSERT_OK(Decoded(dictionary, planes, payload, back)) << i;
      ExpectWithinHalfAStep(dictionary, planes, parts[i], back);
    }
    // Eight times as loud is three bits more.
    const Buffer loud = Part(model, 3, 8.0f);
    const Buffer payload = Encoded(dictionary, planes, loud);
    EXPECT_GT(payload.size(), usual + model.part.raw_bytes / 2 * 5 / 2 / 8);
    Buffer loud_back(loud.size());
    FB_ASSERT_OK(Decoded(dictionary, planes, payload, loud_back));
    ExpectWithinHalfAStep(dictionary, planes, loud, loud_back);
    // An outlier comes back exactly.
    Buffer back(outliers.size());
    FB_ASSERT_OK(Decoded(dictionary, planes, Encoded(dictionary, planes, outliers), back));
    for (size_t i = 0; i < n; i += 1001) EXPECT_EQ(LoadWord(back, i), LoadWord(outliers, i));
  }
}

TEST(UniformPlanesTest, LeavesAloneWhatHasNoCodes) {
  const Model model = ModelOf(1, 2, 64, 64);
  const Dictionary dictionary = DictionaryOf(model);
  const Buffer raw = Part(model, 5);
  auto planes = UniformPlanesOf(dictionary, model.layout, model.part, 1, 1);
  EXPECT_FALSE(Encoded(dictionary, planes, raw).empty());
  for (const uint16_t word : std::vector<uint16_t>{0x7f80, 0xff80, 0x7f81, 0xffff}) {
    for (const size_t at : {size_t{0}, size_t{77}, raw.size() / 2 - 1}) {
      EveryTarget([&](const char* target) {
        Buffer bad(raw);
        StoreWord(bad, at, word);
        EXPECT_TRUE(Encoded(dictionary, planes, bad).empty()) << target << " " << at;
      });
    }
  }
  // Escapes alone would be longer than the elements are.
  SeededRandom random(1);
  Buffer noise(raw.size());
  for (size_t i = 0; i < noise.size() / 2; ++i) {
    StoreWord(noise, i, static_cast<uint16_t>(0x4500 | (random.Next() & 0x80ff)));
  }
  EXPECT_TRUE(Encoded(dictionary, planes, noise).empty());
  for (const float step : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN(), 1e-30f, 1e30f}) {
    planes[1].step = step;
    EXPECT_TRUE(Encoded(dictionary, planes, raw).empty()) << step;
  }
}

// The format, for ever: what another build wrote must decode in this one.
TEST(UniformPlanesTest, WritesTheSameBytesAsEverOnEveryTarget) {
  for (const auto& [dtype, dim, checksum] :
       {std::tuple(DType::kBf16, 128u, uint64_t{10513520278881625295u}),
        {DType::kFp16, 80u, uint64_t{13367776331209725257u}},
        {DType::kBf16, 7u, uint64_t{15406112808419927047u}}}) {
    const Model model = ModelOf(3, 4, dim, 64, dtype);
    // Not calibrated: that is in floating point, and may differ by compiler.
    Dictionary::ClassFrequencies tables;
    for (int place = 0; place < kUniformClasses; ++place) {
      uint64_t counts[256] = {};
      const int reach = std::min(3 + place * place, kUniformCodeMax);
      for (int code = -reach; code <= reach; ++code) {
        counts[static_cast<uint8_t>(code)] =
            static_cast<uint64_t>(1 + 1000 / (1 + 2 * std::abs(code) / (1 + place)));
      }
      counts[static_cast<uint8_t>(kUniformEscape)] = 1;
      tables[static_cast<size_t>(place)] = Rans32Frequencies::OfCounts(counts);
    }
    std::vector<Dictionary::Layer> layers(3);
    for (Dictionary::Layer& layer : layers) {
      layer = {4, dim, dim, dtype, {}, {}};
      for (Dictionary::Plane* plane : {&layer.k, &layer.v}) {
        plane->step = plane == &layer.k ? 0.11f : 0.27f;
        for (size_t c = 0; c < 4 * dim; ++c) {
          plane->means.push_back(Fp32ToBf16(static_cast<float>(c % 5) - 2));
          plane->sigmas.push_back(static_cast<int16_t>(8 * (static_cast<int>(c % 7) - 3)));
          plane->weights.push_back(static_cast<int8_t>(static_cast<int>(c % 11) - 5));
        }
      }
    }
    const absl::StatusOr<Dictionary> dictionary = Dictionary::Create(tables, tables, layers);
    FB_ASSERT_OK(dictionary);
    const auto planes = UniformPlanesOf(*dictionary, model.layout, model.part, 1, 2);
    Buffer raw = Part(model, 6);
    for (size_t i = 0; i < raw.size() / 2; i += 333) StoreWord(raw, i, WordOf(dtype, 5000.0f));
    Buffer first;
    Buffer back_first;
    EveryTarget([&](const char* target) {
      const Buffer payload = Encoded(*dictionary, planes, raw);
      if (first.empty()) first = payload;
      ASSERT_FALSE(payload.empty()) << target;
      EXPECT_TRUE(payload == first) << target;
      EXPECT_EQ(ChecksumOf(payload), checksum) << target;
      Buffer back(raw.size());
      FB_ASSERT_OK(Decoded(*dictionary, planes, payload, back)) << target;
      if (back_first.empty()) back_first = back;
      EXPECT_TRUE(back == back_first) << target;
    });
  }
}

// --- payloads that are not to be trusted ---------------------------------------------------------

TEST(UniformDecodeTest, RefusesEveryTruncation) {
  const Model model = ModelOf(2, 2, 16, 32);
  const Dictionary dictionary = DictionaryOf(model);
  const auto planes = UniformPlanesOf(dictionary, model.layout, model.part, 1, 1);
  const Buffer payload = Encoded(dictionary, planes, Part(model, 7));
  Buffer back(model.part.raw_bytes);
  FB_ASSERT_OK(Decoded(dictionary, planes, payload, back));
  for (size_t length = 0; length < payload.size(); ++length) {
    const Buffer cut(payload.begin(), payload.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_THAT(Decoded(dictionary, planes, cut, back), HasCode(absl::StatusCode::kDataLoss));
  }
  for (const size_t more : {1, 2, 3, 100}) {
    Buffer longer(payload);
    longer.resize(payload.size() + more);
    EXPECT_THAT(Decoded(dictionary, planes, longer, back), HasCode(absl::StatusCode::kDataLoss));
  }
}

TEST(UniformDecodeTest, NamesWhatIsWrong) {
  const Model model = ModelOf(1, 2, 16, 32);
  const Dictionary dictionary = DictionaryOf(model);
  const auto planes = UniformPlanesOf(dictionary, model.layout, model.part, 1, 1);
  Buffer raw = Part(model, 8);
  StoreWord(raw, 9, Fp32ToBf16(1e20f));
  const Buffer payload = Encoded(dictionary, planes, raw);
  Buffer back(raw.size());
  const auto decode_with = [&](size_t at, uint32_t value) {
    Buffer bad(payload);
    std::memcpy(bad.data() + at, &value, sizeof(value));
    return Decoded(dictionary, planes, bad, back);
  };
  const auto data_loss = [](const char* what) {
    return HasStatus(absl::StatusCode::kDataLoss, HasSubstr(what));
  };
  uint32_t escapes;
  std::memcpy(&escapes, payload.data() + 4, sizeof(escapes));
  EXPECT_GE(escapes, 1);
  EXPECT_THAT(decode_with(0, 9), data_loss("version 9"));
  EXPECT_THAT(decode_with(0, 0x101), data_loss("version"));
  EXPECT_THAT(decode_with(4, 1 << 30), data_loss("escapes in a payload"));
  EXPECT_THAT(decode_with(4, escapes + 1), HasCode(absl::StatusCode::kDataLoss));
  EXPECT_THAT(decode_with(4, escapes - 1), HasCode(absl::StatusCode::kDataLoss));
  EXPECT_THAT(decode_with(8, 0), data_loss("a step of 0"));
  EXPECT_THAT(decode_with(8, 0x7fc00000), data_loss("a step of"));
  EXPECT_THAT(decode_with(16, 1 << 16), data_loss("zeros"));
}

TEST(UniformDecodeTest, BearsFlippedBits) {
  const Model model = ModelOf(2, 2, 16, 32);
  const Dictionary dictionary = DictionaryOf(model);
  const auto planes = UniformPlanesOf(dictionary, model.layout, model.part, 1, 1);
  Buffer raw = Part(model, 9);
  for (size_t i = 0; i < raw.size() / 2; i += 200) StoreWord(raw, i, Fp32ToBf16(1e20f));
  const Buffer payload = Encoded(dictionary, planes, raw);
  SeededRandom random(11);
  size_t accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    Buffer bad(payload);
    for (size_t flips = 1 + random.Below(4); flips > 0; --flips) {
      const size_t at = random.Below(random.Chance(0.3) ? 24 : bad.size());
      bad[at] ^= static_cast<std::byte>(1 << random.Below(8));
    }
    Buffer first;
    absl::Status status;
    EveryTarget([&](const char* target) {
      Buffer back(raw.size());
      const absl::Status now = Decoded(dictionary, planes, bad, back);
      if (first.empty()) {
        status = now;
        first = back;
        accepted += now.ok() ? 1 : 0;
        return;
      }
      EXPECT_EQ(now.code(), status.code()) << target;
      EXPECT_TRUE(!now.ok() || back == first) << target;
    });
  }
  // Steps and escapes, which are any number; two flips of one bit.
  EXPECT_LT(accepted, 1500);
}

// --- dictionaries
// ---------------------------------------------------------------------------------

TEST(DictionaryTest, GivesBackWhatItTook) {
  const Model model = ModelOf(2, 2, 16, 32);
  const Dictionary dictionary = DictionaryOf(model);
  const absl::StatusOr<Dictionary> back = Dictionary::Parse(dictionary.serialized());
  FB_ASSERT_OK(back);
  EXPECT_EQ(back->name(), dictionary.name());
  EXPECT_EQ(back->layers(), dictionary.layers());
  EXPECT_EQ(dictionary.name(), Sha256({dictionary.serialized()}));
  const auto planes = UniformPlanesOf(dictionary, model.layout, model.part, 1, 1);
  const Buffer raw = Part(model, 12);
  EXPECT_TRUE(Encoded(*back, planes, raw) == Encoded(dictionary, planes, raw));
}

TEST(DictionaryTest, RefusesAnotherLayout) {
  const Dictionary dictionary = DictionaryOf(ModelOf(2, 2, 16, 32));
  // The number of tokens and the order are the page's.
  FB_EXPECT_OK(
      dictionary.CheckLayout(ModelOf(2, 2, 16, 64, DType::kBf16, PlaneOrder::kHeadMajor).layout));
  for (const Model& other : {ModelOf(3, 2, 16, 32), ModelOf(2, 4, 16, 32), ModelOf(2, 2, 32, 32),
                             ModelOf(2, 2, 16, 32, DType::kFp16)}) {
    EXPECT_THAT(dictionary.CheckLayout(other.layout),
                HasCode(absl::StatusCode::kFailedPrecondition));
  }
}

TEST(DictionaryTest, RefusesWhatIsNone) {
  const Dictionary dictionary = DictionaryOf(ModelOf(1, 2, 16, 32));
  const Bytes whole = dictionary.serialized();
  const Buffer serialized(whole.begin(), whole.end());
  const auto sealed = [](Buffer bytes) {
    bytes.resize(std::max<size_t>(bytes.size(), 8));
    const uint64_t checksum = ChecksumOf(Bytes(bytes).first(bytes.size() - 8));
    std::memcpy(bytes.data() + bytes.size() - 8, &checksum, sizeof(checksum));
    return bytes;
  };
  FB_EXPECT_OK(Dictionary::Parse(sealed(serialized)));
  // The checksum.
  for (size_t at = 0; at < serialized.size(); ++at) {
    Buffer bad(serialized);
    bad[at] ^= std::byte{16};
    EXPECT_THAT(Dictionary::Parse(bad), HasCode(absl::StatusCode::kInvalidArgument)) << at;
  }
  // And what is behind it.
  for (size_t length = 0; length < serialized.size(); ++length) {
    const Buffer cut(serialized.begin(), serialized.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_THAT(Dictionary::Parse(sealed(cut)), HasCode(absl::StatusCode::kInvalidArgument));
  }
  SeededRandom random(13);
  size_t accepted = 0;
  for (int i = 0; i < 1000; ++i) {
    Buffer bad(serialized);
    const size_t at = random.Below(i % 2 == 0 ? 60 : bad.size() - 8);
    bad[at] ^= static_cast<std::byte>(1 << random.Below(8));
    const absl::StatusOr<Dictionary> parsed = Dictionary::Parse(sealed(bad));
    if (parsed.ok()) {
      ++accepted;  // another mean, or sigma
      EXPECT_NE(parsed->name(), dictionary.name());
    } else {
      EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
  EXPECT_LT(accepted, 500);
  // Channels by the billion, of which there are no bytes.
  Buffer huge(serialized);
  const size_t layer_at = serialized.size() - 8 - 2 * (4 + 32 * 5) - 16;
  const uint32_t heads = 0x80000000u;
  std::memcpy(huge.data() + layer_at, &heads, sizeof(heads));
  EXPECT_THAT(Dictionary::Parse(sealed(huge)),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("ends early")));
}

TEST(DictionaryTest, TheStoreFindsByName) {
  DictionaryStore store;
  const auto dictionary = std::make_shared<const Dictionary>(DictionaryOf(ModelOf(1, 2, 16, 32)));
  EXPECT_EQ(store.Find(dictionary->name()), nullptr);
  store.Add(dictionary);
  EXPECT_EQ(store.Find(dictionary->name()), dictionary);
  EXPECT_EQ(store.Find(Sha256Digest{}), nullptr);
}

// --- calibration
// ----------------------------------------------------------------------------------

TEST(UniformCalibratorTest, WeighsChannelsByTheirQueries) {
  const Model model = ModelOf(1, 1, 8, 64);
  UniformCalibrator calibrator(model.layout);
  const PlaneShape shape{64, 1, 8, PlaneOrder::kTokenMajor, DType::kBf16};
  const Buffer raw = Part(model, 1);
  FB_ASSERT_OK(calibrator.AddPlane(0, Stream::kKey, shape, Bytes(raw).first(shape.raw_bytes())));
  EXPECT_THAT(calibrator.Finish({}), HasCode(absl::StatusCode::kFailedPrecondition));
  FB_ASSERT_OK(calibrator.AddPlane(0, Stream::kValue, shape, Bytes(raw).last(shape.raw_bytes())));
  const std::vector<double> squares = {100, 100, 100, 100, 1600, 1600, 1600, 1600};
  FB_ASSERT_OK(calibrator.AddQueries(0, squares, 100));
  UniformCalibrator::Options options;
  options.query_share = 1;
  const absl::StatusOr<Dictionary> dictionary = calibrator.Finish(options);
  FB_ASSERT_OK(dictionary);
  // Four times the query, a quarter of the step.
  EXPECT_EQ(dictionary->layers()[0].k.weights, (std::vector<int8_t>{8, 8, 8, 8, -8, -8, -8, -8}));
  EXPECT_EQ(dictionary->layers()[0].v.weights, std::vector<int8_t>(8, 0));
}

TEST(UniformCalibratorTest, RefusesWhatIsNoPlane) {
  const Model model = ModelOf(1, 1, 8, 64);
  UniformCalibrator calibrator(model.layout);
  const PlaneShape shape{64, 1, 8, PlaneOrder::kTokenMajor, DType::kBf16};
  PlaneShape other = shape;
  other.dim = 4;
  Buffer raw(shape.raw_bytes());
  const auto refused = HasCode(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(calibrator.AddPlane(1, Stream::kKey, shape, raw), refused);
  EXPECT_THAT(calibrator.AddPlane(0, Stream::kState, shape, raw), refused);
  EXPECT_THAT(calibrator.AddPlane(0, Stream::kKey, other, raw), refused);
  EXPECT_THAT(calibrator.AddPlane(0, Stream::kKey, shape, Bytes(raw).first(2)), refused);
  EXPECT_THAT(calibrator.AddQueries(0, {1.0, 2.0}, 1), refused);
  StoreWord(raw, 5, 0x7f80);
  EXPECT_THAT(calibrator.AddPlane(0, Stream::kKey, shape, raw), refused);
  StoreWord(raw, 5, 0);
  FB_EXPECT_OK(calibrator.AddPlane(0, Stream::kKey, shape, raw));
}

// Nothing but zeros has no sigma, and must not make a table or a step that is none.
TEST(UniformCalibratorTest, TakesChannelsThatAreConstant) {
  const Model model = ModelOf(1, 1, 64, 64);
  UniformCalibrator calibrator(model.layout);
  const PlaneShape shape{64, 1, 64, PlaneOrder::kTokenMajor, DType::kBf16};
  const Buffer zeros(shape.raw_bytes());
  FB_ASSERT_OK(calibrator.AddPlane(0, Stream::kKey, shape, zeros));
  FB_ASSERT_OK(calibrator.AddPlane(0, Stream::kValue, shape, zeros));
  const absl::StatusOr<Dictionary> dictionary = calibrator.Finish({});
  FB_ASSERT_OK(dictionary);
  const auto planes = UniformPlanesOf(*dictionary, model.layout, model.part, 1, 1);
  const Buffer raw(model.part.raw_bytes);
  const Buffer payload = Encoded(*dictionary, planes, raw);
  ASSERT_FALSE(payload.empty());
  Buffer back(raw.size(), std::byte{1});
  FB_ASSERT_OK(Decoded(*dictionary, planes, payload, back));
  EXPECT_TRUE(back == raw);
}

// --- steps
// ----------------------------------------------------------------------------------------

TEST(UniformQuantTest, LogarithmsAreTheNearest) {
  SeededRandom random(14);
  for (int i = 0; i < 100000; ++i) {
    const float x = Fp32OfBits(static_cast<uint32_t>(random.Below(0x7e000000)) + 0x00800000);
    const double eighths = 8 * std::log2(static_cast<double>(x));
    ASSERT_LE(std::abs(eighths - Log2Eighths(x)), 0.5000001) << x;
  }
  for (int eighths = -900; eighths < 900; ++eighths) {
    EXPECT_EQ(Exp2Eighths(eighths), static_cast<float>(std::exp2(eighths / 8.0)));
    EXPECT_EQ(Log2Eighths(Exp2Eighths(eighths)), eighths);
  }
}

TEST(UniformQuantTest, ClassesAreHalfOctaves) {
  EXPECT_EQ(UniformClass(0, 0), -kUniformClassMin);
  EXPECT_EQ(UniformClass(4, 0), -kUniformClassMin + 1);
  EXPECT_EQ(UniformClass(1, 0), -kUniformClassMin);
  EXPECT_EQ(UniformClass(2, 0), -kUniformClassMin + 1);
  EXPECT_EQ(UniformClass(-2, 0), -kUniformClassMin);
  EXPECT_EQ(UniformClass(-3, 0), -kUniformClassMin - 1);
  EXPECT_EQ(UniformClass(-800, 0), 0);
  EXPECT_EQ(UniformClass(800, 0), kUniformClasses - 1);
}

}  // namespace
}  // namespace forebay
