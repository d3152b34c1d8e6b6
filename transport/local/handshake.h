#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/local/local_address.h"
#include "transport/local/shared_area.h"
#include "transport/local/unique_fd.h"

// How two ends of a local endpoint meet: packets over a UNIX socket (SOCK_SEQPACKET), descriptors
// by SCM_RIGHTS. Little-endian structs; the connector speaks first.
//
//   connector  Hello    the wire versions that it speaks
//   acceptor   Welcome  the version, sizes of the area, how many regions; with the area's memfd
//   acceptor   Regions  sizes of up to kRegionsPerPacket regions, with their memfds; as many as
//   needed connector  Ready    all is mapped
// Instead of any of its own the acceptor may say Refusal, with a status, and close.
namespace forebay {

inline constexpr uint32_t kRegionsPerPacket = 64;  // SCM_RIGHTS takes 253 descriptors at most
inline constexpr uint32_t kRegionsMax = 64 * 1024;

enum class HandshakeKind : uint32_t {
  kHello = 1,
  kWelcome = 2,
  kRegions = 3,
  kReady = 4,
  kRefusal = 5,
};

struct HandshakeHello {
  uint32_t version_min = 0;
  uint32_t version_max = 0;
};
struct HandshakeWelcome {
  uint32_t version = 0;
  uint32_t region_count = 0;
  uint64_t ring_bytes = 0;
  uint64_t staging_bytes = 0;
};
static_assert(sizeof(HandshakeWelcome) == 24);
struct HandshakeRegions {
  uint32_t first = 0;
  uint32_t count = 0;
  uint64_t bytes[kRegionsPerPacket] = {};
};
static_assert(sizeof(HandshakeRegions) == 520);

struct HandshakePacket {
  HandshakeKind kind = HandshakeKind::kHello;
  std::vector<std::byte> body;
  std::vector<UniqueFd> fds;
};

// UNAVAILABLE when the peer is gone, RESOURCE_EXHAUSTED when the socket takes no more just now.
absl::Status SendHandshake(int socket, HandshakeKind kind, Bytes body,
                           absl::Span<const int> fds = {});
absl::Status SendRefusal(int socket, const absl::Status& why);
// nullopt when nothing has come yet. UNAVAILABLE when the peer is gone; INVALID_ARGUMENT for what
// is no packet.
absl::StatusOr<std::optional<HandshakePacket>> ReceiveHandshake(int socket);

// A region as its owner hands it out.
struct HandshakeExport {
  int fd = -1;
  uint64_t bytes = 0;
};

// One end of a handshake: a state machine that never waits.
class LocalHandshake {
 public:
  virtual ~LocalHandshake() = default;
  // Goes as far as it can. An error ends the handshake. Call when the socket is readable; and a
  // little later when blocked().
  virtual absl::Status Advance() = 0;

  bool done() const { return done_; }
  // Whether it waits for something that makes no descriptor readable.
  bool blocked() const { return blocked_; }
  int socket() const { return socket_.get(); }
  const PeerCredentials& peer() const { return peer_; }

  // Once done().
  UniqueFd TakeSocket() { return std::move(socket_); }
  SharedArea TakeArea() { return *std::move(area_); }
  std::vector<ReadOnlyRegion> TakeRegions() { return std::move(regions_); }

 protected:
  bool done_ = false;
  bool blocked_ = false;
  UniqueFd socket_;
  PeerCredentials peer_;
  std::optional<SharedArea> area_;
  std::vector<ReadOnlyRegion> regions_;
};

class AcceptorHandshake final : public LocalHandshake {
 public:
  // Borrows `exports`. `peer` was allowed already.
  AcceptorHandshake(UniqueFd socket, const PeerCredentials& peer, const SharedArea::Sizes& sizes,
                    absl::Span<const HandshakeExport> exports);
  absl::Status Advance() override;

 private:
  enum class Step : uint8_t { kHello, kWelcome, kRegions, kReady };

  absl::Status TakeHello();
  absl::Status SendWelcome();
  absl::Status SendRegions();
  absl::Status TakeReady();

  Step step_ = Step::kHello;
  bool moved_ = false;
  const SharedArea::Sizes sizes_;
  const absl::Span<const HandshakeExport> exports_;
  size_t regions_sent_ = 0;
};

class ConnectorHandshake final : public LocalHandshake {
 public:
  // `own_uid`, `allowed_uids`: which listeners to trust, see PeerIsAllowed().
  ConnectorHandshake(LocalAddress address, int64_t own_uid, std::vector<uint32_t> allowed_uids);
  absl::Status Advance() override;

 private:
  enum class Step : uint8_t { kConnect, kWelcome, kRegions };

  absl::Status ConnectSocket();
  absl::Status TakePacket();
  absl::Status TakeWelcome(HandshakePacket& packet);
  absl::Status TakeSomeRegions(HandshakePacket& packet);

  Step step_ = Step::kConnect;
  bool moved_ = false;
  const LocalAddress address_;
  const int64_t own_uid_;
  const std::vector<uint32_t> allowed_uids_;
  uint32_t region_count_ = 0;
};

}  // namespace forebay
