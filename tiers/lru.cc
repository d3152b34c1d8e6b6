#include "tiers/chunked_array.h"
#include "tiers/eviction_policy.h"

namespace forebay {
namespace {

// A linked list in order of use would be O(1) a touch too, but its cold end fills with parents,
// which are no candidates while their children live, and each pick would walk over them. So: a heap
// of (moment, row) in which an entry may be too old but never too young. A touch only notes the
// moment; an entry that turns out to be old at the top is sifted down once, however many touches
// came between. When the top entry is current, every other row was used later: the choice is exact.
class LruPolicy final : public EvictionPolicy {
 public:
  void OnInsert(uint32_t row, uint64_t, Nanos) override {
    rows_.GrowTo(size_t{row} + 1);
    rows_[row].used = ++moment_;
    rows_[row].candidate = false;
  }

  void OnTouch(uint32_t row, Nanos) override { rows_[row].used = ++moment_; }

  // An entry of the row may stay behind: it is older than whatever the row holds next.
  void OnRemove(uint32_t row, bool) override { rows_[row].candidate = false; }

  void SetCandidate(uint32_t row, bool candidate) override {
    Row& at = rows_[row];
    at.candidate = candidate;
    if (!candidate || at.in_heap) return;
    at.in_heap = true;
    Add({at.used, row});
  }

  uint32_t PickVictim() override {
    while (heap_size_ > 0) {
      const Entry top = heap_[0];
      Row& at = rows_[top.row];
      if (!at.candidate) {
        at.in_heap = false;
        --heap_size_;
        SinkTop(heap_[heap_size_]);
        continue;
      }
      if (top.used == at.used) return top.row;
      SinkTop({at.used, top.row});
    }
    return UINT32_MAX;
  }

 private:
  struct Row {
    uint64_t used = 0;  // moment of the last use
    bool candidate = false;
    bool in_heap = false;
  };
  struct Entry {
    uint64_t used = 0;  // at most the row's
    uint32_t row = 0;
  };

  void Add(const Entry& added) {
    heap_.GrowTo(heap_size_ + 1);
    size_t hole = heap_size_++;
    while (hole > 0 && heap_[(hole - 1) / 2].used > added.used) {
      heap_[hole] = heap_[(hole - 1) / 2];
      hole = (hole - 1) / 2;
    }
    heap_[hole] = added;
  }

  // Puts `moved` in the place of the top entry, and then where it belongs.
  void SinkTop(const Entry moved) {
    size_t hole = 0;
    for (size_t child = 1; child < heap_size_; child = 2 * hole + 1) {
      if (child + 1 < heap_size_ && heap_[child + 1].used < heap_[child].used) ++child;
      if (heap_[child].used >= moved.used) break;
      heap_[hole] = heap_[child];
      hole = child;
    }
    heap_[hole] = moved;
  }

  ChunkedArray<Row> rows_;
  ChunkedArray<Entry> heap_;  // a binary heap, the least moment first
  size_t heap_size_ = 0;
  uint64_t moment_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy() { return std::make_unique<LruPolicy>(); }

}  // namespace forebay
