#include "transport/tcp/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace forebay {
namespace {

constexpr int kListenBacklog = 512;

const sockaddr_in& AsIpv4(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in&>(storage);
}
const sockaddr_in6& AsIpv6(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6&>(storage);
}

absl::Status BadAddress(absl::string_view address, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("address \"", address, "\": ", what,
                                                 "; like tcp:127.0.0.1:7470 or tcp:[::1]:7470"));
}

void SetInt(int fd, int level, int name, int value) {
  // These are tuning: a kernel that refuses one still moves bytes.
  setsockopt(fd, level, name, &value, sizeof(value));
}

void ApplyOptions(int fd, const SocketOptions& options) {
  SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (options.send_buffer_bytes > 0) {
    SetInt(fd, SOL_SOCKET, SO_SNDBUF, options.send_buffer_bytes);
  }
  if (options.receive_buffer_bytes > 0) {
    SetInt(fd, SOL_SOCKET, SO_RCVBUF, options.receive_buffer_bytes);
  }
  if (options.user_timeout_ms > 0) {
    SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, options.user_timeout_ms);
  }
}

absl::StatusOr<int> NewSocket(int family) {
  const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socket: ", strerror(errno)));
  }
  return fd;
}

absl::Status ListenError(const SocketAddress& address, int error) {
  const std::string text = absl::StrCat("listen on ", address.ToString(), ": ", strerror(error));
  switch (error) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(text);
    case EACCES:
      return absl::PermissionDeniedError(text);
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(text);
    default:
      return absl::UnavailableError(text);
  }
}

}  // namespace

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? AsIpv6(storage).sin6_port : AsIpv4(storage).sin_port);
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&AsIpv6(storage).sin6_addr);
  return (ntohl(AsIpv4(storage).sin_addr.s_addr) >> 24) == 127;
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &AsIpv6(storage).sin6_addr, text, sizeof(text));
    return absl::StrCat("tcp:[", text, "]:", port());
  }
  inet_ntop(AF_INET, &AsIpv4(storage).sin_addr, text, sizeof(text));
  return absl::StrCat("tcp:", text, ":", port());
}

bool SocketAddress::SameHostAs(const SocketAddress& other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET6) {
    return IN6_ARE_ADDR_EQUAL(&AsIpv6(storage).sin6_addr, &AsIpv6(other.storage).sin6_addr);
  }
  return AsIpv4(storage).sin_addr.s_addr == AsIpv4(other.storage).sin_addr.s_addr;
}

absl::StatusOr<SocketAddress> ParseTcpAddress(absl::string_view address) {
  absl::string_view rest = address;
  if (!absl::ConsumePrefix(&rest, "tcp:")) return BadAddress(address, "does not start with tcp:");
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) return BadAddress(address, "has no port");
  const absl::string_view port_text = rest.substr(colon + 1);
  std::string host(rest.substr(0, colon));
  // SimpleAtoi would take "+7470" and " 7470" too.
  uint32_t port = 0;
  if (port_text.empty() || port_text.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(port_text, &port) || port > 65535) {
    return BadAddress(address, "the port is no number from 0 to 65535");
  }
  SocketAddress parsed;
  if (!host.empty() && host.front() == '[') {
    if (host.back() != ']') return BadAddress(address, "the [ has no ]");
    host = host.substr(1, host.size() - 2);
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(parsed.storage);
    if (inet_pton(AF_INET6, host.c_str(), &ipv6.sin6_addr) != 1) {
      return BadAddress(address, "what is in [] is no IPv6 address");
    }
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(static_cast<uint16_t>(port));
    parsed.bytes = sizeof(sockaddr_in6);
    return parsed;
  }
  if (host == "localhost") host = "127.0.0.1";
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(parsed.storage);
  if (inet_pton(AF_INET, host.c_str(), &ipv4.sin_addr) != 1) {
    return BadAddress(address, absl::StrCat("\"", host,
                                            "\" is no IPv4 address (host names are not resolved "
                                            "here; IPv6 addresses stand in [])"));
  }
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = htons(static_cast<uint16_t>(port));
  parsed.bytes = sizeof(sockaddr_in);
  return parsed;
}

absl::StatusOr<int> ListenOn(const SocketAddress& address, const SocketOptions& options) {
  const absl::StatusOr<int> fd = NewSocket(address.family());
  if (!fd.ok()) return fd.status();
  // A port whose last owner died lately is free; one where somebody listens is not.
  SetInt(*fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) SetInt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  // Before listen(): the window scale of accepted sockets comes from these.
  ApplyOptions(*fd, options);
  if (bind(*fd, address.get(), address.bytes) != 0 || listen(*fd, kListenBacklog) != 0) {
    const int error = errno;
    close(*fd);
    return ListenError(address, error);
  }
  return *fd;
}

absl::StatusOr<int> BeginConnect(const SocketAddress& address, const SocketOptions& options) {
  const absl::StatusOr<int> fd = NewSocket(address.family());
  if (!fd.ok()) return fd.status();
  ApplyOptions(*fd, options);
  if (connect(*fd, address.get(), address.bytes) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    close(*fd);
    return absl::UnavailableError(strerror(error));
  }
  return *fd;
}

int AcceptOn(int listener, SocketAddress& peer, const SocketOptions& options) {
  peer.bytes = sizeof(peer.storage);
  const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&peer.storage), &peer.bytes,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) ApplyOptions(fd, options);
  return fd;
}

bool TuneConnected(int fd, const SocketAddress& peer) {
  const bool same_host = peer.is_loopback() || peer.SameHostAs(LocalAddress(fd));
  if (same_host) {
    constexpr char kNoPacing[] = "reno";
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kNoPacing, sizeof(kNoPacing) - 1);
  }
  return same_host;
}

SocketAddress LocalAddress(int fd) {
  SocketAddress local;
  local.bytes = sizeof(local.storage);
  getsockname(fd, reinterpret_cast<sockaddr*>(&local.storage), &local.bytes);
  return local;
}

absl::Status SocketError(int fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  if (error != 0) return absl::UnavailableError(strerror(error));
  // A free port in the range that the kernel hands out can be given to this very socket, which then
  // talks to itself.
  SocketAddress peer;
  peer.bytes = sizeof(peer.storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.bytes) != 0) {
    return absl::UnavailableError(strerror(errno));
  }
  const SocketAddress local = LocalAddress(fd);
  if (peer.SameHostAs(local) && peer.port() == local.port()) {
    return absl::UnavailableError(strerror(ECONNREFUSED));
  }
  return absl::OkStatus();
}

}  // namespace forebay
