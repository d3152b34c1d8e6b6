// How a TcpTransport's sockets become endpoints, and how they end.

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/wire_version.h"
#include "transport/tcp/tcp_connection.h"
#include "transport/tcp/tcp_transport.h"

namespace forebay {
namespace {

constexpr int kAcceptsPerTurn = 32;
constexpr Nanos kAcceptRetry = 100 * kMillisecond;

std::string VersionRange(uint32_t first, uint32_t last) {
  return absl::StrCat(first, " to ", last);
}

absl::Status VerdictError(const TcpHello& reply) {
  switch (static_cast<HelloVerdict>(reply.verdict)) {
    case HelloVerdict::kAccepted:
      return absl::OkStatus();
    case HelloVerdict::kWireVersion:
      return absl::FailedPreconditionError(
          absl::StrCat("no wire version in common: the peer speaks ",
                       VersionRange(reply.wire_version_min, reply.wire_version_max), ", we speak ",
                       VersionRange(kWireVersionMin, kWireVersionMax)));
    case HelloVerdict::kFull:
      return absl::ResourceExhaustedError("the peer has as many endpoints as it allows");
    case HelloVerdict::kGroup:
      return absl::UnavailableError("the peer does not know this group of streams");
  }
  return absl::DataLossError(absl::StrCat("a hello with the unknown verdict ", reply.verdict));
}

}  // namespace

absl::StatusOr<std::string> TcpTransport::Listen(absl::string_view address) {
  FB_ASSIGN_OR_RETURN(const SocketAddress parsed, ParseTcpAddress(address));
  if (tls_ != nullptr && !tls_->has_certificate()) {
    return absl::FailedPreconditionError(
        absl::StrCat("listen on ", parsed.ToString(), ": TLS needs a certificate and its key"));
  }
  FB_ASSIGN_OR_RETURN(const int fd, ListenOn(parsed, socket_options_));
  auto listener = std::make_unique<Listener>();
  listener->fd = fd;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = reinterpret_cast<uint64_t>(listener.get()) | 1;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    close(fd);
    return absl::ResourceExhaustedError(absl::StrCat("epoll_ctl: ", strerror(error)));
  }
  listeners_.push_back(std::move(listener));
  return LocalAddress(fd).ToString();
}

absl::StatusOr<EndpointId> TcpTransport::Connect(absl::string_view address, Nanos deadline) {
  FB_ASSIGN_OR_RETURN(const SocketAddress parsed, ParseTcpAddress(address));
  if (parsed.port() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", address, "\": nobody can listen at port 0"));
  }
  if (endpoints_.size() >= options_.base.endpoints_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "connect to ", parsed.ToString(), ": endpoints_max is ", options_.base.endpoints_max));
  }
  const EndpointId id = ++last_endpoint_;
  auto owned = std::make_unique<TcpEndpoint>();
  TcpEndpoint& endpoint = *owned;
  endpoint.id = id;
  endpoint.announced = true;
  endpoint.stream_count = static_cast<uint8_t>(options_.streams_per_peer);
  endpoint.group = RandomId();
  endpoint.address = parsed.ToString();
  endpoint.deadline = deadline;
  endpoints_.emplace(id, std::move(owned));
  ++forming_count_;
  AddTimer(deadline);

  absl::Status failed;
  for (uint8_t i = 0; i < endpoint.stream_count; ++i) {
    endpoint.connections.push_back(std::make_unique<TcpConnection>(
        *this, MutableBytes(scratch_.get(), kScratchBytes), options_.chunk_bytes, false));
    TcpConnection& connection = *endpoint.connections.back();
    connection.endpoint = &endpoint;
    connection.index = i;
    connection.peer = parsed;
    if (!failed.ok()) continue;
    const absl::StatusOr<int> fd = BeginConnect(parsed, socket_options_);
    failed = fd.ok() ? Register(connection, *fd) : fd.status();
  }
  // What the kernel refuses at once is told like what it refuses later.
  if (!failed.ok()) FailConnection(*endpoint.connections.front(), failed);
  return id;
}

void TcpTransport::Close(EndpointId id) {
  TcpEndpoint* endpoint = FindEndpoint(id);
  if (endpoint == nullptr) return;
  endpoint->closed_by_us = true;
  BeginClose(*endpoint, absl::CancelledError("the endpoint was closed"));
}

TcpEndpoint* TcpTransport::FindEndpoint(EndpointId id) {
  const auto it = endpoints_.find(id);
  return it == endpoints_.end() ? nullptr : it->second.get();
}

bool TcpTransport::Accept(Listener& listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    SocketAddress peer;
    const int fd = AcceptOn(listener.fd, peer, socket_options_);
    if (fd < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        listener.ready = false;
        return i > 0;
      }
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // The connection waits in the kernel's queue until a descriptor is free.
        listener.retry_at = now_ + kAcceptRetry;
        AddTimer(listener.retry_at);
        return i > 0;
      }
      continue;  // The peer gave up while it was in the queue.
    }
    ++counts_.streams_accepted;
    // Whoever speaks at once gets in; those who only hold the door open give way, oldest first.
    if (half_open_.size() + forming_count_ >= options_.handshakes_max) {
      if (half_open_.empty()) {
        close(fd);
        ++counts_.handshakes_dropped;
        continue;
      }
      FailConnection(*half_open_.front(), absl::ResourceExhaustedError("too many handshakes"));
    }
    auto connection = std::make_unique<TcpConnection>(
        *this, MutableBytes(scratch_.get(), kScratchBytes), options_.chunk_bytes, true);
    connection->peer = peer;
    connection->deadline = now_ + options_.handshake_timeout;
    AddTimer(connection->deadline);
    half_open_.push_back(std::move(connection));
    TcpConnection& added = *half_open_.back();
    const absl::Status registered = Register(added, fd);
    if (!registered.ok()) FailConnection(added, registered);
  }
  return true;
}

// Takes over `fd`, watches it, and begins.
absl::Status TcpTransport::Register(TcpConnection& connection, int fd) {
  if (tls_ != nullptr) {
    FB_ASSIGN_OR_RETURN(connection.stream, tls_->NewStream(fd, connection.is_server));
  } else {
    connection.stream = NewPlainStream(fd);
  }
  if (connection.is_server) connection.same_host = TuneConnected(fd, connection.peer);
  connection.step =
      connection.is_server ? TcpConnection::Step::kTls : TcpConnection::Step::kConnect;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &connection;
  // The edges of what is there already come with the first wait.
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll_ctl: ", strerror(errno)));
  }
  return absl::OkStatus();
}

void TcpTransport::AdvanceHandshake(TcpConnection& connection) {
  using Step = TcpConnection::Step;
  if (connection.step == Step::kConnect) {
    const absl::Status connected = SocketError(connection.stream->fd());
    if (!connected.ok()) {
      FailConnection(connection, connected);
      return;
    }
    connection.same_host = TuneConnected(connection.stream->fd(), connection.peer);
    connection.step = Step::kTls;
  }
  if (connection.step == Step::kTls) {
    StreamResult result = connection.stream->Handshake();
    if (result.kind == StreamResult::Kind::kEnd) {
      result = StreamResult::Failed(absl::UnavailableError("the peer closed during TLS"));
    }
    if (result.kind == StreamResult::Kind::kFailed) FailConnection(connection, result.status);
    if (result.kind != StreamResult::Kind::kDone) return;
    connection.step = Step::kHello;
    if (!connection.is_server) WriteHello(connection, HelloVerdict::kAccepted);
  }
  if (connection.step == Step::kHello) ReadHello(connection);
  if (connection.step == Step::kJoined && connection.hung_up) {
    FailConnection(connection, absl::UnavailableError("the peer closed while it connected"));
  }
}

// A client's hello asks; a server's answers.
void TcpTransport::WriteHello(TcpConnection& connection, HelloVerdict verdict) {
  TcpHello hello;
  hello.magic = connection.is_server ? TcpHello::kReplyMagic : TcpHello::kMagic;
  hello.wire_version_min = kWireVersionMin;
  hello.wire_version_max = kWireVersionMax;
  hello.incarnation = incarnation_;
  hello.verdict = static_cast<uint8_t>(verdict);
  hello.stream_index = connection.index;
  if (connection.endpoint != nullptr) {
    hello.stream_count = connection.endpoint->stream_count;
    hello.group = connection.endpoint->group;
  }
  hello.Seal();
  const iovec range{&hello, sizeof(hello)};
  const StreamResult result = connection.stream->Write(absl::MakeConstSpan(&range, 1));
  if (result.kind == StreamResult::Kind::kFailed) {
    FailConnection(connection, result.status);
  } else if (result.bytes < sizeof(hello)) {
    // The socket is new and empty: one that cannot take 64 bytes is of no use.
    FailConnection(connection, absl::UnavailableError("the socket has no room for a hello"));
  }
}

void TcpTransport::ReadHello(TcpConnection& connection) {
  while (connection.hello_bytes < sizeof(TcpHello)) {
    const iovec range{connection.hello.data() + connection.hello_bytes,
                      sizeof(TcpHello) - connection.hello_bytes};
    const StreamResult result = connection.stream->Read(absl::MakeConstSpan(&range, 1));
    connection.hello_bytes += result.bytes;
    if (result.kind == StreamResult::Kind::kFailed) {
      FailConnection(connection, result.status);
      return;
    }
    if (result.kind == StreamResult::Kind::kEnd) {
      FailConnection(connection, absl::UnavailableError("the peer closed before its hello"));
      return;
    }
    if (result.kind == StreamResult::Kind::kWouldBlock && result.bytes == 0) return;
  }
  const absl::StatusOr<TcpHello> hello =
      ParseHello(connection.hello, connection.is_server ? TcpHello::kMagic : TcpHello::kReplyMagic);
  if (!hello.ok()) {
    FailConnection(connection, hello.status());
  } else if (connection.is_server) {
    TakeRequest(connection, *hello);
  } else {
    TakeReply(connection, *hello);
  }
}

void TcpTransport::TakeRequest(TcpConnection& connection, const TcpHello& hello) {
  if (hello.wire_version_max < kWireVersionMin || hello.wire_version_min > kWireVersionMax) {
    Refuse(connection, HelloVerdict::kWireVersion);
    return;
  }
  const auto known = groups_.find(hello.group);
  TcpEndpoint* endpoint = known == groups_.end() ? nullptr : FindEndpoint(known->second);
  if (endpoint == nullptr) {
    if (endpoints_.size() >= options_.base.endpoints_max) {
      Refuse(connection, HelloVerdict::kFull);
      return;
    }
    const EndpointId id = ++last_endpoint_;
    endpoint = endpoints_.emplace(id, std::make_unique<TcpEndpoint>()).first->second.get();
    endpoint->id = id;
    endpoint->is_server = true;
    endpoint->stream_count = hello.stream_count;
    endpoint->connections.resize(hello.stream_count);
    endpoint->group = hello.group;
    endpoint->incarnation = hello.incarnation;
    endpoint->address = connection.peer.ToString();
    endpoint->deadline = connection.deadline;
    groups_[hello.group] = id;
    ++forming_count_;
  }
  if (endpoint->step != TcpEndpoint::Step::kForming || !endpoint->is_server ||
      endpoint->stream_count != hello.stream_count || endpoint->incarnation != hello.incarnation ||
      endpoint->connections[hello.stream_index] != nullptr) {
    Refuse(connection, HelloVerdict::kGroup);
    return;
  }
  endpoint->connections[hello.stream_index] = TakeHalfOpen(connection);
  connection.index = hello.stream_index;
  connection.endpoint = endpoint;
  connection.step = TcpConnection::Step::kJoined;
  OpenIfComplete(*endpoint);
}

void TcpTransport::TakeReply(TcpConnection& connection, const TcpHello& hello) {
  TcpEndpoint& endpoint = *connection.endpoint;
  const absl::Status verdict = VerdictError(hello);
  if (!verdict.ok()) {
    FailConnection(connection, verdict);
    return;
  }
  if (hello.group != endpoint.group || hello.stream_index != connection.index) {
    FailConnection(connection, absl::DataLossError("a hello for another stream"));
    return;
  }
  if (endpoint.incarnation == Uint128Bytes{}) endpoint.incarnation = hello.incarnation;
  if (endpoint.incarnation != hello.incarnation) {
    FailConnection(connection,
                   absl::UnavailableError("the streams reached two incarnations of the peer"));
    return;
  }
  connection.step = TcpConnection::Step::kJoined;
  OpenIfComplete(endpoint);
}

void TcpTransport::OpenIfComplete(TcpEndpoint& endpoint) {
  for (const std::unique_ptr<TcpConnection>& connection : endpoint.connections) {
    if (connection == nullptr || connection->step != TcpConnection::Step::kJoined) return;
  }
  if (endpoint.is_server) {
    // Only now, so that a peer which was answered on one stream can use all of them.
    for (const std::unique_ptr<TcpConnection>& connection : endpoint.connections) {
      WriteHello(*connection, HelloVerdict::kAccepted);
      if (endpoint.step != TcpEndpoint::Step::kForming) return;
    }
  }
  endpoint.step = TcpEndpoint::Step::kOpen;
  endpoint.announced = true;
  endpoint.same_host = endpoint.connections.front()->same_host;
  --forming_count_;
  ++counts_.base.endpoints_open;
  PushEvent(Event::Kind::kConnected, endpoint.id, 0, absl::OkStatus());
  for (const std::unique_ptr<TcpConnection>& connection : endpoint.connections) {
    connection->step = TcpConnection::Step::kOpen;
    connection->heard_at = now_;
    WantRead(*connection);  // The edge of a frame behind the hello is spent already.
    WantWrite(*connection);
  }
  AddTimer(now_ + options_.base.keepalive_interval);
}

void TcpTransport::Refuse(TcpConnection& connection, HelloVerdict verdict) {
  WriteHello(connection, verdict);
  if (connection.step == TcpConnection::Step::kShut) return;
  FailConnection(connection, absl::FailedPreconditionError("refused"));
}

std::unique_ptr<TcpConnection> TcpTransport::TakeHalfOpen(TcpConnection& connection) {
  const auto it = std::find_if(half_open_.begin(), half_open_.end(),
                               [&](const auto& held) { return held.get() == &connection; });
  FB_CHECK(it != half_open_.end());
  std::unique_ptr<TcpConnection> taken = std::move(*it);
  half_open_.erase(it);
  return taken;
}

// One stream's end is its endpoint's: what was on the way there is lost.
void TcpTransport::FailConnection(TcpConnection& connection, absl::Status status) {
  if (connection.step == TcpConnection::Step::kShut) return;
  if (status.code() == absl::StatusCode::kDataLoss) {
    ++counts_.base.protocol_errors;
    if (garbage_log_.Allow(now_)) {
      LogWarning("tcp.garbage", {{"peer", connection.peer.ToString()}, {"what", status.message()}});
    }
    status = absl::UnavailableError(absl::StrCat("protocol error: ", status.message()));
  }
  if (connection.endpoint != nullptr) {
    BeginClose(*connection.endpoint,
               absl::Status(status.code(),
                            absl::StrCat(connection.endpoint->address, ": ", status.message())));
    return;
  }
  ++counts_.handshakes_dropped;
  Shut(connection);
  grave_.push_back(TakeHalfOpen(connection));
}

// Closes the sockets before anything is handed back, so that nothing can land after it.
void TcpTransport::BeginClose(TcpEndpoint& endpoint, absl::Status why) {
  if (endpoint.step >= TcpEndpoint::Step::kClosing) return;
  if (endpoint.step == TcpEndpoint::Step::kOpen) {
    --counts_.base.endpoints_open;
  } else {
    --forming_count_;
    if (endpoint.is_server) ++counts_.handshakes_dropped;
  }
  endpoint.step = TcpEndpoint::Step::kClosing;
  endpoint.why = std::move(why);
  for (const std::unique_ptr<TcpConnection>& connection : endpoint.connections) {
    if (connection != nullptr) Shut(*connection);
  }
  closing_.push_back(endpoint.id);
}

void TcpTransport::Shut(TcpConnection& connection) {
  connection.step = TcpConnection::Step::kShut;
  connection.reader.Stop();
  if (connection.stream == nullptr) return;
  // Not left to close(): a child of a fork may hold the descriptor open, and events would go on.
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, connection.stream->fd(), nullptr);
  connection.stream.reset();
}

bool TcpTransport::HandBackClosing() {
  const bool worked = !closing_.empty();
  std::vector<EndpointId> closing;
  closing.swap(closing_);
  for (const EndpointId id : closing) HandBack(*FindEndpoint(id));
  return worked;
}

void TcpTransport::HandBack(TcpEndpoint& endpoint) {
  endpoint.step = TcpEndpoint::Step::kHandedBack;
  for (std::unique_ptr<TcpConnection>& connection : endpoint.connections) {
    if (connection == nullptr) continue;
    for (const uint64_t token : connection->reader.TakeOpenLandings()) {
      PushEvent(Event::Kind::kLanded, endpoint.id, token, endpoint.why);
    }
    for (const FrameWriter::Done& unsent : connection->writer.TakeUnsent()) {
      ReportSent(endpoint.id, unsent.token, endpoint.why);
    }
    grave_.push_back(std::move(connection));
  }
  endpoint.connections.clear();
  if (endpoint.is_server) groups_.erase(endpoint.group);
  if (endpoint.announced) {
    PushEvent(Event::Kind::kClosed, endpoint.id, 0, endpoint.why);
  } else {
    endpoints_.erase(endpoint.id);
  }
}

void TcpTransport::Bury() {
  if (grave_.empty()) return;
  const auto is_shut = [](const TcpConnection* connection) {
    return connection->step == TcpConnection::Step::kShut;
  };
  read_ready_.erase(std::remove_if(read_ready_.begin(), read_ready_.end(), is_shut),
                    read_ready_.end());
  write_ready_.erase(std::remove_if(write_ready_.begin(), write_ready_.end(), is_shut),
                     write_ready_.end());
  grave_.clear();
}

}  // namespace forebay
