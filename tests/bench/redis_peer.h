#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/ceilings.h"
#include "tests/support/daemon_process.h"

namespace forebay::bench {

// A redis-server of our own on loopback TCP, without persistence, and one blocking connection to it
// that speaks just SET and GET: nothing between the socket and the caller's buffer.
class RedisPeer {
 public:
  // NOT_FOUND where redis-server is not installed.
  static absl::StatusOr<std::unique_ptr<RedisPeer>> Start();
  ~RedisPeer();
  RedisPeer(const RedisPeer&) = delete;
  RedisPeer& operator=(const RedisPeer&) = delete;

  absl::Status Set(const std::string& key, const std::byte* value, size_t bytes);
  // Reads the value of `key`, `bytes` long, into `to`.
  absl::Status Get(const std::string& key, std::byte* to, size_t bytes);
  absl::Status Flush();

 private:
  RedisPeer() = default;
  absl::Status SendCommand(const std::string& head, const std::byte* value, size_t bytes);
  absl::StatusOr<std::string> ReadLine();
  absl::Status ReadBytes(std::byte* to, size_t bytes);

  forebay::testing::TemporaryFolder folder_;
  std::unique_ptr<forebay::testing::ChildProcess> server_;
  int fd_ = -1;
  std::string buffered_;
};

}  // namespace forebay::bench
