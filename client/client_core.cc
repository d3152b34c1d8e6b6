#include "client/client_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "client/fetch_op.h"
#include "client/lookup_op.h"
#include "client/pool_client.h"
#include "client/probe_op.h"
#include "client/publish_op.h"
#include "client/small_ops.h"
#include "codec/part_plan.h"

namespace forebay {
namespace {

// How long opening a namespace waits for the rates of slow paths, and how old rates may be when
// something is published.
constexpr Nanos kProbeTime = 2 * kSecond;
constexpr Nanos kProbeInterval = 10 * kSecond;

}  // namespace

void ClientOp::WakeUp() {
  if (queued_) return;
  queued_ = true;
  services_.runnable.push_back(this);
}

void ClientOp::SetWakeAt(Nanos at) {
  wake_at_ = at;
  services_.NoteTimer(at);
}

ClientCore::ClientCore(const Clock& clock, SessionOpener& opener, ClientCoreOptions options,
                       TransportFactory factory, MetricRegistry& registry,
                       std::function<void()> wake)
    : services_(clock, opener, std::move(options), std::move(factory), registry, std::move(wake)) {
  services_.dictionaries = &dictionaries_;
}

ClientCore::~ClientCore() {
  services_.inbox->Detach();
  FB_CHECK(ops_.empty());
}

ClientNamespace* ClientCore::Find(uint64_t ns) {
  const auto it = namespaces_.find(ns);
  return it == namespaces_.end() ? nullptr : it->second.get();
}

absl::Status ClientCore::CheckChain(const ClientNamespace* ns, size_t page_count) const {
  if (shut_) return absl::CancelledError("the client is shutting down");
  if (ns == nullptr) return absl::FailedPreconditionError("the namespace is closed");
  if (page_count > PoolNamespace::kChainPagesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a chain of ", page_count, " pages; the limit is ", PoolNamespace::kChainPagesMax));
  }
  return absl::OkStatus();
}

Nanos ClientCore::DeadlineOf(Nanos duration, Nanos now) const {
  if (duration <= 0) duration = services_.options.default_deadline;
  return duration > kForever - now ? kForever : now + duration;
}

uint64_t ClientCore::Start(std::unique_ptr<ClientOp> op, Nanos now) {
  ClientOp& started = *op;
  const uint64_t id = started.id();
  ops_[id] = std::move(op);
  services_.NoteTimer(started.wake_at());
  started.Advance(now);
  if (!started.done()) return id;
  EraseOp(id);
  return 0;
}

void ClientCore::EraseOp(uint64_t id) {
  const auto it = ops_.find(id);
  std::erase(services_.runnable, it->second.get());
  ops_.erase(it);
  op_ns_.erase(id);
}

// Parts that a stricter bound of their layers keeps raw are no mistake; a codec for no part is.
absl::Status ClientCore::CheckForcedCodec(const NamespaceSpec& spec) const {
  if (services_.codecs.automatic()) return absl::OkStatus();
  const std::vector<PartSpec> parts = spec.layout.Parts();
  if (std::none_of(parts.begin(), parts.end(), HasPlanes)) return absl::OkStatus();
  const QualityContract& contract = spec.quality;
  const Codec& codec = services_.codecs.forced();
  QualityBound weakest = contract.bound;
  for (const LayerQuality& layers : contract.layers) weakest = Weakest(weakest, layers.bound);
  if (weakest.Allows(codec.quality())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "codec ", codec.name(), " keeps keys ", QualityClassName(codec.quality().k), " and values ",
      QualityClassName(codec.quality().v), "; the namespace's contract is ", contract.ToString()));
}

// Whether what is published there may need this client's dictionary.
bool ClientCore::UsesDictionary(const ClientNamespace& ns) const {
  const CodecBook& book = services_.codecs;
  const UniformCodec* const uniform = services_.options.uniform.get();
  if (uniform == nullptr || uniform->dictionary() == nullptr) return false;
  if (!book.automatic() && &book.forced() != uniform) return false;
  return uniform->dictionary()->CheckLayout(ns.spec.layout).ok();
}

// Whether a codec is to be chosen and a path's rates are not known, or were measured long ago.
bool ClientCore::WantsProbes(const ClientNamespace& ns) const {
  if (!services_.codecs.automatic()) return false;
  if (std::none_of(ns.parts.begin(), ns.parts.end(), HasPlanes)) return false;
  const Nanos now = services_.clock.Now();
  return std::any_of(ns.links.begin(), ns.links.end(), [now](const auto& link) {
    return link->ready() && link->path() != PathChoice::kLocal &&
           (link->probed_at() == 0 || now - link->probed_at() > kProbeInterval);
  });
}

void ClientCore::Probe(ClientNamespace& ns, Nanos until, std::function<void()> done) {
  const Nanos now = services_.clock.Now();
  const uint64_t id = services_.NextId();
  op_ns_[id] = ns.id;
  Start(std::make_unique<ProbeOp>(services_, id, ns, std::min(now + kProbeTime, until),
                                  std::move(done)),
        now);
}

absl::StatusOr<std::vector<PathCodec>> ClientCore::ExplainCodecs(uint64_t ns_id,
                                                                 uint64_t raw_bytes) {
  const ClientNamespace* const ns = Find(ns_id);
  FB_RETURN_IF_ERROR(CheckChain(ns, 0));
  const CodecBook& book = services_.codecs;
  std::vector<PathCodec> all;
  for (const std::unique_ptr<DaemonLink>& link : ns->links) {
    PathCodec& path = all.emplace_back();
    const DaemonStatus status = link->Describe();
    path.control = status.control;
    path.path = status.path;
    path.forced = !book.automatic();
    path.rates = link->path_rates();
    if (path.forced) {
      path.choice.name = std::string(book.forced().name());
      path.choice.reason = "forced by the client's options";
      continue;
    }
    const QualityBound& bound = ns->spec.quality.bound;
    const auto current = link->codec().choices().find(PackQuality(bound));
    path.choice = ChooseCodec(book.candidates(), bound, path.rates, raw_bytes,
                              services_.options.put_message_bytes,
                              current == link->codec().choices().end() ? "" : current->second.name);
  }
  return all;
}

uint64_t ClientCore::OpenNamespace(NamespaceSpec spec, Nanos duration, Done<Opened> done) {
  spec.tenant.clear();
  absl::Status status = spec.Validate();
  if (status.ok()) status = CheckForcedCodec(spec);
  if (shut_) status = absl::CancelledError("the client is shutting down");
  if (!status.ok()) {
    done(std::move(status));
    return 0;
  }
  const Nanos now = services_.clock.Now();
  const Nanos deadline = DeadlineOf(duration, now);
  const uint64_t ns_id = services_.NextId();
  auto ns = std::make_unique<ClientNamespace>(ns_id, std::move(spec), services_.options);
  // A daemon whose address does not answer must leave time for the next one.
  ns->connect_timeout = std::min(ns->connect_timeout, std::max(deadline - now, kMillisecond));
  for (uint16_t i = 0; i < services_.options.daemons.size(); ++i) {
    ns->links.push_back(std::make_unique<DaemonLink>(services_, *ns, i));
  }
  ClientNamespace& opened = *ns;
  namespaces_[ns_id] = std::move(ns);
  const uint64_t id = services_.NextId();
  op_ns_[id] = ns_id;
  auto finish = [this, ns_id, deadline, done = std::move(done)](absl::Status ended) {
    ClientNamespace* found = Find(ns_id);
    // What was short for this call alone.
    if (found != nullptr) found->connect_timeout = services_.options.connect_timeout;
    if (ended.ok() && found != nullptr) {
      auto answer = [this, ns_id, done] {
        const ClientNamespace* const still = Find(ns_id);
        if (still == nullptr) {
          done(absl::CancelledError("the namespace was closed"));
        } else {
          done(Opened{ns_id, *still->root});
        }
      };
      // Nobody is to find a page before what it takes to decode it.
      auto keep = [this, ns_id, deadline, answer = std::move(answer)] {
        const ClientNamespace* const still = Find(ns_id);
        if (still == nullptr || !UsesDictionary(*still)) return answer();
        dictionaries_.Keep(services_.options.uniform->dictionary(), deadline, answer);
      };
      if (!WantsProbes(*found)) return keep();
      Probe(*found, deadline, std::move(keep));
      return;
    }
    done(ended.ok() ? absl::CancelledError("the namespace was closed") : std::move(ended));
    CloseNamespace(ns_id);
  };
  return Start(std::make_unique<OpenOp>(services_, id, opened, deadline, std::move(finish)), now);
}

void ClientCore::CloseNamespace(uint64_t ns_id) {
  const auto it = namespaces_.find(ns_id);
  if (it == namespaces_.end()) return;
  closing_.push_back(std::move(it->second));
  namespaces_.erase(it);
  for (const auto& [op, ns] : op_ns_) {
    if (ns == ns_id) ops_[op]->Cancel();
  }
  // Its connections stay until its calls have ended: they borrow memory through them.
  services_.NoteTimer(services_.clock.Now());
}

uint64_t ClientCore::Lookup(uint64_t ns_id, std::vector<PageKey> keys, const LookupOptions& options,
                            Done<std::shared_ptr<Hit>> done) {
  ClientNamespace* ns = Find(ns_id);
  absl::Status status = CheckChain(ns, keys.size());
  if (status.ok() && !options.probe &&
      (options.lease_ms == 0 || options.lease_ms > wire::kLeaseMsMax)) {
    status = absl::InvalidArgumentError(
        absl::StrCat("a lease of ", options.lease_ms, " ms; 1 to ", wire::kLeaseMsMax));
  }
  if (!status.ok()) {
    done(std::move(status));
    return 0;
  }
  const Nanos now = services_.clock.Now();
  const uint64_t id = services_.NextId();
  op_ns_[id] = ns_id;
  return Start(std::make_unique<LookupOp>(services_, id, *ns, std::move(keys), options, now,
                                          DeadlineOf(options.deadline, now), std::move(done)),
               now);
}

uint64_t ClientCore::Fetch(uint64_t ns_id, std::shared_ptr<Hit> hit, KvView view,
                           const FetchOptions& options,
                           std::function<void(uint32_t layer, bool in_place)> on_layer,
                           Done<FetchResult> done) {
  ClientNamespace* ns = Find(ns_id);
  absl::Status status = CheckChain(ns, 0);
  if (status.ok() && (hit == nullptr || hit->ns != ns_id)) {
    status = absl::InvalidArgumentError("the hit is not of this namespace");
  }
  uint32_t pages = 0;
  if (status.ok() && options.first_page < hit->page_count()) {
    pages = std::min(options.page_count, hit->page_count() - options.first_page);
  }
  if (status.ok()) status = view.Validate(ns->spec.layout, options.first_page + pages);
  if (!status.ok()) {
    done(std::move(status));
    return 0;
  }
  const Nanos now = services_.clock.Now();
  const uint64_t id = services_.NextId();
  op_ns_[id] = ns_id;
  return Start(std::make_unique<FetchOp>(
                   services_, id, *ns, std::move(hit), std::move(view), options.first_page, pages,
                   DeadlineOf(options.deadline, now), std::move(on_layer), std::move(done)),
               now);
}

uint64_t ClientCore::Publish(uint64_t ns_id, std::vector<PageKey> keys, KvView view,
                             const PublishOptions& options, Done<PublishResult> done) {
  ClientNamespace* ns = Find(ns_id);
  absl::Status status = CheckChain(ns, keys.size());
  if (status.ok() && options.first_page > keys.size()) {
    status = absl::InvalidArgumentError(
        absl::StrCat("first page ", options.first_page, " of ", keys.size()));
  }
  if (status.ok()) {
    status = view.Validate(ns->spec.layout, static_cast<uint32_t>(keys.size()));
  }
  if (status.ok() && options.plan != nullptr) {
    status = CheckPublishPlan(*options.plan, ns->spec.layout, ns->spec.quality,
                              static_cast<uint32_t>(keys.size()));
  }
  if (!status.ok()) {
    done(std::move(status));
    return 0;
  }
  const Nanos now = services_.clock.Now();
  if (WantsProbes(*ns)) Probe(*ns, kForever, nullptr);
  if (UsesDictionary(*ns)) {
    dictionaries_.Keep(services_.options.uniform->dictionary(), kForever, nullptr);
  }
  const uint64_t id = services_.NextId();
  op_ns_[id] = ns_id;
  return Start(
      std::make_unique<PublishOp>(services_, id, *ns, std::move(keys), std::move(view), options,
                                  DeadlineOf(options.deadline, now), std::move(done)),
      now);
}

uint64_t ClientCore::Subscribe(uint64_t ns_id, std::vector<PageKey> keys,
                               const SubscribeOptions& options,
                               std::function<void(uint32_t page_count)> on_progress,
                               Done<uint32_t> done) {
  ClientNamespace* ns = Find(ns_id);
  absl::Status status = CheckChain(ns, keys.size());
  if (!status.ok()) {
    done(std::move(status));
    return 0;
  }
  const Nanos now = services_.clock.Now();
  const uint64_t id = services_.NextId();
  op_ns_[id] = ns_id;
  return Start(std::make_unique<SubscribeOp>(services_, id, *ns, std::move(keys),
                                             DeadlineOf(options.deadline, now),
                                             std::move(on_progress), std::move(done)),
               now);
}

uint64_t ClientCore::Release(const std::shared_ptr<Hit>& hit, Done<bool> done) {
  ClientNamespace* ns = hit == nullptr ? nullptr : Find(hit->ns);
  if (ns == nullptr || hit->released.exchange(true, std::memory_order_acq_rel)) {
    done(false);
    return 0;
  }
  const Nanos now = services_.clock.Now();
  const uint64_t id = services_.NextId();
  op_ns_[id] = ns->id;
  return Start(std::make_unique<ReleaseOp>(services_, id, *ns, hit->grants, DeadlineOf(0, now),
                                           std::move(done)),
               now);
}

void ClientCore::Drop(uint64_t ns_id, const std::vector<LeaseGrant>& grants) {
  ClientNamespace* ns = Find(ns_id);
  if (ns == nullptr) return;
  for (const LeaseGrant& grant : grants) {
    DaemonLink& link = *ns->links[grant.daemon];
    if (grant.lease == 0 || !link.ready() || link.epoch() != grant.epoch) continue;
    wire::Release release;
    release.lease = grant.lease;
    release.flags = wire::kNoReply;
    wire::Writer writer(wire::Kind::kRelease, services_.NextId(), release);
    link.Send(writer.Take());
  }
}

void ClientCore::Cancel(uint64_t call) {
  const auto it = ops_.find(call);
  if (it != ops_.end()) it->second->Cancel();
}

std::vector<DaemonStatus> ClientCore::daemons() const {
  std::vector<DaemonStatus> all(services_.options.daemons.size());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].control = services_.options.daemons[i].control;
    for (const auto& [id, ns] : namespaces_) {
      const DaemonStatus status = ns->links[i]->Describe();
      all[i].connected |= status.connected;
      all[i].reconnects += status.reconnects;
      if (!status.path.empty()) all[i].path = status.path;
      if (!status.last_error.empty()) all[i].last_error = status.last_error;
    }
  }
  return all;
}

void ClientCore::BeginShutdown() {
  shut_ = true;
  std::vector<uint64_t> open;
  for (const auto& [id, ns] : namespaces_) open.push_back(id);
  for (uint64_t id : open) CloseNamespace(id);
}

bool ClientCore::idle() const {
  return ops_.empty() && namespaces_.empty() && closing_.empty() &&
         services_.ports.endpoint_count() == 0;
}

bool ClientCore::TakeSessions() {
  const std::vector<SessionInbox::Entry> entries = services_.inbox->Take();
  for (const SessionInbox::Entry& entry : entries) {
    for (const auto& [id, ns] : namespaces_) {
      for (const std::unique_ptr<DaemonLink>& link : ns->links) {
        if (link->id() == entry.link) link->OnSession(entry.attempt, entry.reply);
      }
    }
  }
  return !entries.empty();
}

bool ClientCore::RunWoken(Nanos now) {
  if (services_.runnable.empty()) return false;
  const std::vector<ClientOp*> woken = std::exchange(services_.runnable, {});
  for (ClientOp* op : woken) {
    op->queued_ = false;
    // A callback may start other calls; it cannot end this one but through itself.
    op->Advance(now);
    if (op->done()) EraseOp(op->id());
  }
  return true;
}

void ClientCore::RunTimers(Nanos now) {
  if (now < services_.next_timer) return;
  services_.next_timer = kForever;
  Reap();
  for (const auto& [id, ns] : namespaces_) {
    for (const std::unique_ptr<DaemonLink>& link : ns->links) {
      link->Tick(now);
      services_.NoteTimer(link->next_timer());
    }
  }
  for (const auto& [id, op] : ops_) {
    if (op->wake_at() <= now) {
      op->WakeUp();
    } else {
      services_.NoteTimer(op->wake_at());
    }
  }
}

// Namespaces that were closed go once their calls have ended and their endpoints are gone.
void ClientCore::Reap() {
  for (size_t i = 0; i < closing_.size();) {
    ClientNamespace& ns = *closing_[i];
    const bool busy = std::any_of(op_ns_.begin(), op_ns_.end(),
                                  [&](const auto& entry) { return entry.second == ns.id; });
    bool closed = !busy;
    if (!busy) {
      for (const std::unique_ptr<DaemonLink>& link : ns.links) {
        link->Shut();
        closed = closed && link->closed();
      }
    }
    if (closed) {
      closing_.erase(closing_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

bool ClientCore::Poll(Nanos now) {
  bool worked = TakeSessions();
  worked |= services_.workers.RunDone();
  worked |= services_.ports.Poll(now);
  RunTimers(now);
  worked |= RunWoken(now);
  if (!closing_.empty()) Reap();
  return worked;
}

bool ClientCore::HasWork() const {
  return !services_.runnable.empty() || !services_.inbox->empty() || services_.workers.has_done();
}

bool ClientCore::PrepareToSleep(std::vector<int>& fds) {
  if (HasWork()) return false;
  return services_.ports.PrepareToSleep(fds);
}

Nanos ClientCore::NextDeadline() const {
  // Work that waits for a turn is due already.
  if (HasWork()) return services_.clock.Now();
  return std::min(services_.next_timer, services_.ports.NextDeadline());
}

}  // namespace forebay
