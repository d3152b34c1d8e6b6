#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "base/clock.h"

namespace forebay {

// One turn of a reactor.
struct Turn {
  Nanos now = 0;
};

// A flag that a transport or a device sets, once, and that an Op reads on its reactor's own turn.
class Completion {
 public:
  bool done() const { return done_; }
  const absl::Status& status() const { return status_; }
  void Complete(absl::Status status) {
    status_ = std::move(status);
    done_ = true;
  }

 private:
  bool done_ = false;
  absl::Status status_;
};

// A small state machine: the reactor's unit of work.
// Threads  all calls on the reactor that owns it.
class Op {
 public:
  virtual ~Op() = default;
  // Moves on as far as it can without waiting. True if anything moved.
  virtual bool Advance(const Turn& turn) = 0;
  // When true, the reactor destroys it.
  virtual bool done() const = 0;
  // When the reactor must wake it even if nothing happens; kForever for never.
  virtual Nanos deadline() const { return kForever; }
};

}  // namespace forebay
