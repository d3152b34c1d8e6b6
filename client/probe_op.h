#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "client/buffer_pool.h"
#include "client/client_namespace.h"

namespace forebay {

// Measures the path to each daemon of a namespace that is connected over a network: the latency of
// a message, then the rate of some bytes that the daemon makes up. `done` is called when all are
// measured, and at the deadline at the latest; the op itself lives on until nothing lands any more.
class ProbeOp final : public ClientOp {
 public:
  ProbeOp(CoreServices& services, uint64_t id, ClientNamespace& ns, Nanos deadline,
          std::function<void()> done);

  void Advance(Nanos now) override;
  absl::StatusOr<Landing> OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                  uint64_t payload_bytes) override;
  void OnRequestLost(DaemonLink& link, uint64_t request, const absl::Status& why) override;
  void OnLanded(DaemonLink& link, uint64_t token, const absl::Status& status) override;

 private:
  struct Path {
    Nanos asked_at = 0;
    uint32_t bytes = 0;         // asked for
    uint32_t bytes_before = 0;  // by the transfer before
    Nanos took_before = 0;
    Nanos latency = kForever;  // the least of some
    int latencies = 0;
    uint64_t request = 0;
    bool landing = false;
    BufferPool::Buffer memory;
  };
  void Ask(DaemonLink& link, Path& path, uint32_t bytes);
  void End(uint16_t daemon);
  void TellDone();

  ClientNamespace& ns_;
  std::function<void()> done_;
  absl::btree_map<uint16_t, Path> paths_;  // by daemon, while it is measured
};

}  // namespace forebay
