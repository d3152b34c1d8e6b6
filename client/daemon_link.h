#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "client/client_op.h"
#include "client/core_services.h"
#include "client/link_codec.h"
#include "client/link_regions.h"
#include "proto/control.h"

namespace forebay {

struct ClientNamespace;

// A client's connection to one daemon for one namespace:
//
//   waiting -> opening a session -> connecting the data path -> greeting -> ready -> (lost) waiting
//
// Each data address gets a third of connect_timeout before the next is tried. A connection that is
// lost takes with it every request, lease, location and mapped region (the epoch grows), before
// another is begun after an exponential back-off with jitter.
//
// Threads  the core's reactor.
class DaemonLink final : public EndpointOwner {
 public:
  enum class State : uint8_t { kWaiting, kOpening, kConnecting, kGreeting, kReady, kShut };

  DaemonLink(CoreServices& services, ClientNamespace& ns, uint16_t index);
  ~DaemonLink() override = default;

  // What is due at `now`.
  void Tick(Nanos now);
  Nanos next_timer() const { return timer_; }
  void OnSession(uint64_t attempt, absl::StatusOr<OpenSessionReply> reply);
  // Ends it for good. closed() is true once its endpoint is gone.
  void Shut();
  bool closed() const { return state_ == State::kShut && endpoint_ == 0; }

  bool ready() const { return state_ == State::kReady && !closing_; }
  // Grows whenever a connection is lost: what was granted under another epoch is void.
  uint64_t epoch() const { return epoch_; }
  uint64_t id() const { return id_; }
  uint16_t index() const { return index_; }
  PathChoice path() const { return path_; }
  const std::shared_ptr<const LinkRegions>& regions() const { return regions_; }
  uint32_t namespace_id() const { return session_.namespace_id; }
  // Attempts that failed since it was last ready, and why the latest did.
  uint32_t failures() const { return failures_; }
  const absl::Status& last_error() const { return last_error_; }
  // True when the daemon answered and said no: the caller's spec, version or identity is at fault.
  bool refused() const { return refused_; }
  DaemonStatus Describe() const;

  // A request of `op`: an id to send it under. OnReply or OnRequestLost until it is ended.
  uint64_t BeginRequest(ClientOp& op);
  void EndRequest(uint64_t request) { requests_.erase(request); }
  // Sends a message without payload.
  void Send(Bytes header);
  // With one. `op` gets OnSent with the token that is returned; until then the payload is borrowed.
  uint64_t SendPayload(Bytes header, PayloadRanges payload, ClientOp& op);
  // As Transport's, to this daemon.
  MutableBytes LendSendBuffer(size_t header_bytes, size_t bytes);
  size_t send_buffer_bytes_max() const;
  // A token for a landing of `op`, which gets OnLanded with it.
  uint64_t NewLanding(ClientOp& op);
  // Closes the connection, which hands back every buffer; it will be made again.
  void Abort(absl::Status why);

  // Moving averages of what this connection gives: for estimates.
  void NoteLatency(Nanos ns);
  void NoteTransfer(uint64_t bytes, bool raw, Nanos ns);
  // A probe's word on the path, which codecs slow down no more than it does.
  void NoteProbe(Nanos latency, double bytes_per_ns);
  void NoteProbeBegun(Nanos now) { probed_at_ = now; }
  Nanos probed_at() const { return probed_at_; }
  bool probed() const { return probed_bytes_per_ns_ > 0; }
  PathRates path_rates() const;
  LinkCodec& codec() { return codec_; }
  const LinkCodec& codec() const { return codec_; }
  double bytes_per_ns() const { return bytes_per_ns_; }
  Nanos latency_ns() const { return latency_ns_; }

  void OnConnected(const PeerDescription& peer) override;
  Landing OnMessage(Bytes header, uint64_t payload_bytes) override;
  void OnLanded(uint64_t token, const absl::Status& status) override;
  void OnSent(uint64_t token, const absl::Status& status) override;
  void OnClosed(const absl::Status& why) override;

 private:
  void StartOpening(Nanos now);
  void TryNextAddress();
  void FailAttempt(absl::Status why);
  absl::Status TakeSession(const OpenSessionReply& reply);
  absl::Status OnGreeting(wire::Reader& reader);
  void OnOrphan(wire::Reader& reader);
  void LoseRequests(const absl::Status& why);
  void SetTimer(Nanos at);
  void SetState(State state);

  CoreServices& services_;
  ClientNamespace& ns_;
  const uint16_t index_;
  const uint64_t id_;
  State state_ = State::kWaiting;
  Nanos timer_ = 0;

  uint64_t attempt_ = 0;
  uint32_t failures_ = 0;
  bool refused_ = false;
  bool was_ready_ = false;
  uint64_t reconnects_ = 0;
  absl::Status last_error_;

  OpenSessionReply session_;
  std::deque<std::string> addresses_;  // not yet tried in this attempt
  std::string address_errors_;
  TransportPorts::Port* port_ = nullptr;
  EndpointId endpoint_ = 0;
  bool closing_ = false;       // Close() was called; OnClosed is to come
  absl::Status close_reason_;  // why we closed it
  uint64_t hello_ = 0;
  uint64_t epoch_ = 0;
  PathChoice path_ = PathChoice::kAuto;
  std::shared_ptr<const LinkRegions> regions_;

  absl::btree_map<uint64_t, ClientOp*> requests_;  // walked in order
  absl::flat_hash_map<uint64_t, ClientOp*> landings_;
  absl::flat_hash_map<uint64_t, ClientOp*> sends_;

  LinkCodec codec_;
  double probed_bytes_per_ns_ = 0;
  Nanos probed_at_ = 0;
  double bytes_per_ns_ = 1.0;
  Nanos latency_ns_ = 100 * kMicrosecond;
};

}  // namespace forebay
