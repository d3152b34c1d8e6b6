#include "server/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace forebay {
namespace {

// How late a busy reactor may hear of a signal. An idle one is woken.
constexpr Nanos kLookInterval = 10 * kMillisecond;

}  // namespace

absl::Status NotifySupervisor(absl::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return absl::OkStatus();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t path_bytes = std::strlen(path);
  if (path_bytes >= sizeof(address.sun_path) || (*path != '/' && *path != '@')) {
    return absl::InvalidArgumentError(absl::StrCat("NOTIFY_SOCKET=", path));
  }
  std::memcpy(address.sun_path, path, path_bytes);
  if (*path == '@') address.sun_path[0] = '\0';  // An abstract name.
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "socket");
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  const auto address_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path_bytes);
  if (sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
             reinterpret_cast<const sockaddr*>(&address), address_bytes) < 0) {
    return absl::UnavailableError(absl::StrCat("NOTIFY_SOCKET=", path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status WriteWhole(const std::string& path, absl::string_view text) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", temporary));
  const ssize_t written = write(fd, text.data(), text.size());
  const int error = errno;
  close(fd);
  if (written != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(written < 0 ? error : ENOSPC,
                               absl::StrCat("cannot write ", temporary));
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot rename to ", path));
  }
  return absl::OkStatus();
}

void RaiseOpenFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

StopSignals::StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  FB_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
  fd_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  FB_CHECK(fd_ >= 0);
  signal(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() { close(fd_); }

bool StopSignals::Take() {
  signalfd_siginfo info;
  bool any = false;
  while (read(fd_, &info, sizeof(info)) == sizeof(info)) {
    ++count_;
    any = true;
  }
  return any;
}

bool StopSignals::Poll(Nanos now) {
  // A system call each turn would cost every request.
  if (now < look_at_) return false;
  look_at_ = now + kLookInterval;
  return Take();
}

bool StopSignals::PrepareToSleep(std::vector<int>& fds) {
  fds.push_back(fd_);
  return !Take();
}

}  // namespace forebay
