#include "tiers/key_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "base/random.h"

namespace forebay {
namespace {

PageKey RandomKey(SeededRandom& random) {
  PageKey key;
  for (size_t i = 0; i < key.bytes.size(); i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(&key.bytes[i], &word, sizeof(word));
  }
  return key;
}

TEST(KeyTableTest, AnEmptyTableHasNothing) {
  const KeyTable table;
  EXPECT_EQ(table.Find(table.HashOf(0, PageKey{}), [](uint32_t) { return true; }), KeyTable::kNone);
}

// A client that chooses keys must not choose buckets: keys that agree in any three of their four
// words hash apart, and so do namespaces.
TEST(KeyTableTest, EveryPartOfTheNameReachesTheHash) {
  const KeyTable table;
  std::set<uint64_t> hashes;
  for (uint32_t ns = 0; ns < 100; ++ns) hashes.insert(table.HashOf(ns, PageKey{}));
  for (size_t byte = 0; byte < 32; ++byte) {
    for (int value = 1; value < 256; ++value) {
      PageKey key;
      key.bytes[byte] = static_cast<uint8_t>(value);
      hashes.insert(table.HashOf(0, key));
    }
  }
  EXPECT_EQ(hashes.size(), 100u + 32u * 255u);
}

TEST(KeyTableTest, TwoTablesHashApart) {
  EXPECT_NE(KeyTable().HashOf(1, PageKey{}), KeyTable().HashOf(1, PageKey{}));
}

// Random inserts and erases beside a std::map. Hashes are cut to few values, so that probe runs are
// long, wrap around, and hold equal tags.
TEST(KeyTableTest, AgreesWithAMap) {
  SeededRandom random(11);
  KeyTable table;
  std::map<uint32_t, uint64_t> model;  // row -> hash
  const auto find = [&](uint32_t row, uint64_t hash) {
    return table.Find(hash, [&](uint32_t candidate) { return candidate == row; });
  };
  for (int step = 0; step < 40'000; ++step) {
    const uint32_t row = static_cast<uint32_t>(random.Below(600));
    const auto at = model.find(row);
    if (at == model.end()) {
      const uint64_t hash = (random.Below(3) << 62) | random.Below(1024);
      ASSERT_EQ(find(row, hash), KeyTable::kNone);
      table.Insert(hash, row);
      model[row] = hash;
    } else {
      ASSERT_EQ(find(row, at->second), row);
      table.Erase(at->second, row);
      ASSERT_EQ(find(row, at->second), KeyTable::kNone);
      model.erase(at);
    }
  }
  for (const auto& [row, hash] : model) EXPECT_EQ(find(row, hash), row);
}

TEST(KeyTableTest, HoldsManyKeysInFewBytes) {
  SeededRandom random(12);
  KeyTable table;
  std::vector<uint64_t> hashes;
  for (uint32_t row = 0; row < 100'000; ++row) {
    hashes.push_back(table.HashOf(row % 3, RandomKey(random)));
    table.Insert(hashes.back(), row);
  }
  for (uint32_t row = 0; row < hashes.size(); ++row) {
    ASSERT_EQ(table.Find(hashes[row], [&](uint32_t found) { return found == row; }), row);
  }
  EXPECT_LT(table.memory_bytes(), 100'000u * 24);
}

TEST(KeyTableDeathTest, ErasingWhatIsNotThereAborts) {
  KeyTable table;
  EXPECT_DEATH(table.Erase(5, 1), "mask");
  table.Insert(5, 1);
  EXPECT_DEATH(table.Erase(5, 2), "kNone");
}

}  // namespace
}  // namespace forebay
