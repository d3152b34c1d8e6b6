#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "transport/tcp/socket.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_envelope.h"

// What UcxTransport keeps about a peer. Plain data; the transport does everything.
namespace forebay {

class UcxTransport;
struct UcxEndpoint;

// One endpoint of UCX towards another worker. UCX pairs the ends of two workers by the order in
// which they were made, and must not be disturbed before a pair has met: so an end whose number the
// peer cannot use yet is kept for another connection.
struct UcxEnd {
  UcxTransport* transport = nullptr;
  ucp_ep_h ucp = nullptr;
  uint32_t serial = 0;   // between these two workers, from 0
  EndpointId owner = 0;  // 0: spare
  bool broken = false;   // UCX said so
};

// What the first ping through `end` says, and its pong: not 0.
inline uint64_t PingNumber(const UcxEnd& end) { return uint64_t{end.serial} + 1; }

// What we made towards one other worker.
struct UcxPeerWorker {
  uint32_t made_count = 0;
  std::map<uint32_t, std::unique_ptr<UcxEnd>> spare;  // by serial
};

// An active message as UCX's callback left it, until Poll() gets to it.
struct UcxArrival {
  EndpointId endpoint = 0;
  UcxEnvelope envelope;
  std::string header;    // of the message, where it came in the active message's header
  void* data = nullptr;  // of UCX: to be received, or released
  size_t data_bytes = 0;
  bool rendezvous = false;  // `data` is only a promise: fetch it with ucp_am_recv_data_nbx
};

// One send of UCX. Lives until UCX is done with it, and Poll() has seen that.
struct UcxSend {
  UcxTransport* transport = nullptr;
  UcxEndpoint* endpoint = nullptr;
  ucp_ep_h ucp = nullptr;             // the end that it went through
  uint64_t message = 0;               // 0: a ping or pong
  std::string header;                 // UCX reads it until the send is done
  std::unique_ptr<std::byte[]> copy;  // of small ranges, or of a header too large for `header`
  bool rendezvous = false;
  bool resolves = false;  // makes UCX learn the peer's number of our end
  ucs_status_t status = UCS_OK;
};

// One receive of UCX, by rendezvous. Likewise.
struct UcxReceive {
  UcxTransport* transport = nullptr;
  UcxEndpoint* endpoint = nullptr;
  uint64_t message = 0;
  uint64_t offset = 0;
  size_t bytes = 0;
  std::unique_ptr<std::byte[]> bounce;  // where the piece spans several segments of the landing
  ucs_status_t status = UCS_OK;
};

struct UcxOutgoing {
  uint64_t token = 0;
  size_t queued_bytes = 0;
  uint32_t sends_out = 0;
};

// A message with a payload that is not all here.
struct UcxIncoming {
  bool announced = false;  // OnMessage was called
  bool dropped = false;    // its receiver does not want the payload
  bool has_checksum = false;
  uint64_t payload_bytes = 0;
  uint64_t landed_bytes = 0;
  uint64_t hashed_bytes = 0;  // leading bytes that are in the checksums
  Landing landing;
  std::map<uint64_t, uint64_t> pieces;    // offset -> bytes of those that began to come
  std::map<uint64_t, uint64_t> unhashed;  // offset -> bytes of those in place
  std::vector<UcxArrival> early;          // pieces that came before the message itself
};

struct UcxEndpoint {
  enum class Phase : uint8_t {
    kConnecting,  // the socket
    kHello,       // waits for the peer's hello
    kReady,       // waits for the peer to make its end (only where the peer connected)
    kWiring,      // made its end, which is not proven to work both ways yet
    kOpen,
    kClosing,
  };

  UcxTransport* transport = nullptr;
  EndpointId id = 0;
  Phase phase = Phase::kConnecting;
  bool initiator = false;
  bool announced = false;       // the handler knows it, so that it gets OnClosed
  bool opened = false;          // OnConnected was called
  bool met = false;             // the peer's hello came
  bool torn_down = false;       // the socket is closed, and UCX told to let go
  uint64_t ping_heard = 0;      // the peer's first: our end answers it as soon as it exists
  bool resolved_sent = false;   // our pong came, and we said so
  bool resolved_heard = false;  // the peer's came
  int fd = -1;
  SocketAddress peer_address;
  std::string socket_in;
  std::string socket_out;
  Nanos deadline = 0;            // of opening
  uint64_t connection = 0;       // what the peer's envelopes say
  uint64_t peer_connection = 0;  // what ours say
  Uint128Bytes peer_incarnation{};
  std::string peer_worker_address;
  uint32_t retries = 0;

  std::unique_ptr<UcxEnd> end;
  absl::Status why;  // of closing
  // Closed as far as the handler is concerned; stays until its end has met its counterpart.
  bool abandoned = false;

  uint32_t requests_out = 0;  // of UCX, both ways: nothing is handed back before it is 0
  uint64_t last_message = 0;
  size_t queued_bytes = 0;
  absl::flat_hash_map<uint64_t, UcxOutgoing> outgoing;
  absl::flat_hash_map<uint64_t, std::unique_ptr<UcxIncoming>> incoming;
  uint64_t early_count = 0;

  Nanos last_heard = 0;
  Nanos ping_sent = 0;  // 0: none is unanswered
  Nanos closing_since = 0;
  bool slow_close_logged = false;
};

}  // namespace forebay
