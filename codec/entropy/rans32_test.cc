#include "codec/entropy/rans32.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "codec/testing/targets.h"

namespace forebay {
namespace {

using ::forebay::testing::EveryTarget;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

using Buffer = std::vector<std::byte>;

constexpr size_t kSizes[] = {0,    1,    2,    31,   32,    33,    63,    64,    1000,
                             4095, 4096, 4097, 8192, 32767, 32768, 32769, 65536, 100000};

// Each symbol about half as frequent as the one before, `spread` of them.
Buffer Skewed(size_t count, size_t spread, uint64_t seed) {
  SeededRandom random(seed);
  Buffer symbols(count);
  for (std::byte& symbol : symbols) {
    size_t value = 0;
    while (value + 1 < spread && random.Chance(0.5)) ++value;
    symbol = static_cast<std::byte>(value * 37 + 100);
  }
  return symbols;
}

Buffer Uniform(size_t count, size_t spread, uint64_t seed) {
  SeededRandom random(seed);
  Buffer symbols(count);
  for (std::byte& symbol : symbols) symbol = static_cast<std::byte>(random.Below(spread));
  return symbols;
}

Buffer Encoded(const Buffer& symbols) {
  Buffer out(Rans32BytesMax(symbols.size()));
  out.resize(Rans32Encode(symbols, absl::MakeSpan(out)));
  return out;
}

std::string Hex(const Buffer& bytes) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

Rans32Frequencies FrequenciesOf(const Buffer& symbols) {
  uint64_t counts[256] = {};
  for (const std::byte symbol : symbols) ++counts[static_cast<uint8_t>(symbol)];
  return Rans32Frequencies::OfCounts(counts);
}

// One block of one run, with `tables`.
Buffer Block(absl::Span<const rans32::EncodeTable> tables, const rans32::Classes& classes,
             const Buffer& symbols, const Rans32Tail& tail = {}) {
  Buffer room(200 + 2 * symbols.size());
  Rans32BlockWriter writer(absl::MakeSpan(room), tail);
  for (size_t left = symbols.size(); left > 0;) {
    const size_t at = (left - 1) / rans32::kSymbolsMax * rans32::kSymbolsMax;
    if (!writer.Prepend(tables.data(), classes, at, Bytes(symbols).subspan(at, left - at))) {
      return {};
    }
    left = at;
  }
  const size_t bytes = writer.Finish();
  return Buffer(room.end() - static_cast<ptrdiff_t>(bytes), room.end());
}

// What is decoded lies in a buffer of its very size, so that AddressSanitizer sees a step beyond.
absl::Status Decoded(const Buffer& stream, Buffer& symbols) {
  const Buffer exact(stream);
  return Rans32Decode(exact, absl::MakeSpan(symbols));
}

TEST(Rans32Test, GivesBackWhatItTook) {
  for (const size_t size : kSizes) {
    for (const Buffer& symbols :
         {Skewed(size, 20, 1), Skewed(size, 3, 2), Uniform(size, 256, 3), Uniform(size, 16, 4),
          Uniform(size, 2, 5), Buffer(size), Buffer(size, std::byte{255})}) {
      const Buffer stream = Encoded(symbols);
      EXPECT_LE(stream.size(), Rans32BytesMax(size));
      Buffer back(size, std::byte{0xaa});
      FB_ASSERT_OK(Decoded(stream, back)) << size;
      ASSERT_TRUE(back == symbols) << size;
    }
  }
}

// One symbol of everything and thousands of another: frequencies of one, rounded up.
TEST(Rans32Test, TakesEverySymbolBesideOneThatIsFrequent) {
  Buffer symbols(50000, std::byte{7});
  for (size_t i = 0; i < 256; ++i) symbols[i * 190] = static_cast<std::byte>(i);
  const Buffer stream = Encoded(symbols);
  EXPECT_LT(stream.size(), symbols.size() / 4);
  Buffer back(symbols.size());
  FB_ASSERT_OK(Decoded(stream, back));
  EXPECT_TRUE(back == symbols);
}

// Every frequency from 1 to 2,048 divides right at states of all sizes.
TEST(Rans32Test, TakesEveryFrequency) {
  for (uint64_t frequency = 1; frequency < 2048; ++frequency) {
    uint64_t counts[256] = {};
    counts[3] = frequency;
    counts[200] = 2048 - frequency;
    const Rans32Frequencies frequencies = Rans32Frequencies::OfCounts(counts);
    ASSERT_EQ(frequencies.of[3], frequency);
    rans32::EncodeTable encode;
    rans32::DecodeTable decode;
    frequencies.Fill(encode);
    frequencies.Fill(decode);
    SeededRandom random(frequency);
    Buffer symbols(1111);
    for (std::byte& symbol : symbols) {
      symbol = random.Below(2048) < frequency ? std::byte{3} : std::byte{200};
    }
    const Buffer block = Block({&encode, 1}, {}, symbols);
    Rans32BlockReader reader;
    FB_ASSERT_OK(reader.Open(block));
    Buffer back(symbols.size());
    FB_ASSERT_OK(reader.Next(&decode, {}, 0, absl::MakeSpan(back)));
    FB_ASSERT_OK(reader.Finish());
    ASSERT_TRUE(back == symbols) << frequency;
  }
}

// The size is that of the entropy and the states, within 1 %.
TEST(Rans32Test, ComesCloseToTheEntropy) {
  const Buffer symbols = Skewed(1 << 18, 20, 9);
  uint64_t counts[256] = {};
  for (const std::byte symbol : symbols) ++counts[static_cast<uint8_t>(symbol)];
  double bits = 0;
  for (const uint64_t count : counts) {
    const auto times = static_cast<double>(count);
    if (count > 0) bits += times * std::log2(static_cast<double>(symbols.size()) / times);
  }
  const double due = bits / 8 + 8 * (128 + 4);
  EXPECT_LT(static_cast<double>(Encoded(symbols).size()), due * 1.01);
  EXPECT_GT(static_cast<double>(Encoded(symbols).size()), due * 0.99);
}

TEST(Rans32Test, StoresWhatDoesNotShrink) {
  for (const size_t size : {size_t{0}, size_t{5}, size_t{100}, size_t{10000}}) {
    const Buffer stream = Encoded(Uniform(size, 256, 6));
    EXPECT_EQ(stream.size(), 1 + size);
    EXPECT_EQ(stream[0], std::byte{0});
  }
}

// Symbols of one row with tables of their own, in rows that the period does not divide.
TEST(Rans32Test, TakesATableForEachSymbol) {
  constexpr size_t kPeriod = 96;
  std::vector<Rans32Frequencies> frequencies;
  std::vector<rans32::EncodeTable> encode(3);
  std::vector<rans32::DecodeTable> decode(3);
  for (size_t i = 0; i < 3; ++i) {
    frequencies.push_back(FrequenciesOf(Skewed(50000, 4 + 9 * i, i)));
    frequencies[i].Fill(encode[i]);
    frequencies[i].Fill(decode[i]);
  }
  std::vector<uint16_t> bases(kPeriod);
  for (size_t i = 0; i < kPeriod; ++i) bases[i] = static_cast<uint16_t>(256 * (i * i % 3));
  const rans32::Classes classes{bases.data(), kPeriod};
  for (const size_t size : {1, 31, 32, 100, 4096, 4100, 30001}) {
    Buffer symbols(size);
    for (size_t c = 0; c < 3; ++c) {
      const Buffer of_class = Skewed(size, 4 + 9 * c, 77 + c);
      for (size_t i = 0; i < size; ++i) {
        if (bases[i % kPeriod] == 256 * c) symbols[i] = of_class[i];
      }
    }
    Rans32Tail tail;
    for (size_t i = 0; i < tail.size(); ++i) tail[i] = static_cast<uint16_t>(i * 2311);
    Buffer first;
    EveryTarget([&](const char* target) {
      const Buffer block = Block(encode, classes, symbols, tail);
      if (first.empty()) first = block;
      EXPECT_TRUE(block == first) << target;
      Rans32BlockReader reader;
      FB_ASSERT_OK(reader.Open(block));
      Buffer back(size);
      for (size_t at = 0; at < size; at += 1024) {
        FB_ASSERT_OK(
            reader.Next(decode.data(), classes, at, absl::MakeSpan(back).subspan(at, 1024)));
      }
      EXPECT_TRUE(back == symbols) << target << " " << size;
      Rans32Tail tail_back;
      FB_ASSERT_OK(reader.Finish(tail_back));
      EXPECT_TRUE(tail_back == tail) << target;
      EXPECT_THAT(reader.Finish(), HasStatus(absl::StatusCode::kDataLoss, HasSubstr("tail")));
    });
  }
}

TEST(Rans32Test, RefusesSymbolsThatATableLacks) {
  const Rans32Frequencies frequencies = FrequenciesOf(Skewed(100000, 20, 1));
  rans32::EncodeTable encode;
  frequencies.Fill(encode);
  for (const size_t at : {size_t{0}, size_t{4500}, size_t{8999}}) {
    Buffer symbols = Skewed(9000, 18, 2);
    EXPECT_FALSE(Block({&encode, 1}, {}, symbols).empty());
    symbols[at] = std::byte{1};
    EXPECT_TRUE(Block({&encode, 1}, {}, symbols).empty());
  }
}

TEST(Rans32TableTest, GivesBackWhatItTook) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SeededRandom random(seed);
    uint64_t counts[256] = {};
    const size_t occurring = 1 + random.Below(256);
    for (size_t i = 0; i < occurring; ++i) {
      counts[random.Below(256)] = random.Next() >> (32 + random.Below(31));
    }
    const Rans32Frequencies table = Rans32Frequencies::OfCounts(counts);
    Buffer serialized(Rans32Frequencies::kSerializedBytesMax);
    serialized.resize(table.Serialize(absl::MakeSpan(serialized)));
    Bytes in(serialized);
    const absl::StatusOr<Rans32Frequencies> back = Rans32Frequencies::Parse(&in);
    FB_ASSERT_OK(back);
    EXPECT_TRUE(in.empty());
    EXPECT_TRUE(back->of == table.of);
    uint32_t sum = 0;
    for (int s = 0; s < 256; ++s) {
      EXPECT_TRUE(counts[s] == 0 || table.of[static_cast<size_t>(s)] > 0);
      sum += table.of[static_cast<size_t>(s)];
    }
    EXPECT_EQ(sum, 2048);
  }
}

TEST(Rans32TableTest, RefusesWhatIsNoTable) {
  const auto parse = [](std::vector<uint8_t> bytes) {
    Bytes in = AsBytes(bytes.data(), bytes.size());
    return Rans32Frequencies::Parse(&in).status();
  };
  FB_EXPECT_OK(parse({0x88, 0x00}));
  FB_EXPECT_OK(parse({0x87, 0xff, 0, 253, 1}));
  for (const auto& [bytes, what] : std::vector<std::pair<std::vector<uint8_t>, std::string>>{
           {{}, "ends early"},
           {{0x87}, "ends early"},
           {{0x87, 0xff}, "ends early"},
           {{0x88, 0x01}, "more than 2048 in all"},
           {{0x87, 0xff, 2}, "more than 2048 in all"},
           {{0x80, 0x7f}, "long form"},
           {{0x87, 0xff, 0, 254, 1}, "256 symbols"},
           {{0, 255, 0x88, 0x00}, "256 symbols"},
       }) {
    EXPECT_THAT(parse(bytes), HasStatus(absl::StatusCode::kDataLoss, HasSubstr(what))) << what;
  }
}

// The format, for ever: what another build wrote must decode in this one.
TEST(Rans32Test, WritesTheSameBytesAsEver) {
  Buffer symbols(300);
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i] = static_cast<std::byte>(120 + (i * i + i / 7) % 11 % 5);
  }
  EXPECT_EQ(
      Hex(Encoded(symbols)),
      "01007782a4811181d7813a813a0000003211d80092031602022f3300"
      "eeaf8f001fc03e0049a6950072569f02d1a253000cd01a0094085f00f3bb1e0061ab30005a0d0b003bb90700"
      "05021700df0c0a00aa280f0078710400eeec0f009388b30010d32f002d970300b1561f00eca7060098e40f00"
      "b1821f00efdd08001e5b0f007a8d0e00901f0f00877506009ff60d0048d86340d4488eef2b18b529a62cb942"
      "5684937988008e3299d11db4fab7a7f725eeac5398041a8faad4452ff27e19c1b205f087e800c3a68887759b"
      "3e57d86d");
}

// --- targets ------------------------------------------------------------------------------------

TEST(Rans32TargetTest, EveryTargetWritesAndReadsTheSame) {
  for (const size_t size : kSizes) {
    for (const Buffer& symbols : {Skewed(size, 20, 11), Uniform(size, 40, 12), Buffer(size)}) {
      std::vector<Buffer> streams;
      EveryTarget([&](const char* target) {
        streams.push_back(Encoded(symbols));
        EXPECT_TRUE(streams.back() == streams.front()) << target << " " << size;
        Buffer back(size);
        FB_EXPECT_OK(Decoded(streams.front(), back)) << target << " " << size;
        EXPECT_TRUE(back == symbols) << target << " " << size;
      });
      EXPECT_GE(streams.size(), 2u);
    }
  }
}

// --- streams that are not to be trusted ----------------------------------------------------------

TEST(Rans32DecodeTest, RefusesEveryTruncation) {
  for (const size_t size : {size_t{33}, size_t{4096}, size_t{9000}}) {
    const Buffer symbols = Skewed(size, 20, 21);
    const Buffer stream = Encoded(symbols);
    EveryTarget([&](const char* target) {
      Buffer back(size);
      for (size_t length = 0; length < stream.size(); ++length) {
        const Buffer cut(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(length));
        EXPECT_THAT(Decoded(cut, back), HasCode(absl::StatusCode::kDataLoss))
            << target << " " << length;
      }
      Buffer longer(stream);
      longer.push_back(std::byte{0});
      EXPECT_THAT(Decoded(longer, back), HasCode(absl::StatusCode::kDataLoss)) << target;
    });
  }
}

// Two blocks are read side by side: whichever of them ends early.
TEST(Rans32DecodeTest, RefusesATruncationOfEitherOfTwoBlocks) {
  const Buffer symbols = Skewed(2 * Rans32Reader::kBlockSymbols, 20, 27);
  const Buffer stream = Encoded(symbols);
  EveryTarget([&](const char* target) {
    Buffer back(symbols.size());
    FB_EXPECT_OK(Decoded(stream, back)) << target;
    EXPECT_EQ(back, symbols) << target;
    for (size_t length = stream.size() / 2 + 1; length < stream.size(); length += 997) {
      const Buffer cut(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(length));
      EXPECT_THAT(Decoded(cut, back), HasCode(absl::StatusCode::kDataLoss)) << target << length;
      Buffer gap(stream);
      const auto hole = gap.begin() + static_cast<ptrdiff_t>(stream.size() / 3);
      gap.erase(hole, hole + static_cast<ptrdiff_t>(stream.size() - length));
      EXPECT_THAT(Decoded(gap, back), HasCode(absl::StatusCode::kDataLoss)) << target << length;
    }
  });
}

TEST(Rans32DecodeTest, RefusesAnotherNumberOfSymbols) {
  for (const Buffer& symbols : {Skewed(9000, 20, 22), Uniform(9000, 256, 1)}) {
    const Buffer stream = Encoded(symbols);
    Buffer fewer(8999);
    Buffer more(9001);
    EXPECT_THAT(Decoded(stream, fewer), HasCode(absl::StatusCode::kDataLoss));
    EXPECT_THAT(Decoded(stream, more), HasCode(absl::StatusCode::kDataLoss));
  }
}

// Lengths that lie: words of one block are given to its neighbour.
TEST(Rans32DecodeTest, RefusesAWordThatABlockDoesNotNeed) {
  const Buffer symbols = Skewed(40000, 20, 23);
  const Buffer stream = Encoded(symbols);
  Bytes in = Bytes(stream).subspan(1);
  FB_ASSERT_OK(Rans32Frequencies::Parse(&in));
  const size_t length_at = (stream.size() - in.size() + 3) / 4 * 4;
  for (const int moved : {-2, -1, 1, 2, 1000, -1000, 1 << 24}) {
    Buffer bad(stream);
    uint32_t length;
    std::memcpy(&length, bad.data() + length_at, sizeof(length));
    length += static_cast<uint32_t>(moved);
    std::memcpy(bad.data() + length_at, &length, sizeof(length));
    EveryTarget([&](const char* target) {
      Buffer back(symbols.size());
      EXPECT_THAT(Decoded(bad, back), HasCode(absl::StatusCode::kDataLoss)) << target;
    });
  }
}

// A block of few words that needs thousands: the guard in the loop.
TEST(Rans32DecodeTest, StopsAtTheEndOfTheWords) {
  const Buffer symbols = Uniform(8192, 128, 25);
  const Buffer stream = Encoded(symbols);
  for (const size_t cut : {size_t{40}, size_t{2000}, stream.size() - 300}) {
    const Buffer bad(stream.begin(), stream.end() - static_cast<ptrdiff_t>(cut / 2 * 2));
    EveryTarget([&](const char* target) {
      Buffer back(symbols.size());
      EXPECT_THAT(Decoded(bad, back), HasStatus(absl::StatusCode::kDataLoss, HasSubstr("too few")))
          << target;
    });
  }
}

// The guard that says a block is whole: without it these would be wrong symbols and success.
TEST(Rans32DecodeTest, RefusesABlockThatEndsInAnotherState) {
  const Buffer symbols = Skewed(4096, 20, 24);
  const Buffer stream = Encoded(symbols);
  size_t caught_by_state = 0;
  for (size_t at = stream.size() - 200; at < stream.size(); ++at) {
    Buffer bad(stream);
    bad[at] ^= std::byte{1};
    Buffer back(symbols.size());
    const absl::Status status = Decoded(bad, back);
    EXPECT_THAT(status, HasCode(absl::StatusCode::kDataLoss)) << at;
    caught_by_state += absl::StrContains(status.message(), "words") ? 0 : 1;
  }
  EXPECT_GT(caught_by_state, 0);
}

// What must hold of anything at all: an error, or symbols. Under AddressSanitizer also: no byte
// outside. A decoder that succeeds on every target must have the same symbols on all of them.
void ExpectHarmless(const Buffer& stream, size_t count, size_t& accepted) {
  Buffer first;
  absl::Status status;
  EveryTarget([&](const char* target) {
    Buffer back(count);
    const absl::Status now = Decoded(stream, back);
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

TEST(Rans32DecodeTest, BearsFlippedBits) {
  SeededRandom random(31);
  const size_t sizes[] = {400, 1000, 4100, 8200};
  std::vector<Buffer> streams;
  for (const size_t size : sizes) streams.push_back(Encoded(Skewed(size, 12, size)));
  size_t accepted = 0;
  for (int i = 0; i < 25000; ++i) {
    // The small ones more often: they are quick.
    const size_t which = i % 16 == 0 ? 3 : i % 16 == 1 ? 2 : i % 2;
    Buffer bad(streams[which]);
    for (size_t flips = 1 + random.Below(4); flips > 0; --flips) {
      // Half of them where the lengths and the table are.
      const size_t at =
          random.Below(random.Chance(0.5) ? std::min<size_t>(bad.size(), 48) : bad.size());
      bad[at] ^= static_cast<std::byte>(1 << random.Below(8));
    }
    ExpectHarmless(bad, sizes[which], accepted);
  }
  // Two flips of one bit; and bits that nothing reads.
  EXPECT_LT(accepted, 1500);
}

TEST(Rans32DecodeTest, BearsGarbage) {
  SeededRandom random(32);
  size_t accepted = 0;
  for (int i = 0; i < 75000; ++i) {
    Buffer bad(random.Below(700));
    for (std::byte& byte : bad) byte = static_cast<std::byte>(random.Next());
    const size_t count = random.Below(300);
    // A table and states that pass, so that what is behind them is read.
    if (bad.size() >= 8 + 128 && random.Chance(0.9)) {
      const uint8_t start[] = {1, 0x84, 0, 0x83, 0, 0x81, 0, 0};
      std::memcpy(bad.data(), start, sizeof(start));
      for (size_t lane = 0; lane < 32; ++lane) bad[8 + 4 * lane + 2] |= std::byte{1};
    }
    ExpectHarmless(bad, count, accepted);
  }
  EXPECT_LT(accepted, 100);
}

}  // namespace
}  // namespace forebay
