#include "transport/tcp/tcp_transport.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "transport/tcp/tcp_connection.h"

namespace forebay {
namespace {

constexpr int kEpollBatch = 64;
// Moved for one stream before the next one of the same turn has its say.
constexpr size_t kStreamTurnBytes = 512 * 1024;
// Timers are looked at no more often than this, however many endpoints there are.
constexpr Nanos kTimerGrain = kMillisecond;
// Events that handlers cause in answer to events wait for the next turn after this many rounds.
constexpr int kEventRounds = 4;

absl::Status CheckOptions(const TcpTransportOptions& options) {
  if (options.streams_per_peer < 1 || options.streams_per_peer > kStreamsMax) {
    return absl::InvalidArgumentError(absl::StrCat("streams_per_peer is ", options.streams_per_peer,
                                                   ", must be 1 to ", kStreamsMax));
  }
  if (options.chunk_bytes < 4096 || options.chunk_bytes > 64 * 1024 * 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_bytes is ", options.chunk_bytes, ", must be 4 KiB to 64 MiB"));
  }
  if (options.poll_bytes_max == 0 || options.handshakes_max == 0 ||
      options.handshake_timeout <= 0 || options.base.peer_timeout <= 0 ||
      options.base.keepalive_interval <= 0) {
    return absl::InvalidArgumentError("a limit or timeout is 0 or negative");
  }
  return absl::OkStatus();
}

SocketOptions SocketOptionsOf(const TcpTransportOptions& options) {
  SocketOptions socket_options;
  socket_options.send_buffer_bytes = options.send_buffer_bytes;
  socket_options.receive_buffer_bytes = options.receive_buffer_bytes;
  // The kernel's own view of a cut link: bytes that nobody acknowledges. A ping finds the rest.
  const Nanos timeout_ms = options.base.peer_timeout / kMillisecond;
  socket_options.user_timeout_ms = static_cast<int>(std::clamp<Nanos>(timeout_ms, 1, INT32_MAX));
  return socket_options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(const Clock& clock,
                                                                   TransportHandler& handler,
                                                                   TcpTransportOptions options) {
  FB_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<TlsContext> tls;
  if (options.use_tls) {
    FB_ASSIGN_OR_RETURN(tls, TlsContext::Create(options.tls));
  }
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll_create1: ", strerror(errno)));
  }
  return std::unique_ptr<TcpTransport>(
      new TcpTransport(clock, handler, std::move(options), std::move(tls), epoll_fd));
}

TcpTransport::TcpTransport(const Clock& clock, TransportHandler& handler,
                           TcpTransportOptions options, std::unique_ptr<TlsContext> tls,
                           int epoll_fd)
    : clock_(clock),
      handler_(handler),
      options_(std::move(options)),
      socket_options_(SocketOptionsOf(options_)),
      tls_(std::move(tls)),
      epoll_fd_(epoll_fd),
      incarnation_(RandomId()),
      scratch_(new std::byte[kScratchBytes]),
      now_(clock.Now()) {}

TcpTransport::~TcpTransport() {
  for (const std::unique_ptr<Listener>& listener : listeners_) close(listener->fd);
  // Streams close their descriptors, and TLS ones may say good-bye; the epoll set goes last.
  endpoints_.clear();
  half_open_.clear();
  grave_.clear();
  close(epoll_fd_);
}

void TcpTransport::Send(EndpointId id, OutgoingMessage message) {
  uint64_t payload_bytes = 0;
  for (const Bytes range : message.payload) payload_bytes += range.size();
  FB_CHECK(message.token != 0 || payload_bytes == 0);

  TcpEndpoint* endpoint = FindEndpoint(id);
  if (endpoint == nullptr || endpoint->step >= TcpEndpoint::Step::kClosing) {
    ReportSent(id, message.token, absl::UnavailableError("the endpoint is closed"));
    return;
  }
  if (message.header.empty() || message.header.size() > kHeaderBytesMax ||
      payload_bytes > kPayloadBytesMax) {
    ReportSent(id, message.token,
               absl::InvalidArgumentError(absl::StrCat("a message with a header of ",
                                                       message.header.size(),
                                                       " bytes and a payload of ", payload_bytes)));
    return;
  }
  const uint64_t bytes = message.header.size() + payload_bytes;
  const size_t limit = SendQueueLimit(options_.base, message.token);
  if (endpoint->queued_bytes + bytes > limit) {
    absl::Status full = absl::ResourceExhaustedError(absl::StrCat(
        "send queue of ", endpoint->address, ": ", endpoint->queued_bytes, " bytes are queued, ",
        bytes, " more would pass the limit of ", limit));
    if (message.token == 0) return BeginClose(*endpoint, std::move(full));
    return ReportSent(id, message.token, std::move(full));
  }
  endpoint->queued_bytes += bytes;
  TcpConnection& connection = endpoint->StreamFor(payload_bytes);
  connection.writer.QueueMessage(message, payload_bytes, bytes);
  WantWrite(connection);
}

bool TcpTransport::Poll(Nanos now) {
  now_ = now;
  bool worked = WriteReady();
  worked |= TakeReadiness();
  worked |= DeliverEvents();  // OnConnected comes before the endpoint's first message.
  worked |= ReadReady();
  worked |= DeliverEvents();
  worked |= WriteReady();  // Answers leave in the turn of their question.
  if (now >= next_timer_) RunTimers();
  worked |= HandBackClosing();
  worked |= DeliverEvents();
  Bury();
  return worked;
}

bool TcpTransport::PrepareToSleep(std::vector<int>& fds) {
  if (!events_.empty() || !closing_.empty() || !read_ready_.empty() || !write_ready_.empty()) {
    return false;
  }
  for (const std::unique_ptr<Listener>& listener : listeners_) {
    if (listener->ready && listener->retry_at <= now_) return false;
  }
  fds.push_back(epoll_fd_);
  return true;
}

bool TcpTransport::TakeReadiness() {
  std::array<epoll_event, kEpollBatch> ready;
  const int count = epoll_wait(epoll_fd_, ready.data(), kEpollBatch, /*timeout=*/0);
  for (int i = 0; i < count; ++i) {
    const uint32_t events = ready[i].events;
    // Listeners are told from connections by the low bit of their address (Register sets it so).
    if ((ready[i].data.u64 & 1) != 0) {
      reinterpret_cast<Listener*>(ready[i].data.u64 & ~uint64_t{1})->ready = true;
      continue;
    }
    auto& connection = *static_cast<TcpConnection*>(ready[i].data.ptr);
    if (connection.step == TcpConnection::Step::kShut) continue;
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) connection.hung_up = true;
    if (connection.step != TcpConnection::Step::kOpen) {
      AdvanceHandshake(connection);
      continue;
    }
    if ((events & ~EPOLLOUT) != 0) WantRead(connection);
    if ((events & EPOLLOUT) != 0 && connection.blocked) {
      connection.blocked = false;
      connection.heard_at = now_;
      connection.asked_at = 0;
      WantWrite(connection);
    }
  }
  bool accepted = false;
  for (const std::unique_ptr<Listener>& listener : listeners_) {
    if (listener->ready && listener->retry_at <= now_) accepted |= Accept(*listener);
  }
  return count > 0 || accepted;
}

void TcpTransport::WantRead(TcpConnection& connection) {
  if (connection.in_read_ready || connection.step != TcpConnection::Step::kOpen) return;
  connection.in_read_ready = true;
  read_ready_.push_back(&connection);
}

void TcpTransport::WantWrite(TcpConnection& connection) {
  if (connection.in_write_ready || connection.blocked || connection.writer.idle() ||
      connection.step != TcpConnection::Step::kOpen) {
    return;
  }
  connection.in_write_ready = true;
  write_ready_.push_back(&connection);
}

bool TcpTransport::ReadReady() {
  size_t moved = 0;
  // A stream that had its say waits for the others, and no turn moves much more than its budget.
  while (!read_ready_.empty() && moved < options_.poll_bytes_max) {
    TcpConnection& connection = *read_ready_.front();
    read_ready_.pop_front();
    connection.in_read_ready = false;
    if (connection.step != TcpConnection::Step::kOpen) continue;
    const FrameReader::Outcome outcome =
        connection.reader.ReadFrom(*connection.stream, kStreamTurnBytes, connection.hung_up);
    moved += outcome.bytes;
    if (outcome.bytes > 0) {
      connection.heard_at = now_;
      connection.asked_at = 0;
    }
    switch (outcome.kind) {
      case FrameReader::Outcome::Kind::kBudget:
        WantRead(connection);
        break;
      case FrameReader::Outcome::Kind::kEnd:
        FailConnection(connection, absl::UnavailableError("the peer closed the connection"));
        break;
      case FrameReader::Outcome::Kind::kFailed:
        FailConnection(connection, outcome.status);
        break;
      case FrameReader::Outcome::Kind::kDrained:
      case FrameReader::Outcome::Kind::kStopped:
        break;
    }
  }
  return moved > 0;
}

bool TcpTransport::WriteReady() {
  size_t moved = 0;
  while (!write_ready_.empty() && moved < options_.poll_bytes_max) {
    TcpConnection& connection = *write_ready_.front();
    write_ready_.pop_front();
    connection.in_write_ready = false;
    if (connection.step != TcpConnection::Step::kOpen) continue;
    written_.clear();
    const FrameWriter::Outcome outcome =
        connection.writer.WriteTo(*connection.stream, kStreamTurnBytes, written_);
    moved += outcome.bytes;
    for (const FrameWriter::Done& done : written_) {
      connection.endpoint->queued_bytes -= done.queued_bytes;
      ++counts_.base.messages_sent;
      counts_.base.payload_bytes_sent += done.payload_bytes;
      ReportSent(connection.endpoint->id, done.token, absl::OkStatus());
    }
    switch (outcome.kind) {
      case FrameWriter::Outcome::Kind::kIdle:
        break;
      case FrameWriter::Outcome::Kind::kBlocked:
        connection.blocked = true;
        break;
      case FrameWriter::Outcome::Kind::kBudget:
        WantWrite(connection);
        break;
      case FrameWriter::Outcome::Kind::kFailed:
        FailConnection(connection, outcome.status);
        break;
    }
  }
  return moved > 0;
}

void TcpTransport::PushEvent(Event::Kind kind, EndpointId id, uint64_t token, absl::Status status) {
  if (TcpEndpoint* endpoint = FindEndpoint(id)) ++endpoint->pending_events;
  events_.push_back({kind, id, token, std::move(status)});
}

void TcpTransport::ReportSent(EndpointId id, uint64_t token, const absl::Status& status) {
  if (token != 0) PushEvent(Event::Kind::kSent, id, token, status);
}

bool TcpTransport::DeliverEvents() {
  const bool worked = !events_.empty();
  for (int round = 0; round < kEventRounds && !events_.empty(); ++round) {
    for (size_t left = events_.size(); left > 0; --left) {
      const Event event = std::move(events_.front());
      events_.pop_front();
      Deliver(event);
    }
  }
  return worked;
}

void TcpTransport::Deliver(const Event& event) {
  TcpEndpoint* endpoint = FindEndpoint(event.endpoint);
  if (endpoint != nullptr) --endpoint->pending_events;
  // The handler was told nothing of an endpoint that it closed first, and gets nothing more from
  // it.
  const bool closed_by_us = endpoint != nullptr && endpoint->closed_by_us;
  switch (event.kind) {
    case Event::Kind::kConnected: {
      if (closed_by_us) return;
      PeerDescription peer;
      peer.address = endpoint->address;
      peer.same_host = endpoint->same_host;
      handler_.OnConnected(event.endpoint, peer);
      return;
    }
    case Event::Kind::kLanded:
      handler_.OnLanded(event.endpoint, event.token,
                        closed_by_us && event.status.ok()
                            ? absl::CancelledError("the endpoint was closed")
                            : event.status);
      return;
    case Event::Kind::kSent:
      handler_.OnSent(event.endpoint, event.token, event.status);
      return;
    case Event::Kind::kClosed:
      if (endpoint->pending_events > 0) {
        // Sends that were refused meanwhile are answered first.
        PushEvent(event.kind, event.endpoint, event.token, event.status);
        return;
      }
      endpoints_.erase(event.endpoint);
      handler_.OnClosed(event.endpoint, event.status);
      return;
  }
}

void TcpTransport::AddTimer(Nanos when) { next_timer_ = std::min(next_timer_, when); }

void TcpTransport::RunTimers() {
  Nanos next = kForever;
  std::vector<TcpConnection*> late;
  for (const std::unique_ptr<TcpConnection>& connection : half_open_) {
    if (connection->deadline <= now_) late.push_back(connection.get());
    next = std::min(next, connection->deadline);
  }
  for (TcpConnection* connection : late) {
    FailConnection(*connection, absl::DeadlineExceededError("no hello came in time"));
  }
  for (const auto& [id, endpoint] : endpoints_) next = std::min(next, CheckEndpoint(*endpoint));
  for (const std::unique_ptr<Listener>& listener : listeners_) {
    if (listener->retry_at > now_) next = std::min(next, listener->retry_at);
  }
  next_timer_ = next == kForever ? kForever : std::max(next, now_ + kTimerGrain);
}

// The next moment at which this endpoint wants a look.
Nanos TcpTransport::CheckEndpoint(TcpEndpoint& endpoint) {
  if (endpoint.step >= TcpEndpoint::Step::kClosing) return kForever;
  if (endpoint.step == TcpEndpoint::Step::kForming) {
    if (endpoint.deadline > now_) return endpoint.deadline;
    BeginClose(endpoint, absl::DeadlineExceededError(
                             absl::StrCat(endpoint.address, ": not connected in time")));
    return kForever;
  }
  Nanos next = kForever;
  for (const std::unique_ptr<TcpConnection>& connection : endpoint.connections) {
    next = std::min(next, CheckLife(*connection));
    if (endpoint.step == TcpEndpoint::Step::kClosing) return kForever;
  }
  return next;
}

Nanos TcpTransport::CheckLife(TcpConnection& connection) {
  if (connection.asked_at != 0) {
    const Nanos dead_at = connection.asked_at + options_.base.peer_timeout;
    // Looked at again before that: an answer makes the next question due earlier.
    if (now_ < dead_at) return std::min(dead_at, now_ + options_.base.keepalive_interval);
    ++counts_.peers_silent;
    FailConnection(connection,
                   absl::UnavailableError(absl::StrCat(
                       "silent for ", (now_ - connection.heard_at) / kMillisecond, " ms")));
    return kForever;
  }
  const Nanos ask_at = connection.heard_at + options_.base.keepalive_interval;
  if (now_ < ask_at) return ask_at;
  connection.writer.QueuePing(FrameType::kPing);
  connection.asked_at = now_;
  ++counts_.pings_sent;
  WantWrite(connection);
  return now_ + std::min(options_.base.peer_timeout, options_.base.keepalive_interval);
}

Landing TcpConnection::OnMessage(Bytes header, uint64_t payload_bytes) {
  ++transport.counts_.base.messages_received;
  return transport.handler_.OnMessage(endpoint->id, header, payload_bytes);
}

void TcpConnection::OnLanded(uint64_t token, uint64_t payload_bytes) {
  transport.counts_.base.payload_bytes_received += payload_bytes;
  transport.PushEvent(TcpTransport::Event::Kind::kLanded, endpoint->id, token, absl::OkStatus());
}

void TcpConnection::OnPing() {
  writer.QueuePing(FrameType::kPong);
  transport.WantWrite(*this);
}

TcpConnection& TcpEndpoint::StreamFor(uint64_t payload_bytes) {
  if (connections.size() == 1 || payload_bytes <= kSmallPayloadBytes) return *connections.front();
  return **std::min_element(
      connections.begin() + 1, connections.end(), [](const auto& a, const auto& b) {
        return a->writer.queued_payload_bytes() < b->writer.queued_payload_bytes();
      });
}

}  // namespace forebay
