#include "tests/bench/redis_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace forebay::bench {
namespace {

constexpr const char* kServer = "/usr/bin/redis-server";

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  int port = 0;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    port = ntohs(address.sin_port);
  }
  close(fd);
  return port;
}

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
  }
  close(fd);
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisPeer>> RedisPeer::Start() {
  if (!std::filesystem::exists(kServer)) {
    return absl::NotFoundError("redis-server is not installed");
  }
  auto peer = std::unique_ptr<RedisPeer>(new RedisPeer);
  const int port = FreePort();
  forebay::testing::ChildProcess::Options options;
  options.command = {
      kServer, "--port", absl::StrCat(port),  "--bind", "127.0.0.1", "--save", "", "--appendonly",
      "no",    "--dir",  peer->folder_.path()};
  options.output_file = peer->folder_.File("redis.log");
  FB_ASSIGN_OR_RETURN(peer->server_, forebay::testing::ChildProcess::Start(options));
  const SystemClock clock;
  const Nanos until = clock.Now() + 10 * kSecond;
  while ((peer->fd_ = ConnectTo(port)) < 0) {
    if (clock.Now() > until) return absl::UnavailableError("redis-server did not start");
    usleep(20'000);
  }
  return peer;
}

RedisPeer::~RedisPeer() {
  if (fd_ >= 0) close(fd_);
}

absl::Status RedisPeer::SendCommand(const std::string& head, const std::byte* value, size_t bytes) {
  static const char kEnd[] = "\r\n";
  iovec parts[3] = {{const_cast<char*>(head.data()), head.size()},
                    {const_cast<std::byte*>(value), bytes},
                    {const_cast<char*>(kEnd), bytes > 0 ? size_t{2} : size_t{0}}};
  size_t left = head.size() + bytes + parts[2].iov_len;
  while (left > 0) {
    const ssize_t sent = writev(fd_, parts, 3);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return absl::UnavailableError("redis-server went away");
    left -= static_cast<size_t>(sent);
    size_t skip = static_cast<size_t>(sent);
    for (iovec& part : parts) {
      const size_t taken = std::min(skip, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + taken;
      part.iov_len -= taken;
      skip -= taken;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RedisPeer::ReadLine() {
  for (;;) {
    const size_t end = buffered_.find("\r\n");
    if (end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 2);
      return line;
    }
    char piece[256];
    const ssize_t got = recv(fd_, piece, sizeof(piece), 0);
    if (got <= 0) return absl::UnavailableError("redis-server went away");
    buffered_.append(piece, static_cast<size_t>(got));
  }
}

absl::Status RedisPeer::ReadBytes(std::byte* to, size_t bytes) {
  const size_t taken = std::min(bytes, buffered_.size());
  std::memcpy(to, buffered_.data(), taken);
  buffered_.erase(0, taken);
  for (size_t at = taken; at < bytes;) {
    const ssize_t got = recv(fd_, to + at, bytes - at, 0);
    if (got <= 0) return absl::UnavailableError("redis-server went away");
    at += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status RedisPeer::Set(const std::string& key, const std::byte* value, size_t bytes) {
  FB_RETURN_IF_ERROR(SendCommand(
      absl::StrCat("*3\r\n$3\r\nSET\r\n$", key.size(), "\r\n", key, "\r\n$", bytes, "\r\n"), value,
      bytes));
  FB_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  return line == "+OK" ? absl::OkStatus() : absl::InternalError(absl::StrCat("SET gave ", line));
}

absl::Status RedisPeer::Get(const std::string& key, std::byte* to, size_t bytes) {
  FB_RETURN_IF_ERROR(SendCommand(
      absl::StrCat("*2\r\n$3\r\nGET\r\n$", key.size(), "\r\n", key, "\r\n"), nullptr, 0));
  FB_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  if (line != absl::StrCat("$", bytes)) {
    return absl::InternalError(absl::StrCat("GET gave ", line));
  }
  FB_RETURN_IF_ERROR(ReadBytes(to, bytes));
  return ReadLine().status();
}

absl::Status RedisPeer::Flush() {
  FB_RETURN_IF_ERROR(SendCommand("*1\r\n$8\r\nFLUSHALL\r\n", nullptr, 0));
  return ReadLine().status();
}

}  // namespace forebay::bench
