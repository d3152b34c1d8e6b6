#include "client/pool_client.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/codec_workers.h"
#include "client/engine.h"
#include "client/hit.h"
#include "codec/uniform/uniform_codec.h"
#include "proto/accept.h"
#include "proto/host_id.h"

namespace forebay {
namespace {

absl::Status Forked() {
  return absl::FailedPreconditionError("the client belongs to the process that forked this one");
}

absl::Status NotSubmitted(const Engine& engine) {
  if (!engine.Alive()) return Forked();
  return absl::CancelledError("the client is gone, or has too many calls under way");
}

// Which call of the core a Pending stands for. Used on the reactor only.
struct CallId {
  uint64_t id = 0;
  bool cancelled = false;
};

template <typename T>
std::shared_ptr<typename Pending<T>::State> NewCall(const std::shared_ptr<Engine>& engine,
                                                    const std::shared_ptr<CallId>& call) {
  auto state = std::make_shared<typename Pending<T>::State>();
  state->progress = engine;
  state->cancel = [engine, call] {
    engine->Submit([engine = engine.get(), call] {
      call->cancelled = true;
      engine->core().Cancel(call->id);
    });
  };
  return state;
}

// Starts a call on the reactor and gives what it will give. `start` gets the core and a callback,
// and returns the core's id; `convert` makes the result for the caller from the core's.
template <typename T, typename From, typename Start, typename Convert>
Pending<T> Call(const std::shared_ptr<Engine>& engine, Start start, Convert convert) {
  auto call = std::make_shared<CallId>();
  std::shared_ptr<typename Pending<T>::State> state = NewCall<T>(engine, call);
  const bool submitted = engine->Submit(
      [raw = engine.get(), call, state, start = std::move(start), convert]() mutable {
        auto done = [raw, state, convert](absl::StatusOr<From> result) {
          if (result.ok()) {
            state->Complete(convert(*std::move(result)));
          } else {
            state->Complete(result.status());
          }
          raw->NotifyWaiters();
        };
        if (call->cancelled) {
          done(absl::CancelledError("the call was cancelled"));
        } else {
          call->id = start(raw->core(), std::move(done));
        }
      });
  if (!submitted) state->Complete(NotSubmitted(*engine));
  return Pending<T>(std::move(state));
}

absl::Status CheckAddress(absl::string_view address) {
  if (absl::StartsWith(address, "unix:")) return absl::OkStatus();
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port == 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("daemon address \"", address, "\" is not host:port"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const ClientOptions& options) {
  if (options.daemons.empty()) return absl::InvalidArgumentError("no daemon is named");
  if (options.daemons.size() > UINT16_MAX) return absl::InvalidArgumentError("too many daemons");
  std::set<std::string> seen;
  for (const DaemonAddress& daemon : options.daemons) {
    FB_RETURN_IF_ERROR(CheckAddress(daemon.control));
    if (!seen.insert(daemon.control).second) {
      return absl::InvalidArgumentError(absl::StrCat("daemon ", daemon.control, " is named twice"));
    }
    if (!(daemon.weight > 0) || !std::isfinite(daemon.weight)) {
      return absl::InvalidArgumentError(absl::StrCat("daemon ", daemon.control, " has weight ",
                                                     daemon.weight, "; it must be above 0"));
    }
  }
  if (options.default_deadline <= 0) {
    return absl::InvalidArgumentError("default_deadline must be above 0");
  }
  if (options.reconnect_interval_min <= 0 ||
      options.reconnect_interval_max < options.reconnect_interval_min) {
    return absl::InvalidArgumentError(
        "reconnect_interval_min must be above 0 and not above reconnect_interval_max");
  }
  if (options.spin_ns < 0) return absl::InvalidArgumentError("spin_ns must not be negative");
  if (options.fetch_window_bytes == 0) {
    return absl::InvalidArgumentError("fetch_window_bytes must be above 0");
  }
  FB_RETURN_IF_ERROR(CheckCodecName(options.codec));
  if (options.codec == "uniform" && options.dictionary_file.empty()) {
    return absl::InvalidArgumentError("the codec uniform needs a dictionary_file");
  }
  if (options.codec_threads < -1 || options.codec_threads > kCodecThreadsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec_threads is ", options.codec_threads, "; -1 to ", kCodecThreadsMax));
  }
  if (!(options.key_dial > 0) || !(options.value_dial > 0)) {
    return absl::InvalidArgumentError("key_dial and value_dial must be above 0");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const UniformCodec>> LoadUniform(const ClientOptions& options) {
  std::ifstream file(options.dictionary_file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("cannot read the dictionary ", options.dictionary_file));
  }
  absl::StatusOr<Dictionary> parsed = Dictionary::Parse(AsBytes(text.data(), text.size()));
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.dictionary_file, ": ", parsed.status().message()));
  }
  auto dictionary = std::make_shared<const Dictionary>(*std::move(parsed));
  DictionaryStore::Default().Add(dictionary);
  return std::make_shared<const UniformCodec>("uniform", &DictionaryStore::Default(),
                                              std::move(dictionary), options.key_dial,
                                              options.value_dial);
}

}  // namespace

// ---- PrefixHit

struct PrefixHit::State {
  State(std::shared_ptr<Engine> the_engine, std::shared_ptr<Hit> the_hit)
      : engine(std::move(the_engine)), hit(std::move(the_hit)) {}
  // Leases that nobody holds any more go back. If that cannot be said, they end by themselves.
  ~State() {
    if (hit->grants.empty() || hit->released.load(std::memory_order_acquire)) return;
    engine->Submit([raw = engine.get(), held = hit] {
      if (!held->released.exchange(true, std::memory_order_acq_rel)) {
        raw->core().Drop(held->ns, held->grants);
      }
    });
  }

  std::shared_ptr<Engine> engine;
  std::shared_ptr<Hit> hit;
  // For View(): the namespace's layout, and its parts.
  std::shared_ptr<const KvLayout> layout;
  std::shared_ptr<const std::vector<PartSpec>> parts;
};

uint32_t PrefixHit::page_count() const { return state_ == nullptr ? 0 : state_->hit->page_count(); }

Nanos PrefixHit::fetch_estimate() const {
  return state_ == nullptr ? 0 : state_->hit->fetch_estimate;
}

const std::vector<PageKey>& PrefixHit::keys() const {
  static const auto* none = new std::vector<PageKey>;
  return state_ == nullptr ? *none : state_->hit->keys;
}

absl::StatusOr<Bytes> PrefixHit::View(uint32_t page, uint16_t part) const {
  if (page >= page_count() || part >= state_->parts->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("part ", part, " of page ", page, " is not in this hit"));
  }
  const Hit& hit = *state_->hit;
  const wire::SlotLocation* location = hit.LocationOf(page, part);
  const LeaseGrant& grant = hit.grants[hit.grant_of[page]];
  const Bytes frame = location == nullptr || grant.regions == nullptr
                          ? Bytes()
                          : FrameAt(*grant.regions, *location);
  if (frame.empty()) return absl::UnavailableError("the page is not mapped here");
  if (hit.released.load(std::memory_order_acquire) ||
      state_->engine->clock().Now() >= grant.deadline) {
    return absl::UnavailableError("the lease is over");
  }
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof(header));
  // Raw bytes satisfy every contract.
  const QualityContract any;
  const ExpectedFrame expected{*state_->layout, (*state_->parts)[part], hit.keys[page], page, any};
  const bool sound = CheckFrameClaim(header, expected).ok() &&
                     header.codec == static_cast<uint8_t>(CodecId::kRaw) &&
                     header.payload_bytes == frame.size() - kFrameHeaderBytes &&
                     header.payload_bytes == expected.part.raw_bytes;
  if (!sound) return absl::UnavailableError("the page is not there any more, or is not raw");
  return frame.subspan(kFrameHeaderBytes);
}

Pending<bool> PrefixHit::Release() {
  if (state_ == nullptr) return Pending<bool>::Ready(false);
  return Call<bool, bool>(
      state_->engine,
      [hit = state_->hit](ClientCore& core, ClientCore::Done<bool> done) {
        return core.Release(hit, std::move(done));
      },
      [](bool valid) { return valid; });
}

// ---- FetchHandle

// Which layers are in place, as the fetch tells.
struct FetchHandle::Layers {
  enum class Layer : uint8_t { kPending, kInPlace, kMissed };

  explicit Layers(std::shared_ptr<Engine> the_engine, size_t layer_count)
      : engine(std::move(the_engine)), layers(layer_count, Layer::kPending) {}

  void Mark(uint32_t layer, bool in_place) {
    {
      absl::MutexLock lock(&mutex);
      if (layers[layer] == Layer::kPending) {
        layers[layer] = in_place ? Layer::kInPlace : Layer::kMissed;
      }
    }
    engine->NotifyWaiters();
  }
  // The fetch is over: what is not in place will not be.
  void End() {
    absl::MutexLock lock(&mutex);
    std::replace(layers.begin(), layers.end(), Layer::kPending, Layer::kMissed);
  }
  bool Settled(uint32_t layer) {
    absl::MutexLock lock(&mutex);
    return layers[layer] != Layer::kPending;
  }

  const std::shared_ptr<Engine> engine;
  absl::Mutex mutex;
  std::vector<Layer> layers ABSL_GUARDED_BY(mutex);
};

bool FetchHandle::WaitLayer(uint32_t layer) const {
  Layers* layers = layers_.get();
  if (layers == nullptr || !layers->engine->Alive()) return false;
  {
    absl::MutexLock lock(&layers->mutex);
    if (layer >= layers->layers.size()) return false;
  }
  layers->engine->WaitUntil([layers, layer] { return layers->Settled(layer); }, kForever);
  absl::MutexLock lock(&layers->mutex);
  const auto settled = [layers, layer]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(layers->mutex) {
    return layers->layers[layer] != Layers::Layer::kPending;
  };
  layers->mutex.Await(absl::Condition(&settled));
  return layers->layers[layer] == Layers::Layer::kInPlace;
}

// ---- PoolNamespace

struct PoolNamespace::State {
  ~State() {
    engine->Submit([raw = engine.get(), id = ns] { raw->core().CloseNamespace(id); });
  }

  std::shared_ptr<Engine> engine;
  uint64_t ns = 0;
  NamespaceSpec spec;
  PageKey root;
  std::shared_ptr<const KvLayout> layout;
  std::shared_ptr<const std::vector<PartSpec>> parts;
};

const NamespaceSpec& PoolNamespace::spec() const { return state_->spec; }
const PageKey& PoolNamespace::root() const { return state_->root; }

Pending<PrefixHit> PoolNamespace::Lookup(std::vector<PageKey> keys, LookupOptions options) {
  return Call<PrefixHit, std::shared_ptr<Hit>>(
      state_->engine,
      [ns = state_->ns, keys = std::move(keys), options](
          ClientCore& core, ClientCore::Done<std::shared_ptr<Hit>> done) mutable {
        return core.Lookup(ns, std::move(keys), options, std::move(done));
      },
      [engine = state_->engine, layout = state_->layout,
       parts = state_->parts](std::shared_ptr<Hit> hit) {
        auto state = std::make_shared<PrefixHit::State>(engine, std::move(hit));
        state->layout = layout;
        state->parts = parts;
        return PrefixHit(std::move(state));
      });
}

FetchHandle PoolNamespace::Fetch(const PrefixHit& hit, KvView view, FetchOptions options) {
  auto layers =
      std::make_shared<FetchHandle::Layers>(state_->engine, state_->layout->layers.size());
  std::shared_ptr<Hit> held = hit.state() == nullptr ? nullptr : hit.state()->hit;
  Pending<FetchResult> pending = Call<FetchResult, FetchResult>(
      state_->engine,
      // Keeps the hit's state, and with it the leases, until the fetch has ended.
      [ns = state_->ns, held = std::move(held), keep = hit.state(), view = std::move(view), options,
       layers](ClientCore& core, ClientCore::Done<FetchResult> done) mutable {
        return core.Fetch(
            ns, std::move(held), std::move(view), options,
            [layers](uint32_t layer, bool in_place) { layers->Mark(layer, in_place); },
            [layers, keep = std::move(keep),
             done = std::move(done)](absl::StatusOr<FetchResult> result) {
              layers->End();
              done(std::move(result));
            });
      },
      [](FetchResult result) { return result; });
  // A call that could not be submitted has told nobody.
  pending.OnReady([layers](const absl::StatusOr<FetchResult>&) { layers->End(); });
  return FetchHandle(std::move(pending), std::move(layers));
}

Pending<PublishResult> PoolNamespace::Publish(std::vector<PageKey> keys, KvView view,
                                              PublishOptions options) {
  return Call<PublishResult, PublishResult>(
      state_->engine,
      [ns = state_->ns, keys = std::move(keys), view = std::move(view), options](
          ClientCore& core, ClientCore::Done<PublishResult> done) mutable {
        return core.Publish(ns, std::move(keys), std::move(view), options, std::move(done));
      },
      [](PublishResult result) { return result; });
}

Pending<uint32_t> PoolNamespace::Subscribe(std::vector<PageKey> keys, SubscribeOptions options,
                                           std::function<void(uint32_t)> on_progress) {
  return Call<uint32_t, uint32_t>(
      state_->engine,
      [ns = state_->ns, keys = std::move(keys), options, on_progress = std::move(on_progress)](
          ClientCore& core, ClientCore::Done<uint32_t> done) mutable {
        return core.Subscribe(ns, std::move(keys), options, std::move(on_progress),
                              std::move(done));
      },
      [](uint32_t pages) { return pages; });
}

Pending<std::vector<PathCodec>> PoolNamespace::ExplainCodecs(uint64_t raw_bytes) {
  return Call<std::vector<PathCodec>, std::vector<PathCodec>>(
      state_->engine,
      [ns = state_->ns, raw_bytes](ClientCore& core,
                                   ClientCore::Done<std::vector<PathCodec>> done) {
        done(core.ExplainCodecs(ns, raw_bytes));
        return uint64_t{0};
      },
      [](std::vector<PathCodec> paths) { return paths; });
}

// ---- PoolClient

struct PoolClient::State {
  std::shared_ptr<Engine> engine;
};

absl::StatusOr<std::unique_ptr<PoolClient>> PoolClient::Connect(ClientOptions options) {
  FB_RETURN_IF_ERROR(CheckOptions(options));
  const bool caller_driven = options.progress == Progress::kCaller;
  ClientCoreOptions core;
  core.daemons = std::move(options.daemons);
  core.path = options.path;
  core.name = std::move(options.name);
  core.host_id = OwnHostId();
  core.default_deadline = options.default_deadline;
  core.reconnect_interval_min = options.reconnect_interval_min;
  core.reconnect_interval_max = options.reconnect_interval_max;
  core.fetch_window_bytes = options.fetch_window_bytes;
  core.codec = std::move(options.codec);
  core.processors = static_cast<int>(ProcessorCount());
  core.codec_threads = options.codec_threads < 0 ? DefaultCodecThreads() : options.codec_threads;
  if (!options.dictionary_file.empty()) {
    FB_ASSIGN_OR_RETURN(core.uniform, LoadUniform(options));
  }
  if (core.codec == "auto") {
    // Once a process: they are the machine's, and take a while.
    static const auto* const rates =
        new MeasuredRates(MeasureCodecRates(SystemClock(), DefaultCodecThreads()));
    core.codec_rates = *rates;
  }
  // Whoever drives waits for its own call: nothing else is held up by going straight through.
  if (caller_driven) core.slice_bytes = UINT64_MAX;
  const Uint128Bytes random = RandomId();
  std::memcpy(&core.seed, random.data(), sizeof(core.seed));

  auto state = std::make_shared<State>();
  state->engine = std::make_shared<Engine>(std::move(core), std::move(options.token), options.ucx,
                                           caller_driven, options.spin_ns);
  state->engine->Start();
  return std::unique_ptr<PoolClient>(new PoolClient(std::move(state)));
}

PoolClient::PoolClient(std::shared_ptr<State> state) : state_(std::move(state)) {}

PoolClient::~PoolClient() {
  if (state_->engine->Alive()) {
    state_->engine->Shutdown();
    return;
  }
  // A forked child has none of the threads that could end what the parent began, and the memory is
  // the parent's to account for: it is left as it is.
  static_cast<void>(new std::shared_ptr<State>(state_));
}

Pending<std::shared_ptr<PoolNamespace>> PoolClient::OpenNamespace(NamespaceSpec spec,
                                                                  Nanos deadline) {
  const std::shared_ptr<Engine>& engine = state_->engine;
  auto layout = std::make_shared<const KvLayout>(spec.layout);
  return Call<std::shared_ptr<PoolNamespace>, ClientCore::Opened>(
      engine,
      [spec, deadline](ClientCore& core, ClientCore::Done<ClientCore::Opened> done) mutable {
        return core.OpenNamespace(std::move(spec), deadline, std::move(done));
      },
      [engine, spec, layout](ClientCore::Opened opened) {
        auto state = std::make_shared<PoolNamespace::State>();
        state->engine = engine;
        state->ns = opened.ns;
        state->spec = spec;
        state->root = opened.root;
        state->layout = layout;
        state->parts = std::make_shared<const std::vector<PartSpec>>(layout->Parts());
        return std::make_shared<PoolNamespace>(std::move(state));
      });
}

std::vector<DaemonStatus> PoolClient::daemons() const {
  const std::shared_ptr<Engine>& engine = state_->engine;
  if (engine->OnReactor()) return engine->core().daemons();
  const absl::StatusOr<std::vector<DaemonStatus>> all =
      Call<std::vector<DaemonStatus>, std::vector<DaemonStatus>>(
          engine,
          [](ClientCore& core, ClientCore::Done<std::vector<DaemonStatus>> done) {
            done(core.daemons());
            return uint64_t{0};
          },
          [](std::vector<DaemonStatus> daemons) { return daemons; })
          .Wait();
  return all.ok() ? *all : std::vector<DaemonStatus>();
}

std::string PoolClient::MetricsText() const { return state_->engine->MetricsText(); }

}  // namespace forebay
