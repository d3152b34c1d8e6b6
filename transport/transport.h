#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/reactor.h"

// Moves bytes between the memories of two processes: active messages with payloads that land where
// their receiver says. This header is the guide to the folder.
//
// A message is a small header (copied by Send) and a payload of any size (borrowed, never copied
// where the link allows). The receiver sees the header first, answers with a Landing, and is told
// when the payload has arrived there. So a daemon that answers a Get writes frames straight into
// the reader's cache pages, and a daemon that receives a Put chooses the slot before the bytes
// come.
//
// What every implementation promises (transport/testing/transport_contract.h tests it):
//   1. Callbacks come only from inside Poll(), on the thread that called it. A handler may call
//      Send(), Close() and Connect() from a callback.
//   2. For each OnMessage that gave a Landing, OnLanded comes exactly once, with OK only when every
//      byte is in place and added to the checksums. After it, and not before, the landing memory is
//      the receiver's again: the transport never touches it later. That holds for failure too.
//   3. For each Send() with a token, OnSent comes exactly once. Until then the payload is borrowed;
//      after it the transport never reads it again.
//   4. OnClosed comes exactly once for an endpoint, after every OnLanded and OnSent of it.
//   5. A peer that dies, is cut off or stops reading for `peer_timeout` ends in OnClosed with
//      UNAVAILABLE. Nothing hangs.
//   6. No order is promised between messages; none is delivered twice; none after OnClosed.
//   7. Garbage from a peer closes that endpoint, counted; it never ends the process.
// An endpoint id is never used again within a process.
namespace forebay {

using EndpointId = uint64_t;  // 0 is none

// Largest header of a message. Payloads have no limit but kPayloadBytesMax.
inline constexpr size_t kHeaderBytesMax = 64 * 1024;
inline constexpr uint64_t kPayloadBytesMax = 1ull << 31;

// One run of memory where payload bytes land. Where `checksum` is set, the transport adds each byte
// to it, in order, as it lands (while it is hot). Several segments may share one.
struct LandingSegment {
  MutableBytes bytes;
  RunningChecksum* checksum = nullptr;
};

// Where a payload goes. Borrowed by the transport until OnLanded.
struct Landing {
  // Together exactly the payload's bytes, or empty to drop the payload (no OnLanded follows).
  std::vector<LandingSegment> segments;
  uint64_t token = 0;  // handed back by OnLanded

  static Landing Drop() { return {}; }
};

// Payload as a list of ranges, in order.
using PayloadRanges = absl::InlinedVector<Bytes, 8>;

struct OutgoingMessage {
  Bytes header;           // copied before Send returns; 1 to kHeaderBytesMax bytes
  PayloadRanges payload;  // borrowed until OnSent; may be empty
  uint64_t token = 0;     // handed back by OnSent; 0: no OnSent (only without a payload)
};

// What a transport knows of a peer.
struct PeerDescription {
  std::string address;  // for people
  bool same_host = false;
  int64_t pid = -1;  // where the kernel vouches for it
  int64_t uid = -1;
  std::vector<Bytes> shared_regions;  // the peer's exported memory, mapped read-only (local only),
                                      // in the order of its export; valid until OnClosed
};

// What happens at endpoints.
class TransportHandler {
 public:
  virtual ~TransportHandler() = default;
  // An endpoint works: one that a peer opened, or one that Connect() began.
  virtual void OnConnected(EndpointId endpoint, const PeerDescription& peer) = 0;
  // A message began to arrive. `header` is valid during the call only. With payload_bytes == 0 the
  // answer is ignored.
  virtual Landing OnMessage(EndpointId endpoint, Bytes header, uint64_t payload_bytes) = 0;
  virtual void OnLanded(EndpointId endpoint, uint64_t token, const absl::Status& status) = 0;
  virtual void OnSent(EndpointId endpoint, uint64_t token, const absl::Status& status) = 0;
  // The endpoint is gone (or could not be opened) and everything of it has been handed back.
  virtual void OnClosed(EndpointId endpoint, const absl::Status& why) = 0;
};

// One back end, for one reactor. Also a Pollable.
//
// Addresses are "scheme:rest": "tcp:127.0.0.1:7470", "local:/run/forebay/pool.sock",
// "ucx:127.0.0.1:7471", "loopback:node1".
//
// Threads  one reactor. Nothing here locks.
class Transport : public Pollable {
 public:
  // Starts to accept peers. The address that peers can use, with the real port.
  virtual absl::StatusOr<std::string> Listen(absl::string_view address) = 0;
  // Begins to open an endpoint: OnConnected or OnClosed follows by `deadline`.
  // INVALID_ARGUMENT for an address that is not of this transport's scheme.
  virtual absl::StatusOr<EndpointId> Connect(absl::string_view address, Nanos deadline) = 0;
  // Never fails by itself: an endpoint that is unknown or closed gives OnSent(UNAVAILABLE), a full
  // send queue OnSent(RESOURCE_EXHAUSTED). A message without a token, of whose loss nobody would
  // learn, has as much room again, and closes the endpoint where that is full too.
  virtual void Send(EndpointId endpoint, OutgoingMessage message) = 0;
  // Memory of the transport's own where a payload of `bytes` may be put together. As the only range
  // of the next Send() to this endpoint, with a header of at most `header_bytes`, it goes without
  // another copy. Void after any Send() to the endpoint and after Poll(). Empty where nothing is
  // free now, or `bytes` are more than send_buffer_bytes_max().
  virtual MutableBytes LendSendBuffer(EndpointId /*endpoint*/, size_t /*header_bytes*/,
                                      size_t /*bytes*/) {
    return {};
  }
  // 0 where the transport reads payloads where they lie.
  virtual size_t send_buffer_bytes_max() const { return 0; }
  // Ends an endpoint at once; what is in flight is handed back with CANCELLED; OnClosed follows.
  virtual void Close(EndpointId endpoint) = 0;
};

// Limits and timeouts that all back ends share.
struct TransportOptions {
  Nanos peer_timeout = 5 * kSecond;  // silence of a peer that was asked, before it is dead
  Nanos keepalive_interval = kSecond;
  size_t send_queue_bytes_max = 1ull << 30;  // queued at one endpoint; more is RESOURCE_EXHAUSTED
  uint32_t endpoints_max = 4096;
};

// How much may be queued at an endpoint for a message with `token` to be taken.
inline size_t SendQueueLimit(const TransportOptions& options, uint64_t token) {
  return token == 0 ? 2 * options.send_queue_bytes_max : options.send_queue_bytes_max;
}

// Counts of one back end; plain numbers, read by its reactor.
struct TransportCounts {
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t payload_bytes_sent = 0;
  uint64_t payload_bytes_received = 0;
  uint64_t protocol_errors = 0;  // endpoints closed for garbage
  uint64_t endpoints_open = 0;
};

}  // namespace forebay
