#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "transport/tcp/frame_writer.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/tcp/tls_stream.h"
#include "transport/transport.h"

namespace forebay {

struct TcpConnection;
struct TcpEndpoint;

struct TcpTransportOptions {
  TransportOptions base;
  // Streams that Connect() opens, 1 to kStreamsMax. With more than one, the first carries small
  // messages and the others payloads; a message stays on one stream, since its receiver adds it to
  // a checksum in order. One stream is best where one core a side does the work (on loopback two
  // gave 0.8 to 0.95 of it); more help where a single flow cannot fill the link.
  int streams_per_peer = 1;
  int send_buffer_bytes = 0;              // of a socket; 0: the kernel tunes it
  int receive_buffer_bytes = 0;           // of a socket; 0: the kernel tunes it
  size_t chunk_bytes = 256 * 1024;        // of a large payload between which small messages pass
  size_t poll_bytes_max = 1024 * 1024;    // moved each way, over all streams, in one Poll()
  Nanos handshake_timeout = 5 * kSecond;  // from accept to the last hello of a group
  uint32_t handshakes_max = 256;          // streams that said no hello yet; the oldest gives way
  bool use_tls = false;
  TlsOptions tls;
};

// What this back end counts besides TransportCounts.
struct TcpCounts {
  TransportCounts base;
  uint64_t streams_accepted = 0;
  uint64_t handshakes_dropped = 0;  // too slow, too many, or refused
  uint64_t pings_sent = 0;
  uint64_t peers_silent = 0;  // endpoints closed by peer_timeout
};

// TCP between two processes: our own framing over one or more sockets a peer, written and read with
// vectors straight from and to the memory of the callers, and TLS 1.3 where it is asked for.
//
// Addresses "tcp:127.0.0.1:7470", "tcp:[::1]:7470"; port 0 in Listen() takes a free one. Numbers
// only,
//           and localhost.
// Trust     without TLS a port trusts whoever can connect to it, as far as its handler does; what
//           comes is checked for form before it is obeyed, and nothing is allocated by its word.
// Threads   one reactor. Nothing here locks.
class TcpTransport final : public Transport {
 public:
  // INVALID_ARGUMENT for options that make no sense, or TLS files that are unsound. The clock and
  // the handler must outlive it.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Create(const Clock& clock,
                                                              TransportHandler& handler,
                                                              TcpTransportOptions options);
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  // ALREADY_EXISTS where somebody listens already, PERMISSION_DENIED, INVALID_ARGUMENT;
  // FAILED_PRECONDITION for TLS without a certificate. May be called for several addresses.
  absl::StatusOr<std::string> Listen(absl::string_view address) override;
  // RESOURCE_EXHAUSTED at endpoints_max.
  absl::StatusOr<EndpointId> Connect(absl::string_view address, Nanos deadline) override;
  void Send(EndpointId endpoint, OutgoingMessage message) override;
  void Close(EndpointId endpoint) override;

  bool Poll(Nanos now) override;
  bool PrepareToSleep(std::vector<int>& fds) override;
  Nanos NextDeadline() const override { return next_timer_; }

  const TcpCounts& counts() const { return counts_; }

 private:
  friend struct TcpConnection;
  // Dropped payloads are read into this much, over and over.
  static constexpr size_t kScratchBytes = 64 * 1024;

  struct Listener {
    int fd = -1;
    bool ready = false;
    Nanos retry_at = 0;  // after the kernel refused a descriptor
  };
  // A callback that waits for its place in Poll().
  struct Event {
    enum class Kind : uint8_t { kConnected, kLanded, kSent, kClosed };
    Kind kind;
    EndpointId endpoint;
    uint64_t token;
    absl::Status status;
  };

  TcpTransport(const Clock& clock, TransportHandler& handler, TcpTransportOptions options,
               std::unique_ptr<TlsContext> tls, int epoll_fd);

  // tcp_transport.cc: the turn.
  bool TakeReadiness();
  bool ReadReady();
  bool WriteReady();
  void WantRead(TcpConnection& connection);
  void WantWrite(TcpConnection& connection);
  bool DeliverEvents();
  void Deliver(const Event& event);
  void PushEvent(Event::Kind kind, EndpointId endpoint, uint64_t token, absl::Status status);
  void ReportSent(EndpointId endpoint, uint64_t token, const absl::Status& status);
  void AddTimer(Nanos when);
  void RunTimers();
  Nanos CheckEndpoint(TcpEndpoint& endpoint);
  Nanos CheckLife(TcpConnection& connection);

  // tcp_streams.cc: from a socket to an endpoint that works, and its end.
  bool Accept(Listener& listener);
  absl::Status Register(TcpConnection& connection, int fd);
  void AdvanceHandshake(TcpConnection& connection);
  void WriteHello(TcpConnection& connection, HelloVerdict verdict);
  void ReadHello(TcpConnection& connection);
  void TakeRequest(TcpConnection& connection, const TcpHello& hello);
  void TakeReply(TcpConnection& connection, const TcpHello& hello);
  void OpenIfComplete(TcpEndpoint& endpoint);
  void Refuse(TcpConnection& connection, HelloVerdict verdict);
  TcpEndpoint* FindEndpoint(EndpointId id);
  std::unique_ptr<TcpConnection> TakeHalfOpen(TcpConnection& connection);
  void FailConnection(TcpConnection& connection, absl::Status status);
  void BeginClose(TcpEndpoint& endpoint, absl::Status why);
  void Shut(TcpConnection& connection);
  bool HandBackClosing();
  void HandBack(TcpEndpoint& endpoint);
  void Bury();

  const Clock& clock_;
  TransportHandler& handler_;
  const TcpTransportOptions options_;
  const SocketOptions socket_options_;
  const std::unique_ptr<TlsContext> tls_;  // null: plain
  const int epoll_fd_;
  const Uint128Bytes incarnation_;
  const std::unique_ptr<std::byte[]> scratch_;  // where dropped payloads go

  Nanos now_ = 0;
  Nanos next_timer_ = kForever;
  EndpointId last_endpoint_ = 0;
  std::vector<std::unique_ptr<Listener>> listeners_;
  absl::flat_hash_map<EndpointId, std::unique_ptr<TcpEndpoint>> endpoints_;
  absl::flat_hash_map<Uint128Bytes, EndpointId> groups_;   // of endpoints that peers opened
  std::vector<std::unique_ptr<TcpConnection>> half_open_;  // accepted, no hello yet; oldest first
  std::vector<std::unique_ptr<TcpConnection>> grave_;      // freed at the end of the turn
  std::vector<EndpointId> closing_;                        // to be handed back
  std::deque<TcpConnection*> read_ready_;
  std::deque<TcpConnection*> write_ready_;
  std::deque<Event> events_;
  std::vector<FrameWriter::Done> written_;
  uint32_t forming_count_ = 0;  // endpoints that are not open yet
  LogLimiter garbage_log_;
  TcpCounts counts_;
};

}  // namespace forebay
