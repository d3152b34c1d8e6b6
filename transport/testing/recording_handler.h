#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/checksum.h"
#include "transport/transport.h"

// A handler that records everything, and a message that its receiver can check without asking the
// sender. For the contract suite, for tests of one back end, and for tests above transport.
namespace forebay::testing {

// What a test sends: its header names the seed of the payload, so that whoever receives it knows
// every byte that must come.
struct TestMessage {
  uint64_t id = 0;                  // unique within a test; the payload's seed
  std::vector<size_t> range_bytes;  // the payload as ranges; may hold zeros
  size_t header_bytes = kHeaderBytesMin;

  static constexpr size_t kHeaderBytesMin = 24;

  uint64_t payload_bytes() const;
  std::string Header() const;
};

// Byte `i` of the payload of the message `seed` is byte `i` of this.
void FillPattern(uint64_t seed, MutableBytes bytes);

// Memory of one landing segment between two canaries.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes);
  MutableBytes bytes() { return AsMutableBytes(memory_.data() + kCanaryBytes, bytes_); }
  Bytes bytes() const { return AsBytes(memory_.data() + kCanaryBytes, bytes_); }
  bool canaries_intact() const;

 private:
  static constexpr size_t kCanaryBytes = 64;
  size_t bytes_;
  std::vector<std::byte> memory_;
};

// Records what a transport says, and fails the running test where it breaks a promise that holds
// for every back end at all times: a callback outside Poll(), a message before OnConnected or after
// OnClosed, a second OnLanded, OnSent or OnClosed, a message delivered twice, something not handed
// back before OnClosed, a byte of a payload that is not its sender's, memory touched after
// OnLanded.
//
// It answers each message with a landing of its own: segments of odd sizes between canaries that
// share one checksum, unless `choose_landing` says otherwise. After OnLanded it checks the payload,
// poisons the memory of a failed landing, and looks again in VerifyMemory().
//
// Threads  one, the reactor's.
class RecordingHandler final : public TransportHandler {
 public:
  struct Received {
    EndpointId endpoint = 0;
    std::string header;
    uint64_t id = 0;  // of a TestMessage; 0 where the header is none
    uint64_t payload_bytes = 0;
    uint64_t landing_token = 0;  // 0: dropped, or no payload
    bool landed = false;
    absl::Status status;           // of OnLanded
    uint64_t checksum_landed = 0;  // what the transport's updates gave, at OnLanded
    uint64_t checksum_memory = 0;  // what the memory held then
    std::vector<GuardedBuffer> segments;
    std::unique_ptr<RunningChecksum> checksum;
  };
  struct Sent {
    EndpointId endpoint = 0;
    absl::Status status;
  };
  struct Endpoint {
    bool connected = false;
    bool closed = false;
    absl::Status why;
    PeerDescription peer;
    uint64_t landings_out = 0;
  };

  explicit RecordingHandler(std::string name) : name_(std::move(name)) {}

  // Hooks, run after the recording. `choose_landing` answers OnMessage for a payload; nullptr: the
  // default. `received` stays where it is as long as this handler.
  std::function<Landing(Received& received)> choose_landing;
  std::function<void(EndpointId)> on_connected;
  std::function<void(Received& received)> on_message;
  std::function<void(Received& received)> on_landed;
  std::function<void(EndpointId, uint64_t token, const absl::Status&)> on_sent;
  std::function<void(EndpointId, const absl::Status&)> on_closed;

  // The default answer: `received.payload_bytes` in at most five segments.
  Landing LandInSegments(Received& received);
  // The same with the segments given; they may add up to something else.
  Landing LandIn(Received& received, const std::vector<size_t>& segment_bytes);

  // Whoever polls the transport says when; callbacks at other times are failures.
  void set_in_poll(bool in_poll) { in_poll_ = in_poll; }
  // Whoever calls Send() with a token says so before.
  void ExpectSent(EndpointId endpoint, uint64_t token);
  // Payloads may arrive damaged: for tests of corruption. The checksum must still be of the memory.
  void set_expect_damage(bool expect) { expect_damage_ = expect; }
  // Whether each landing that was handed back still looks as it did then.
  void VerifyMemory() const;

  // Payloads (or bare headers) that arrived whole.
  uint64_t delivered_count() const { return delivered_count_; }
  uint64_t messages_count() const { return received_.size(); }
  uint64_t landed_count() const { return landed_count_; }
  uint64_t connected_count() const;
  uint64_t closed_count() const;
  uint64_t sends_out() const;
  uint64_t landings_out() const;
  // The one endpoint (the newest) that OnConnected named; 0 if none.
  EndpointId newest_endpoint() const { return newest_endpoint_; }
  const Endpoint* endpoint(EndpointId id) const;
  bool connected(EndpointId id) const;
  bool closed(EndpointId id) const;
  const std::map<EndpointId, Endpoint>& endpoints() const { return endpoints_; }
  const std::vector<std::unique_ptr<Received>>& received() const { return received_; }
  // OnSent by token.
  const std::map<uint64_t, Sent>& sent() const { return sent_; }
  const Sent* sent(uint64_t token) const;
  // "B: 1 connected, 3 messages, 2 landed, …": for failure messages.
  std::string ToString() const;

  void OnConnected(EndpointId endpoint, const PeerDescription& peer) override;
  Landing OnMessage(EndpointId endpoint, Bytes header, uint64_t payload_bytes) override;
  void OnLanded(EndpointId endpoint, uint64_t token, const absl::Status& status) override;
  void OnSent(EndpointId endpoint, uint64_t token, const absl::Status& status) override;
  void OnClosed(EndpointId endpoint, const absl::Status& why) override;

 private:
  struct SendOut {
    EndpointId endpoint = 0;
    bool after_closed = false;  // answered too, but OnClosed did not wait for it
  };

  void CheckInPoll(const char* callback) const;
  void CheckPayload(Received& received);

  const std::string name_;
  bool in_poll_ = false;
  bool expect_damage_ = false;
  EndpointId newest_endpoint_ = 0;
  uint64_t delivered_count_ = 0;
  uint64_t landed_count_ = 0;
  uint64_t last_landing_token_ = 0;
  std::map<EndpointId, Endpoint> endpoints_;
  std::vector<std::unique_ptr<Received>> received_;
  std::map<uint64_t, Received*> landings_;  // by token, until OnLanded
  std::map<uint64_t, SendOut> sends_;       // by token, until OnSent
  std::map<uint64_t, Sent> sent_;
  std::map<std::pair<EndpointId, uint64_t>, uint64_t> seen_ids_;
};

}  // namespace forebay::testing
