#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/namespace_spec.h"
#include "base/page_key.h"
#include "client/client_options.h"
#include "client/kv_view.h"
#include "client/pending.h"

// The library that an inference engine links. This header is the guide to the folder.
//
//   auto client = PoolClient::Connect({.daemons = {{"127.0.0.1:7400"}}});
//   auto ns     = (*client)->OpenNamespace(spec, 5 * kSecond).Wait();
//   auto keys   = PageKeysOf((*ns)->root(), prompt_tokens, page_tokens);
//   auto hit    = (*ns)->Lookup(keys, {}).Wait();                 // a plan and a lease
//   auto fetch  = (*ns)->Fetch(*hit, view, {});                   // into the engine's own pages
//   fetch.WaitLayer(0); … run layer 0 … fetch.WaitLayer(1); …     // or fetch.Wait()
//   (*ns)->Publish(keys, view, {.first_page = 7});                // what was computed
//
// Every call is asynchronous: it gives a Pending, which can be waited for, polled, cancelled or
// dropped. Every call has a deadline. A daemon that is dead, slow or wrong means misses: never a
// hang, never a crash of the engine, never a wrong page.
//
// Threads  any thread may call anything; but the last owner of a client does not drop it from
//          inside one of its callbacks. Progress is made by a thread of the client's own, or, with
//          Progress::kCaller, by whoever waits: a client that nobody waits on for some seconds
//          answers no pings, is taken for dead, and its next call is a miss while it connects
//          again.
namespace forebay {

class PoolNamespace;

enum class Progress : uint8_t { kThread, kCaller };

struct ClientOptions {
  std::vector<DaemonAddress> daemons;  // at least one
  PathChoice path = PathChoice::kAuto;
  Progress progress = Progress::kThread;
  std::string name = "client";  // for people
  UcxChoice ucx = {};           // for the path "ucx"
  std::string token = "";       // the tenant's, where the daemons ask for one
  Nanos default_deadline = 5 * kSecond;
  Nanos reconnect_interval_min = 50 * kMillisecond;
  Nanos reconnect_interval_max = 5 * kSecond;
  Nanos spin_ns = 50 * kMicrosecond;          // before a waiter sleeps
  uint64_t fetch_window_bytes = 64ull << 20;  // asked for and not yet here, per daemon
  // What pages are published as: "auto" (chosen for each daemon's path, within the namespace's
  // quality contract), "raw", or another codec's name (codec/planes_codec.h).
  std::string codec = "auto";
  // A file with a dictionary (codec/uniform/dictionary.h) of the model that is served, made by
  // UniformCalibrator: then "uniform" is a codec too, its steps times the dials. It is put
  // into the pool too, from where readers get it by its name.
  std::string dictionary_file = "";
  float key_dial = 1;
  float value_dial = 1;
  // Threads that encode and decode, while the client's own moves bytes; they start with the first
  // work. -1: a quarter of the processors, 2 to 8. 0: the client's own does.
  int codec_threads = -1;
};

// How much of a chain the pool holds: fetch the first `page_count` pages, recompute the rest.
class PrefixHit {
 public:
  uint32_t page_count() const;
  // The client's estimate of the time that fetching them takes over its paths.
  Nanos fetch_estimate() const;
  const std::vector<PageKey>& keys() const;  // of these pages
  // The raw bytes of part `part` of page `page`, in place in the daemon's memory: same host, raw
  // codec. Valid until Release or the lease ends; bytes read from it may be
  // used only if Release then answers true.
  //   UNAVAILABLE  the page is not mapped here
  absl::StatusOr<Bytes> View(uint32_t page, uint16_t part) const;
  // Ends the lease. True: no page of it left its generation, so what was read in place is right.
  Pending<bool> Release();

  // Copies share the lease; the last to go releases it.
  struct State;
  explicit PrefixHit(std::shared_ptr<State> state) : state_(std::move(state)) {}
  PrefixHit() = default;
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// A fetch under way.
class FetchHandle {
 public:
  // Until layer `layer` of all pages is in place: true. False: some page missed; Wait() says which.
  bool WaitLayer(uint32_t layer) const;
  // The end. The engine's memory is its own again only after this returns or IsReady() is true.
  absl::StatusOr<FetchResult> Wait() const { return pending_.Wait(); }
  bool IsReady() const { return pending_.IsReady(); }
  // Asks it to end soon; Wait() then gives CANCELLED. The memory stays borrowed until it has ended.
  void Cancel() const { pending_.Cancel(); }

  struct Layers;
  FetchHandle(Pending<FetchResult> pending, std::shared_ptr<Layers> layers)
      : pending_(std::move(pending)), layers_(std::move(layers)) {}

 private:
  Pending<FetchResult> pending_;
  std::shared_ptr<Layers> layers_;
};

// A namespace that was opened on every daemon that answered.
//
// Limits   a chain has at most kChainPagesMax pages: INVALID_ARGUMENT beyond.
class PoolNamespace {
 public:
  static constexpr uint32_t kChainPagesMax = 1u << 16;

  const NamespaceSpec& spec() const;
  const PageKey& root() const;

  // How many leading pages of `keys` the pool holds. A miss is 0, not an error.
  Pending<PrefixHit> Lookup(std::vector<PageKey> keys, LookupOptions options);
  // Fetches pages of `hit` into `view` (page i of the hit is page i of the view's sequence).
  FetchHandle Fetch(const PrefixHit& hit, KvView view, FetchOptions options);
  // Stores pages [first_page, keys.size()) of the chain from `view`.
  Pending<PublishResult> Publish(std::vector<PageKey> keys, KvView view, PublishOptions options);
  // Waits until the pool holds all of `keys`, or the deadline. Calls `on_progress` (may be null) on
  // the client's thread with the number of leading pages. The result is that number at the end.
  Pending<uint32_t> Subscribe(std::vector<PageKey> keys, SubscribeOptions options,
                              std::function<void(uint32_t)> on_progress);
  // For each daemon: as which codec `raw_bytes` would be published over its path, and why.
  Pending<std::vector<PathCodec>> ExplainCodecs(uint64_t raw_bytes);

  struct State;
  explicit PoolNamespace(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

class PoolClient {
 public:
  // Does not wait for the daemons. INVALID_ARGUMENT naming a bad address, weight or option.
  static absl::StatusOr<std::unique_ptr<PoolClient>> Connect(ClientOptions options);
  // Cancels what is under way and waits until no transport touches the engine's memory.
  ~PoolClient();

  // Opens the namespace on every daemon. Ready when each has answered or failed; UNAVAILABLE only
  // if none is reachable within `deadline`; INVALID_ARGUMENT or FAILED_PRECONDITION if one refuses;
  // INVALID_ARGUMENT where the namespace's contract forbids the codec that is forced.
  Pending<std::shared_ptr<PoolNamespace>> OpenNamespace(NamespaceSpec spec, Nanos deadline);

  std::vector<DaemonStatus> daemons() const;
  std::string MetricsText() const;

  struct State;

 private:
  explicit PoolClient(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace forebay
