#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "proto/wire.h"
#include "server/page_store.h"

namespace forebay {

struct Endpoint;
struct NodeCore;

// The gets of one endpoint. Each part that is here is pinned when its get arrives, waits until the
// endpoint's window has room, earliest deadline first, and stays pinned until the transport has
// handed its bytes back, in success or failure.
//
// Limits   get_window_bytes in flight; beyond it, one message if nothing else is under way.
// Threads  one reactor.
class GetQueue {
 public:
  // Answers at once for what is not here; queues the rest and sends what the window allows.
  void Admit(NodeCore& core, Endpoint& endpoint, uint64_t op, const wire::Get& get,
             const std::vector<wire::GetItem>& items, Nanos now);
  // Answers what is past its deadline, and sends what the window allows. True if anything left.
  bool Pump(NodeCore& core, Endpoint& endpoint, Nanos now);
  // A send has ended. False if it was none of a get's.
  bool OnSent(NodeCore& core, Endpoint& endpoint, uint64_t token, Nanos now);
  // Forgets what `op` still waits for, without an answer.
  void Cancel(NodeCore& core, uint64_t op);
  // Forgets everything that waits. Sends under way end by OnSent.
  void DropWaiting(NodeCore& core);

  bool idle() const { return waiting_.empty() && sending_.empty(); }
  // When the next waiting get has missed its deadline; kForever for none.
  Nanos NextDeadline() const { return waiting_.empty() ? kForever : waiting_.begin()->first.first; }
  // How long a get that came now would wait before its first byte leaves, by the rate at which this
  // endpoint took the last messages.
  uint32_t QueueMicroseconds(uint64_t window_bytes) const;

 private:
  struct Item {
    uint32_t item = 0;
    PinnedFrame frame;
  };
  struct Waiting {
    uint64_t op = 0;
    std::vector<Item> items;
    size_t next = 0;  // items before it are sent
  };
  struct Sending {
    std::vector<PinnedFrame> frames;
    uint64_t bytes = 0;
    Nanos sent_at = 0;
  };

  void PinItems(NodeCore& core, Endpoint& endpoint, const std::vector<wire::GetItem>& items,
                std::vector<Item>* found, std::vector<wire::GetDataItem>* answered);
  void SendNext(NodeCore& core, Endpoint& endpoint, Waiting& waiting, Nanos now);
  void AnswerLate(NodeCore& core, Endpoint& endpoint, const Waiting& waiting);
  void UnpinRest(NodeCore& core, const Waiting& waiting);
  void Unpin(NodeCore& core, const PinnedFrame& frame);

  std::map<std::pair<Nanos, uint64_t>, Waiting> waiting_;  // by deadline, then arrival
  absl::flat_hash_map<uint64_t, Sending> sending_;         // by token
  uint64_t arrivals_ = 0;
  uint64_t waiting_bytes_ = 0;
  uint64_t sending_bytes_ = 0;
  Nanos last_sent_end_ = 0;
  double bytes_per_us_ = 0;  // moving average; 0 until something was sent
};

}  // namespace forebay
