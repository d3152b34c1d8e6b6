#include "client/placement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace forebay {
namespace {

std::vector<Placement::Node> Nodes(int count) {
  std::vector<Placement::Node> nodes;
  for (int i = 0; i < count; ++i) nodes.push_back({absl::StrCat("10.0.0.", i, ":7400"), 1.0});
  return nodes;
}

PageKey RandomKey(SeededRandom& random) {
  PageKey key;
  for (uint8_t& byte : key.bytes) byte = static_cast<uint8_t>(random.Next());
  return key;
}

std::vector<PageKey> RandomKeys(size_t count) {
  SeededRandom random(7);
  std::vector<PageKey> keys;
  for (size_t i = 0; i < count; ++i) keys.push_back(RandomKey(random));
  return keys;
}

constexpr size_t kGroups = 50'000;

TEST(PlacementTest, SpreadsGroupsEvenly) {
  const Placement placement(Nodes(5));
  std::vector<size_t> count(5);
  for (const PageKey& key : RandomKeys(kGroups)) ++count[placement.NodeOf(key)];
  for (size_t n : count) EXPECT_NEAR(static_cast<double>(n), kGroups / 5.0, 0.03 * kGroups / 5);
}

TEST(PlacementTest, HonoursWeights) {
  std::vector<Placement::Node> nodes = Nodes(3);
  nodes[0].weight = 1;
  nodes[1].weight = 2;
  nodes[2].weight = 5;
  const Placement placement(nodes);
  std::vector<size_t> count(3);
  for (const PageKey& key : RandomKeys(kGroups)) ++count[placement.NodeOf(key)];
  for (size_t i = 0; i < 3; ++i) {
    const double share = kGroups * nodes[i].weight / 8;
    EXPECT_NEAR(static_cast<double>(count[i]), share, 0.05 * share) << i;
  }
}

TEST(PlacementTest, ANodeThatLeavesMovesOnlyItsOwnGroups) {
  const Placement before(Nodes(5));
  std::vector<Placement::Node> left = Nodes(5);
  left.erase(left.begin() + 2);
  const Placement after(left);
  for (const PageKey& key : RandomKeys(10'000)) {
    const size_t node = before.NodeOf(key);
    if (node == 2) continue;
    const size_t now = after.NodeOf(key);
    EXPECT_EQ(now, node < 2 ? node : node - 1);
  }
}

TEST(PlacementTest, OrderOfNodesDoesNotMatter) {
  std::vector<Placement::Node> nodes = Nodes(4);
  const Placement forward(nodes);
  const Placement backward(std::vector<Placement::Node>(nodes.rbegin(), nodes.rend()));
  for (const PageKey& key : RandomKeys(1000)) {
    EXPECT_EQ(forward.NodeOf(key), 3 - backward.NodeOf(key));
  }
}

TEST(PlacementTest, PagesOfAGroupLieTogetherAndGoByTheFirst) {
  const Placement placement(Nodes(7));
  const std::vector<PageKey> chain = RandomKeys(100);
  std::vector<uint16_t> nodes;
  placement.NodesOf(chain, &nodes);
  ASSERT_EQ(nodes.size(), chain.size());
  for (size_t page = 0; page < chain.size(); ++page) {
    EXPECT_EQ(nodes[page], placement.NodeOf(chain[page / kPagesPerGroup * kPagesPerGroup]));
  }
}

// Clients of every version must agree, so these values never change.
TEST(PlacementTest, GoldenValues) {
  PageKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(PlacementSeed("127.0.0.1:7400"), 6223896567167172595ull);
  EXPECT_EQ(PlacementHash(PlacementSeed("127.0.0.1:7400"), key), 12110936173890287485ull);
  const Placement placement(Nodes(8));
  uint64_t digest = 0;
  for (const PageKey& each : RandomKeys(32)) digest = digest * 8 + placement.NodeOf(each);
  EXPECT_EQ(digest, 9996350029983994205ull);
}

}  // namespace
}  // namespace forebay
