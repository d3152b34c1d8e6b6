#include "tiers/page_index.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tiers/chunked_array.h"
#include "tiers/key_table.h"
#include "tiers/part_pool.h"

namespace forebay {
namespace {

constexpr uint32_t kNone = KeyTable::kNone;

// Keys whose buckets and rows are loaded together: enough to hide the latency of memory. The first
// few are fewer, since many chains end there: a prompt that nobody has seen loads little in vain.
constexpr size_t kKeysAhead = 16;
constexpr size_t kKeysAheadFirst = 4;

enum class Presence : uint8_t {
  kUnused,  // on the free list
  kAbsent,  // not here, but children of it are
  kHere,
};

// One cache line a page, so that a lookup costs one bucket and one row. What only writers need is
// in the part pool.
struct alignas(64) Row {
  PageKey key;
  uint32_t ns = 0;
  uint32_t generation = 0;   // grows at each removal
  uint32_t parent = kNone;   // row; kNone for none
  uint32_t child_count = 0;  // children that are here
  uint32_t pin_count = 0;
  uint32_t page_index = 0;  // fixed while the row is in use, or edges could close into a ring
  uint32_t parts = kNone;   // table in the part pool
  ClassMask complete = 0;
  Presence presence = Presence::kUnused;
};
static_assert(sizeof(Row) == 64);

size_t ClassIndex(LayerClass c) { return static_cast<size_t>(c) - 1; }

}  // namespace

PageShape PageShape::Of(const KvLayout& layout) {
  PageShape shape;
  for (const PartSpec& part : layout.Parts()) shape.part_class.push_back(part.layer_class);
  shape.part_count = static_cast<uint32_t>(shape.part_class.size());
  shape.classes = layout.Classes();
  return shape;
}

struct PageIndex::State {
  struct Namespace {
    PageShape shape;
    PartPool::Missing missing{};  // of a page without any part
    PartPool* pool = nullptr;
    Counts counts;
  };

  explicit State(std::unique_ptr<EvictionPolicy> p) : policy(std::move(p)) {}

  Namespace& NamespaceOf(uint32_t ns) {
    FB_CHECK(ns < namespaces.size());
    FB_CHECK(namespaces[ns] != nullptr);
    return *namespaces[ns];
  }
  bool Holds(PageRef page) const {
    return page.row < row_count && rows[page.row].presence == Presence::kHere &&
           rows[page.row].generation == page.generation;
  }
  PageRef RefTo(uint32_t row) const { return {row, rows[row].generation}; }

  uint32_t FindRow(uint64_t hash, uint32_t ns, const PageKey& key) const {
    return table.Find(hash,
                      [&](uint32_t row) { return rows[row].ns == ns && rows[row].key == key; });
  }
  uint32_t AddRow(uint64_t hash, uint32_t ns, const PageKey& key, uint32_t page_index);
  void FreeRow(uint32_t row);
  void LinkToParent(uint32_t row, const PageKey& parent);
  void UnlinkFromParent(uint32_t row);

  // Calls visit(i, row or kNone) for each key in order, until it answers false.
  template <typename Visit>
  void Walk(uint32_t ns, absl::Span<const PageKey> keys, Visit visit) const;

  // Applies `change` to the counts of all and of one namespace.
  template <typename Change>
  void Count(Namespace& in, Change change) {
    change(total);
    change(in.counts);
  }

  std::unique_ptr<EvictionPolicy> policy;
  std::vector<std::unique_ptr<Namespace>> namespaces;   // by id; null once forgotten
  std::map<uint32_t, std::unique_ptr<PartPool>> pools;  // by part count
  KeyTable table;
  ChunkedArray<Row> rows;
  uint32_t row_count = 0;
  std::vector<uint32_t> free_rows;
  uint32_t victim = kNone;  // named last
  Counts total;
};

uint32_t PageIndex::State::AddRow(uint64_t hash, uint32_t ns, const PageKey& key,
                                  uint32_t page_index) {
  uint32_t row;
  if (free_rows.empty()) {
    FB_CHECK(row_count < kNone);
    row = row_count++;
    rows.GrowTo(row_count);
  } else {
    row = free_rows.back();
    free_rows.pop_back();
  }
  Row& at = rows[row];
  at.key = key;
  at.ns = ns;
  at.page_index = page_index;
  at.presence = Presence::kAbsent;
  table.Insert(hash, row);
  return row;
}

void PageIndex::State::FreeRow(uint32_t row) {
  Row& at = rows[row];
  table.Erase(table.HashOf(at.ns, at.key), row);
  at.presence = Presence::kUnused;
  free_rows.push_back(row);
}

void PageIndex::State::LinkToParent(uint32_t row, const PageKey& parent) {
  Row& child = rows[row];
  child.parent = kNone;
  if (child.page_index == 0) return;
  const uint64_t hash = table.HashOf(child.ns, parent);
  uint32_t parent_row = FindRow(hash, child.ns, parent);
  if (parent_row == kNone) parent_row = AddRow(hash, child.ns, parent, child.page_index - 1);
  Row& at = rows[parent_row];
  if (at.page_index + 1 != child.page_index) return;
  child.parent = parent_row;
  ++at.child_count;
  const bool was_candidate =
      at.presence == Presence::kHere && at.pin_count == 0 && at.child_count == 1;
  if (was_candidate) policy->SetCandidate(parent_row, false);
}

void PageIndex::State::UnlinkFromParent(uint32_t row) {
  const uint32_t parent = std::exchange(rows[row].parent, kNone);
  if (parent == kNone) return;
  Row& at = rows[parent];
  --at.child_count;
  if (at.child_count > 0) return;
  if (at.presence == Presence::kAbsent) {
    FreeRow(parent);
  } else if (at.pin_count == 0) {
    policy->SetCandidate(parent, true);
  }
}

// Three passes over a few keys at a time: load the buckets, load the rows that they name, compare.
// One key after another would wait for memory twice a key.
template <typename Visit>
void PageIndex::State::Walk(uint32_t ns, absl::Span<const PageKey> keys, Visit visit) const {
  uint64_t hashes[kKeysAhead];
  uint32_t named[kKeysAhead];
  size_t count = std::min(kKeysAheadFirst, keys.size());
  for (size_t begin = 0; begin < keys.size();) {
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = table.HashOf(ns, keys[begin + i]);
      table.Prefetch(hashes[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      named[i] = table.Find(hashes[i], [](uint32_t) { return true; });
      if (named[i] != kNone) __builtin_prefetch(&rows[named[i]]);
    }
    for (size_t i = 0; i < count; ++i) {
      uint32_t row = named[i];
      const PageKey& key = keys[begin + i];
      if (row != kNone && (rows[row].ns != ns || rows[row].key != key)) {
        row = FindRow(hashes[i], ns, key);  // Two hashes agreed in 42 bits.
      }
      if (row != kNone && rows[row].presence != Presence::kHere) row = kNone;
      if (!visit(begin + i, row)) return;
    }
    begin += count;
    count = std::min(kKeysAhead, keys.size() - begin);
  }
}

PageIndex::PageIndex(std::unique_ptr<EvictionPolicy> policy)
    : state_(std::make_unique<State>(std::move(policy))) {
  FB_CHECK(state_->policy != nullptr);
}
PageIndex::~PageIndex() = default;

uint32_t PageIndex::AddNamespace(PageShape shape) {
  FB_CHECK(shape.part_count > 0);
  FB_CHECK(shape.part_count <= UINT16_MAX);
  FB_CHECK(shape.part_class.size() == shape.part_count);
  auto added = std::make_unique<State::Namespace>();
  for (const LayerClass c : shape.part_class) ++added->missing[ClassIndex(c)];
  std::unique_ptr<PartPool>& pool = state_->pools[shape.part_count];
  if (pool == nullptr) pool = std::make_unique<PartPool>(shape.part_count);
  added->pool = pool.get();
  added->shape = std::move(shape);
  state_->namespaces.push_back(std::move(added));
  return static_cast<uint32_t>(state_->namespaces.size() - 1);
}

void PageIndex::RemoveNamespace(uint32_t ns) {
  // Rows of absent parents go with their last child, so that none is left that names `ns`.
  FB_CHECK(state_->NamespaceOf(ns).counts.pages == 0);
  state_->namespaces[ns] = nullptr;
}

std::vector<PageRef> PageIndex::UnpinnedPagesOf(
    const absl::flat_hash_set<uint32_t>& namespaces) const {
  std::vector<PageRef> pages;
  for (uint32_t row = 0; row < state_->row_count; ++row) {
    const Row& at = state_->rows[row];
    if (at.presence != Presence::kHere || at.pin_count > 0) continue;
    if (namespaces.contains(at.ns)) pages.push_back(state_->RefTo(row));
  }
  return pages;
}

PageRef PageIndex::Find(uint32_t ns, const PageKey& key) const {
  const uint32_t row = state_->FindRow(state_->table.HashOf(ns, key), ns, key);
  if (row == kNone || state_->rows[row].presence != Presence::kHere) return {};
  return state_->RefTo(row);
}

PageRef PageIndex::FindOrAdd(uint32_t ns, const PageKey& key, const PageKey& parent,
                             uint32_t page_index, Nanos now) {
  State& state = *state_;
  State::Namespace& in = state.NamespaceOf(ns);
  const uint64_t hash = state.table.HashOf(ns, key);
  uint32_t row = state.FindRow(hash, ns, key);
  if (row != kNone && state.rows[row].presence == Presence::kHere) return state.RefTo(row);
  if (row == kNone) row = state.AddRow(hash, ns, key, page_index);

  Row& at = state.rows[row];
  at.presence = Presence::kHere;
  at.pin_count = 0;
  at.complete = 0;
  at.parts = in.pool->Take();
  in.pool->MissingOf(at.parts) = in.missing;
  state.LinkToParent(row, parent);
  state.Count(in, [](Counts& counts) { ++counts.pages; });
  state.policy->OnInsert(row, hash, now);
  if (at.child_count == 0) state.policy->SetCandidate(row, true);
  return state.RefTo(row);
}

absl::Status PageIndex::SetPart(PageRef page, uint32_t part, SlotRef slot, uint32_t frame_bytes) {
  FB_CHECK(slot.valid());
  State& state = *state_;
  if (!state.Holds(page)) return absl::FailedPreconditionError("the page is gone");
  Row& at = state.rows[page.row];
  State::Namespace& in = state.NamespaceOf(at.ns);
  if (part >= in.shape.part_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("part ", part, " of a page of ", in.shape.part_count));
  }
  StoredPart& stored = in.pool->Parts(at.parts)[part];
  if (stored.slot != kNone) return absl::AlreadyExistsError("the part is here");
  stored = {slot.generation, slot.slot, frame_bytes};
  state.Count(in, [&](Counts& counts) {
    ++counts.frames;
    counts.frame_bytes += frame_bytes;
  });
  const LayerClass part_class = in.shape.part_class[part];
  if (--in.pool->MissingOf(at.parts)[ClassIndex(part_class)] > 0) return absl::OkStatus();
  at.complete |= ClassBit(part_class);
  if (at.complete == in.shape.classes) {
    state.Count(in, [](Counts& counts) { ++counts.complete_pages; });
  }
  return absl::OkStatus();
}

SlotRef PageIndex::Part(PageRef page, uint32_t part) const {
  if (!state_->Holds(page)) return {};
  const Row& at = state_->rows[page.row];
  const State::Namespace& in = state_->NamespaceOf(at.ns);
  if (part >= in.shape.part_count) return {};
  const StoredPart& stored = in.pool->Parts(at.parts)[part];
  return {stored.slot, stored.generation};
}

ClassMask PageIndex::CompleteClasses(PageRef page) const {
  return state_->Holds(page) ? state_->rows[page.row].complete : ClassMask{0};
}

bool PageIndex::Complete(PageRef page) const {
  if (!state_->Holds(page)) return false;
  const Row& at = state_->rows[page.row];
  return at.complete == state_->NamespaceOf(at.ns).shape.classes;
}

bool PageIndex::Holds(PageRef page) const { return state_->Holds(page); }

const PageKey& PageIndex::KeyOf(PageRef page) const {
  FB_CHECK(state_->Holds(page));
  return state_->rows[page.row].key;
}

uint32_t PageIndex::NamespaceOf(PageRef page) const {
  FB_CHECK(state_->Holds(page));
  return state_->rows[page.row].ns;
}

uint32_t PageIndex::PlaceOf(PageRef page) const {
  FB_CHECK(state_->Holds(page));
  return state_->rows[page.row].page_index;
}

uint32_t PageIndex::LeadingClasses(uint32_t ns, absl::Span<const PageKey> keys,
                                   std::vector<PageRef>* pages,
                                   std::vector<ClassMask>* classes) const {
  const ClassMask full = state_->NamespaceOf(ns).shape.classes & ClassBit(LayerClass::kFull);
  pages->clear();
  classes->clear();
  state_->Walk(ns, keys, [&](size_t, uint32_t row) {
    if (row == kNone) return false;
    const ClassMask complete = state_->rows[row].complete;
    if ((complete & full) != full) return false;
    pages->push_back(state_->RefTo(row));
    classes->push_back(complete);
    return true;
  });
  return static_cast<uint32_t>(pages->size());
}

void PageIndex::Touch(PageRef page, Nanos now) {
  if (state_->Holds(page)) state_->policy->OnTouch(page.row, now);
}

void PageIndex::Pin(PageRef page) {
  if (!state_->Holds(page)) return;
  Row& at = state_->rows[page.row];
  if (at.pin_count++ == 0 && at.child_count == 0) state_->policy->SetCandidate(page.row, false);
}

void PageIndex::Unpin(PageRef page) {
  if (!state_->Holds(page)) return;
  Row& at = state_->rows[page.row];
  FB_CHECK(at.pin_count > 0);
  if (--at.pin_count == 0 && at.child_count == 0) state_->policy->SetCandidate(page.row, true);
}

PageRef PageIndex::Victim() {
  const uint32_t row = state_->policy->PickVictim();
  state_->victim = row;
  if (row == kNone) return {};
  const Row& at = state_->rows[row];
  FB_CHECK(at.presence == Presence::kHere);
  FB_CHECK(at.child_count == 0);
  FB_CHECK(at.pin_count == 0);
  return state_->RefTo(row);
}

std::vector<SlotRef> PageIndex::Remove(PageRef page) {
  State& state = *state_;
  std::vector<SlotRef> slots;
  if (!state.Holds(page)) return slots;
  Row& at = state.rows[page.row];
  State::Namespace& in = state.NamespaceOf(at.ns);
  uint64_t frame_bytes = 0;
  for (const StoredPart& part : in.pool->Parts(at.parts)) {
    if (part.slot == kNone) continue;
    slots.push_back({part.slot, part.generation});
    frame_bytes += part.frame_bytes;
  }
  const bool was_complete = at.complete == in.shape.classes;
  state.Count(in, [&](Counts& counts) {
    --counts.pages;
    if (was_complete) --counts.complete_pages;
    counts.frames -= slots.size();
    counts.frame_bytes -= frame_bytes;
  });
  in.pool->GiveBack(std::exchange(at.parts, kNone));
  at.complete = 0;
  at.pin_count = 0;
  at.presence = Presence::kAbsent;
  ++at.generation;
  state.policy->OnRemove(page.row, /*evicted=*/page.row == state.victim);
  state.victim = kNone;
  state.UnlinkFromParent(page.row);
  if (at.child_count == 0) state.FreeRow(page.row);
  return slots;
}

SlotRef PageIndex::RemovePart(PageRef page, uint32_t part) {
  State& state = *state_;
  if (!state.Holds(page)) return {};
  Row& at = state.rows[page.row];
  State::Namespace& in = state.NamespaceOf(at.ns);
  if (part >= in.shape.part_count) return {};
  StoredPart& stored = in.pool->Parts(at.parts)[part];
  if (stored.slot == kNone) return {};
  const StoredPart removed = std::exchange(stored, StoredPart{});
  const bool was_complete = at.complete == in.shape.classes;
  const LayerClass part_class = in.shape.part_class[part];
  ++in.pool->MissingOf(at.parts)[ClassIndex(part_class)];
  at.complete &= static_cast<ClassMask>(~ClassBit(part_class));
  state.Count(in, [&](Counts& counts) {
    if (was_complete) --counts.complete_pages;
    --counts.frames;
    counts.frame_bytes -= removed.frame_bytes;
  });
  return {removed.slot, removed.generation};
}

PageIndex::Counts PageIndex::counts() const { return state_->total; }

PageIndex::Counts PageIndex::CountsOf(uint32_t ns) const { return state_->NamespaceOf(ns).counts; }

uint64_t PageIndex::memory_bytes() const {
  uint64_t bytes = state_->table.memory_bytes() + state_->rows.memory_bytes() +
                   state_->free_rows.capacity() * sizeof(uint32_t);
  for (const auto& [part_count, pool] : state_->pools) bytes += pool->memory_bytes();
  return bytes;
}

}  // namespace forebay
