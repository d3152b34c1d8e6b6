#include "tests/sim/simulation.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/sim/audit.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_world.h"

namespace forebay::testing {
namespace {

constexpr Nanos kTick = 10 * kMillisecond;
constexpr int kLivenessAttempts = 3;
constexpr int kPagesAuditTicks = 25;  // pages are audited every so many ticks

class Simulation {
 public:
  Simulation(const SimPlan& plan, Recorder& recorder) : world_(plan, recorder), random_(plan.seed) {
    for (int i = 0; i < plan.client_count; ++i) AddClient();
  }
  ~Simulation() {
    // What a killed client had stays where it was.
    for (auto& client : clients_) {
      if (client->dead()) static_cast<void>(client.release());
    }
  }

  uint64_t Run() {
    const Nanos end = world_.now() + world_.plan.duration;
    while (world_.now() < end && Sound()) Tick(/*faults=*/true);
    if (Sound()) CalmDown();
    if (Sound()) CheckLiveness();
    if (Sound()) Leave();
    world_.Event("network", 0, world_.network.trace_hash(), world_.network.counts().packets_sent);
    return world_.recorder.hash();
  }

 private:
  bool Sound() const { return world_.recorder.violations().empty(); }

  void AddClient() {
    // Two clients of each namespace at least, so that one reads what another wrote.
    const uint32_t id = next_client_++;
    clients_.push_back(std::make_unique<SimClient>(world_, id, id % world_.ledger.ns_count()));
  }

  SimClient* AnyClient() {
    SimClient& client = *clients_[random_.Below(clients_.size())];
    return client.dead() || client.closed() ? nullptr : &client;
  }

  // Whether something that happens `rate` times a second happens in this tick.
  bool Now(double rate) {
    return random_.Chance(rate * static_cast<double>(kTick) / static_cast<double>(kSecond));
  }

  void Tick(bool faults) {
    if (faults) Inject();
    world_.RunFor(kTick);
    AuditAccounts(world_);
    if (++ticks_ % kPagesAuditTicks == 0) AuditPages(world_);
    for (const auto& client : clients_) client->CheckDeadlines();
    for (size_t i = clients_.size(); i-- > 0;) {
      if (clients_[i]->dead() || !clients_[i]->closed()) continue;
      clients_.erase(clients_.begin() + static_cast<ptrdiff_t>(i));
      if (faults) AddClient();
    }
  }

  void Inject() {
    const SimPlan& plan = world_.plan;
    if (Now(plan.node_kills)) {
      const size_t i = random_.Below(world_.node_count());
      world_.KillNode(i);
      world_.After(static_cast<Nanos>(random_.Below(400)) * kMillisecond, [this, i] {
        if (world_.node(i).node == nullptr) world_.StartNode(i);
      });
    }
    if (Now(plan.client_kills)) {
      if (SimClient* client = AnyClient(); client != nullptr) {
        client->Kill();
        AddClient();
      }
    }
    if (Now(plan.client_closes)) {
      if (SimClient* client = AnyClient(); client != nullptr) client->Close();
    }
    if (Now(plan.pauses)) {
      if (SimClient* client = AnyClient(); client != nullptr) {
        const Nanos pause =
            static_cast<Nanos>(random_.Below(static_cast<uint64_t>(plan.pause_max)));
        client->PauseUntil(world_.now() + pause);
        world_.Event("pause", client->id(), static_cast<uint64_t>(pause / kMicrosecond));
      }
    }
    if (Now(plan.rots)) RotOneFrame(world_);
    if (Now(plan.cuts)) {
      if (SimClient* client = AnyClient(); client != nullptr) {
        const std::string node = world_.node(random_.Below(world_.node_count())).name;
        world_.Event("cut", client->id());
        world_.Cut(client->name(), node);
        world_.After(static_cast<Nanos>(random_.Below(1500)) * kMillisecond, [this] {
          world_.Event("mend", 0);
          world_.MendAll();
        });
      }
    }
  }

  void RunQuietly(Nanos time) {
    for (const Nanos end = world_.now() + time; world_.now() < end && Sound();) Tick(false);
  }

  void CalmDown() {
    world_.Event("calm", 0);
    world_.MendAll();
    world_.network.faults().corrupt_chance = 0;
    world_.network.faults().delay_ns_max =
        std::min(world_.network.faults().delay_ns_max, kMillisecond);
    for (size_t i = 0; i < world_.node_count(); ++i) {
      if (world_.node(i).node == nullptr) world_.StartNode(i);
    }
    for (const auto& client : clients_) {
      client->PauseUntil(world_.now());
      client->set_calm();
    }
    // Calls end, and leases and puts of dead clients run out.
    RunQuietly(2 * kSecond +
               (world_.plan.lease_ms_max + world_.plan.put_timeout_ms) * kMillisecond);
    size_t calls = 0;
    for (const auto& client : clients_) calls += client->dead() ? 0 : client->calls();
    if (Sound() && calls > 0) world_.Violation("liveness", absl::StrCat(calls, " calls never end"));
  }

  void CheckLiveness() {
    AddClient();
    SimClient& client = *clients_.back();
    client.set_calm();
    RunQuietly(kSecond);
    if (!client.open()) return world_.Violation("liveness", "a new client cannot open");
    // A full pool may make room for the beginning of a chain by dropping its end, which was there
    // before: so a publisher that finds a page missing puts it again.
    for (int attempt = 0; attempt < kLivenessAttempts && Sound(); ++attempt) {
      if (RoundTripWorks(client)) return;
    }
    if (Sound()) {
      world_.Violation("liveness", "a publish and a fetch without faults did not succeed");
    }
  }

  bool RoundTripWorks(SimClient& client) {
    bool done = false;
    bool good = false;
    client.RoundTrip(/*pages=*/6, [&](bool all) {
      done = true;
      good = all;
    });
    for (const Nanos end = world_.now() + 20 * kSecond; world_.now() < end && !done && Sound();) {
      world_.RunFor(kTick);
    }
    if (Sound() && !done) world_.Violation("liveness", "a publish or a fetch did not end");
    return good;
  }

  void Leave() {
    for (const auto& client : clients_) {
      if (!client->dead()) client->Close();
    }
    RunQuietly(kSecond + world_.plan.peer_timeout * 2 +
               (world_.plan.session_idle_ms + world_.plan.lease_ms_max) * kMillisecond);
    for (const auto& client : clients_) {
      if (client->dead()) continue;
      if (Sound()) world_.Violation("liveness", absl::StrCat(client->name(), " cannot close"));
    }
    AuditPages(world_);
    AuditIdle(world_);
  }

  SimWorld world_;
  SeededRandom random_;
  std::vector<std::unique_ptr<SimClient>> clients_;
  uint32_t next_client_ = 1;
  int ticks_ = 0;
};

}  // namespace

uint64_t RunSimulation(const SimPlan& plan, Recorder& recorder) {
  // Where something was found, the world is as it is: nobody takes it apart.
  auto simulation = std::make_unique<Simulation>(plan, recorder);
  const uint64_t hash = simulation->Run();
  if (!recorder.violations().empty()) static_cast<void>(simulation.release());
  return hash;
}

}  // namespace forebay::testing
