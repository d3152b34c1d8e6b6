#include "tests/sim/sim_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"

namespace forebay::testing {
namespace {

constexpr size_t kSlots = 4;
// After its deadline a call may wait for memory that is lent, and then for a connection to close.
constexpr Nanos kLandingGrace = 50 * kMillisecond;
constexpr Nanos kCallGrace = kLandingGrace + 150 * kMillisecond;

}  // namespace

class SimClient::Opener final : public SessionOpener {
 public:
  explicit Opener(SimClient& client) : client_(client) {}
  void Open(absl::string_view control_address, const OpenSessionRequest& request,
            Nanos /*deadline*/, OpenSessionDone done) override {
    client_.world_.OpenSession(client_.name_, client_.ns_, control_address, request,
                               std::move(done));
  }

 private:
  SimClient& client_;
};

SimClient::SimClient(SimWorld& world, uint32_t id, size_t ns)
    : world_(world),
      id_(id),
      ns_index_(ns),
      ns_(world.ledger.ns(ns)),
      name_(absl::StrCat("client", id)),
      random_(world.plan.seed * 1000 + id),
      clock_(world.clock,
             world.plan.clock_drift_max * (static_cast<double>(random_.Below(2001)) / 1000 - 1)),
      opener_(std::make_unique<Opener>(*this)),
      slots_(kSlots) {
  ClientCoreOptions options;
  options.name = name_;
  options.seed = random_.Next();
  options.landing_grace = kLandingGrace;
  options.slice_bytes = world.plan.slice_bytes;
  options.connect_timeout = 300 * kMillisecond;
  options.reconnect_interval_max = 200 * kMillisecond;
  options.default_deadline = 500 * kMillisecond;
  for (size_t i = 0; i < world.node_count(); ++i) {
    options.daemons.push_back({SimWorld::ControlOf(i), 1.0});
  }
  TransportOptions transport;
  transport.peer_timeout = world.plan.peer_timeout;
  transport.keepalive_interval = world.plan.peer_timeout / 4;
  core_ = std::make_unique<ClientCore>(
      clock_, *opener_, std::move(options),
      [this, transport](absl::string_view,
                        TransportHandler& handler) -> absl::StatusOr<std::unique_ptr<Transport>> {
        TransportHooks hooks;
        hooks.describe = [this](EndpointId endpoint, PeerDescription& peer) {
          if (!world_.plan.regions) return;
          peer.same_host = true;
          peer.shared_regions = world_.RegionsAt(peer.address);
          static_cast<void>(endpoint);
        };
        hooks.on_send = [this](EndpointId e, OutgoingMessage& m) { OnSend(e, m); };
        hooks.on_message = [this](EndpointId e, Bytes header) { OnMessage(e, header); };
        hooks.on_violation = [this](const std::string& what) {
          world_.Violation("borrowed memory", absl::StrCat(name_, ": ", what));
        };
        auto watched = std::make_unique<WatchedTransport>(world_.network, name_, handler, transport,
                                                          world_.clock, &clock_, std::move(hooks));
        transport_ = watched.get();
        return watched;
      },
      registry_, [] {});
  for (Slot& slot : slots_) slot.memory.resize(ns_.page_bytes() * kSimChainPagesMax);
  world_.Add(*this);
  Open();
}

SimClient::~SimClient() { world_.Remove(*this); }

void SimClient::Kill() {
  dead_ = true;
  world_.Event("client.kill", id_);
  world_.network.KillNode(name_);
  world_.Remove(*this);
}

void SimClient::Close() {
  closing_ = true;
  world_.Event("client.close", id_);
  core_->BeginShutdown();
}

bool SimClient::Poll() {
  if (dead_ || world_.now() < paused_until_) return false;
  if (paused_until_ != 0) {
    paused_until_ = 0;
    running_since_ = world_.now();
  }
  bool worked = core_->Poll(clock_.Now());
  if (closing_) return worked;
  for (Slot& slot : slots_) {
    if (slot.viewing) worked |= StepView(slot);
  }
  Work();
  return worked;
}

Nanos SimClient::NextDeadline() const {
  if (world_.now() < paused_until_) return paused_until_;
  Nanos next = clock_.ToWorld(core_->NextDeadline());
  if (closing_ || calm_) return next;
  for (const Slot& slot : slots_) {
    if (!slot.busy) next = std::min(next, slot.idle_until);
    if (slot.viewing) next = std::min(next, slot.stall_until);
  }
  return next;
}

Nanos SimClient::Duration(Nanos min, Nanos max) {
  return min + static_cast<Nanos>(random_.Below(static_cast<uint64_t>(max - min) + 1));
}

uint64_t SimClient::BeginCall(const char* kind, Nanos deadline) {
  const uint64_t call = next_call_++;
  // Its clock may be slow.
  calls_[call] = {kind, world_.now() + deadline + deadline / 50, 0};
  world_.Event(kind, id_, call);
  return call;
}

void SimClient::Began(uint64_t call, uint64_t core_id) {
  const auto it = calls_.find(call);
  if (it == calls_.end()) return;
  it->second.core_id = core_id;
  if (core_id == 0) world_.Violation("calls", "a call without an id has not ended");
  if (!random_.Chance(world_.plan.cancel_chance)) return;
  Later(Duration(0, 20 * kMillisecond), [this, call] {
    const auto live = calls_.find(call);
    if (live == calls_.end() || calm_) return;
    world_.Event("cancel", id_, call);
    core_->Cancel(live->second.core_id);
  });
}

void SimClient::Later(Nanos delay, std::function<void()> task) {
  world_.After(delay, [this, alive = std::weak_ptr<int>(alive_), task = std::move(task)] {
    if (alive.expired() || dead_ || closing_) return;
    if (world_.now() < paused_until_) {
      Later(paused_until_ - world_.now(), task);
    } else {
      task();
    }
  });
}

void SimClient::CheckDeadlines() {
  if (dead_ || world_.now() < paused_until_) return;
  for (auto& [number, call] : calls_) {
    if (world_.now() <= std::max(call.due, running_since_) + kCallGrace) continue;
    world_.Violation("deadlines", absl::StrCat(name_, ": ", call.kind, " ", number, " is late by ",
                                               (world_.now() - call.due) / kMillisecond, " ms"));
    call.due = kForever / 2;
  }
}

void SimClient::Open() {
  opening_ = true;
  const uint64_t call = BeginCall("open", kSecond);
  const uint64_t id = core_->OpenNamespace(
      ns_.spec, kSecond,
      Ends<ClientCore::Opened>(call, [this](absl::StatusOr<ClientCore::Opened> opened) {
        opening_ = false;
        open_ = opened.ok();
        if (open_) core_ns_ = opened->ns;
        if (open_ && opened->root != ns_.root) {
          world_.Violation("identity", absl::StrCat(name_, " was given another root"));
        }
      }));
  if (id != 0) Began(call, id);
}

void SimClient::Work() {
  if (calm_ || closing_) return;
  if (!open_) {
    if (!opening_) Open();
    return;
  }
  for (Slot& slot : slots_) {
    if (!slot.busy && world_.now() >= slot.idle_until) Begin(slot);
  }
}

void SimClient::Begin(Slot& slot) {
  slot.busy = true;
  ++slot.round;
  CheckResting(slot);
  const uint32_t chain = static_cast<uint32_t>(random_.Below(kSimChains));
  slot.keys = ns_.Chain(chain);
  const uint64_t dice = random_.Below(100);
  if (dice < 40) {
    Publish(slot);
  } else if (dice < 93) {
    Lookup(slot);
  } else {
    Subscribe(slot);
  }
}

void SimClient::End(Slot& slot) {
  slot.hit.reset();
  slot.views.clear();
  slot.viewing = false;
  slot.busy = false;
  slot.idle_until = world_.now() + Duration(0, world_.plan.think_max);
  slot.resting = true;
  slot.resting_checksum = ChecksumOf(slot.memory);
}

// Nobody writes into an engine's memory while no call of its is under way.
void SimClient::CheckResting(Slot& slot) {
  if (slot.resting && ChecksumOf(slot.memory) != slot.resting_checksum) {
    world_.Violation("borrowed memory",
                     absl::StrCat(name_, ": memory changed after its call had ended"));
  }
  slot.resting = false;
}

KvView SimClient::ViewOf(Slot& slot) const {
  return KvView::Contiguous(ns_.spec.layout, slot.memory.data(), kSimChainPagesMax);
}

std::vector<Nanos> SimClient::SinceNow() const {
  std::vector<Nanos> since(world_.node_count());
  for (size_t i = 0; i < since.size(); ++i) since[i] = world_.node(i).started_at;
  return since;
}

void SimClient::Publish(Slot& slot) {
  const uint64_t attempt = world_.ledger.BeginAttempt(ns_index_, slot.keys);
  for (size_t i = 0; i < slot.keys.size(); ++i) {
    world_.ledger.Fill(ns_index_, slot.keys[i], id_, attempt,
                       MutableBytes(slot.memory).subspan(i * ns_.page_bytes(), ns_.page_bytes()));
  }
  PublishOptions options;
  options.deadline = Duration(5 * kMillisecond, 800 * kMillisecond);
  options.first_page = static_cast<uint32_t>(random_.Below(3) == 0 ? random_.Below(4) : 0);
  const uint64_t call = BeginCall("publish", options.deadline);
  const uint64_t id = core_->Publish(
      core_ns_, slot.keys, ViewOf(slot), options,
      Ends<PublishResult>(call, [this, &slot, attempt](absl::StatusOr<PublishResult> result) {
        world_.ledger.EndAttempt(attempt, world_.now());
        if (result.ok()) world_.recorder.pages_stored += result->pages_stored;
        End(slot);
      }));
  if (id != 0) Began(call, id);
}

void SimClient::Lookup(Slot& slot) {
  LookupOptions options;
  options.deadline = Duration(5 * kMillisecond, 300 * kMillisecond);
  options.lease_ms =
      world_.plan.lease_ms_min + static_cast<uint32_t>(random_.Below(world_.plan.lease_ms_max));
  options.probe = random_.Below(12) == 0;
  slot.since = SinceNow();
  const uint64_t call = BeginCall("lookup", options.deadline);
  const uint64_t id = core_->Lookup(
      core_ns_, slot.keys, options,
      Ends<std::shared_ptr<Hit>>(call, [this, &slot](absl::StatusOr<std::shared_ptr<Hit>> hit) {
        if (hit.ok()) slot.hit = *std::move(hit);
        AfterLookup(slot);
      }));
  if (id != 0) Began(call, id);
}

void SimClient::AfterLookup(Slot& slot) {
  if (slot.hit == nullptr || slot.hit->page_count() == 0) {
    ++world_.recorder.misses;
    End(slot);
    return;
  }
  if (slot.hit->page_count() > slot.keys.size()) {
    world_.Violation("lookup", "more pages than were asked for");
  }
  for (uint32_t i = 0; i < slot.hit->page_count(); ++i) {
    if (slot.hit->keys[i] == slot.keys[i] && world_.ledger.Known(ns_index_, slot.keys[i])) continue;
    world_.Violation("identity", absl::StrCat(name_, ": page ", i, " of ", ns_.name,
                                              " was found, which nobody published there"));
    break;
  }
  if (!slot.hit->locations.empty() && random_.Chance(0.6)) {
    BeginView(slot);
  } else if (random_.Chance(0.05)) {
    HoldHit(slot);
  } else {
    Fetch(slot);
  }
}

// An engine may have better things to do first; the lease ends, or the node does.
void SimClient::HoldHit(Slot& slot) {
  Later(Duration(0, 600 * kMillisecond), [this, &slot, round = slot.round] {
    if (slot.round != round) return;
    if (random_.Chance(0.5)) {
      Fetch(slot);
    } else {
      LeaveHit(slot);
    }
  });
}

void SimClient::Fetch(Slot& slot) {
  FetchOptions options;
  options.deadline = Duration(5 * kMillisecond, 500 * kMillisecond);
  options.first_page =
      static_cast<uint32_t>(random_.Below(4) == 0 ? random_.Below(slot.hit->page_count()) : 0);
  const uint32_t first_page = options.first_page;
  const uint64_t call = BeginCall("fetch", options.deadline);
  std::function<void(uint32_t, bool)> on_layer;
  if (random_.Below(4) == 0) {
    on_layer = [this, &slot, first_page](uint32_t layer, bool in_place) {
      if (in_place) CheckLayer(slot, first_page, layer);
    };
  }
  const uint64_t id = core_->Fetch(
      core_ns_, slot.hit, ViewOf(slot), options, std::move(on_layer),
      Ends<FetchResult>(call, [this, &slot, first_page](absl::StatusOr<FetchResult> result) {
        AfterFetch(slot, first_page, result);
      }));
  if (id != 0) Began(call, id);
}

void SimClient::CheckLayer(const Slot& slot, uint32_t first_page, uint32_t layer) {
  for (uint32_t page = first_page; page < slot.hit->page_count(); ++page) {
    for (uint32_t part = 0; part < ns_.parts.size(); ++part) {
      const PartSpec& spec = ns_.parts[part];
      if (layer < spec.layer_begin || layer >= uint32_t{spec.layer_begin} + spec.layer_count)
        continue;
      const Bytes bytes(slot.memory.data() + page * ns_.page_bytes() + ns_.part_offsets[part],
                        spec.raw_bytes);
      const std::string fault = world_.ledger.Fault(ns_index_, slot.hit->keys[page], part, bytes,
                                                    slot.since[slot.hit->daemons[page]]);
      if (fault.empty()) continue;
      world_.Violation("wrong page", absl::StrCat(name_, ": layer ", layer,
                                                  " was called in place, "
                                                  "but page ",
                                                  page, " is ", fault));
      return;
    }
  }
}

bool SimClient::CheckPageOf(const Slot& slot, uint32_t page, const char* what) {
  for (uint32_t part = 0; part < ns_.parts.size(); ++part) {
    const Bytes bytes(slot.memory.data() + page * ns_.page_bytes() + ns_.part_offsets[part],
                      ns_.parts[part].raw_bytes);
    const std::string fault = world_.ledger.Fault(ns_index_, slot.hit->keys[page], part, bytes,
                                                  slot.since[slot.hit->daemons[page]]);
    if (fault.empty()) continue;
    world_.Violation("wrong page",
                     absl::StrCat(name_, ": ", what, " gave page ", page, " part ", part,
                                  " from node", slot.hit->daemons[page], ": ", fault));
    return false;
  }
  return true;
}

void SimClient::AfterFetch(Slot& slot, uint32_t first_page,
                           const absl::StatusOr<FetchResult>& result) {
  if (result.ok()) {
    const uint32_t asked = slot.hit->page_count() - std::min(first_page, slot.hit->page_count());
    if (result->pages.size() != asked) world_.Violation("fetch", "another number of pages");
    for (uint32_t i = 0; i < result->pages.size(); ++i) {
      if (!result->pages[i]) {
        ++world_.recorder.misses;
        continue;
      }
      ++world_.recorder.pages_checked;
      if (!CheckPageOf(slot, first_page + i, "a fetch")) break;
    }
    world_.Event("fetched", id_, result->page_count, result->bytes_local);
  }
  LeaveHit(slot);
}

// A hit is given back, dropped, or kept until its lease is over.
void SimClient::LeaveHit(Slot& slot) {
  const uint64_t dice = random_.Below(10);
  if (dice < 5) {
    const uint64_t call = BeginCall("release", 500 * kMillisecond);
    const uint64_t id = core_->Release(
        slot.hit, Ends<bool>(call, [this, &slot](absl::StatusOr<bool>) { End(slot); }));
    if (id != 0) Began(call, id);
    return;
  }
  if (dice < 8) core_->Drop(core_ns_, slot.hit->grants);
  End(slot);
}

void SimClient::Subscribe(Slot& slot) {
  SubscribeOptions options;
  options.deadline = Duration(5 * kMillisecond, 300 * kMillisecond);
  const uint64_t call = BeginCall("subscribe", options.deadline);
  const size_t asked = slot.keys.size();
  const uint64_t id =
      core_->Subscribe(core_ns_, slot.keys, options, nullptr,
                       Ends<uint32_t>(call, [this, &slot, asked](absl::StatusOr<uint32_t> pages) {
                         if (pages.ok() && *pages > asked)
                           world_.Violation("subscribe", "more pages than asked for");
                         End(slot);
                       }));
  if (id != 0) Began(call, id);
}

void SimClient::RoundTrip(uint32_t pages, std::function<void(bool)> done) {
  Slot& slot = slots_[0];
  slot.keys = ns_.Chain(kSimChains + 5);
  slot.keys.resize(std::min<size_t>(pages, slot.keys.size()));
  const uint64_t attempt = world_.ledger.BeginAttempt(ns_index_, slot.keys);
  for (size_t i = 0; i < slot.keys.size(); ++i) {
    world_.ledger.Fill(ns_index_, slot.keys[i], id_, attempt,
                       MutableBytes(slot.memory).subspan(i * ns_.page_bytes(), ns_.page_bytes()));
  }
  const size_t count = slot.keys.size();
  PublishOptions publish;
  publish.deadline = 5 * kSecond;
  core_->Publish(
      core_ns_, slot.keys, ViewOf(slot), publish,
      [this, &slot, count, attempt, done](absl::StatusOr<PublishResult> published) {
        world_.ledger.EndAttempt(attempt, world_.now());
        if (!published.ok() || published->pages_stored != count) {
          world_.Event("not stored", id_, published.ok() ? published->pages_stored : 999,
                       static_cast<uint64_t>(published.ok() ? published->first_error.code()
                                                            : published.status().code()));
          return done(false);
        }
        LookupOptions lookup;
        lookup.deadline = 5 * kSecond;
        slot.since = SinceNow();
        core_->Lookup(core_ns_, slot.keys, lookup,
                      [this, &slot, count, done](absl::StatusOr<std::shared_ptr<Hit>> hit) {
                        if (!hit.ok() || (*hit)->page_count() != count) {
                          world_.Event("not found", id_, hit.ok() ? (*hit)->page_count() : 999);
                          return done(false);
                        }
                        slot.hit = *hit;
                        FetchOptions fetch;
                        fetch.deadline = 5 * kSecond;
                        core_->Fetch(
                            core_ns_, slot.hit, ViewOf(slot), fetch, nullptr,
                            [this, &slot, count, done](absl::StatusOr<FetchResult> fetched) {
                              bool good = fetched.ok() && fetched->page_count == count;
                              for (uint32_t i = 0; good && i < count; ++i)
                                good = CheckPageOf(slot, i, "the last fetch");
                              core_->Drop(core_ns_, slot.hit->grants);
                              done(good);
                            });
                      });
      });
}

}  // namespace forebay::testing
