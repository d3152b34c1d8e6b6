#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tiers/chunked_array.h"
#include "tiers/eviction_policy.h"

namespace forebay {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr uint8_t kUsesMax = 3;          // two bits, as published
constexpr uint8_t kUsesToPromote = 2;    // used more than once while in the small queue
constexpr uint64_t kSmallFraction = 10;  // one row in ten may be on probation

// What left the small queue, by key hash: the oldest is forgotten first.
class Ghosts {
 public:
  void Add(uint64_t key_hash, size_t count_max) {
    StampsOf(key_hash)[key_hash] = ++stamp_;
    order_.emplace_back(key_hash, stamp_);
    while (order_.size() > count_max) {
      const auto [oldest, stamp] = order_.front();
      Stamps& stamps = StampsOf(oldest);
      const auto at = stamps.find(oldest);
      if (at != stamps.end() && at->second == stamp) stamps.erase(at);
      order_.pop_front();
    }
  }
  bool Take(uint64_t key_hash) { return StampsOf(key_hash).erase(key_hash) != 0; }

 private:
  using Stamps = absl::flat_hash_map<uint64_t, uint64_t>;
  Stamps& StampsOf(uint64_t key_hash) { return shards_[key_hash % kShards]; }

  // In pieces, because a map of a million entries that grows stops the reactor for 10 ms.
  static constexpr size_t kShards = 256;
  std::vector<Stamps> shards_{kShards};
  std::deque<std::pair<uint64_t, uint64_t>> order_;  // (key hash, stamp); some are taken already
  uint64_t stamp_ = 0;
};

// A row whose turn comes while it is no candidate is set aside, and comes back at the old end when
// it is one: so each pick does work that an insert, a touch or a change of candidacy has paid for.
class S3FifoPolicy final : public EvictionPolicy {
 public:
  void OnInsert(uint32_t row, uint64_t key_hash, Nanos) override {
    rows_.GrowTo(size_t{row} + 1);
    const bool known = ghosts_.Take(key_hash);
    rows_[row] = Row{};
    rows_[row].key_hash = key_hash;
    rows_[row].queue = known ? kMain : kSmall;
    ++queues_[rows_[row].queue].row_count;
    PushNew(row);
  }

  void OnTouch(uint32_t row, Nanos) override {
    rows_[row].uses = std::min<uint8_t>(kUsesMax, static_cast<uint8_t>(rows_[row].uses + 1));
  }

  void OnRemove(uint32_t row, bool evicted) override {
    Row& at = rows_[row];
    if (at.linked) Unlink(row);
    --queues_[at.queue].row_count;
    if (evicted && at.queue == kSmall) ghosts_.Add(at.key_hash, RowCount());
    at.candidate = false;
  }

  void SetCandidate(uint32_t row, bool candidate) override {
    rows_[row].candidate = candidate;
    if (candidate && !rows_[row].linked) PushOld(row);
  }

  uint32_t PickVictim() override {
    while (true) {
      const bool small_is_due = queues_[kSmall].row_count * kSmallFraction >= RowCount();
      Queue& first = queues_[small_is_due ? kSmall : kMain];
      const uint32_t row =
          first.old_end != kNone ? first.old_end : queues_[small_is_due ? kMain : kSmall].old_end;
      if (row == kNone) return kNone;
      Row& at = rows_[row];
      if (at.queue == kSmall && at.uses >= kUsesToPromote) {
        Promote(row);
      } else if (!at.candidate) {
        Unlink(row);
      } else if (at.queue == kMain && at.uses > 0) {
        --at.uses;
        Unlink(row);
        PushNew(row);
      } else {
        return row;
      }
    }
  }

 private:
  enum QueueName : uint8_t { kSmall = 0, kMain = 1 };
  struct Row {
    uint64_t key_hash = 0;
    uint32_t newer = kNone;
    uint32_t older = kNone;
    QueueName queue = kSmall;
    uint8_t uses = 0;
    bool candidate = false;
    bool linked = false;
  };
  struct Queue {
    uint32_t new_end = kNone;
    uint32_t old_end = kNone;
    uint64_t row_count = 0;  // with those set aside
  };

  uint64_t RowCount() const { return queues_[kSmall].row_count + queues_[kMain].row_count; }

  void Promote(uint32_t row) {
    Unlink(row);
    --queues_[kSmall].row_count;
    ++queues_[kMain].row_count;
    rows_[row].queue = kMain;
    rows_[row].uses = 0;
    PushNew(row);
  }

  void PushNew(uint32_t row) {
    Row& at = rows_[row];
    Queue& queue = queues_[at.queue];
    at.linked = true;
    at.newer = kNone;
    at.older = queue.new_end;
    (queue.new_end == kNone ? queue.old_end : rows_[queue.new_end].newer) = row;
    queue.new_end = row;
  }

  void PushOld(uint32_t row) {
    Row& at = rows_[row];
    Queue& queue = queues_[at.queue];
    at.linked = true;
    at.older = kNone;
    at.newer = queue.old_end;
    (queue.old_end == kNone ? queue.new_end : rows_[queue.old_end].older) = row;
    queue.old_end = row;
  }

  void Unlink(uint32_t row) {
    Row& at = rows_[row];
    Queue& queue = queues_[at.queue];
    (at.newer == kNone ? queue.new_end : rows_[at.newer].older) = at.older;
    (at.older == kNone ? queue.old_end : rows_[at.older].newer) = at.newer;
    at.linked = false;
  }

  ChunkedArray<Row> rows_;
  Queue queues_[2];
  Ghosts ghosts_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeS3FifoPolicy() { return std::make_unique<S3FifoPolicy>(); }

}  // namespace forebay
