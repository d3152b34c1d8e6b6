#include "tiers/dram/dram_tier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/broken.h"
#include "base/check.h"
#include "base/failpoint.h"
#include "base/status_macros.h"
#include "tiers/dram/size_classes.h"

namespace forebay {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr uint64_t kSlabAlignment = 4096;

// A slot's number is its slab's and its place among the slots that the slab is cut into. It
// outlives the cut: a reference from before names a place that may not be, or one in another
// generation.
constexpr int kPlaceBits = 16;
static_assert(SizeClasses::kSlotsPerSlabMax == 1u << kPlaceBits);
constexpr uint32_t kSlabCountMax = (1u << (32 - kPlaceBits)) - 1;  // so that no slot is UINT32_MAX

uint32_t SlabOf(uint32_t slot) { return slot >> kPlaceBits; }
uint32_t PlaceOf(uint32_t slot) { return slot & ((1u << kPlaceBits) - 1); }
uint32_t SlotOf(uint32_t slab, uint32_t place) { return (slab << kPlaceBits) | place; }

struct SlotRecord {
  uint64_t generation = 0;
  uint32_t frame_bytes = 0;
  uint32_t pins = 0;
  uint32_t next_free = kNone;  // place of the next free slot of the slab
  SlotState state = SlotState::kFree;
};
static_assert(sizeof(SlotRecord) == 24);

struct SlabRecord {
  uint32_t size_class = kNone;  // kNone while the slab is empty
  uint32_t slot_count = 0;
  uint32_t used = 0;           // slots that are not FREE
  uint32_t free_head = kNone;  // free slots that were used before
  uint32_t before = kNone;     // slabs of the class with free slots are in a list
  uint32_t after = kNone;
  std::vector<SlotRecord> slots;  // only those that were ever used since the slab was cut
};

struct SlabList {
  uint32_t first = kNone;
  uint32_t last = kNone;
};

absl::Status Stale() { return absl::FailedPreconditionError("the slot left that state"); }

}  // namespace

struct DramTier::State {
  explicit State(uint64_t slab_bytes) : classes(slab_bytes), with_room(classes.count()) {}

  SlotRecord* Record(uint32_t slot) {
    const uint32_t slab = SlabOf(slot);
    if (slab >= slabs.size() || PlaceOf(slot) >= slabs[slab].slots.size()) return nullptr;
    return &slabs[slab].slots[PlaceOf(slot)];
  }
  // The slot, if it is in `state` in the generation of `ref`.
  SlotRecord* InState(const SlotRef& ref, SlotState state) {
    SlotRecord* const slot = Record(ref.slot);
    return slot != nullptr && slot->state == state && slot->generation == ref.generation ? slot
                                                                                         : nullptr;
  }
  // The slot, if it can be read in the generation of `ref`.
  SlotRecord* Readable(const SlotRef& ref) {
    SlotRecord* const slot = Record(ref.slot);
    if (slot == nullptr) return nullptr;
    if (slot->generation != ref.generation && !FB_BROKEN("skip_generation")) return nullptr;
    return slot->state == SlotState::kSealed || slot->state == SlotState::kDraining ? slot
                                                                                    : nullptr;
  }

  uint64_t& CountOf(SlotState state);
  void Move(SlotRecord& slot, SlotState to) {
    --CountOf(slot.state);
    ++CountOf(to);
    slot.state = to;
  }

  uint64_t SlotBytes(uint32_t slab) const {
    const uint32_t size_class = slabs[slab].size_class;
    return size_class == kNone ? 0 : classes[size_class].slot_bytes;
  }
  std::byte* Memory(uint32_t slot) const {
    return memory.slabs()[SlabOf(slot)].memory.data() + PlaceOf(slot) * SlotBytes(SlabOf(slot));
  }

  void Cut(uint32_t slab, uint32_t size_class);
  void Free(uint32_t slot, SlotRecord& record);
  void Link(uint32_t slab);
  void Unlink(uint32_t slab);

  SlabMemory memory;
  SizeClasses classes;
  std::vector<SlabRecord> slabs;
  std::vector<SlabList> with_room;    // by class: slabs with a free slot
  std::vector<uint32_t> empty_slabs;  // the last is taken first
  SlotCounts counts;
  uint64_t used_bytes = 0;
  uint64_t generation = 0;  // given last
  Uint128Bytes boot_epoch = RandomId();
};

uint64_t& DramTier::State::CountOf(SlotState state) {
  switch (state) {
    case SlotState::kFree:
      return counts.free;
    case SlotState::kFilling:
      return counts.filling;
    case SlotState::kSealed:
      return counts.sealed;
    case SlotState::kDraining:
      return counts.draining;
    case SlotState::kQuarantine:
      return counts.quarantine;
  }
  FB_CHECK(false);
}

// Slabs with room go to the end and are filled from the front, so that one fills up before the next
// and those at the end can run empty.
void DramTier::State::Link(uint32_t slab) {
  SlabList& list = with_room[slabs[slab].size_class];
  slabs[slab].before = list.last;
  slabs[slab].after = kNone;
  (list.last == kNone ? list.first : slabs[list.last].after) = slab;
  list.last = slab;
}

void DramTier::State::Unlink(uint32_t slab) {
  SlabList& list = with_room[slabs[slab].size_class];
  const uint32_t before = slabs[slab].before;
  const uint32_t after = slabs[slab].after;
  (before == kNone ? list.first : slabs[before].after) = after;
  (after == kNone ? list.last : slabs[after].before) = before;
}

void DramTier::State::Cut(uint32_t slab, uint32_t size_class) {
  SlabRecord& record = slabs[slab];
  record.size_class = size_class;
  record.slot_count = classes[size_class].slots_per_slab;
  record.slots.reserve(record.slot_count);
  counts.free += record.slot_count - 1;  // It counted as one before.
  Link(slab);
}

void DramTier::State::Free(uint32_t slot, SlotRecord& record) {
  const uint32_t slab = SlabOf(slot);
  SlabRecord& in = slabs[slab];
  Move(record, SlotState::kFree);
  used_bytes -= SlotBytes(slab);
  record.next_free = in.free_head;
  in.free_head = PlaceOf(slot);
  if (in.used == in.slot_count) Link(slab);
  if (--in.used > 0) return;
  Unlink(slab);
  counts.free -= in.slot_count - 1;
  in.size_class = kNone;
  in.slot_count = 0;
  in.free_head = kNone;
  in.slots.clear();
  empty_slabs.push_back(slab);
}

DramTier::DramTier() = default;
DramTier::~DramTier() = default;

absl::StatusOr<std::unique_ptr<DramTier>> DramTier::Create(const Options& options) {
  if (options.slab_bytes == 0 || options.slab_bytes % kSlabAlignment != 0 ||
      options.slab_bytes > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("a DRAM slab of ", options.slab_bytes,
                                                   " bytes: not a multiple of 4096 below 4 GiB"));
  }
  const uint64_t slab_count = options.capacity_bytes / options.slab_bytes;
  if (slab_count == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a DRAM tier of ", options.capacity_bytes,
                                                   " bytes holds no slab of ", options.slab_bytes));
  }
  if (slab_count > kSlabCountMax) {
    return absl::InvalidArgumentError(absl::StrCat(slab_count, " DRAM slabs, where ", kSlabCountMax,
                                                   " can be numbered: make slabs larger"));
  }
  auto state = std::make_unique<State>(options.slab_bytes);
  FB_RETURN_IF_ERROR(
      state->memory.Map({options.slab_bytes, slab_count, options.huge_pages, options.populate}));
  state->slabs.resize(slab_count);
  for (uint64_t i = slab_count; i-- > 0;) state->empty_slabs.push_back(static_cast<uint32_t>(i));
  state->counts.free = slab_count;
  std::unique_ptr<DramTier> tier(new DramTier());
  tier->state_ = std::move(state);
  return tier;
}

absl::StatusOr<SlotRef> DramTier::Allocate(size_t frame_bytes) {
  State& state = *state_;
  FB_FAILPOINT("tiers.dram.allocate");
  const uint64_t slab_bytes = state.memory.slabs().front().memory.size();
  if (frame_bytes == 0 || frame_bytes > slab_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", frame_bytes, " bytes, where 1 to ", slab_bytes, " fit a slab"));
  }
  const uint32_t size_class = state.classes.ClassOf(frame_bytes);
  if (state.with_room[size_class].first == kNone) {
    if (state.empty_slabs.empty()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no free DRAM slot of ", state.classes[size_class].slot_bytes, " bytes"));
    }
    const uint32_t empty = state.empty_slabs.back();
    state.empty_slabs.pop_back();
    state.Cut(empty, size_class);
  }
  const uint32_t slab = state.with_room[size_class].first;
  SlabRecord& in = state.slabs[slab];
  uint32_t place = in.free_head;
  if (place == kNone) {
    place = static_cast<uint32_t>(in.slots.size());
    in.slots.emplace_back();
  } else {
    in.free_head = in.slots[place].next_free;
  }
  if (++in.used == in.slot_count) state.Unlink(slab);
  SlotRecord& slot = in.slots[place];
  slot.generation = ++state.generation;
  slot.frame_bytes = static_cast<uint32_t>(frame_bytes);
  state.Move(slot, SlotState::kFilling);
  state.used_bytes += state.classes[size_class].slot_bytes;
  return SlotRef{SlotOf(slab, place), slot.generation};
}

MutableBytes DramTier::FillMemory(SlotRef ref) {
  const SlotRecord* const slot = state_->InState(ref, SlotState::kFilling);
  FB_CHECK(slot != nullptr);
  return {state_->Memory(ref.slot), slot->frame_bytes};
}

absl::Status DramTier::Seal(SlotRef ref) {
  FB_FAILPOINT("tiers.dram.seal");
  SlotRecord* const slot = state_->InState(ref, SlotState::kFilling);
  if (slot == nullptr) return Stale();
  state_->Move(*slot, SlotState::kSealed);
  return absl::OkStatus();
}

absl::Status DramTier::Abort(SlotRef ref) {
  SlotRecord* const slot = state_->InState(ref, SlotState::kFilling);
  if (slot == nullptr) return Stale();
  state_->Move(*slot, SlotState::kQuarantine);
  return absl::OkStatus();
}

absl::Status DramTier::Fence(SlotRef ref) {
  SlotRecord* const slot = state_->InState(ref, SlotState::kQuarantine);
  if (slot == nullptr) return Stale();
  state_->Free(ref.slot, *slot);
  return absl::OkStatus();
}

absl::Status DramTier::Pin(SlotRef ref) {
  SlotRecord* const slot = state_->Readable(ref);
  if (slot == nullptr || slot->state != SlotState::kSealed) return Stale();
  ++slot->pins;
  ++state_->counts.pins;
  return absl::OkStatus();
}

void DramTier::Unpin(SlotRef ref) {
  SlotRecord* const slot = state_->Readable(ref);
  if (FB_BROKEN("reuse_at_once") || FB_BROKEN("skip_generation")) {
    if (slot == nullptr || slot->pins == 0) return;  // The broken guard took the pin away.
  }
  FB_CHECK(slot != nullptr);
  FB_CHECK(slot->pins > 0);
  --slot->pins;
  --state_->counts.pins;
  if (slot->pins == 0 && slot->state == SlotState::kDraining) state_->Free(ref.slot, *slot);
}

absl::Status DramTier::Retire(SlotRef ref) {
  SlotRecord* const slot = state_->InState(ref, SlotState::kSealed);
  if (slot == nullptr) return Stale();
  if (FB_BROKEN("reuse_at_once")) {
    state_->counts.pins -= slot->pins;
    slot->pins = 0;
  }
  if (slot->pins == 0) {
    state_->Free(ref.slot, *slot);
  } else {
    state_->Move(*slot, SlotState::kDraining);
  }
  return absl::OkStatus();
}

absl::StatusOr<Bytes> DramTier::Read(SlotRef ref) const {
  const SlotRecord* const slot = state_->Readable(ref);
  if (slot == nullptr) return Stale();
  return Bytes(state_->Memory(ref.slot), slot->frame_bytes);
}

bool DramTier::Holds(SlotRef ref) const { return state_->Readable(ref) != nullptr; }

SlotState DramTier::StateOf(uint32_t slot) const {
  const SlotRecord* const record = state_->Record(slot);
  return record == nullptr ? SlotState::kFree : record->state;
}

DramTier::Location DramTier::LocationOf(uint32_t slot) const {
  const uint32_t slab = SlabOf(slot);
  if (state_->Record(slot) == nullptr) return {};
  return {slab, PlaceOf(slot) * state_->SlotBytes(slab)};
}

const std::vector<DramTier::Slab>& DramTier::slabs() const { return state_->memory.slabs(); }

SlotCounts DramTier::counts() const { return state_->counts; }

uint64_t DramTier::slot_count() const {
  uint64_t count = 0;
  for (const SlabRecord& slab : state_->slabs) {
    count += slab.size_class == kNone ? 1 : state_->classes[slab.size_class].slots_per_slab;
  }
  return count;
}

uint64_t DramTier::capacity_bytes() const {
  return slabs().size() * uint64_t{slabs().front().memory.size()};
}

uint64_t DramTier::used_bytes() const { return state_->used_bytes; }

bool DramTier::huge_pages_granted() const { return state_->memory.huge_pages_granted(); }

const Uint128Bytes& DramTier::boot_epoch() const { return state_->boot_epoch; }

}  // namespace forebay
