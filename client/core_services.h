#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/random.h"
#include "client/buffer_pool.h"
#include "client/client_metrics.h"
#include "client/client_options.h"
#include "client/codec_book.h"
#include "client/codec_workers.h"
#include "client/transport_ports.h"
#include "proto/control.h"

namespace forebay {

// How a client core behaves.
struct ClientCoreOptions {
  std::vector<DaemonAddress> daemons;
  PathChoice path = PathChoice::kAuto;
  std::string name = "client";
  std::string host_id;  // this process's; equal to a daemon's: the local path is tried
  Nanos default_deadline = 5 * kSecond;
  Nanos connect_timeout = 3 * kSecond;  // to open a session, and for all data addresses together
  Nanos reconnect_interval_min = 50 * kMillisecond;
  Nanos reconnect_interval_max = 5 * kSecond;
  // How long memory may stay borrowed by a transfer after its call should have ended, before the
  // connection is closed to get it back.
  Nanos landing_grace = 100 * kMillisecond;
  uint64_t fetch_window_bytes = 64ull << 20;    // asked for and not yet here, per daemon
  uint64_t publish_window_bytes = 32ull << 20;  // sent and not yet answered, per daemon
  uint64_t get_message_bytes = 1ull << 20;      // of payload asked for by one Get
  // Of payload in one Put over a network. After each the transport gets a turn, so that one crosses
  // while the next is hashed.
  uint64_t put_message_bytes = 1ull << 20;
  // In one Put over shared memory: so small that the daemon copies one while the next is filled.
  uint64_t put_message_bytes_local = 256ull << 10;
  // Bytes copied or hashed in one turn before others get theirs.
  uint64_t slice_bytes = 2ull << 20;
  uint64_t seed = 1;          // of the jitter
  std::string codec = "raw";  // or "auto", or another codec's name, for what is published
  MeasuredRates codec_rates;  // what "auto" begins with; empty: nominal
  std::shared_ptr<const UniformCodec> uniform;  // the codec "uniform", with a dictionary; or null
  int codec_threads = 0;                        // that encode and decode; 0: the reactor does
  int processors = 0;                           // of this host, for the choice of codecs; 0: enough
};

// Answers of session openers, from whatever thread they come on, until the core takes them.
//
// Threads  Put from any thread; Take from the core's reactor.
class SessionInbox {
 public:
  struct Entry {
    uint64_t link = 0;
    uint64_t attempt = 0;
    absl::StatusOr<OpenSessionReply> reply = absl::UnknownError("none");
  };

  explicit SessionInbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Put(Entry entry) {
    absl::MutexLock lock(&mutex_);
    entries_.push_back(std::move(entry));
    // Under the lock, so that Detach() ends every use of what `wake_` refers to.
    if (wake_) wake_();
  }
  std::vector<Entry> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(entries_, {});
  }
  bool empty() {
    absl::MutexLock lock(&mutex_);
    return entries_.empty();
  }
  void Detach() {
    absl::MutexLock lock(&mutex_);
    wake_ = nullptr;
  }

 private:
  absl::Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
};

class ClientOp;
class DictionaryExchange;

// What the parts of one client core share. Owned by the core.
//
// Threads  the core's reactor, apart from the inbox.
struct CoreServices {
  CoreServices(const Clock& the_clock, SessionOpener& the_opener, ClientCoreOptions the_options,
               TransportFactory factory, MetricRegistry& registry, std::function<void()> wake)
      : clock(the_clock),
        opener(the_opener),
        options(std::move(the_options)),
        ports(std::move(factory)),
        metrics(registry, ControlsOf(options)),
        random(options.seed),
        codecs(options.codec, options.codec_rates, options.uniform),
        workers(options.codec_threads, wake),
        inbox(std::make_shared<SessionInbox>(std::move(wake))) {}

  static std::vector<std::string> ControlsOf(const ClientCoreOptions& options) {
    std::vector<std::string> controls;
    for (const DaemonAddress& daemon : options.daemons) controls.push_back(daemon.control);
    return controls;
  }
  uint64_t NextId() { return next_id++; }
  // Something wants a turn at `at`.
  void NoteTimer(Nanos at) {
    if (at < next_timer) next_timer = at;
  }

  const Clock& clock;
  SessionOpener& opener;
  const ClientCoreOptions options;
  TransportPorts ports;
  ClientMetrics metrics;
  SeededRandom random;
  CodecBook codecs;
  CodecWorkers workers;
  BufferPool buffers;
  DictionaryExchange* dictionaries = nullptr;  // the core's
  std::shared_ptr<SessionInbox> inbox;
  std::vector<ClientOp*> runnable;
  Nanos next_timer = kForever;
  uint64_t next_id = 1;
};

}  // namespace forebay
