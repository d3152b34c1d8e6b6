#include "transport/tcp/testing/raw_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "transport/tcp/socket.h"

namespace forebay::testing {
namespace {

void MakeNonBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

RawSocket& RawSocket::operator=(RawSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

RawSocket RawSocket::ConnectTo(const std::string& address) {
  const absl::StatusOr<SocketAddress> parsed = ParseTcpAddress(address);
  FB_CHECK(parsed.ok());
  const int fd = socket(parsed->family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  FB_CHECK(fd >= 0);
  FB_CHECK(connect(fd, parsed->get(), parsed->bytes) == 0);
  MakeNonBlocking(fd);
  return RawSocket(fd);
}

RawSocket RawSocket::Listening() {
  const absl::StatusOr<SocketAddress> any = ParseTcpAddress("tcp:127.0.0.1:0");
  const absl::StatusOr<int> fd = ListenOn(*any, SocketOptions());
  FB_CHECK(fd.ok());
  return RawSocket(*fd);
}

RawSocket RawSocket::Accept() const {
  return RawSocket(accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

std::string RawSocket::address() const { return LocalAddress(fd_).ToString(); }

size_t RawSocket::Write(absl::string_view bytes) const {
  const ssize_t put = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return put > 0 ? static_cast<size_t>(put) : 0;
}

std::string RawSocket::Read(size_t bytes_max) const {
  std::string bytes(bytes_max, '\0');
  const ssize_t got = recv(fd_, bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return bytes;
}

bool RawSocket::AtEnd() const {
  char byte;
  const ssize_t got = recv(fd_, &byte, 1, MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

void RawSocket::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace forebay::testing
