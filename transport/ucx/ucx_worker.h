#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/transport.h"

namespace forebay {

struct UcxTransportOptions {
  TransportOptions base;
  std::string transports = "tcp";  // UCX_TLS: "tcp", "rc_v", "rc_x", "ud_v", ...
  std::string devices = "lo";      // UCX_NET_DEVICES: "lo", "eth0", "mlx5_0:1", ...
  int gid_index = -1;              // UCX_IB_GID_INDEX; -1: UCX chooses
  size_t rendezvous_bytes = 0;   // payload pieces of this many bytes and more; 0: by the transport
  size_t piece_bytes = 1 << 20;  // what a large payload is cut into
  Nanos handshake_timeout = 10 * kSecond;  // of a peer that connected, until its endpoint works
  uint32_t handshakes_max = 256;           // peers that connected and have no endpoint yet
  // Further settings of UCX, without "UCX_": {"TCP_PORT_RANGE", "20000-20100"}. They win.
  std::vector<std::pair<std::string, std::string>> settings;

  bool is_tcp() const;  // nothing but TCP
  size_t rendezvous_bytes_used() const;
};

// Every setting of UCX that we decide, in order; the last of a name wins.
std::vector<std::pair<std::string, std::string>> UcxSettings(const UcxTransportOptions& options);

// One ucp_context and its one ucp_worker: active messages and wake-up, no remote memory access.
// The settings are ours and are logged; variables UCX_* of the environment that would touch
// what we leave to UCX are named in a warning.
//
// Threads  one (UCS_THREAD_MODE_SINGLE).
class UcxWorker {
 public:
  // NOT_FOUND for a device that is not there, RESOURCE_EXHAUSTED naming RLIMIT_MEMLOCK where RDMA
  // cannot pin its memory, INVALID_ARGUMENT for a setting that UCX does not take.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const UcxTransportOptions& options);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  int event_fd() const { return event_fd_; }
  size_t header_bytes_max() const { return header_bytes_max_; }
  const std::string& address() const { return address_; }
  // Leaves the worker to the end of the process: for one whose requests do not end.
  void Abandon();

 private:
  UcxWorker() = default;
  absl::Status OpenContext(const UcxTransportOptions& options);
  absl::Status OpenWorker();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  size_t header_bytes_max_ = 0;
  std::string address_;
};

}  // namespace forebay
