#include "transport/local/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/failpoint.h"
#include "base/status_macros.h"
#include "base/wire_version.h"

namespace forebay {
namespace {

constexpr uint64_t kHandshakeMagic = 0x314c41434f4c4246;  // "FBLOCAL1"
constexpr size_t kRefusalTextBytesMax = 240;

struct HandshakeHead {
  uint64_t magic = kHandshakeMagic;
  HandshakeKind kind = HandshakeKind::kHello;
  uint32_t body_bytes = 0;
};
static_assert(sizeof(HandshakeHead) == 16);

constexpr size_t kPacketBytesMax = sizeof(HandshakeHead) + sizeof(HandshakeRegions);

template <typename T>
Bytes BytesOf(const T& value) {
  return AsBytes(&value, sizeof(value));
}

template <typename T>
absl::StatusOr<T> BodyOf(const HandshakePacket& packet) {
  T body;
  if (packet.body.size() != sizeof(body)) {
    return absl::InvalidArgumentError("a handshake packet of wrong length");
  }
  std::memcpy(&body, packet.body.data(), sizeof(body));
  return body;
}

absl::Status Unexpected() { return absl::InvalidArgumentError("a handshake packet out of turn"); }

// The status in a Refusal: a code and a text.
absl::Status StatusOfRefusal(Bytes body) {
  body = body.subspan(0, sizeof(uint32_t) + kRefusalTextBytesMax);
  uint32_t code = 0;
  if (body.size() < sizeof(code)) return absl::InvalidArgumentError("a refusal without a code");
  std::memcpy(&code, body.data(), sizeof(code));
  const absl::string_view text(reinterpret_cast<const char*>(body.data()) + sizeof(code),
                               body.size() - sizeof(code));
  if (code == 0 || code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::UnavailableError(text);
  }
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

// What the acceptor sent; a Refusal comes out as its status.
absl::StatusOr<std::optional<HandshakePacket>> ReceiveOrRefusal(int socket) {
  absl::StatusOr<std::optional<HandshakePacket>> packet = ReceiveHandshake(socket);
  if (packet.ok() && *packet && (*packet)->kind == HandshakeKind::kRefusal) {
    return StatusOfRefusal((*packet)->body);
  }
  return packet;
}

// Owns whatever descriptors came with a packet, before anything else is looked at.
std::vector<UniqueFd> TakeDescriptors(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

absl::Status SendHandshake(int socket, HandshakeKind kind, Bytes body, absl::Span<const int> fds) {
  HandshakeHead head{.kind = kind, .body_bytes = static_cast<uint32_t>(body.size())};
  iovec parts[2] = {{&head, sizeof(head)}, {const_cast<std::byte*>(body.data()), body.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(kRegionsPerPacket * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  // ETOOMANYREFS: too many descriptors are under way between processes of this user.
  if (errno == EAGAIN || errno == EINTR || errno == ETOOMANYREFS || errno == ENOBUFS) {
    return absl::ResourceExhaustedError("the socket takes no more");
  }
  return absl::UnavailableError(absl::StrCat("cannot send to the peer: ", std::strerror(errno)));
}

absl::Status SendRefusal(int socket, const absl::Status& why) {
  const auto code = static_cast<uint32_t>(why.code());
  const size_t text_bytes = std::min(why.message().size(), kRefusalTextBytesMax);
  std::vector<std::byte> body(sizeof(code) + text_bytes);
  std::memcpy(body.data(), &code, sizeof(code));
  std::memcpy(body.data() + sizeof(code), why.message().data(), text_bytes);
  return SendHandshake(socket, HandshakeKind::kRefusal, body);
}

absl::StatusOr<std::optional<HandshakePacket>> ReceiveHandshake(int socket) {
  std::byte buffer[kPacketBytesMax];
  alignas(cmsghdr) char control[CMSG_SPACE(kRegionsPerPacket * sizeof(int))];
  iovec part = {buffer, sizeof(buffer)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0 && errno == ECONNRESET) {
    // The peer closed with our Hello unread; what it said before, a Refusal, comes after the reset.
    message.msg_controllen = sizeof(control);
    received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  }
  if (received < 0) {
    if (errno == EAGAIN || errno == EINTR) return std::nullopt;
    return absl::UnavailableError(absl::StrCat("lost the peer: ", std::strerror(errno)));
  }
  HandshakePacket packet;
  packet.fds = TakeDescriptors(message);
  if (received == 0) return absl::UnavailableError("the peer closed during the handshake");
  HandshakeHead head;
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      static_cast<size_t>(received) < sizeof(head)) {
    return absl::InvalidArgumentError("what came is no handshake packet, or out of descriptors");
  }
  std::memcpy(&head, buffer, sizeof(head));
  const Bytes body(buffer + sizeof(head), static_cast<size_t>(received) - sizeof(head));
  if (head.magic != kHandshakeMagic || head.body_bytes != body.size()) {
    return absl::InvalidArgumentError("what came is no handshake packet");
  }
  packet.kind = head.kind;
  packet.body.assign(body.begin(), body.end());
  return packet;
}

AcceptorHandshake::AcceptorHandshake(UniqueFd socket, const PeerCredentials& peer,
                                     const SharedArea::Sizes& sizes,
                                     absl::Span<const HandshakeExport> exports)
    : sizes_(sizes), exports_(exports) {
  socket_ = std::move(socket);
  peer_ = peer;
}

absl::Status AcceptorHandshake::Advance() {
  blocked_ = false;
  do {
    moved_ = false;
    switch (step_) {
      case Step::kHello:
        FB_RETURN_IF_ERROR(TakeHello());
        break;
      case Step::kWelcome:
        FB_RETURN_IF_ERROR(SendWelcome());
        break;
      case Step::kRegions:
        FB_RETURN_IF_ERROR(SendRegions());
        break;
      case Step::kReady:
        FB_RETURN_IF_ERROR(TakeReady());
        break;
    }
  } while (moved_ && !done_);
  return absl::OkStatus();
}

absl::Status AcceptorHandshake::TakeHello() {
  FB_ASSIGN_OR_RETURN(const std::optional<HandshakePacket> packet, ReceiveHandshake(socket()));
  if (!packet) return absl::OkStatus();
  if (packet->kind != HandshakeKind::kHello) return Unexpected();
  FB_ASSIGN_OR_RETURN(const HandshakeHello hello, BodyOf<HandshakeHello>(*packet));
  if (hello.version_max < kWireVersionMin || hello.version_min > kWireVersionMax) {
    absl::Status why = absl::FailedPreconditionError(
        absl::StrCat("the peer speaks wire versions ", hello.version_min, " to ", hello.version_max,
                     ", this one ", kWireVersionMin, " to ", kWireVersionMax));
    static_cast<void>(SendRefusal(socket(), why));
    return why;
  }
  absl::StatusOr<SharedArea> area = SharedArea::Create(sizes_);
  if (!area.ok()) {
    static_cast<void>(SendRefusal(socket(), area.status()));
    return area.status();
  }
  area_.emplace(*std::move(area));
  step_ = Step::kWelcome;
  moved_ = true;
  return absl::OkStatus();
}

absl::Status AcceptorHandshake::SendWelcome() {
  const HandshakeWelcome welcome = {.version = kWireVersionMax,
                                    .region_count = static_cast<uint32_t>(exports_.size()),
                                    .ring_bytes = sizes_.ring_bytes,
                                    .staging_bytes = sizes_.staging_bytes};
  const int fds[] = {area_->fd()};
  const absl::Status sent = SendHandshake(socket(), HandshakeKind::kWelcome, BytesOf(welcome), fds);
  blocked_ = absl::IsResourceExhausted(sent);
  if (blocked_) return absl::OkStatus();
  FB_RETURN_IF_ERROR(sent);
  step_ = exports_.empty() ? Step::kReady : Step::kRegions;
  moved_ = true;
  return absl::OkStatus();
}

absl::Status AcceptorHandshake::SendRegions() {
  HandshakeRegions regions;
  regions.first = static_cast<uint32_t>(regions_sent_);
  std::vector<int> fds;
  for (size_t i = regions_sent_; i < exports_.size() && fds.size() < kRegionsPerPacket; ++i) {
    regions.bytes[fds.size()] = exports_[i].bytes;
    fds.push_back(exports_[i].fd);
  }
  regions.count = static_cast<uint32_t>(fds.size());
  const absl::Status sent = SendHandshake(socket(), HandshakeKind::kRegions, BytesOf(regions), fds);
  blocked_ = absl::IsResourceExhausted(sent);
  if (blocked_) return absl::OkStatus();
  FB_RETURN_IF_ERROR(sent);
  regions_sent_ += fds.size();
  if (regions_sent_ == exports_.size()) step_ = Step::kReady;
  moved_ = true;
  return absl::OkStatus();
}

absl::Status AcceptorHandshake::TakeReady() {
  FB_ASSIGN_OR_RETURN(const std::optional<HandshakePacket> packet, ReceiveHandshake(socket()));
  if (!packet) return absl::OkStatus();
  if (packet->kind != HandshakeKind::kReady) return Unexpected();
  done_ = true;
  return absl::OkStatus();
}

ConnectorHandshake::ConnectorHandshake(LocalAddress address, int64_t own_uid,
                                       std::vector<uint32_t> allowed_uids)
    : address_(std::move(address)), own_uid_(own_uid), allowed_uids_(std::move(allowed_uids)) {}

absl::Status ConnectorHandshake::Advance() {
  blocked_ = false;
  do {
    moved_ = false;
    FB_RETURN_IF_ERROR(step_ == Step::kConnect ? ConnectSocket() : TakePacket());
  } while (moved_ && !done_);
  return absl::OkStatus();
}

absl::Status ConnectorHandshake::ConnectSocket() {
  FB_FAILPOINT("transport.local.connect");
  if (!socket_.ok()) {
    socket_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  }
  const absl::string_view shown = address_.path.empty() ? address_.name : address_.path;
  const auto* sa = reinterpret_cast<const sockaddr*>(&address_.socket_address);
  if (!socket_.ok() || connect(socket(), sa, address_.socket_address_bytes) != 0) {
    // EAGAIN: the listener's backlog is full.
    blocked_ = socket_.ok() && (errno == EAGAIN || errno == EINTR);
    if (blocked_) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("cannot connect to ", shown, ": ", std::strerror(errno)));
  }
  FB_ASSIGN_OR_RETURN(peer_, CredentialsOf(socket()));
  if (!PeerIsAllowed(peer_.uid, own_uid_, allowed_uids_)) {
    return absl::PermissionDeniedError(
        absl::StrCat("who listens on ", shown, " is uid ", peer_.uid, ", and not trusted"));
  }
  const HandshakeHello hello = {.version_min = kWireVersionMin, .version_max = kWireVersionMax};
  const absl::Status sent = SendHandshake(socket(), HandshakeKind::kHello, BytesOf(hello));
  if (!sent.ok()) {
    // A refusal may have come before we spoke; it says more than a broken pipe.
    FB_RETURN_IF_ERROR(ReceiveOrRefusal(socket()).status());
    return sent;
  }
  step_ = Step::kWelcome;
  moved_ = true;
  return absl::OkStatus();
}

absl::Status ConnectorHandshake::TakePacket() {
  FB_ASSIGN_OR_RETURN(std::optional<HandshakePacket> packet, ReceiveOrRefusal(socket()));
  if (!packet) return absl::OkStatus();
  if (step_ == Step::kWelcome) {
    FB_RETURN_IF_ERROR(TakeWelcome(*packet));
  } else {
    FB_RETURN_IF_ERROR(TakeSomeRegions(*packet));
  }
  moved_ = true;
  if (regions_.size() < region_count_) return absl::OkStatus();
  FB_RETURN_IF_ERROR(SendHandshake(socket(), HandshakeKind::kReady, {}));
  done_ = true;
  return absl::OkStatus();
}

absl::Status ConnectorHandshake::TakeWelcome(HandshakePacket& packet) {
  if (packet.kind != HandshakeKind::kWelcome || packet.fds.size() != 1) return Unexpected();
  FB_ASSIGN_OR_RETURN(const HandshakeWelcome welcome, BodyOf<HandshakeWelcome>(packet));
  if (welcome.version < kWireVersionMin || welcome.version > kWireVersionMax ||
      welcome.region_count > kRegionsMax) {
    return absl::FailedPreconditionError("the peer welcomes us with what this version cannot do");
  }
  FB_ASSIGN_OR_RETURN(SharedArea area, SharedArea::Map(std::move(packet.fds[0]),
                                                       {.ring_bytes = welcome.ring_bytes,
                                                        .staging_bytes = welcome.staging_bytes}));
  area_.emplace(std::move(area));
  region_count_ = welcome.region_count;
  step_ = Step::kRegions;
  return absl::OkStatus();
}

absl::Status ConnectorHandshake::TakeSomeRegions(HandshakePacket& packet) {
  if (packet.kind != HandshakeKind::kRegions) return Unexpected();
  FB_ASSIGN_OR_RETURN(const HandshakeRegions regions, BodyOf<HandshakeRegions>(packet));
  if (regions.first != regions_.size() || regions.count == 0 ||
      regions.count > region_count_ - regions_.size() || regions.count != packet.fds.size()) {
    return Unexpected();
  }
  for (uint32_t i = 0; i < regions.count; ++i) {
    FB_ASSIGN_OR_RETURN(ReadOnlyRegion region,
                        ReadOnlyRegion::Map(packet.fds[i].get(), regions.bytes[i]));
    regions_.push_back(std::move(region));
  }
  return absl::OkStatus();
}

}  // namespace forebay
