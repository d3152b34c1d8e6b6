#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace forebay::bench {

// Memory of our own that the kernel has really given: touched, and in huge pages where there are
// any.
class Buffer {
 public:
  explicit Buffer(size_t bytes, uint8_t fill);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

// One thread's memcpy of `total` bytes in pieces of `piece` bytes: GB/s.
double MemcpyRate(Buffer& to, Buffer& from, size_t piece, size_t total);

// A plain TCP connection over loopback to a child process that does nothing but send.
class SocketPair {
 public:
  static absl::StatusOr<std::unique_ptr<SocketPair>> Start();
  ~SocketPair();
  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;

  // Asks for `total` bytes in messages of `message` bytes, and receives them into `to`: GB/s.
  absl::StatusOr<double> ReceiveRate(Buffer& to, size_t message, size_t total);
  // Sends `total` bytes in messages of `message` bytes from `from`, until they are taken: GB/s.
  absl::StatusOr<double> SendRate(Buffer& from, size_t message, size_t total);
  // Median of `count` round trips of 64 bytes: microseconds.
  absl::StatusOr<double> RoundTripUs(int count);

 private:
  SocketPair(int fd, int child) : fd_(fd), child_(child) {}
  int fd_;
  int child_;
};

}  // namespace forebay::bench
