#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/page_key.h"

namespace forebay {

// Pages of a chain that lie together: a prefix touches few nodes, and diverging suffixes stay with
// their parents.
inline constexpr uint32_t kPagesPerGroup = 16;

// Which daemon holds which group of pages: weighted rendezvous hashing.
//
// Every client that knows the same nodes and weights chooses alike, without asking. Each node draws
// a uniform u in (0, 1) from a 64-bit hash of (node id, key of the group's first page), and the
// node with the largest -weight / ln(u) takes the group. A node that leaves moves only its own
// groups.
//
// Threads  a value after construction.
// Source   highest random weight hashing (Thaler, Ravishankar); the logarithmic form for weights.
class Placement {
 public:
  struct Node {
    std::string id;       // the same text for every client: a daemon's control address
    double weight = 1.0;  // > 0
  };

  Placement() = default;
  // Requires nodes that are not empty, and weights above 0.
  explicit Placement(std::vector<Node> nodes);

  // The index of the node that holds the group which begins with `group_key`.
  size_t NodeOf(const PageKey& group_key) const;
  // For each page of a chain, the index of its node.
  void NodesOf(absl::Span<const PageKey> chain, std::vector<uint16_t>* nodes) const;

  size_t node_count() const { return nodes_.size(); }

 private:
  std::vector<Node> nodes_;
  std::vector<uint64_t> seeds_;  // the hash of each node's id
};

// The 64-bit hash that placement draws from: part of what clients must agree on, so it has golden
// values in placement_test.cc.
uint64_t PlacementSeed(absl::string_view node_id);
uint64_t PlacementHash(uint64_t node_seed, const PageKey& group_key);

}  // namespace forebay
