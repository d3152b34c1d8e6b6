// How UcxTransport opens endpoints: sockets, hellos, and the meeting over UCX.

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "transport/ucx/ucx_status.h"
#include "transport/ucx/ucx_transport.h"

namespace forebay {
namespace {

using Phase = UcxEndpoint::Phase;

constexpr Nanos kListenerRetry = 100 * kMillisecond;
constexpr size_t kSocketReadBytes = 4096;
// A hello and what follows it: a peer that sends more before it is answered is no peer.
constexpr size_t kSocketBytesMax = 2 * (UcxHello::kFrontBytes + UcxHello::kAddressBytesMax);
// Numbers that two workers may be apart: a connection that failed half-way leaves one behind.
constexpr uint32_t kSerialGapMax = 4096;
constexpr uint32_t kRetriesMax = 32;

// "ucx:host:port" by the parser of transport/tcp, which says "tcp:" in its errors.
absl::StatusOr<SocketAddress> ParseUcxAddress(absl::string_view address) {
  absl::string_view rest = address;
  if (!absl::ConsumePrefix(&rest, "ucx:")) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", address, "\" does not start with ucx:"));
  }
  return ParseTcpAddress(absl::StrCat("tcp:", std::string(rest)));
}

std::string UcxAddressText(const SocketAddress& address) {
  return absl::StrCat("ucx:", address.ToString().substr(strlen("tcp:")));
}

uint64_t RandomConnection() {
  const Uint128Bytes bytes = RandomId();
  uint64_t connection = 0;
  std::memcpy(&connection, bytes.data(), sizeof(connection));
  return connection;
}

}  // namespace

absl::Status UcxTransport::Watch(int fd, uint32_t events, uint64_t tag, bool is_new) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_fd_, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) == 0) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat("epoll_ctl: ", strerror(errno)));
}

absl::StatusOr<std::string> UcxTransport::Listen(absl::string_view address) {
  FB_ASSIGN_OR_RETURN(const SocketAddress parsed, ParseUcxAddress(address));
  FB_ASSIGN_OR_RETURN(const int fd, ListenOn(parsed, {}));
  const absl::Status watched = Watch(fd, EPOLLIN, ListenerTag(fd), /*is_new=*/true);
  if (!watched.ok()) {
    close(fd);
    return watched;
  }
  listeners_.push_back({.fd = fd});
  return UcxAddressText(LocalAddress(fd));
}

UcxEndpoint& UcxTransport::AddEndpoint(int fd, const SocketAddress& peer, Nanos deadline) {
  auto endpoint = std::make_unique<UcxEndpoint>();
  endpoint->transport = this;
  endpoint->id = ++last_endpoint_;
  endpoint->fd = fd;
  endpoint->peer_address = peer;
  endpoint->deadline = deadline;
  endpoint->connection = RandomConnection();
  endpoint->last_heard = now_;
  connections_[endpoint->connection] = endpoint->id;
  AddTimer(deadline);
  return *(endpoints_[endpoint->id] = std::move(endpoint));
}

absl::StatusOr<EndpointId> UcxTransport::Connect(absl::string_view address, Nanos deadline) {
  FB_ASSIGN_OR_RETURN(const SocketAddress parsed, ParseUcxAddress(address));
  if (endpoints_.size() - strangers_count_ - abandoned_count_ >= options_.base.endpoints_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.base.endpoints_max, " endpoints are in use"));
  }
  FB_ASSIGN_OR_RETURN(const int fd, BeginConnect(parsed, {}));
  UcxEndpoint& endpoint = AddEndpoint(fd, parsed, deadline);
  endpoint.initiator = true;
  endpoint.announced = true;
  const absl::Status watched = Watch(fd, EPOLLIN | EPOLLOUT, endpoint.id, /*is_new=*/true);
  if (!watched.ok()) BeginClose(endpoint, watched);
  return endpoint.id;
}

bool UcxTransport::PollSockets() {
  turns_without_sockets_ = 0;
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = events[i].data.u64;
    if ((tag & kListenerTag) != 0) {
      for (Listener& listener : listeners_) {
        if (ListenerTag(listener.fd) == tag) Accept(listener);
      }
    } else if (UcxEndpoint* endpoint = Find(tag)) {
      AdvanceSocket(*endpoint);
    }
  }
  return count > 0;
}

void UcxTransport::Accept(Listener& listener) {
  while (true) {
    SocketAddress peer;
    const int fd = AcceptOn(listener.fd, peer, {});
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // It would stay readable: look away for a while.
        epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, listener.fd, nullptr);
        listener.retry_at = now_ + kListenerRetry;
        AddTimer(listener.retry_at);
      }
      return;
    }
    if (strangers_count_ + abandoned_count_ >= options_.handshakes_max) {
      ++counts_.handshakes_dropped;
      close(fd);
      continue;
    }
    UcxEndpoint& endpoint = AddEndpoint(fd, peer, now_ + options_.handshake_timeout);
    endpoint.phase = Phase::kHello;
    ++strangers_count_;
    const absl::Status watched = Watch(fd, EPOLLIN, endpoint.id, /*is_new=*/true);
    if (!watched.ok()) BeginClose(endpoint, watched);
  }
}

void UcxTransport::AdvanceSocket(UcxEndpoint& endpoint) {
  if (endpoint.fd < 0) return;
  if (endpoint.phase == Phase::kConnecting) {
    const absl::Status connected = SocketError(endpoint.fd);
    if (!connected.ok()) {
      BeginClose(endpoint, connected);
      return;
    }
    endpoint.phase = Phase::kHello;
    UcxHello hello;
    hello.connection = endpoint.connection;
    hello.incarnation = incarnation_;
    hello.worker_address = worker_->address();
    Say(endpoint, std::move(hello));
    return;
  }
  WriteSocket(endpoint);
  if (endpoint.fd >= 0) ReadSocket(endpoint);
}

void UcxTransport::Say(UcxEndpoint& endpoint, UcxHello hello) {
  endpoint.socket_out += hello.Encode();
  WriteSocket(endpoint);
}

void UcxTransport::WriteSocket(UcxEndpoint& endpoint) {
  std::string& out = endpoint.socket_out;
  while (!out.empty()) {
    const ssize_t sent = send(endpoint.fd, out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      out.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      CloseNow(endpoint, absl::UnavailableError(absl::StrCat("send: ", strerror(errno))));
      return;
    }
  }
  const uint32_t events = out.empty() ? EPOLLIN : (EPOLLIN | EPOLLOUT);
  const absl::Status watched = Watch(endpoint.fd, events, endpoint.id, /*is_new=*/false);
  if (!watched.ok()) BeginClose(endpoint, watched);
}

void UcxTransport::ReadSocket(UcxEndpoint& endpoint) {
  char buffer[kSocketReadBytes];
  while (endpoint.fd >= 0) {
    const ssize_t got = recv(endpoint.fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      CloseNow(endpoint, absl::UnavailableError(absl::StrCat(
                             UcxAddressText(endpoint.peer_address), " closed the connection",
                             got < 0 ? absl::StrCat(": ", strerror(errno)) : "")));
      return;
    }
    endpoint.socket_in.append(buffer, static_cast<size_t>(got));
    while (endpoint.fd >= 0) {
      UcxHello hello;
      const absl::StatusOr<bool> taken = TakeUcxHello(endpoint.socket_in, hello);
      if (!taken.ok()) {
        CloseForGarbage(endpoint, taken.status());
        return;
      }
      if (!*taken) break;
      TakeHello(endpoint, hello);
    }
    if (endpoint.socket_in.size() > kSocketBytesMax) {
      CloseForGarbage(endpoint, absl::DataLossError("too much before the connection"));
    }
  }
}

void UcxTransport::TakeHello(UcxEndpoint& endpoint, const UcxHello& hello) {
  switch (hello.kind) {
    case UcxHello::Kind::kHello:
      if (endpoint.phase == Phase::kHello && !endpoint.met) return MeetPeer(endpoint, hello);
      break;
    case UcxHello::Kind::kReady:
      if (!endpoint.initiator && endpoint.phase == Phase::kReady) {
        return TakeReady(endpoint, hello.serial);
      }
      break;
    case UcxHello::Kind::kRetry:
      if (endpoint.initiator && endpoint.phase == Phase::kWiring) {
        if (!endpoint.resolved_sent) return TryAgain(endpoint, hello.serial);
      }
      break;
    case UcxHello::Kind::kRefuse:
      if (endpoint.initiator && endpoint.phase == Phase::kHello) {
        BeginClose(endpoint, absl::UnavailableError(absl::StrCat(
                                 UcxAddressText(endpoint.peer_address), " has no room")));
        return;
      }
      break;
  }
  CloseForGarbage(endpoint, absl::DataLossError("a hello out of turn"));
}

// The peer's first hello.
void UcxTransport::MeetPeer(UcxEndpoint& endpoint, const UcxHello& hello) {
  if (!endpoint.initiator) {
    if (endpoints_.size() - strangers_count_ - abandoned_count_ >= options_.base.endpoints_max) {
      ++counts_.handshakes_dropped;
      UcxHello refuse;
      refuse.kind = UcxHello::Kind::kRefuse;
      Say(endpoint, std::move(refuse));
      CloseNow(endpoint, absl::ResourceExhaustedError("all endpoints are in use"));
      return;
    }
    --strangers_count_;
  }
  endpoint.met = true;
  endpoint.peer_connection = hello.connection;
  endpoint.peer_incarnation = hello.incarnation;
  endpoint.peer_worker_address = hello.worker_address;
  const uint32_t made_count = peer_workers_[endpoint.peer_incarnation].made_count;
  if (endpoint.initiator) {
    endpoint.phase = Phase::kWiring;
    if (MakeEnd(endpoint, std::max(hello.serial, made_count))) SayReady(endpoint);
    return;
  }
  UcxHello answer;
  answer.connection = endpoint.connection;
  answer.incarnation = incarnation_;
  answer.worker_address = worker_->address();
  answer.serial = made_count;
  endpoint.phase = Phase::kReady;
  Say(endpoint, std::move(answer));
}

void UcxTransport::SayReady(UcxEndpoint& endpoint) {
  UcxHello ready;
  ready.kind = UcxHello::Kind::kReady;
  ready.serial = endpoint.end->serial;
  Say(endpoint, std::move(ready));
}

void UcxTransport::TakeReady(UcxEndpoint& endpoint, uint32_t serial) {
  const UcxPeerWorker& worker = peer_workers_[endpoint.peer_incarnation];
  // To oneself any two ends will do: messages say which connection they mean.
  const bool is_self = endpoint.peer_incarnation == incarnation_;
  if (serial < worker.made_count && worker.spare.count(serial) == 0 && !is_self) {
    UcxHello retry;
    retry.kind = UcxHello::Kind::kRetry;
    retry.serial = worker.made_count;
    Say(endpoint, std::move(retry));
    return;
  }
  endpoint.phase = Phase::kWiring;
  MakeEnd(endpoint, is_self ? worker.made_count : serial);
}

// The number was taken at the peer, by a connection that crossed this one. Two that keep crossing
// choose from the even and from the odd numbers, and so come apart.
void UcxTransport::TryAgain(UcxEndpoint& endpoint, uint32_t serial_min) {
  ReturnEnd(endpoint);
  if (++endpoint.retries > kRetriesMax) {
    CloseNow(endpoint, absl::UnavailableError("the two ends of UCX do not find each other"));
    return;
  }
  uint32_t serial = std::max(serial_min, peer_workers_[endpoint.peer_incarnation].made_count);
  const uint32_t parity = incarnation_ < endpoint.peer_incarnation ? 0 : 1;
  if (serial % 2 != parity) ++serial;
  if (MakeEnd(endpoint, serial)) SayReady(endpoint);
}

void UcxTransport::ReturnEnd(UcxEndpoint& endpoint) {
  endpoint.end->owner = 0;
  const uint32_t serial = endpoint.end->serial;
  peer_workers_[endpoint.peer_incarnation].spare[serial] = std::move(endpoint.end);
  endpoint.resolved_sent = false;
}

// Takes or makes our end number `serial` towards the peer's worker, and greets. UCX counts by
// itself, so the ends before it are made too. False where it closed the endpoint.
bool UcxTransport::MakeEnd(UcxEndpoint& endpoint, uint32_t serial) {
  UcxPeerWorker& worker = peer_workers_[endpoint.peer_incarnation];
  if (serial > worker.made_count && serial - worker.made_count > kSerialGapMax) {
    CloseForGarbage(endpoint, absl::DataLossError("an endpoint number out of reach"));
    return false;
  }
  while (worker.made_count <= serial) {
    absl::StatusOr<std::unique_ptr<UcxEnd>> made = NewEnd(endpoint);
    if (!made.ok()) {
      CloseNow(endpoint, absl::UnavailableError(made.status().message()));
      return false;
    }
    worker.spare[(*made)->serial] = *std::move(made);
  }
  auto found = worker.spare.find(serial);
  if (found == worker.spare.end() || found->second->broken) {
    CloseNow(endpoint, absl::UnavailableError("the link to the peer broke"));
    return false;
  }
  endpoint.end = std::move(found->second);
  worker.spare.erase(found);
  endpoint.end->owner = endpoint.id;
  SendPing(endpoint, UcxEnvelope::Kind::kPing, PingNumber(*endpoint.end));
  if (endpoint.ping_heard != 0) {
    SendPing(endpoint, UcxEnvelope::Kind::kPong, endpoint.ping_heard);
  }
  return true;
}

absl::StatusOr<std::unique_ptr<UcxEnd>> UcxTransport::NewEnd(UcxEndpoint& endpoint) {
  auto end = std::make_unique<UcxEnd>();
  end->transport = this;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(endpoint.peer_worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxTransport::OnUcpError;
  params.err_handler.arg = end.get();
  FB_RETURN_IF_ERROR(
      UcxStatus(ucp_ep_create(worker_->get(), &params, &end->ucp),
                absl::StrCat("an endpoint of UCX to ", UcxAddressText(endpoint.peer_address),
                             " over ", options_.transports)));
  end->serial = peer_workers_[endpoint.peer_incarnation].made_count++;
  return end;
}

// With FORCE and error mode PEER UCX cancels what is in flight; each request says when it is done.
void UcxTransport::ReleaseEnd(std::unique_ptr<UcxEnd> end) {
  if (end == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t request = ucp_ep_close_nbx(end->ucp, &param);
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
}

// Inside UCX: only notes it.
void UcxTransport::OnUcpError(void* arg, ucp_ep_h, ucs_status_t status) {
  auto* end = static_cast<UcxEnd*>(arg);
  end->broken = true;
  if (end->owner != 0) end->transport->broken_.emplace_back(end->owner, status);
}

// Whether UCX has paired our end with the peer's, or never began to: then it may be closed.
bool UcxTransport::HasMet(const UcxEndpoint& endpoint) {
  switch (endpoint.phase) {
    case Phase::kConnecting:
    case Phase::kHello:
      return true;
    case Phase::kReady:
      return false;  // the peer has made its end, or is about to
    case Phase::kWiring:
      return endpoint.resolved_sent && endpoint.resolved_heard;
    default:
      return true;
  }
}

void UcxTransport::OpenIfResolved(UcxEndpoint& endpoint) {
  if (endpoint.phase != Phase::kWiring || !endpoint.resolved_sent || !endpoint.resolved_heard) {
    return;
  }
  if (endpoint.abandoned) {
    CloseNow(endpoint, endpoint.why);
    return;
  }
  endpoint.phase = Phase::kOpen;
  endpoint.announced = true;
  endpoint.opened = true;
  endpoint.last_heard = now_;
  ++counts_.base.endpoints_open;
  AddTimer(now_ + options_.base.keepalive_interval);
  PeerDescription peer;
  peer.address = UcxAddressText(endpoint.peer_address);
  peer.same_host = endpoint.peer_address.is_loopback();
  handler_.OnConnected(endpoint.id, peer);
}

void UcxTransport::RemoveSocket(UcxEndpoint& endpoint) {
  if (endpoint.fd < 0) return;
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, endpoint.fd, nullptr);
  close(endpoint.fd);
  endpoint.fd = -1;
}

}  // namespace forebay
