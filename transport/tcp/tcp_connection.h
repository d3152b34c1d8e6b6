#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/random.h"
#include "transport/tcp/frame_reader.h"
#include "transport/tcp/frame_writer.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/transport.h"

// What a TcpTransport keeps for each socket and each endpoint. Private to transport/tcp.
namespace forebay {

class TcpTransport;
struct TcpEndpoint;

// One stream of an endpoint, or on its way to be one.
struct TcpConnection final : FrameSink {
  enum class Step : uint8_t {
    kConnect,  // the kernel is connecting
    kTls,
    kHello,   // awaits the peer's hello
    kJoined,  // awaits the other streams of its group
    kOpen,
    kShut,  // closed, and kept until what it held is handed back
  };

  TcpConnection(TcpTransport& owner, MutableBytes scratch, size_t chunk_bytes, bool server)
      : transport(owner), is_server(server), reader(scratch, *this), writer(chunk_bytes) {}

  Landing OnMessage(Bytes header, uint64_t payload_bytes) override;
  void OnLanded(uint64_t token, uint64_t payload_bytes) override;
  void OnPing() override;

  TcpTransport& transport;
  const bool is_server;
  Step step = Step::kConnect;
  std::unique_ptr<ByteStream> stream;
  FrameReader reader;
  FrameWriter writer;
  TcpEndpoint* endpoint = nullptr;  // null: accepted, and no hello yet
  uint8_t index = 0;                // of this stream in its group
  SocketAddress peer;
  bool same_host = false;

  std::array<std::byte, sizeof(TcpHello)> hello;
  size_t hello_bytes = 0;     // of `hello`, read
  Nanos deadline = kForever;  // for the hello of an accepted stream

  // Readiness. Descriptors are watched edge by edge, so what an edge said is kept here.
  bool in_read_ready = false;
  bool in_write_ready = false;
  bool blocked = false;  // the socket was full at the last write
  bool hung_up = false;  // read to the end: no further edge comes

  // Life. Any byte from the peer is life; so is room in a socket that was full, since the peer's
  // program must have read to make it. An acknowledgement is not: a stopped process still sends
  // those.
  Nanos heard_at = 0;
  Nanos asked_at = 0;  // when a ping was queued that nothing has followed; 0: none
};

// A peer: one group of streams.
struct TcpEndpoint {
  enum class Step : uint8_t {
    kForming,  // some streams are there, or connecting
    kOpen,
    kClosing,  // its sockets are closed; what it held is about to be handed back
    kHandedBack,
  };

  // Small messages on the first stream, so that they wait for no payload; a payload on the stream
  // that has the least to send.
  TcpConnection& StreamFor(uint64_t payload_bytes);

  EndpointId id = 0;
  bool is_server = false;
  bool announced = false;     // the handler knows its id: OnClosed is due
  bool closed_by_us = false;  // Close() was called
  Step step = Step::kForming;
  uint8_t stream_count = 1;
  std::vector<std::unique_ptr<TcpConnection>> connections;  // of a server while forming: some null
  Uint128Bytes group{};
  Uint128Bytes incarnation{};  // the peer's; zeros until a hello told
  std::string address;         // of the peer, for people
  bool same_host = false;
  Nanos deadline = kForever;  // to become open
  absl::Status why;           // kClosing
  uint64_t queued_bytes = 0;
  uint32_t pending_events = 0;
};

}  // namespace forebay
