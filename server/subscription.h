#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "base/page_key.h"

namespace forebay {

struct Endpoint;
struct NodeCore;

// Who waits for which pages. A subscription waits at the first of its keys that is not complete, so
// that a page which completes costs one look-up and wakes only those who need it next.
//
// Limits   subscriptions_per_session_max.
// Threads  one reactor.
class SubscriptionTable {
 public:
  // Sends the first event at once, and the final one where everything is here already.
  void Add(NodeCore& core, Endpoint& endpoint, uint64_t op, std::vector<PageKey> keys,
           uint32_t deadline_ms, Nanos now);
  // A page of namespace `ns` became complete.
  void OnPageComplete(NodeCore& core, uint32_t ns, const PageKey& key);
  void Cancel(Endpoint& endpoint, uint64_t op);
  void DropEndpoint(Endpoint& endpoint);
  // Ends those past their deadline. True if there were any.
  bool Expire(Nanos now);

  Nanos NextDeadline() const {
    return by_deadline_.empty() ? kForever : by_deadline_.begin()->first.first;
  }
  size_t count() const { return subscriptions_.size(); }

 private:
  struct Subscription {
    Endpoint* endpoint = nullptr;
    uint64_t op = 0;
    uint32_t ns = 0;
    std::vector<PageKey> keys;
    uint32_t complete = 0;  // leading pages that were complete; never shrinks
    Nanos deadline = 0;
    uint64_t arrival = 0;
  };
  using WaitPoint = std::pair<uint32_t, PageKey>;     // namespace, key
  using Name = std::pair<const Endpoint*, uint64_t>;  // endpoint, op

  // Counts on over keys that are complete. True if `complete` grew.
  bool Advance(NodeCore& core, Subscription& subscription);
  void WaitAt(Subscription& subscription);
  void StopWaiting(const Subscription& subscription);
  void Erase(const Subscription& subscription);

  absl::flat_hash_map<Name, std::unique_ptr<Subscription>> subscriptions_;
  absl::flat_hash_map<WaitPoint, std::vector<Subscription*>> waiting_;
  std::map<std::pair<Nanos, uint64_t>, Subscription*> by_deadline_;  // by deadline, then arrival
  uint64_t arrivals_ = 0;
};

}  // namespace forebay
