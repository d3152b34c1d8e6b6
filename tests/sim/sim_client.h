#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/metrics.h"
#include "client/client_core.h"
#include "proto/accept.h"
#include "tests/sim/sim_world.h"

namespace forebay::testing {

// One client of the world: a real ClientCore, and an engine that publishes, looks up, fetches,
// reads in place, subscribes, cancels and forgets, several things at a time. It believes no page
// without asking the ledger.
class SimClient final : public SimActor {
 public:
  SimClient(SimWorld& world, uint32_t id, size_t ns);
  ~SimClient() override;

  bool Poll() override;
  Nanos NextDeadline() const override;

  // Not polled until then: as if its process had been stopped.
  void PauseUntil(Nanos when) { paused_until_ = when; }
  // It stops at once and for good; nothing of it may be touched again.
  void Kill();
  // Ends in order: `closed` follows.
  void Close();
  bool closed() const { return closing_ && core_->idle(); }
  bool dead() const { return dead_; }
  // Begins nothing new.
  void set_calm() { calm_ = true; }
  size_t calls() const { return calls_.size(); }
  bool open() const { return open_; }

  // Calls that should have ended long ago.
  void CheckDeadlines();

  // Publishes and fetches back a chain of `pages` pages, in calm; `done` says whether all came
  // back.
  void RoundTrip(uint32_t pages, std::function<void(bool)> done);

  const std::string& name() const { return name_; }
  uint32_t id() const { return id_; }

 private:
  class Opener;
  struct Call {
    const char* kind = "";
    Nanos due = 0;  // the world's time
    uint64_t core_id = 0;
  };
  // One part that is read in place, a piece at a time.
  struct ViewPart {
    uint32_t page = 0;
    uint32_t part = 0;
    FrameHeader header;
    std::vector<std::byte> bytes;
  };
  // One thing that the engine does at a time.
  struct Slot {
    bool busy = false;
    uint64_t round = 0;  // of what it does; what comes late is for an earlier one
    std::vector<std::byte> memory;
    uint64_t resting_checksum = 0;  // of `memory` when its last call had ended
    bool resting = false;
    std::vector<PageKey> keys;
    std::shared_ptr<Hit> hit;
    std::vector<Nanos> since;  // by node: when what ran at the lookup had started
    std::vector<ViewPart> views;
    size_t view_at = 0;
    size_t view_offset = 0;
    bool viewing = false;
    Nanos stall_until = 0;  // while viewing: the engine computes, and its client goes on
    Nanos idle_until = 0;
  };

  template <typename T>
  ClientCore::Done<T> Ends(uint64_t call, std::function<void(absl::StatusOr<T>)> then);
  // Names a call that is about to begin; it must end by `deadline` from now.
  uint64_t BeginCall(const char* kind, Nanos deadline);
  void Began(uint64_t call, uint64_t core_id);
  // Runs `task` in `delay`, or when a pause is over; never if the client has gone.
  void Later(Nanos delay, std::function<void()> task);

  void OnSend(EndpointId endpoint, OutgoingMessage& message);
  void OnMessage(EndpointId endpoint, Bytes header);
  void MisdirectGet(OutgoingMessage& message);
  void SpoilPut(OutgoingMessage& message);

  void Open();
  void Work();
  void Begin(Slot& slot);
  void Publish(Slot& slot);
  void Lookup(Slot& slot);
  void AfterLookup(Slot& slot);
  void Fetch(Slot& slot);
  void CheckLayer(const Slot& slot, uint32_t first_page, uint32_t layer);
  void AfterFetch(Slot& slot, uint32_t first_page, const absl::StatusOr<FetchResult>& result);
  void BeginView(Slot& slot);
  bool StepView(Slot& slot);
  bool StepViewPart(Slot& slot, const ViewPart& part) const;
  void EndView(Slot& slot);
  void CheckViews(const Slot& slot);
  void Subscribe(Slot& slot);
  void HoldHit(Slot& slot);
  void LeaveHit(Slot& slot);
  void End(Slot& slot);
  void CheckResting(Slot& slot);
  bool CheckPageOf(const Slot& slot, uint32_t page, const char* what);
  KvView ViewOf(Slot& slot) const;
  std::vector<Nanos> SinceNow() const;
  Nanos Duration(Nanos min, Nanos max);

  SimWorld& world_;
  const uint32_t id_;
  const size_t ns_index_;
  const SimNamespace& ns_;
  const std::string name_;
  SeededRandom random_;
  DriftingClock clock_;
  MetricRegistry registry_;
  std::unique_ptr<Opener> opener_;
  std::unique_ptr<ClientCore> core_;
  WatchedTransport* transport_ = nullptr;
  std::map<uint64_t, EndpointId> lease_endpoint_;  // where each lease was granted
  std::map<EndpointId, std::string> peers_;
  std::map<uint64_t, Call> calls_;
  std::vector<Slot> slots_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for tasks that come later
  uint64_t core_ns_ = 0;
  bool open_ = false;
  bool opening_ = false;
  bool closing_ = false;
  bool dead_ = false;
  bool calm_ = false;
  uint64_t next_call_ = 1;
  Nanos paused_until_ = 0;
  Nanos running_since_ = 0;
};

template <typename T>
ClientCore::Done<T> SimClient::Ends(uint64_t call, std::function<void(absl::StatusOr<T>)> then) {
  return [this, call, then = std::move(then)](absl::StatusOr<T> result) {
    const auto it = calls_.find(call);
    if (it == calls_.end()) {
      world_.Violation("calls", absl::StrCat(name_, " call ", call, " ended twice"));
      return;
    }
    calls_.erase(it);
    world_.Event("end", id_, call, static_cast<uint64_t>(result.status().code()));
    then(std::move(result));
  };
}

}  // namespace forebay::testing
