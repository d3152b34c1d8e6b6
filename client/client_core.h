#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/reactor.h"
#include "client/client_namespace.h"
#include "client/client_options.h"
#include "client/core_services.h"
#include "client/dictionary_exchange.h"
#include "client/hit.h"
#include "client/kv_view.h"

namespace forebay {

// The whole of a client, without threads, waits or I/O of its own: connections to daemons and calls
// under way, driven by Poll. PoolClient puts it on a reactor; a simulation turns many by hand.
//
// Every call ends in one callback, by its deadline (a duration; 0: the default), from inside Poll
// or from inside the call itself. Calls give an id for Cancel(), 0 where they have ended already.
//
// Borrows  the clock, the opener and the registry. Memory of views until the callback.
// Threads  one reactor.
class ClientCore final : public Pollable {
 public:
  template <typename T>
  using Done = std::function<void(absl::StatusOr<T>)>;

  // What a caller gets to know of a namespace that it opened.
  struct Opened {
    uint64_t ns = 0;
    PageKey root;
  };

  // `wake` makes the reactor take a turn; it is called from other threads, until the core goes.
  ClientCore(const Clock& clock, SessionOpener& opener, ClientCoreOptions options,
             TransportFactory factory, MetricRegistry& registry, std::function<void()> wake);
  // Requires idle() after BeginShutdown(), so that no memory is borrowed.
  ~ClientCore() override;

  // INVALID_ARGUMENT, the daemons' own refusal, or UNAVAILABLE naming each daemon and why.
  uint64_t OpenNamespace(NamespaceSpec spec, Nanos deadline, Done<Opened> done);
  // Cancels its calls and closes its connections. Later calls on it are FAILED_PRECONDITION.
  void CloseNamespace(uint64_t ns);

  uint64_t Lookup(uint64_t ns, std::vector<PageKey> keys, const LookupOptions& options,
                  Done<std::shared_ptr<Hit>> done);
  uint64_t Fetch(uint64_t ns, std::shared_ptr<Hit> hit, KvView view, const FetchOptions& options,
                 std::function<void(uint32_t layer, bool in_place)> on_layer,
                 Done<FetchResult> done);
  uint64_t Publish(uint64_t ns, std::vector<PageKey> keys, KvView view,
                   const PublishOptions& options, Done<PublishResult> done);
  uint64_t Subscribe(uint64_t ns, std::vector<PageKey> keys, const SubscribeOptions& options,
                     std::function<void(uint32_t page_count)> on_progress, Done<uint32_t> done);
  // Gives the leases of `hit` back; true if each was valid to the end. Once; then it is false.
  uint64_t Release(const std::shared_ptr<Hit>& hit, Done<bool> done);
  // The same without an answer, for a hit that nobody holds any more.
  void Drop(uint64_t ns, const std::vector<LeaseGrant>& grants);

  // What would be published to each daemon as which codec, and why, for `raw_bytes` of parts whose
  // layers have the contract's general bound.
  absl::StatusOr<std::vector<PathCodec>> ExplainCodecs(uint64_t ns, uint64_t raw_bytes);

  void Cancel(uint64_t call);

  // By daemon, over all namespaces: connected if any of its connections is.
  std::vector<DaemonStatus> daemons() const;

  // Cancels every call and closes every connection. Calls that come later are CANCELLED.
  void BeginShutdown();
  // No call is under way and no endpoint is open.
  bool idle() const;
  size_t calls() const { return ops_.size(); }

  bool Poll(Nanos now) override;
  bool PrepareToSleep(std::vector<int>& fds) override;
  Nanos NextDeadline() const override;

 private:
  ClientNamespace* Find(uint64_t ns);
  bool WantsProbes(const ClientNamespace& ns) const;
  void Probe(ClientNamespace& ns, Nanos until, std::function<void()> done);
  absl::Status CheckForcedCodec(const NamespaceSpec& spec) const;
  bool UsesDictionary(const ClientNamespace& ns) const;
  absl::Status CheckChain(const ClientNamespace* ns, size_t page_count) const;
  Nanos DeadlineOf(Nanos duration, Nanos now) const;
  uint64_t Start(std::unique_ptr<ClientOp> op, Nanos now);
  bool RunWoken(Nanos now);
  void RunTimers(Nanos now);
  bool TakeSessions();
  bool HasWork() const;
  void Reap();
  void EraseOp(uint64_t id);

  CoreServices services_;
  DictionaryExchange dictionaries_{*this, services_};
  // Walked in order: what a seeded world does must not depend on how a table hashes.
  absl::btree_map<uint64_t, std::unique_ptr<ClientNamespace>> namespaces_;
  absl::btree_map<uint64_t, std::unique_ptr<ClientOp>> ops_;
  absl::btree_map<uint64_t, uint64_t> op_ns_;  // op -> its namespace
  std::vector<std::unique_ptr<ClientNamespace>> closing_;
  bool shut_ = false;
};

}  // namespace forebay
