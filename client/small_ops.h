#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "client/client_namespace.h"
#include "client/hit.h"

namespace forebay {

// Waits until every daemon of a namespace has answered or failed.
//
// It ends as soon as one is ready and the others have failed at least once; while none is reachable
// it goes on trying until the deadline.
class OpenOp final : public ClientOp {
 public:
  using Done = std::function<void(absl::Status)>;
  OpenOp(CoreServices& services, uint64_t id, ClientNamespace& ns, Nanos deadline, Done done);
  ~OpenOp() override;

  void Advance(Nanos now) override;
  absl::StatusOr<Landing> OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                  uint64_t payload_bytes) override;
  void OnRequestLost(DaemonLink& link, uint64_t request, const absl::Status& why) override;

 private:
  void Finish(absl::Status status);
  std::string Reasons() const;

  ClientNamespace& ns_;
  Done done_;
};

// Gives leases back and hears whether each was valid to the end.
class ReleaseOp final : public ClientOp {
 public:
  using Done = std::function<void(absl::StatusOr<bool>)>;
  ReleaseOp(CoreServices& services, uint64_t id, ClientNamespace& ns,
            const std::vector<LeaseGrant>& grants, Nanos deadline, Done done);

  void Advance(Nanos now) override;
  absl::StatusOr<Landing> OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                  uint64_t payload_bytes) override;
  void OnRequestLost(DaemonLink& link, uint64_t request, const absl::Status& why) override;

 private:
  ClientNamespace& ns_;
  Done done_;
  absl::btree_map<uint64_t, uint16_t> requests_;  // -> daemon
  bool valid_ = true;
};

// Waits until all pages of a chain are in the pool. A daemon that is lost is asked again when it is
// back; its pages count as missing meanwhile.
class SubscribeOp final : public ClientOp {
 public:
  using Done = std::function<void(absl::StatusOr<uint32_t>)>;
  using OnProgress = std::function<void(uint32_t page_count)>;
  SubscribeOp(CoreServices& services, uint64_t id, ClientNamespace& ns, std::vector<PageKey> keys,
              Nanos deadline, OnProgress on_progress, Done done);
  ~SubscribeOp() override;

  void Advance(Nanos now) override;
  absl::StatusOr<Landing> OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                  uint64_t payload_bytes) override;
  void OnRequestLost(DaemonLink& link, uint64_t request, const absl::Status& why) override;

 private:
  // One daemon's pages, subscribed to a message at a time.
  struct Stream {
    std::vector<uint32_t> pages;
    uint32_t begin = 0;     // of the message under way
    uint32_t complete = 0;  // leading pages that are complete
    uint64_t request = 0;
    Nanos ask_at = 0;  // not before, after a refusal
  };
  void Ask(uint16_t daemon, Nanos now);
  uint32_t LeadingPages() const;
  void Finish();

  ClientNamespace& ns_;
  const std::vector<PageKey> keys_;
  OnProgress on_progress_;
  Done done_;
  std::vector<uint16_t> nodes_;
  std::vector<Stream> streams_;
  uint32_t told_ = 0;
};

}  // namespace forebay
