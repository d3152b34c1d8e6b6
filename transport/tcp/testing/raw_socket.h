#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace forebay::testing {

// A plain socket in the hand of a test, to say on it what no TcpTransport would say. Never waits
// for long: all of it happens in the kernel's queues of one host.
class RawSocket {
 public:
  RawSocket() = default;
  explicit RawSocket(int fd) : fd_(fd) {}
  ~RawSocket() { Close(); }
  RawSocket(RawSocket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  RawSocket& operator=(RawSocket&& other) noexcept;

  // To "tcp:127.0.0.1:PORT". Aborts where it cannot.
  static RawSocket ConnectTo(const std::string& address);
  // On a free port of 127.0.0.1.
  static RawSocket Listening();

  // -1 inside where nobody is there yet.
  RawSocket Accept() const;
  std::string address() const;
  bool valid() const { return fd_ >= 0; }

  // What the kernel took, perhaps less; 0 where the peer is gone too.
  size_t Write(absl::string_view bytes) const;
  // What is there, at most `bytes_max`.
  std::string Read(size_t bytes_max) const;
  // The peer closed, and everything it said was read.
  bool AtEnd() const;
  void Close();

 private:
  int fd_ = -1;
};

}  // namespace forebay::testing
