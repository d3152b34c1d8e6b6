#include "tests/bench/ceilings.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "tests/bench/report.h"

namespace forebay::bench {
namespace {

// What the client asks its child for.
struct Order {
  uint64_t to_client = 0;  // bytes that the child sends
  uint64_t to_child = 0;   // bytes that the client sends, and the child confirms with one byte
  uint64_t message = 0;
};

bool SendAll(int fd, const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int fd, std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(fd, data, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

// The best that a plain socket does on loopback: no delay, and no pacing (a host whose default is
// BBR paces loopback to less than half). Where reno is not to be had, the default stays.
void MakeFast(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

[[noreturn]] void ServeOrders(int fd) {
  // As many bytes as a pool would have resident, so that the sender's reads miss the cache alike.
  Buffer memory(256 << 20, 3);
  Order order;
  while (ReceiveAll(fd, reinterpret_cast<std::byte*>(&order), sizeof(order))) {
    size_t at = 0;
    for (uint64_t done = 0; done < order.to_client; done += order.message) {
      if (at + order.message > memory.bytes()) at = 0;
      if (!SendAll(fd, memory.data() + at, order.message)) _exit(1);
      at += order.message;
    }
    at = 0;
    for (uint64_t done = 0; done < order.to_child; done += order.message) {
      if (at + order.message > memory.bytes()) at = 0;
      if (!ReceiveAll(fd, memory.data() + at, order.message)) _exit(1);
      at += order.message;
    }
    const std::byte confirmed{1};
    if (order.to_child > 0 && !SendAll(fd, &confirmed, 1)) _exit(1);
  }
  _exit(0);
}

double Rate(uint64_t bytes, Nanos taken) {
  return static_cast<double>(bytes) / static_cast<double>(std::max<Nanos>(taken, 1));
}

}  // namespace

Buffer::Buffer(size_t bytes, uint8_t fill) : bytes_(bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  FB_CHECK(memory != MAP_FAILED);
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, fill, bytes);
  data_ = static_cast<std::byte*>(memory);
}

Buffer::~Buffer() { munmap(data_, bytes_); }

double MemcpyRate(Buffer& to, Buffer& from, size_t piece, size_t total) {
  const SystemClock clock;
  const size_t span = std::min(to.bytes(), from.bytes()) / piece * piece;
  const Nanos start = clock.Now();
  for (size_t done = 0; done < total; done += piece) {
    std::memcpy(to.data() + done % span, from.data() + done % span, piece);
  }
  return Rate(total, clock.Now() - start);
}

absl::StatusOr<std::unique_ptr<SocketPair>> SocketPair::Start() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on loopback: ", strerror(errno)));
  }
  const int child = fork();
  if (child < 0) return absl::UnavailableError("cannot fork");
  if (child == 0) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) _exit(1);
    MakeFast(fd);
    ServeOrders(fd);
  }
  const int fd = accept(listener, nullptr, nullptr);
  close(listener);
  if (fd < 0) return absl::UnavailableError("the socket pair did not connect");
  MakeFast(fd);
  return std::unique_ptr<SocketPair>(new SocketPair(fd, child));
}

SocketPair::~SocketPair() {
  close(fd_);
  waitpid(child_, nullptr, 0);
}

absl::StatusOr<double> SocketPair::ReceiveRate(Buffer& to, size_t message, size_t total) {
  const SystemClock clock;
  total = total / message * message;
  const size_t span = to.bytes() / message * message;
  const Order order{total, 0, message};
  const Nanos start = clock.Now();
  if (!SendAll(fd_, reinterpret_cast<const std::byte*>(&order), sizeof(order))) {
    return absl::UnavailableError("the socket pair broke");
  }
  for (size_t done = 0; done < total; done += message) {
    if (!ReceiveAll(fd_, to.data() + done % span, message)) {
      return absl::UnavailableError("the socket pair broke");
    }
  }
  return Rate(total, clock.Now() - start);
}

absl::StatusOr<double> SocketPair::SendRate(Buffer& from, size_t message, size_t total) {
  const SystemClock clock;
  total = total / message * message;
  const size_t span = from.bytes() / message * message;
  const Order order{0, total, message};
  const Nanos start = clock.Now();
  bool well = SendAll(fd_, reinterpret_cast<const std::byte*>(&order), sizeof(order));
  for (size_t done = 0; well && done < total; done += message) {
    well = SendAll(fd_, from.data() + done % span, message);
  }
  std::byte confirmed;
  if (!well || !ReceiveAll(fd_, &confirmed, 1)) {
    return absl::UnavailableError("the socket pair broke");
  }
  return Rate(total, clock.Now() - start);
}

absl::StatusOr<double> SocketPair::RoundTripUs(int count) {
  Buffer reply(64, 0);
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const SystemClock clock;
    const Nanos start = clock.Now();
    FB_RETURN_IF_ERROR(ReceiveRate(reply, 64, 64).status());
    times.push_back(static_cast<double>(clock.Now() - start) / 1e3);
  }
  return Median(times);
}

}  // namespace forebay::bench
