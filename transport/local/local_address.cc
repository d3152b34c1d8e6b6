#include "transport/local/local_address.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/failpoint.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

constexpr absl::string_view kScheme = "local:";
// One byte of sun_path is the NUL of a path, or the NUL before an abstract name.
constexpr size_t kNameBytesMax = sizeof(sockaddr_un{}.sun_path) - 1;
// Locks are taken again when the file was unlinked between open and flock; each time means that
// another daemon came or went in that instant.
constexpr int kLockAttemptsMax = 100;
constexpr int kBacklog = 128;

absl::Status ErrnoStatus(absl::string_view what, absl::string_view path) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
}

absl::Status SomebodyListens(absl::string_view path) {
  return absl::AlreadyExistsError(absl::StrCat("another daemon listens on ", path));
}

// Makes the folder of `path`, one level: an operator who mistypes a path gets an error, not a tree.
absl::Status MakeFolderOf(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/'));
  if (folder.empty() || mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) {
    return absl::OkStatus();
  }
  return ErrnoStatus("cannot make the folder of the socket", folder);
}

absl::StatusOr<UniqueFd> TakeLock(const std::string& path) {
  const std::string lock_path = path + ".lock";
  for (int attempt = 0; attempt < kLockAttemptsMax; ++attempt) {
    UniqueFd lock(open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock.ok()) return ErrnoStatus("cannot open the lock", lock_path);
    if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return SomebodyListens(path);
      return ErrnoStatus("cannot lock", lock_path);
    }
    struct stat locked, named;
    if (fstat(lock.get(), &locked) == 0 && stat(lock_path.c_str(), &named) == 0 &&
        locked.st_dev == named.st_dev && locked.st_ino == named.st_ino) {
      return lock;
    }
  }
  return absl::UnavailableError(absl::StrCat("cannot lock ", lock_path, ": it keeps changing"));
}

// True if somebody accepts at `address`. Only a program that takes no lock is found this way.
bool SomebodyAnswers(const LocalAddress& address) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.ok()) return true;
  const auto* sa = reinterpret_cast<const sockaddr*>(&address.socket_address);
  // EPROTOTYPE: a listener of another socket type; EAGAIN: one with a full backlog.
  return connect(probe.get(), sa, address.socket_address_bytes) == 0 || errno != ECONNREFUSED;
}

absl::Status RemoveStaleSocket(const LocalAddress& address) {
  struct stat found;
  if (lstat(address.path.c_str(), &found) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus("cannot look at", address.path);
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.path, " is in the way: it is no socket"));
  }
  if (SomebodyAnswers(address)) return SomebodyListens(address.path);
  if (unlink(address.path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus("cannot remove the stale socket", address.path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LocalAddress> LocalAddress::Parse(absl::string_view address) {
  absl::string_view rest = address;
  if (!absl::ConsumePrefix(&rest, kScheme)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\" is no address of the local transport: it begins with \"",
                     kScheme, "\""));
  }
  LocalAddress parsed;
  const bool abstract = absl::ConsumePrefix(&rest, "@");
  if (rest.empty() || (!abstract && rest.front() != '/') ||
      rest.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", address, "\": \"local:\" is followed by an absolute path, or by @ and a name"));
  }
  if (rest.size() > kNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("\"", address, "\": a socket path has at most ",
                                                   kNameBytesMax, " bytes, this one ",
                                                   rest.size()));
  }
  sockaddr_un& sa = parsed.socket_address;
  sa.sun_family = AF_UNIX;
  std::memcpy(sa.sun_path + (abstract ? 1 : 0), rest.data(), rest.size());
  parsed.socket_address_bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + rest.size() + 1);
  (abstract ? parsed.name : parsed.path) = std::string(rest);
  return parsed;
}

absl::StatusOr<PeerCredentials> CredentialsOf(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return ErrnoStatus("cannot learn who is at", "the other end of a socket");
  }
  return PeerCredentials{.pid = credentials.pid, .uid = static_cast<int64_t>(credentials.uid)};
}

bool PeerIsAllowed(int64_t peer_uid, int64_t own_uid, absl::Span<const uint32_t> allowed_uids) {
  if (peer_uid < 0) return false;
  if (peer_uid == own_uid || peer_uid == 0) return true;
  return std::any_of(allowed_uids.begin(), allowed_uids.end(),
                     [peer_uid](uint32_t uid) { return int64_t{uid} == peer_uid; });
}

absl::StatusOr<LocalListener> LocalListener::Open(const LocalAddress& address, mode_t mode) {
  FB_FAILPOINT("transport.local.listen");
  LocalListener listener;
  if (!address.path.empty()) {
    FB_RETURN_IF_ERROR(MakeFolderOf(address.path));
    FB_ASSIGN_OR_RETURN(listener.lock_, TakeLock(address.path));
    listener.path_ = address.path;  // from here on the lock file is ours to remove
    FB_RETURN_IF_ERROR(RemoveStaleSocket(address));
  }
  const std::string& shown = address.path.empty() ? address.name : address.path;
  listener.socket_ =
      UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, /*protocol=*/0));
  if (!listener.socket_.ok()) return ErrnoStatus("cannot make a socket for", shown);
  // Before bind(2): so the file is never there with a wider mode, not for an instant.
  if (fchmod(listener.socket_.get(), mode) != 0)
    return ErrnoStatus("cannot set the mode of", shown);
  const auto* sa = reinterpret_cast<const sockaddr*>(&address.socket_address);
  if (bind(listener.socket_.get(), sa, address.socket_address_bytes) != 0) {
    if (errno == EADDRINUSE) return SomebodyListens(shown);
    return ErrnoStatus("cannot bind", shown);
  }
  if (!address.path.empty()) {
    struct stat bound;
    if (lstat(address.path.c_str(), &bound) != 0) return ErrnoStatus("cannot look at", shown);
    listener.device_ = bound.st_dev;
    listener.inode_ = bound.st_ino;
    // The umask may have taken bits that the operator asked for.
    if (chmod(address.path.c_str(), mode) != 0) return ErrnoStatus("cannot set the mode of", shown);
  }
  if (listen(listener.socket_.get(), kBacklog) != 0) return ErrnoStatus("cannot listen on", shown);
  return listener;
}

LocalListener::~LocalListener() {
  if (!lock_.ok() || path_.empty()) return;
  struct stat found;
  if (inode_ != 0 && lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ &&
      found.st_ino == inode_) {
    unlink(path_.c_str());
  }
  unlink((path_ + ".lock").c_str());  // while it is locked: see TakeLock
}

}  // namespace forebay
