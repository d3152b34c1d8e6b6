#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/namespace_spec.h"
#include "base/page_key.h"

namespace forebay::testing {

// A namespace of the world, and the chains that its clients publish and read.
struct SimNamespace {
  std::string name;  // for people, and whose stamp is in its pages
  std::string tenant;
  NamespaceSpec spec;
  std::vector<PartSpec> parts;
  std::vector<size_t> part_offsets;  // in a page as KvView::Contiguous has it
  uint64_t stamp_tenant = 0;
  PageKey root;  // by the specification: what a node must give

  size_t page_bytes() const { return part_offsets.back() + parts.back().raw_bytes; }
  // Chain `chain`: three documents, of which each chain shares a beginning.
  std::vector<PageKey> Chain(uint32_t chain) const;
};

inline constexpr uint32_t kSimChains = 12;
inline constexpr uint32_t kSimChainPagesMax = 40;

// Two tenants; namespaces that differ in the tenant alone, or in the dtype alone.
std::vector<SimNamespace> MakeSimNamespaces();
std::string SecretOfTenant(const std::string& tenant);

// Who published what and when: what a reader may be given.
class Ledger {
 public:
  explicit Ledger(std::vector<SimNamespace> namespaces);

  const SimNamespace& ns(size_t i) const { return namespaces_[i]; }
  size_t ns_count() const { return namespaces_.size(); }

  // A publish begins, and has ended: no byte of it reaches a node that started later.
  uint64_t BeginAttempt(size_t ns, const std::vector<PageKey>& keys);
  void EndAttempt(uint64_t attempt, Nanos now) { attempts_[attempt].ended = now; }

  // Fills one page of an attempt.
  void Fill(size_t ns, const PageKey& key, uint32_t writer, uint64_t attempt,
            MutableBytes page) const;
  // Whether anybody ever began to publish `key` there.
  bool Known(size_t ns, const PageKey& key) const { return known_.contains({ns, key}); }
  // Empty when `bytes` are that part as somebody put it, no longer ago than `since` allows; else
  // what they are.
  std::string Fault(size_t ns, const PageKey& key, uint32_t part, Bytes bytes, Nanos since) const;

 private:
  struct Attempt {
    Nanos ended = kForever;
  };
  std::vector<SimNamespace> namespaces_;
  std::vector<Attempt> attempts_;
  std::set<std::pair<size_t, PageKey>> known_;
};

}  // namespace forebay::testing
