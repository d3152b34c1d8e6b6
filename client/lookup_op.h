#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client_namespace.h"
#include "client/hit.h"

namespace forebay {

// Asks each daemon for its part of a chain, in messages of at most wire::kKeysMax keys until the
// first miss, and merges the answers: the longest prefix that is usable by the rule of layer
// classes. A daemon that is away, refuses or does not answer by the deadline counts as a miss of
// its pages. Leases that reach beyond the prefix are cut to it.
class LookupOp final : public ClientOp {
 public:
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<Hit>>)>;

  LookupOp(CoreServices& services, uint64_t id, ClientNamespace& ns, std::vector<PageKey> keys,
           const LookupOptions& options, Nanos now, Nanos deadline, Done done);

  void Advance(Nanos now) override;
  absl::StatusOr<Landing> OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                  uint64_t payload_bytes) override;
  void OnRequestLost(DaemonLink& link, uint64_t request, const absl::Status& why) override;

 private:
  // What one daemon was asked and has answered.
  struct Stream {
    std::vector<uint32_t> pages;  // of the chain
    uint32_t asked = 0;           // pages asked for so far
    uint32_t message_begin = 0;   // of the message under way
    uint64_t request = 0;         // under way, or 0
    uint64_t epoch = 0;
    Nanos asked_at = 0;
    uint32_t queue_us = 0;
    bool ended = false;
  };
  // One answer.
  struct Answer {
    uint32_t stream = 0;
    uint32_t first = 0;  // in Stream::pages
    LeaseGrant grant;
    std::vector<wire::SlotLocation> locations;
  };

  void Ask(uint32_t stream, Nanos now);
  void TakeReply(Stream& stream, const wire::LookupReply& reply, std::vector<ClassMask> masks,
                 std::vector<wire::SlotLocation> locations);
  uint32_t UsablePages() const;
  std::shared_ptr<Hit> MakeHit(uint32_t page_count);
  void CutLease(const Answer& answer, uint32_t keep_pages);
  Nanos Estimate(const Hit& hit) const;
  void Finish(Nanos now);

  ClientNamespace& ns_;
  std::vector<PageKey> keys_;
  const LookupOptions options_;
  const Nanos started_at_;
  Done done_;
  std::vector<uint16_t> nodes_;  // per page
  std::vector<Stream> streams_;  // per daemon
  std::vector<Answer> answers_;
  std::vector<ClassMask> masks_;  // per page
  std::vector<bool> found_;       // per page: among the leading pages of its daemon
};

}  // namespace forebay
