#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "proto/wire.h"
#include "server/page_store.h"
#include "transport/transport.h"

namespace forebay {

struct Endpoint;
struct NodeCore;

// One put: from its header, through the landing of its bytes in slots, to its answer.
//
// Everything that the header can tell is checked before a slot is given. Each wanted payload lands
// in a FILLING slot behind the place of its frame header; the others land in scratch memory, since
// one message has one landing. A page becomes visible part by part, each in one step, after the
// accept rule has spoken.
//
// Threads  one reactor.
class PutOp {
 public:
  // Admits a put. Returns where its payload goes, and keeps the operation in the endpoint; or
  // answers it at once and drops the payload.
  static Landing Begin(NodeCore& core, Endpoint& endpoint, uint64_t op,
                       std::vector<wire::PutItem> items, uint64_t payload_bytes, Nanos now);

  // The transport let go of the landing: publishes what is good, gives back the rest, and answers.
  void OnLanded(NodeCore& core, Endpoint& endpoint, const absl::Status& status);

  Nanos started_at() const { return started_at_; }

 private:
  struct Item {
    wire::PutItem put;
    absl::StatusCode code = absl::StatusCode::kOk;  // OK until something says otherwise
    PageRef page;                                   // open while valid
    SlotRef slot;                                   // FILLING while valid
    RunningChecksum checksum;
  };

  PutOp(uint64_t op, std::vector<wire::PutItem> items, Nanos now);

  static absl::Status CheckItem(const Endpoint& endpoint, const wire::PutItem& put);
  void Check(NodeCore& core, const Endpoint& endpoint);
  void OpenSlots(NodeCore& core, const Endpoint& endpoint, Nanos now);
  void OpenSlot(NodeCore& core, const Endpoint& endpoint, Item& item, Nanos now);
  Landing MakeLanding(NodeCore& core);
  void Publish(NodeCore& core, const Endpoint& endpoint, Item& item, const absl::Status& landed);
  void ClosePages(NodeCore& core, const Endpoint& endpoint);
  void Answer(Endpoint& endpoint, const absl::Status& status) const;
  void RefuseAll(absl::StatusCode code);
  bool WantsAny() const;
  void Count(NodeCore& core) const;

  const uint64_t op_;
  const Nanos started_at_;
  std::vector<Item> items_;  // its size never changes: checksums are borrowed by the transport
};

}  // namespace forebay
