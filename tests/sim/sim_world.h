#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/testing/manual_clock.h"
#include "proto/control.h"
#include "server/pool_node.h"
#include "tests/sim/ledger.h"
#include "tests/sim/plan.h"
#include "tests/sim/recorder.h"
#include "tests/sim/watched_transport.h"
#include "transport/loopback/loopback_network.h"

namespace forebay::testing {

// Somebody who is polled. Nodes are polled by the world itself.
class SimActor {
 public:
  virtual ~SimActor() = default;
  virtual bool Poll() = 0;
  // In the world's time.
  virtual Nanos NextDeadline() const = 0;
};

struct SimNode {
  std::string name;
  uint64_t incarnation = 0;
  Nanos started_at = 0;
  std::unique_ptr<MetricRegistry> registry;
  std::unique_ptr<PoolNode> node;  // null while it is dead
  std::unique_ptr<WatchedTransport> transport;
  // Generations seen in the index, by slot number: the newest.
  std::map<uint32_t, SlotRef> newest;
  std::set<std::pair<uint32_t, uint64_t>> rotten;  // slots, in a generation, that we damaged
  std::map<std::string, uint32_t> namespace_ids;   // by SimNamespace name
};

// Nodes, the network and time: one thread, one seed.
class SimWorld {
 public:
  SimWorld(const SimPlan& plan, Recorder& recorder);
  ~SimWorld();

  void StartNode(size_t i);
  void KillNode(size_t i);
  SimNode& node(size_t i) { return nodes_[i]; }
  size_t node_count() const { return nodes_.size(); }
  static std::string ControlOf(size_t i);

  // The control plane, as `client` of `tenant` reaches it: late, and not at all through a cut.
  void OpenSession(const std::string& client, const SimNamespace& ns, absl::string_view control,
                   const OpenSessionRequest& request, OpenSessionDone done);
  // The memory that the node at a data address shares; none if that start of it is gone.
  std::vector<Bytes> RegionsAt(absl::string_view data_address) const;

  void Cut(const std::string& a, const std::string& b);
  void MendAll();

  // Runs `task` in `delay`.
  void After(Nanos delay, std::function<void()> task);
  void Add(SimActor& actor) { actors_.push_back(&actor); }
  void Remove(SimActor& actor) { std::erase(actors_, &actor); }

  // Polls everybody once in an order of its own; if nobody did anything, time goes on to whatever
  // comes next, at most to `until`.
  void Turn(Nanos until);
  void RunFor(Nanos time);

  Nanos now() const { return clock.Now(); }
  void Violation(absl::string_view rule, absl::string_view what) {
    recorder.Violation(clock.Now(), rule, what);
  }
  void Event(const char* kind, uint64_t actor, uint64_t a = 0, uint64_t b = 0) {
    recorder.Event(clock.Now(), kind, actor, a, b);
  }

  const SimPlan plan;
  Recorder& recorder;
  ManualClock clock;
  SeededRandom random;
  LoopbackNetwork network;
  Ledger ledger;

 private:
  bool PollNode(SimNode& node);
  bool RunTasks();

  std::vector<SimNode> nodes_;
  std::vector<SimActor*> actors_;
  std::multimap<Nanos, std::function<void()>> tasks_;
  std::set<std::pair<std::string, std::string>> cuts_;
};

}  // namespace forebay::testing
