#include "codec/lossless/exponent_split.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/checksum.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "codec/lossless/exponent_split_kernel.h"
#include "codec/testing/targets.h"

namespace forebay {
namespace {

using ::forebay::testing::EveryTarget;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

using Buffer = std::vector<std::byte>;
using Words = std::vector<uint16_t>;

constexpr size_t kSizes[] = {0,    1,    2,    15,   16,   31,   32,   33,   63,
                             64,   65,   127,  128,  129,  500,  1023, 1024, 1025,
                             2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193, 20001};
constexpr DType kDTypes[] = {DType::kBf16, DType::kFp16};
constexpr SplitForm kForms[] = {SplitForm::kRaw, SplitForm::kFixed, SplitForm::kEntropy};

uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

// A sum of twelve uniform ones: close enough to normal.
float Normal(SeededRandom& random) {
  float sum = -6;
  for (int i = 0; i < 12; ++i) sum += static_cast<float>(random.Below(1 << 20)) * 0x1p-20f;
  return sum;
}

// Like a page of keys: each channel with its own scale, a few of them far out.
Words Kv(DType dtype, size_t count, uint64_t seed) {
  SeededRandom random(seed);
  Words words(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t channel = i % 128;
    float value = Normal(random) * (1 + static_cast<float>(channel % 8) * 0.25f);
    if (channel % 50 == 7) value *= 20;
    words[i] = ToBf16(value);
    // Truncated, with a random end to the mantissa.
    if (dtype == DType::kFp16) {
      const int exponent = (words[i] >> 7 & 0xff) - 127 + 15;
      const auto mantissa = static_cast<uint16_t>((words[i] & 0x7f) << 3 | random.Below(8));
      words[i] = static_cast<uint16_t>((words[i] & 0x8000) | (exponent <= 0 ? 0 : exponent << 10) |
                                       mantissa);
    }
  }
  return words;
}

Words Random(size_t count, uint64_t seed) {
  SeededRandom random(seed);
  Words words(count);
  for (uint16_t& word : words) word = static_cast<uint16_t>(random.Next());
  return words;
}

Words EveryPattern() {
  Words words(65536);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint16_t>(i);
  return words;
}

Bytes BytesOf(const Words& words) { return AsBytes(words.data(), words.size() * 2); }

Buffer Encoded(DType dtype, SplitForm form, const Words& words,
               const SplitChannels& channels = {}) {
  Buffer payload(ExponentSplitBytesMax(words.size() * 2), std::byte{0xee});
  payload.resize(
      ExponentSplitEncode(dtype, form, BytesOf(words), absl::MakeSpan(payload), channels));
  return payload;
}

// What is decoded lies in a buffer of its very size, so that AddressSanitizer sees a step beyond.
absl::Status Decoded(DType dtype, const Buffer& payload, Words& words,
                     const SplitChannels& channels = {}) {
  const Buffer exact(payload);
  return ExponentSplitDecode(dtype, exact, AsMutableBytes(words.data(), words.size() * 2),
                             channels);
}

void ExpectRoundTrip(DType dtype, SplitForm form, const Words& words, const char* what) {
  const Buffer payload = Encoded(dtype, form, words);
  EXPECT_LE(payload.size(), ExponentSplitBytesMax(words.size() * 2)) << what;
  Words back(words.size(), 0xaaaa);
  FB_EXPECT_OK(Decoded(dtype, payload, back)) << what << " " << words.size();
  EXPECT_TRUE(back == words) << what << " " << words.size();
}

SplitForm FormOf(const Buffer& payload) { return static_cast<SplitForm>(payload[1]); }

TEST(ExponentSplitTest, GivesBackWhatItTook) {
  for (const DType dtype : kDTypes) {
    for (const SplitForm form : kForms) {
      for (const size_t size : kSizes) {
        ExpectRoundTrip(dtype, form, Kv(dtype, size, size), "kv");
        ExpectRoundTrip(dtype, form, Random(size, size), "random");
        ExpectRoundTrip(dtype, form, Words(size, 0), "zeros");
        ExpectRoundTrip(dtype, form, Words(size, 0x8000), "-0");
        ExpectRoundTrip(dtype, form, Words(size, 0xffff), "ones");
        Words outlier(size, 0x3f80);
        if (size > 0) outlier[size / 2] = 0x7f01;
        ExpectRoundTrip(dtype, form, outlier, "one outlier");
      }
      ExpectRoundTrip(dtype, form, EveryPattern(), "every pattern");
    }
  }
}

// Every pattern where the plane is worth coding: as an escape, or beside escapes.
TEST(ExponentSplitTest, GivesBackEveryPatternAmongOthers) {
  for (const DType dtype : kDTypes) {
    for (const SplitForm form : {SplitForm::kFixed, SplitForm::kEntropy}) {
      Words words(65536 * 40, 0x3c12);
      for (size_t i = 0; i < 65536; ++i) words[i * 40 + i % 39] = static_cast<uint16_t>(i);
      const Buffer payload = Encoded(dtype, form, words);
      EXPECT_EQ(FormOf(payload), form);
      EXPECT_LT(payload.size(), words.size() * 2);
      Words back(words.size());
      FB_ASSERT_OK(Decoded(dtype, payload, back));
      EXPECT_TRUE(back == words);
    }
  }
}

TEST(ExponentSplitTest, ShrinksWhatLooksLikeAPage) {
  const auto ratio = [](DType dtype, SplitForm form) {
    const Words words = Kv(dtype, 8192, 1);
    const Buffer payload = Encoded(dtype, form, words);
    EXPECT_EQ(FormOf(payload), form);
    return static_cast<double>(words.size() * 2) / static_cast<double>(payload.size());
  };
  EXPECT_GT(ratio(DType::kBf16, SplitForm::kFixed), 1.31);
  EXPECT_GT(ratio(DType::kBf16, SplitForm::kEntropy), 1.44);
  EXPECT_GT(ratio(DType::kFp16, SplitForm::kFixed), 1.07);
  EXPECT_GT(ratio(DType::kFp16, SplitForm::kEntropy), 1.13);
}

TEST(ExponentSplitTest, FallsBackToRaw) {
  for (const DType dtype : kDTypes) {
    for (const SplitForm form : kForms) {
      const Buffer payload = Encoded(dtype, form, Random(10000, 3));
      EXPECT_EQ(FormOf(payload), SplitForm::kRaw);
      EXPECT_EQ(payload.size(), 16 + 20000);
    }
  }
}

// Channels of very different sizes, each alike within: what a ceiling is for.
Words ByChannel(DType dtype, const SplitChannels& shape, size_t count, uint64_t seed) {
  SeededRandom random(seed);
  Words words = Kv(dtype, count, seed);
  for (size_t i = 0; i < count; ++i) {
    const size_t channel = i / shape.run * 7 + i % shape.run % shape.channels;
    const size_t down = channel * channel % 9;
    const int shift = dtype == DType::kBf16 ? 7 : 10;
    const int exponent = (words[i] & 0x7fff) >> shift;
    const auto less = static_cast<uint16_t>(std::min<size_t>(down, static_cast<size_t>(exponent)));
    words[i] = static_cast<uint16_t>(words[i] - (less << shift));
  }
  return words;
}

TEST(ExponentSplitTest, GivesBackWhatStandsBelowCeilings) {
  for (const DType dtype : kDTypes) {
    for (const SplitChannels& shape :
         {SplitChannels{1024, 65536}, SplitChannels{128, 8192}, SplitChannels{80, 2560},
          SplitChannels{32, 2048}, SplitChannels{8, 512}, SplitChannels{3, 96}}) {
      const size_t count = std::max<size_t>(1, 40000 / shape.run) * shape.run;
      const Words words = ByChannel(dtype, shape, count, shape.channels);
      const Buffer plain = Encoded(dtype, SplitForm::kEntropy, words);
      Buffer first;
      EveryTarget([&](const char* target) {
        const Buffer payload = Encoded(dtype, SplitForm::kEntropy, words, shape);
        if (first.empty()) first = payload;
        EXPECT_TRUE(payload == first) << target << " " << shape.channels;
        Words back(words.size());
        FB_EXPECT_OK(Decoded(dtype, payload, back, shape)) << target << " " << shape.channels;
        EXPECT_TRUE(back == words) << target << " " << shape.channels;
      });
      EXPECT_EQ(plain[3], std::byte{0});
      EXPECT_EQ(first[3], std::byte{1}) << shape.channels;
      EXPECT_LT(first.size(), plain.size()) << shape.channels;
    }
  }
}

// Where channels are alike, ceilings would cost more than they save.
TEST(ExponentSplitTest, LeavesOutCeilingsThatSaveNothing) {
  SeededRandom random(3);
  Words words(8192);
  for (uint16_t& word : words) word = ToBf16(Normal(random));
  const SplitChannels shape{128, 8192};
  const Buffer payload = Encoded(DType::kBf16, SplitForm::kEntropy, words, shape);
  EXPECT_TRUE(payload == Encoded(DType::kBf16, SplitForm::kEntropy, words));
}

TEST(ExponentSplitDecodeTest, RefusesCeilingsWithoutChannels) {
  const SplitChannels shape{32, 2048};
  Words words = ByChannel(DType::kBf16, shape, 2048, 1);
  const Buffer payload = Encoded(DType::kBf16, SplitForm::kEntropy, words, shape);
  ASSERT_EQ(payload[3], std::byte{1});
  FB_EXPECT_OK(Decoded(DType::kBf16, payload, words, shape));
  EXPECT_THAT(Decoded(DType::kBf16, payload, words),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("channels")));
}

TEST(ExponentSplitTest, TellsItsLength) {
  for (const SplitForm form : kForms) {
    Buffer payload = Encoded(DType::kBf16, form, Kv(DType::kBf16, 3000, 1));
    const size_t bytes = payload.size();
    EXPECT_THAT(ExponentSplitBytes(Bytes(payload).first(bytes - 1)),
                HasCode(absl::StatusCode::kDataLoss));
    payload.resize(bytes + 20);
    const absl::StatusOr<size_t> told = ExponentSplitBytes(payload);
    FB_ASSERT_OK(told);
    EXPECT_EQ(*told, bytes);
  }
}

// The sample sees one element in sixteen; what it misses must not make every page raw.
TEST(ExponentSplitTest, CountsEverythingWhereTheSampleMisleads) {
  Words words = Kv(DType::kBf16, 65536, 5);
  for (size_t chunk = 0; chunk < 64; ++chunk) {
    for (size_t i = 0; i < 64; ++i) {
      words[chunk * 1024 + chunk * 5 % 16 * 64 + i] = static_cast<uint16_t>(i << 7);
    }
  }
  const Buffer payload = Encoded(DType::kBf16, SplitForm::kFixed, words);
  EXPECT_EQ(FormOf(payload), SplitForm::kFixed);
  EXPECT_LT(payload.size(), words.size() * 2 * 9 / 10);
}

TEST(ExponentSplitTest, TakesBuffersOfAnyAlignment) {
  const Words words = Kv(DType::kBf16, 3001, 6);
  for (const SplitForm form : kForms) {
    Buffer raw(words.size() * 2 + 1);
    std::memcpy(raw.data() + 1, words.data(), words.size() * 2);
    Buffer payload(1 + ExponentSplitBytesMax(words.size() * 2));
    const size_t bytes = ExponentSplitEncode(DType::kBf16, form, Bytes(raw).subspan(1),
                                             absl::MakeSpan(payload).subspan(1));
    Buffer back(raw.size());
    FB_ASSERT_OK(ExponentSplitDecode(DType::kBf16, Bytes(payload).subspan(1, bytes),
                                     absl::MakeSpan(back).subspan(1)));
    EXPECT_TRUE(Buffer(back.begin() + 1, back.end()) == Buffer(raw.begin() + 1, raw.end()));
  }
}

// The format, for ever: what another build wrote must decode in this one.
TEST(ExponentSplitTest, WritesTheSameBytesAsEver) {
  const auto golden = [](DType dtype, SplitForm form, size_t count) {
    Words words(count);
    for (size_t i = 0; i < count; ++i) {
      words[i] = static_cast<uint16_t>(0x3f00 + (i * i * 37) % 0x250 + (i % 3 == 0 ? 0x8000 : 0));
    }
    // More exponents than have codes.
    for (size_t i = 0; i < 20 && i * 13 < count; ++i) {
      words[i * 13] = static_cast<uint16_t>(i * 0x0c8b);
    }
    Buffer payload = Encoded(dtype, form, words);
    EXPECT_EQ(FormOf(payload), form);
    return payload;
  };
  const auto hex = [](const Buffer& payload) {
    return absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(payload.data()), payload.size()));
  };
  EXPECT_EQ(hex(golden(DType::kBf16, SplitForm::kRaw, 3)),
            "020003000300000000000000160000000000253f943f");
  EXPECT_EQ(
      hex(golden(DType::kBf16, SplitForm::kFixed, 300)),
      "020103002c01000007000000170200000013192d32464b5f64787d7e7f809196b0dcdbbcbbdc2bbcbbdcdbbc"
      "bbd4dbbcbbdcdb6cbbdcdbbcbbdcd8bcbbdcdbbcabdcdbbcbbdcdbbfbbdcdbbcbb0cdbbcbbdcdbbcb0dcdbbc"
      "bbdc0bbcbbdcdbbcbbd0dbbcbbdcdb1cbbdcdbbcbbdcd3bcbbdcdbbc5bdcdbbcbbdcdbb7bbdcdbbcbb9cdbbc"
      "bbdcdbbcbedcdbbcbbdc0bbcbbdcdbbcbbd0dbbcbbdcdb0cbbdcdbbcbbdcdbbcbbdcdbbcbbdcdbbcbbdcdbbc"
      "bbdcdbbcbbdc00000000000000000000004a289b009a294a004b289a0116284b004a299a009b284a014a2c9b"
      "009a294a004b289a019a2842004a299a009b284a014a289b589a294a004b289a019a284b006e299a009b284a"
      "014a289b009a844a004b289a019a284b004a299a009b284a014a289b009a294ab04b289a019a284b004a299a"
      "00c6284a014a289b009a294a004bdc9a019a284b004a299a009b28f3014a289b009a294a004b289a099a284b"
      "004a299a009b284a011f289b009a294a004b289a019a354b004a299a009b284a014a284b009a294a004b289a"
      "019a284b614a299a009b284a014a289b0077294a004b289a019a284b004a8d9a009b284a014a289b009a29a3"
      "004b289a019a284b004a299a009b284a014a289b009a294a004b289a019a284b004a299a009b284a014a289b"
      "009a294a004b289a00000000070000000000000000000000000000005b00680075008200dd00ea00f7000000"
      "afc8e1faaac3dc");
  EXPECT_EQ(ChecksumOf(golden(DType::kFp16, SplitForm::kFixed, 600)), 2885226008120030210ull);
  EXPECT_EQ(ChecksumOf(golden(DType::kBf16, SplitForm::kEntropy, 500)), 13625364369449691264ull);
  EXPECT_EQ(ChecksumOf(golden(DType::kFp16, SplitForm::kEntropy, 3000)), 3229591950999853930ull);
}

// --- targets ------------------------------------------------------------------------------------

TEST(ExponentSplitTargetTest, EveryTargetWritesAndReadsTheSame) {
  for (const DType dtype : kDTypes) {
    for (const SplitForm form : {SplitForm::kFixed, SplitForm::kEntropy}) {
      for (const size_t size : kSizes) {
        for (const Words& words : {Kv(dtype, size, size), Words(size, 0)}) {
          std::vector<Buffer> payloads;
          EveryTarget([&](const char* target) {
            payloads.push_back(Encoded(dtype, form, words));
            EXPECT_TRUE(payloads.back() == payloads.front()) << target << " " << size;
            Words back(size);
            FB_EXPECT_OK(Decoded(dtype, payloads.front(), back)) << target << " " << size;
            EXPECT_TRUE(back == words) << target << " " << size;
          });
          EXPECT_GE(payloads.size(), 2u);
        }
      }
    }
  }
}

// A codebook of any sixteen exponents, in as many groups as there can be.
TEST(ExponentSplitTargetTest, TakesExponentsThatAreFarApart) {
  SeededRandom random(8);
  Words words(5000);
  for (uint16_t& word : words) {
    word = static_cast<uint16_t>(random.Below(16) * 17 << 7 | random.Below(128) |
                                 random.Below(2) << 15);
  }
  std::vector<Buffer> payloads;
  EveryTarget([&](const char* target) {
    payloads.push_back(Encoded(DType::kBf16, SplitForm::kFixed, words));
    EXPECT_EQ(FormOf(payloads.back()), SplitForm::kFixed);
    EXPECT_TRUE(payloads.back() == payloads.front()) << target;
    Words back(words.size());
    FB_EXPECT_OK(Decoded(DType::kBf16, payloads.back(), back)) << target;
    EXPECT_TRUE(back == words) << target;
  });
}

TEST(ExponentSplitTargetTest, CountsWhatThereIs) {
  const Words words = Random(70001, 9);
  uint64_t due[256] = {};
  for (const uint16_t word : words) ++due[word >> 7 & 0xff];
  uint64_t counts[256] = {};
  exponent_split::CountKeys(reinterpret_cast<const uint8_t*>(words.data()), words.size(), counts);
  for (int key = 0; key < 256; ++key) EXPECT_EQ(counts[key], due[key]) << key;
}

// --- payloads that are not to be trusted ---------------------------------------------------------

TEST(ExponentSplitDecodeTest, RefusesEveryTruncation) {
  for (const DType dtype : kDTypes) {
    for (const SplitForm form : kForms) {
      for (const size_t size : {size_t{33}, size_t{1500}}) {
        const Words words = Kv(dtype, size, 11);
        const Buffer payload = Encoded(dtype, form, words);
        Words back(size);
        for (size_t length = 0; length < payload.size(); ++length) {
          const Buffer cut(payload.begin(), payload.begin() + static_cast<ptrdiff_t>(length));
          EXPECT_THAT(Decoded(dtype, cut, back), HasCode(absl::StatusCode::kDataLoss)) << length;
        }
        Buffer longer(payload);
        longer.push_back(std::byte{0});
        EXPECT_THAT(Decoded(dtype, longer, back), HasCode(absl::StatusCode::kDataLoss));
      }
    }
  }
}

TEST(ExponentSplitDecodeTest, NamesWhatIsWrong) {
  const Words words = Kv(DType::kBf16, 2000, 12);
  const Buffer payload = Encoded(DType::kBf16, SplitForm::kFixed, words);
  uint32_t escape_count;
  std::memcpy(&escape_count, payload.data() + 8, sizeof(escape_count));
  ASSERT_GE(escape_count, 1);
  // header, codebook, nibbles, rest, two chunks' escape counts
  constexpr size_t kEscapesAt = 16 + 16 + 1008 + 2000;
  constexpr size_t kPositionsAt = kEscapesAt + 16;
  Words back(words.size());
  const auto decode_with = [&](size_t at, uint8_t value) {
    Buffer bad(payload);
    EXPECT_NE(bad[at], static_cast<std::byte>(value)) << at;
    bad[at] = static_cast<std::byte>(value);
    return Decoded(DType::kBf16, bad, back);
  };
  const auto data_loss = [](const char* what) {
    return HasStatus(absl::StatusCode::kDataLoss, HasSubstr(what));
  };
  EXPECT_THAT(decode_with(0, 9), data_loss("version 9"));
  EXPECT_THAT(decode_with(1, 3), data_loss("form 3"));
  EXPECT_THAT(decode_with(2, 2), data_loss("dtype 2"));
  EXPECT_THAT(decode_with(4, 0), data_loss("elements"));
  EXPECT_THAT(decode_with(8, static_cast<uint8_t>(escape_count + 1)), data_loss("are due"));
  EXPECT_THAT(decode_with(kEscapesAt + 3, 255), data_loss("escapes"));
  EXPECT_THAT(decode_with(kPositionsAt + 1, 255), data_loss("an escape at"));
  Words fewer(words.size() - 1);
  EXPECT_THAT(Decoded(DType::kBf16, payload, fewer), data_loss("elements"));
  Words more(words.size() + 1);
  EXPECT_THAT(Decoded(DType::kBf16, payload, more), data_loss("elements"));
}

// The guard against an escape outside of its chunk, which would write outside of `raw`.
TEST(ExponentSplitDecodeTest, RefusesAnEscapeOutsideOfThePlane) {
  Words words(40, 0x3f80);
  for (size_t i = 0; i < 20; ++i) words[i] = static_cast<uint16_t>((100 + i) << 7);
  const Buffer payload = Encoded(DType::kBf16, SplitForm::kFixed, words);
  ASSERT_EQ(FormOf(payload), SplitForm::kRaw) << "too small to be worth it";

  Words large(1030, 0x3f80);
  for (size_t i = 0; i < 20; ++i) large[1024 + i % 6] = static_cast<uint16_t>((10 + i) << 7);
  for (size_t i = 0; i < 16; ++i) large[i] = static_cast<uint16_t>((120 + i) << 7);
  for (size_t i = 16; i < 64; ++i) large[i] = large[i % 16];
  Buffer bad = Encoded(DType::kBf16, SplitForm::kFixed, large);
  ASSERT_EQ(FormOf(bad), SplitForm::kFixed);
  uint32_t escape_count;
  std::memcpy(&escape_count, bad.data() + 8, sizeof(escape_count));
  ASSERT_GE(escape_count, 1);
  Words back(large.size());
  FB_ASSERT_OK(Decoded(DType::kBf16, bad, back));
  EXPECT_TRUE(back == large);
  const size_t exponents_at = bad.size() - escape_count;
  const size_t positions_at = exponents_at - (escape_count * 2 + 15) / 16 * 16;
  const uint16_t beyond = 6;
  std::memcpy(bad.data() + positions_at + (escape_count - 1) * 2, &beyond, sizeof(beyond));
  EXPECT_THAT(Decoded(DType::kBf16, bad, back),
              HasStatus(absl::StatusCode::kDataLoss, HasSubstr("an escape at 6")));
}

// What must hold of anything at all: an error, or elements. Under AddressSanitizer also: no byte
// outside. What one target takes, all take, for the same.
void ExpectHarmless(DType dtype, const Buffer& payload, size_t count) {
  Words first;
  absl::Status status;
  EveryTarget([&](const char* target) {
    Words back(count);
    const absl::Status now = Decoded(dtype, payload, back);
    if (first.empty()) {
      status = now;
      first = back;
      return;
    }
    EXPECT_EQ(now.code(), status.code()) << target;
    EXPECT_TRUE(!now.ok() || back == first) << target;
  });
}

TEST(ExponentSplitDecodeTest, BearsFlippedBits) {
  SeededRandom random(21);
  for (const DType dtype : kDTypes) {
    for (const SplitForm form : {SplitForm::kFixed, SplitForm::kEntropy}) {
      for (const size_t size : {size_t{130}, size_t{1500}}) {
        const Buffer payload = Encoded(dtype, form, Kv(dtype, size, 13));
        for (int i = 0; i < 7000; ++i) {
          Buffer bad(payload);
          for (size_t flips = 1 + random.Below(4); flips > 0; --flips) {
            // Often where escapes, tables and lengths are.
            const uint64_t where = random.Below(3);
            const size_t from_end = random.Below(std::min<size_t>(bad.size(), 80));
            const size_t at = where == 0   ? random.Below(16)
                              : where == 1 ? bad.size() - 1 - from_end
                                           : random.Below(bad.size());
            bad[at] ^= static_cast<std::byte>(1 << random.Below(8));
          }
          ExpectHarmless(dtype, bad, size);
        }
      }
    }
  }
}

TEST(ExponentSplitDecodeTest, BearsGarbage) {
  SeededRandom random(22);
  for (int i = 0; i < 50000; ++i) {
    Buffer bad(random.Below(400));
    for (std::byte& byte : bad) byte = static_cast<std::byte>(random.Next());
    const DType dtype = kDTypes[i % 2];
    const size_t count = random.Below(150);
    if (bad.size() >= 16) {
      // A header that passes, so that what is behind it is read.
      const auto escapes = static_cast<uint8_t>(random.Below(20));
      const auto form = static_cast<uint8_t>(random.Below(3));
      const uint8_t start[] = {2,
                               form,
                               static_cast<uint8_t>(dtype),
                               0,
                               static_cast<uint8_t>(count),
                               0,
                               0,
                               0,
                               form == 1 ? escapes : uint8_t{0},
                               0,
                               0,
                               0,
                               0,
                               0,
                               0,
                               0};
      std::memcpy(bad.data(), start, sizeof(start));
      if (form == 1) {
        const auto up = [](size_t bytes) { return (bytes + 15) / 16 * 16; };
        bad.resize(32 + up((count + 1) / 2) + (dtype == DType::kFp16 ? up((count + 3) / 4) : 0) +
                   up(count) + (count > 0 ? 16 : 0) + up(escapes * 2) + escapes);
        for (size_t code = 0; code < 16; ++code) bad[16 + code] &= std::byte{31};
      }
    }
    if (bad.size() >= 16) {
      const auto bytes = static_cast<uint32_t>(bad.size());
      std::memcpy(bad.data() + 12, &bytes, sizeof(bytes));
    }
    ExpectHarmless(dtype, bad, count);
  }
}

}  // namespace
}  // namespace forebay
