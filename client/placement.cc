#include "client/placement.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/checksum.h"

namespace forebay {
namespace {

// The finalizer of splitmix64: keys are uniform already, this only separates the nodes.
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t PlacementSeed(absl::string_view node_id) {
  return ChecksumOf(AsBytes(node_id.data(), node_id.size()));
}

uint64_t PlacementHash(uint64_t node_seed, const PageKey& group_key) {
  uint64_t hash = node_seed;
  for (size_t at = 0; at < group_key.bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, group_key.bytes.data() + at, sizeof(word));
    hash = Mix((hash + 0x9e3779b97f4a7c15ull) ^ word);
  }
  return hash;
}

Placement::Placement(std::vector<Node> nodes) : nodes_(std::move(nodes)) {
  FB_CHECK(!nodes_.empty());
  for (const Node& node : nodes_) {
    FB_CHECK(node.weight > 0);
    seeds_.push_back(PlacementSeed(node.id));
  }
}

size_t Placement::NodeOf(const PageKey& group_key) const {
  size_t best = 0;
  if (nodes_.size() == 1) return best;
  double best_score = -1;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    // 53 bits, moved off both ends, so that the logarithm is finite and not zero.
    const double u =
        (static_cast<double>(PlacementHash(seeds_[i], group_key) >> 11) + 0.5) * 0x1.0p-53;
    const double score = -nodes_[i].weight / std::log(u);
    if (score > best_score) {
      best_score = score;
      best = i;
    }
  }
  return best;
}

void Placement::NodesOf(absl::Span<const PageKey> chain, std::vector<uint16_t>* nodes) const {
  nodes->resize(chain.size());
  for (size_t group = 0; group < chain.size(); group += kPagesPerGroup) {
    const size_t end = std::min<size_t>(group + kPagesPerGroup, chain.size());
    const auto node = static_cast<uint16_t>(NodeOf(chain[group]));
    std::fill(nodes->begin() + static_cast<ptrdiff_t>(group),
              nodes->begin() + static_cast<ptrdiff_t>(end), node);
  }
}

}  // namespace forebay
