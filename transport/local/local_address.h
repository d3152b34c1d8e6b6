#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "transport/local/unique_fd.h"

// UNIX sockets of the same-host transport: their addresses, who may listen, who may connect.
namespace forebay {

// "local:/absolute/path" or "local:@name" (an abstract socket), taken apart.
struct LocalAddress {
  std::string path;  // of a file; empty when abstract
  std::string name;  // abstract; empty when it is a file
  sockaddr_un socket_address{};
  socklen_t socket_address_bytes = 0;

  // INVALID_ARGUMENT for another scheme, a path that is not absolute, or one longer than sun_path
  // holds (107 bytes).
  static absl::StatusOr<LocalAddress> Parse(absl::string_view address);
};

// Whom the kernel names at the other end of a connected socket (SO_PEERCRED).
struct PeerCredentials {
  int64_t pid = -1;
  int64_t uid = -1;
};
absl::StatusOr<PeerCredentials> CredentialsOf(int socket);

// Whether a peer of `peer_uid` may use a transport of `own_uid`: the same user, root, and whoever
// is in `allowed_uids`.
bool PeerIsAllowed(int64_t peer_uid, int64_t own_uid, absl::Span<const uint32_t> allowed_uids);

// A listening UNIX socket, and the lock that says that nobody else listens there.
//
// Beside the socket file PATH lies PATH.lock, locked with flock(2) as long as the listener lives:
// so of two daemons that start at once exactly one gets the path, and a socket file whose owner
// died is known to be stale. Both files go when the listener goes; a file that somebody put there
// meanwhile stays.
class LocalListener {
 public:
  // Makes the socket's folder (0700) when it is absent; `mode` is that of the socket file.
  //   ALREADY_EXISTS       somebody listens there
  //   FAILED_PRECONDITION  something that is no socket is in the way
  //   UNAVAILABLE          the kernel refuses: the message says what
  static absl::StatusOr<LocalListener> Open(const LocalAddress& address, mode_t mode);
  ~LocalListener();
  LocalListener(LocalListener&&) = default;
  LocalListener& operator=(LocalListener&&) = delete;

  int fd() const { return socket_.get(); }

 private:
  LocalListener() = default;

  UniqueFd socket_;
  UniqueFd lock_;
  std::string path_;
  dev_t device_ = 0;  // of the socket file that is ours
  ino_t inode_ = 0;
};

}  // namespace forebay
