#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/clock.h"
#include "proto/wire.h"
#include "transport/transport.h"

namespace forebay {

class DaemonLink;
struct CoreServices;

// One call of a client under way: a small state machine. Replies only store what they bring and ask
// for a turn with WakeUp(); Advance() moves on.
//
// Threads  the core's reactor.
class ClientOp {
 public:
  ClientOp(CoreServices& services, uint64_t id, Nanos deadline)
      : services_(services), id_(id), deadline_(deadline), wake_at_(deadline) {}
  virtual ~ClientOp() = default;
  ClientOp(const ClientOp&) = delete;
  ClientOp& operator=(const ClientOp&) = delete;

  // Moves on as far as it can without waiting. Called when woken, and at wake_at().
  virtual void Advance(Nanos now) = 0;

  // An answer to `request` began to arrive. An error is the peer's fault and closes the link.
  // A landing must have its token from DaemonLink::NewLanding.
  virtual absl::StatusOr<Landing> OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                          uint64_t payload_bytes) = 0;
  // The link went away before `request` was ended; it is forgotten already.
  virtual void OnRequestLost(DaemonLink& link, uint64_t request, const absl::Status& why) = 0;

  // Only ops that land or send payloads hear of these.
  virtual void OnLanded(DaemonLink&, uint64_t /*token*/, const absl::Status&) { FB_CHECK(false); }
  virtual void OnSent(DaemonLink&, uint64_t /*token*/, const absl::Status&) { FB_CHECK(false); }

  // Asks it to end soon.
  void Cancel() {
    cancelled_ = true;
    WakeUp();
  }
  void WakeUp();

  uint64_t id() const { return id_; }
  bool done() const { return done_; }
  Nanos wake_at() const { return wake_at_; }

 protected:
  CoreServices& services() const { return services_; }
  bool cancelled() const { return cancelled_; }
  Nanos deadline() const { return deadline_; }
  void SetDone() { done_ = true; }
  void SetWakeAt(Nanos at);

 private:
  friend class ClientCore;

  CoreServices& services_;
  const uint64_t id_;
  const Nanos deadline_;
  Nanos wake_at_;
  bool done_ = false;
  bool cancelled_ = false;
  bool queued_ = false;
};

}  // namespace forebay
