#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Addresses and sockets of transport/tcp: the only place that knows sockaddr.
namespace forebay {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint16_t port() const;
  bool is_loopback() const;
  // "tcp:127.0.0.1:7470", "tcp:[::1]:7470".
  std::string ToString() const;
  // Whether the address, not the port, is the same.
  bool SameHostAs(const SocketAddress& other) const;
};

// "tcp:127.0.0.1:7470", "tcp:[::1]:7470"; "localhost" is 127.0.0.1. Other names are refused, since
// a reactor cannot wait for DNS: whoever has a name resolves it elsewhere and hands in the number.
// INVALID_ARGUMENT says what is wrong.
absl::StatusOr<SocketAddress> ParseTcpAddress(absl::string_view address);

struct SocketOptions {
  int send_buffer_bytes = 0;     // 0: the kernel's own tuning
  int receive_buffer_bytes = 0;  // 0: the kernel's own tuning
  int user_timeout_ms = 0;       // TCP_USER_TIMEOUT; 0: the kernel's default
};

// A socket that listens at `address`. ALREADY_EXISTS where somebody does already,
// PERMISSION_DENIED, INVALID_ARGUMENT where this host has no such address; each names the address.
absl::StatusOr<int> ListenOn(const SocketAddress& address, const SocketOptions& options);
// A socket that begins to connect: it becomes writable when that is decided (SocketError says how).
absl::StatusOr<int> BeginConnect(const SocketAddress& address, const SocketOptions& options);
// Takes one connection; -1 when there is none, with errno set.
int AcceptOn(int listener, SocketAddress& peer, const SocketOptions& options);
// OK, or UNAVAILABLE with the pending error of `fd`, or of a socket that connected to itself.
absl::Status SocketError(int fd);
SocketAddress LocalAddress(int fd);
// Sets up a socket that is connected; true if the peer is on this host. There is nothing to congest
// within a host, and a congestion control that paces what it sends (bbr, the default of many hosts)
// halves the rate there; reno is in every kernel.
bool TuneConnected(int fd, const SocketAddress& peer);

}  // namespace forebay
