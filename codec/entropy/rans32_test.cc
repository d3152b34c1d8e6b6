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

constexpr size_t kSizes[] = {0,    1,    2,    31,   32,   33,   63,    64,    1000,
                             4095, 4096, 4097, 8191, 8192, 8193, 12288, 20000, 100000};

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

Rans32Table TableOf(const Buffer& symbols) {
  uint64_t counts[256] = {};
  for (const std::byte symbol : symbols) ++counts[static_cast<uint8_t>(symbol)];
  return Rans32Table::OfCounts(counts);
}

// What is decoded lies in a buffer of its very size, so that AddressSanitizer sees a step beyond.
absl::Status Decoded(const Buffer& stream, Buffer& symbols, const Rans32Table* table = nullptr) {
  const Buffer exact(stream);
  return Rans32Decode(exact, absl::MakeSpan(symbols), table);
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
    const Rans32Table table = Rans32Table::OfCounts(counts);
    ASSERT_EQ(table.frequency(3), frequency);
    SeededRandom random(frequency);
    Buffer symbols(1111);
    for (std::byte& symbol : symbols) {
      symbol = random.Below(2048) < frequency ? std::byte{3} : std::byte{200};
    }
    Buffer stream(Rans32BytesMax(symbols.size()));
    stream.resize(Rans32Encode(table, symbols, absl::MakeSpan(stream)));
    Buffer back(symbols.size());
    FB_ASSERT_OK(Decoded(stream, back, &table));
    ASSERT_TRUE(back == symbols) << frequency;
  }
}

// The size is that of the entropy, the states and the header, within 2 %.
TEST(Rans32Test, ComesCloseToTheEntropy) {
  const Buffer symbols = Skewed(1 << 18, 20, 9);
  uint64_t counts[256] = {};
  for (const std::byte symbol : symbols) ++counts[static_cast<uint8_t>(symbol)];
  double bits = 0;
  for (const uint64_t count : counts) {
    const auto times = static_cast<double>(count);
    if (count > 0) bits += times * std::log2(static_cast<double>(symbols.size()) / times);
  }
  const double due = bits / 8 + 64 * (128 + 2);
  EXPECT_LT(static_cast<double>(Encoded(symbols).size()), due * 1.02);
  EXPECT_GT(static_cast<double>(Encoded(symbols).size()), due * 0.9);
}

TEST(Rans32Test, StoresWhatDoesNotShrink) {
  for (const size_t size : {size_t{0}, size_t{5}, size_t{100}, size_t{10000}}) {
    const Buffer stream = Encoded(Uniform(size, 256, 6));
    EXPECT_EQ(stream.size(), kRans32HeaderBytes + size);
    EXPECT_EQ(stream[1], std::byte{0});
  }
}

TEST(Rans32Test, UsesATableThatBothSidesKnow) {
  const Rans32Table table = TableOf(Skewed(100000, 20, 1));
  const Rans32Table other = TableOf(Skewed(100000, 6, 1));
  const Buffer symbols = Skewed(9000, 18, 2);
  Buffer stream(Rans32BytesMax(symbols.size()));
  stream.resize(Rans32Encode(table, symbols, absl::MakeSpan(stream)));
  EXPECT_LT(stream.size(), Encoded(symbols).size());
  Buffer back(symbols.size());
  FB_ASSERT_OK(Decoded(stream, back, &table));
  EXPECT_TRUE(back == symbols);

  EXPECT_THAT(Decoded(stream, back, &other), HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(Decoded(stream, back), HasStatus(absl::StatusCode::kDataLoss, HasSubstr("table")));
}

TEST(Rans32Test, StoresSymbolsThatAKnownTableLacks) {
  const Rans32Table table = TableOf(Skewed(100000, 20, 1));
  for (const size_t at : {size_t{0}, size_t{4500}, size_t{8999}}) {
    Buffer symbols = Skewed(9000, 18, 2);
    symbols[at] = std::byte{1};
    Buffer stream(Rans32BytesMax(symbols.size()));
    stream.resize(Rans32Encode(table, symbols, absl::MakeSpan(stream)));
    EXPECT_EQ(stream.size(), Rans32BytesMax(symbols.size()));
    Buffer back(symbols.size());
    FB_ASSERT_OK(Decoded(stream, back, &table));
    EXPECT_TRUE(back == symbols);
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
    const Rans32Table table = Rans32Table::OfCounts(counts);
    Buffer serialized(Rans32Table::kSerializedBytesMax);
    serialized.resize(table.Serialize(absl::MakeSpan(serialized)));
    const absl::StatusOr<Rans32Table> back = Rans32Table::Parse(serialized);
    FB_ASSERT_OK(back);
    EXPECT_EQ(back->check(), table.check());
    uint32_t sum = 0;
    for (int s = 0; s < 256; ++s) {
      EXPECT_EQ(back->frequency(static_cast<uint8_t>(s)), table.frequency(static_cast<uint8_t>(s)));
      EXPECT_TRUE(counts[s] == 0 || table.frequency(static_cast<uint8_t>(s)) > 0);
      sum += table.frequency(static_cast<uint8_t>(s));
    }
    EXPECT_EQ(sum, 2048);
  }
}

TEST(Rans32TableTest, RefusesWhatIsNoTable) {
  const auto parse = [](std::vector<uint8_t> bytes) {
    return Rans32Table::Parse(AsBytes(bytes.data(), bytes.size())).status();
  };
  FB_EXPECT_OK(parse({0x88, 0x00}));
  FB_EXPECT_OK(parse({0x87, 0xff, 0, 253, 1}));
  for (const auto& [bytes, what] : std::vector<std::pair<std::vector<uint8_t>, std::string>>{
           {{}, "ends early"},
           {{0x87}, "ends early"},
           {{0x87, 0xff}, "ends early"},
           {{0x88, 0x01}, "more than 2048 in all"},
           {{0x87, 0xff, 2}, "more than 2048 in all"},
           {{0x88, 0x00, 0}, "1 bytes after"},
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
      "01010c002c0100000000000020000000007782a4811181d7813a813a200000003211d80092031602022f3300"
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

TEST(Rans32DecodeTest, RefusesAnotherNumberOfSymbols) {
  const Buffer stream = Encoded(Skewed(9000, 20, 22));
  Buffer fewer(8999);
  Buffer more(9001);
  EXPECT_THAT(Decoded(stream, fewer), HasStatus(absl::StatusCode::kDataLoss, HasSubstr("9000")));
  EXPECT_THAT(Decoded(stream, more), HasStatus(absl::StatusCode::kDataLoss, HasSubstr("9000")));
}

// Lengths that lie: one block's words are moved to its neighbour. Both would stay in bounds.
TEST(Rans32DecodeTest, RefusesAWordThatABlockDoesNotNeed) {
  const Buffer symbols = Skewed(8192, 20, 23);
  const Buffer stream = Encoded(symbols);
  const auto table_bytes = static_cast<size_t>(static_cast<uint8_t>(stream[2]));
  const size_t lengths_at = kRans32HeaderBytes + (table_bytes + 3) / 4 * 4;
  for (const int moved : {-1, 1, 1000}) {
    Buffer bad(stream);
    uint16_t lengths[2];
    std::memcpy(lengths, bad.data() + lengths_at, sizeof(lengths));
    lengths[0] = static_cast<uint16_t>(lengths[0] + moved);
    lengths[1] = static_cast<uint16_t>(lengths[1] - moved);
    std::memcpy(bad.data() + lengths_at, lengths, sizeof(lengths));
    EveryTarget([&](const char* target) {
      Buffer back(symbols.size());
      EXPECT_THAT(Decoded(bad, back), HasStatus(absl::StatusCode::kDataLoss, HasSubstr("words")))
          << target;
    });
  }
}

// A block that claims no words and needs thousands, with little behind it: the guard in the loop.
TEST(Rans32DecodeTest, StopsAtTheEndOfTheWords) {
  for (const size_t size : {size_t{4097}, size_t{8192}}) {
    Buffer bad = Encoded(Uniform(size, 128, 25));
    ASSERT_EQ(bad[1], std::byte{1});
    uint16_t table_bytes;
    std::memcpy(&table_bytes, bad.data() + 2, sizeof(table_bytes));
    const size_t lengths_at = kRans32HeaderBytes + (table_bytes + 3u) / 4 * 4;
    const uint32_t word_count = 40;
    const uint16_t lengths[] = {0, word_count};
    std::memcpy(bad.data() + 12, &word_count, sizeof(word_count));
    std::memcpy(bad.data() + lengths_at, lengths, sizeof(lengths));
    bad.resize(lengths_at + sizeof(lengths) + 2 * 128 + word_count * 2);
    EveryTarget([&](const char* target) {
      Buffer back(size);
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
    caught_by_state += absl::StrContains(status.message(), "ends in state") ? 1 : 0;
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
    if (bad.size() >= kRans32HeaderBytes) {
      // A header that passes, so that what is behind it is read.
      const uint8_t start[] = {1,
                               1,
                               static_cast<uint8_t>(random.Below(9)),
                               0,
                               static_cast<uint8_t>(count),
                               static_cast<uint8_t>(count >> 8),
                               0,
                               0,
                               0,
                               0,
                               0,
                               0,
                               static_cast<uint8_t>(random.Below(200)),
                               0,
                               0,
                               0};
      std::memcpy(bad.data(), start, sizeof(start));
      if (bad.size() >= 24 && random.Chance(0.8)) {
        bad[2] = std::byte{2};
        bad[16] = std::byte{0x88};
        bad[17] = std::byte{0};
      }
    }
    ExpectHarmless(bad, count, accepted);
  }
  EXPECT_LT(accepted, 100);
}

}  // namespace
}  // namespace forebay
