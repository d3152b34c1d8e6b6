#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "transport/tcp/stream.h"

namespace forebay {
namespace {

size_t TotalBytes(absl::Span<const iovec> ranges) {
  size_t total = 0;
  for (const iovec& range : ranges) total += range.iov_len;
  return total;
}

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(int fd) : fd_(fd) {}
  ~PlainStream() override { close(fd_); }

  StreamResult Handshake() override { return {}; }

  StreamResult Read(absl::Span<const iovec> ranges) override {
    const size_t wanted = TotalBytes(ranges);
    ssize_t got;
    do {
      got = readv(fd_, ranges.data(), static_cast<int>(ranges.size()));
    } while (got < 0 && errno == EINTR);
    if (got == 0 && wanted > 0) return {StreamResult::Kind::kEnd, 0, {}};
    return Outcome(got, wanted, "read");
  }

  StreamResult Write(absl::Span<const iovec> ranges) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(ranges.data());
    message.msg_iovlen = ranges.size();
    ssize_t put;
    do {
      put = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (put < 0 && errno == EINTR);
    return Outcome(put, TotalBytes(ranges), "write");
  }

  int fd() const override { return fd_; }

 private:
  // A short transfer means that the socket is drained or full (epoll(7)), which saves the call that
  // would only say EAGAIN.
  static StreamResult Outcome(ssize_t moved, size_t wanted, absl::string_view verb) {
    if (moved >= 0) {
      const auto bytes = static_cast<size_t>(moved);
      return {
          bytes < wanted ? StreamResult::Kind::kWouldBlock : StreamResult::Kind::kDone, bytes, {}};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {StreamResult::Kind::kWouldBlock, 0, {}};
    return StreamResult::Failed(absl::UnavailableError(absl::StrCat(verb, ": ", strerror(errno))));
  }

  const int fd_;
};

}  // namespace

std::unique_ptr<ByteStream> NewPlainStream(int fd) { return std::make_unique<PlainStream>(fd); }

}  // namespace forebay
