#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/random.h"
#include "tiers/dram/slab_memory.h"

namespace forebay {

// A slot and the generation in which its holder knows it. Generations grow at every fill and never
// repeat within a boot epoch, so a reference outlives its slot harmlessly.
struct SlotRef {
  uint32_t slot = UINT32_MAX;
  uint64_t generation = 0;

  bool valid() const { return slot != UINT32_MAX; }
  friend bool operator==(const SlotRef&, const SlotRef&) = default;
};

// FREE -> FILLING -> SEALED -> DRAINING -> QUARANTINE -> FREE; an aborted fill goes to QUARANTINE.
//   FILLING     one writer; invisible to readers
//   SEALED      immutable; the only state that grants pins
//   DRAINING    retired, but pinned still: bytes stay
//   QUARANTINE  no pins; a writer that may be late, or a reader that the daemon could not fence,
//               may still touch it: reused only after `Fence`
enum class SlotState : uint8_t { kFree, kFilling, kSealed, kDraining, kQuarantine };

// Slots by state. Their sum is always the number of slots of the tier: those that its slabs are cut
// into, where an empty slab, which is not cut, counts as one free slot.
struct SlotCounts {
  uint64_t free = 0, filling = 0, sealed = 0, draining = 0, quarantine = 0;
  uint64_t pins = 0;  // outstanding pins over all slots
  uint64_t total() const { return free + filling + sealed + draining + quarantine; }
};

// Frames in memory: memfd slabs cut into slots of size classes.
//
// A slab belongs to one size class while any of its slots is in use; an empty slab can go to
// another class. Slabs are mapped once and never unmapped, so that a late reader meets valid
// memory. They are sealed with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_FUTURE_WRITE after mapping: a
// process that gets the descriptor can map them read-only and nothing else. Slot records are
// private to the daemon.
//
// Threads  one reactor. Nothing here locks.
class DramTier {
 public:
  struct Options {
    uint64_t capacity_bytes = 1ull << 30;
    uint64_t slab_bytes = 32ull << 20;  // also the largest frame
    bool huge_pages = true;             // asked for; taken where the kernel grants them
    bool populate = false;              // touch every page at start
  };

  // A slab as a peer can map it.
  using Slab = SlabMemory::Slab;

  // As many whole slabs as the capacity holds.
  //   INVALID_ARGUMENT    the capacity is below a slab, or a slab is not of the sizes above
  //   RESOURCE_EXHAUSTED  the kernel refuses the memory, or would later; names the limit in the way
  static absl::StatusOr<std::unique_ptr<DramTier>> Create(const Options& options);
  ~DramTier();

  // A slot of at least `frame_bytes`, FILLING, in a new generation.
  //   INVALID_ARGUMENT    0, or more than a slab
  //   RESOURCE_EXHAUSTED  no slot of that class and no empty slab: evict, then ask again
  absl::StatusOr<SlotRef> Allocate(size_t frame_bytes);
  // Where the writer of a FILLING slot puts the frame: exactly `frame_bytes` long.
  MutableBytes FillMemory(SlotRef ref);
  // FILLING -> SEALED. FAILED_PRECONDITION if `ref` is not FILLING in that generation.
  absl::Status Seal(SlotRef ref);
  // FILLING -> QUARANTINE. The slot is free again at `Fence(ref)`: when no write of the aborted
  // fill can be under way.
  absl::Status Abort(SlotRef ref);
  // QUARANTINE -> FREE.
  absl::Status Fence(SlotRef ref);

  // A pin: the bytes stay until Unpin. FAILED_PRECONDITION unless SEALED in that generation.
  absl::Status Pin(SlotRef ref);
  // Gives back one pin. The last Unpin of a DRAINING slot frees it.
  void Unpin(SlotRef ref);
  // SEALED -> DRAINING while pinned, else FREE: out of the index, no new pins.
  absl::Status Retire(SlotRef ref);

  // The frame; FAILED_PRECONDITION unless SEALED or DRAINING in that generation.
  absl::StatusOr<Bytes> Read(SlotRef ref) const;
  // Whether the slot has held generation `ref.generation`, sealed, from its seal until now.
  bool Holds(SlotRef ref) const;
  SlotState StateOf(uint32_t slot) const;

  // Which slab and where in it, for a peer that maps slabs. It means something while the slot is
  // not FREE; for any other number of a slot it is some place within the tier.
  struct Location {
    uint32_t slab = 0;
    uint64_t offset = 0;
  };
  Location LocationOf(uint32_t slot) const;

  const std::vector<Slab>& slabs() const;
  SlotCounts counts() const;
  // Slots of all slabs, counted apart from counts(), whose total() it equals at all times. Walks
  // the slabs.
  uint64_t slot_count() const;
  uint64_t capacity_bytes() const;
  uint64_t used_bytes() const;  // whole slots that are not FREE
  bool huge_pages_granted() const;
  // Random, per start: names this set of generations.
  const Uint128Bytes& boot_epoch() const;

 private:
  DramTier();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace forebay
