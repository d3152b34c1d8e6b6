#include "tests/sim/audit.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/accept.h"

namespace forebay::testing {
namespace {

std::string Describe(const NodeStatus& status) {
  const SlotCounts& slots = status.slots;
  return absl::StrCat(status.node, ": free ", slots.free, ", filling ", slots.filling, ", sealed ",
                      slots.sealed, ", draining ", slots.draining, ", quarantine ",
                      slots.quarantine, ", pins ", slots.pins, "; frames ", status.pages.frames,
                      ", leases ", status.leases, ", leased bytes ", status.leased_bytes, ", puts ",
                      status.puts_in_flight, ", get bytes ", status.get_bytes_in_flight);
}

void AuditNode(SimWorld& world, SimNode& node) {
  const NodeStatus status = node.node->Status();
  const SlotCounts& slots = status.slots;
  const auto require = [&](bool holds, absl::string_view rule) {
    if (!holds) world.Violation("accounts", absl::StrCat(rule, " is not so: ", Describe(status)));
  };
  const uint64_t lent = node.transport->lent_ranges();
  require(slots.total() == node.node->dram().slot_count(), "slots by state = all slots");
  require(slots.sealed == status.pages.frames, "sealed = frames of the index");
  require(slots.quarantine == 0, "quarantine = 0");
  require(status.puts_in_flight > 0 || slots.filling == 0, "filling only for puts");
  require(slots.draining == 0 || slots.pins > 0, "draining only under pins");
  require(status.get_bytes_in_flight == node.transport->lent_bytes() + lent * kFrameHeaderBytes,
          "bytes of gets = bytes lent to sends");
  require(slots.pins >= lent, "each frame lent is pinned");
  require(status.leases > 0 || slots.pins == lent, "without leases, pins = frames lent");
  require(status.leases > 0 || status.leased_bytes == 0, "without leases, no leased bytes");
}

// One frame of an index.
void AuditFrame(SimWorld& world, SimNode& node, size_t ns, const PageKey& key, uint32_t page_index,
                uint32_t part, const SlotRef& slot) {
  const SimNamespace& in = world.ledger.ns(ns);
  const absl::StatusOr<Bytes> frame = node.node->dram().Read(slot);
  const auto fail = [&](absl::string_view what) {
    world.Violation("stored page", absl::StrCat(node.name, " holds page ", page_index, " part ",
                                                part, " of ", in.name, " wrongly: ", what));
  };
  if (!frame.ok()) return fail(frame.status().message());
  if (frame->size() != kFrameHeaderBytes + in.parts[part].raw_bytes) {
    return fail(absl::StrCat(frame->size(), " bytes"));
  }
  if (node.rotten.contains({slot.slot, slot.generation})) return;
  FrameHeader header;
  std::memcpy(&header, frame->data(), sizeof(header));
  const absl::Status claim = CheckFrameHeader(header);
  if (!claim.ok()) return fail(claim.message());
  const std::string fault =
      world.ledger.Fault(ns, key, part, frame->subspan(kFrameHeaderBytes), node.started_at);
  if (!fault.empty()) fail(fault);
}

void NoteGeneration(SimWorld& world, SimNode& node, const SlotRef& slot) {
  const auto [seen, first] = node.newest.emplace(slot.slot, slot);
  if (first || seen->second.generation == slot.generation) return;
  if (node.node->dram().Holds(seen->second)) {
    world.Violation("generations",
                    absl::StrCat(node.name, ": slot ", slot.slot, " is in generation ",
                                 slot.generation, " and said to hold ", seen->second.generation));
  }
  seen->second = slot;
}

void AuditChain(SimWorld& world, SimNode& node, size_t ns, uint32_t chain) {
  const SimNamespace& in = world.ledger.ns(ns);
  const auto id = node.namespace_ids.find(in.name);
  if (id == node.namespace_ids.end()) return;
  const std::vector<PageKey> keys = in.Chain(chain);
  for (uint32_t i = 0; i < keys.size(); ++i) {
    const PageRef page = node.node->index().Find(id->second, keys[i]);
    if (!page.valid()) continue;
    for (uint32_t part = 0; part < in.parts.size(); ++part) {
      const SlotRef slot = node.node->index().Part(page, part);
      if (!slot.valid()) continue;
      NoteGeneration(world, node, slot);
      AuditFrame(world, node, ns, keys[i], i, part, slot);
    }
  }
}

template <typename Visit>
void ForEachNode(SimWorld& world, Visit visit) {
  for (size_t i = 0; i < world.node_count(); ++i) {
    if (world.node(i).node != nullptr) visit(world.node(i));
  }
}

}  // namespace

void AuditAccounts(SimWorld& world) {
  ForEachNode(world, [&](SimNode& node) {
    AuditNode(world, node);
    node.transport->CheckLent();
  });
}

void AuditPages(SimWorld& world) {
  ForEachNode(world, [&](SimNode& node) {
    for (size_t ns = 0; ns < world.ledger.ns_count(); ++ns) {
      for (uint32_t chain = 0; chain < kSimChains; ++chain) AuditChain(world, node, ns, chain);
    }
  });
}

void AuditIdle(SimWorld& world) {
  ForEachNode(world, [&](SimNode& node) {
    const NodeStatus status = node.node->Status();
    const SlotCounts& slots = status.slots;
    const bool idle = slots.pins == 0 && slots.filling == 0 && slots.draining == 0 &&
                      slots.quarantine == 0 && status.leases == 0 && status.leased_bytes == 0 &&
                      status.puts_in_flight == 0 && status.get_bytes_in_flight == 0 &&
                      status.subscriptions == 0 && status.sessions == 0 && status.endpoints == 0;
    if (idle) return;
    world.Violation("leaks", absl::StrCat("after all clients went: ", Describe(status),
                                          ", subscriptions ", status.subscriptions, ", sessions ",
                                          status.sessions, ", endpoints ", status.endpoints));
  });
}

void RotOneFrame(SimWorld& world) {
  SimNode& node = world.node(world.random.Below(world.node_count()));
  if (node.node == nullptr) return;
  const size_t ns = world.random.Below(world.ledger.ns_count());
  const SimNamespace& in = world.ledger.ns(ns);
  const auto id = node.namespace_ids.find(in.name);
  if (id == node.namespace_ids.end()) return;
  const std::vector<PageKey> keys = in.Chain(static_cast<uint32_t>(world.random.Below(kSimChains)));
  const PageRef page = node.node->index().Find(id->second, keys[world.random.Below(keys.size())]);
  if (!page.valid()) return;
  const uint32_t part = static_cast<uint32_t>(world.random.Below(in.parts.size()));
  const SlotRef slot = node.node->index().Part(page, part);
  const absl::StatusOr<Bytes> frame = node.node->dram().Read(slot);
  if (!frame.ok() || node.transport->Lends(frame->data(), frame->size())) return;
  const size_t at = kFrameHeaderBytes + world.random.Below(frame->size() - kFrameHeaderBytes);
  const_cast<std::byte&>((*frame)[at]) ^= std::byte{1};
  node.rotten.emplace(slot.slot, slot.generation);
  world.Event("rot", slot.slot, slot.generation, at);
}

}  // namespace forebay::testing
