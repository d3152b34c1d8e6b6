#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace forebay::testing {

inline constexpr uint32_t kTortureThreadsMax = 4;
inline constexpr Nanos kTortureCallGrace = kSecond;  // after a deadline a call is late

// What one client process tells the harness: plain numbers in shared memory, so that they outlive a
// process that is killed at any moment. A client that starts anew goes on counting.
struct TortureCounters {
  std::atomic<uint64_t> reads;         // pages that were called good and were checked
  std::atomic<uint64_t> views;         // of these, read in place
  std::atomic<uint64_t> bytes;         // of them
  std::atomic<uint64_t> misses;        // pages that did not come
  std::atomic<uint64_t> wrong;         // of `reads`
  std::atomic<uint64_t> pages_stored;  // by publishes, or here before
  std::atomic<uint64_t> calls;
  std::atomic<uint64_t> late;       // calls that ended after deadline and grace
  std::atomic<uint64_t> connected;  // namespaces opened
  std::atomic<uint64_t> ready;      // 1 while it works
  // When each thread's call must have ended, with its grace; 0: none is under way.
  std::atomic<int64_t> due[kTortureThreadsMax];
  // When the harness last let it go on after a pause. Calls that were under way are not judged.
  std::atomic<int64_t> resumed_at;
  char first_wrong[256];  // what it was; set before `wrong`
};

// A file that both sides map.
//
// Threads  any.
class TortureMemory {
 public:
  static absl::StatusOr<std::unique_ptr<TortureMemory>> Open(const std::string& path);
  ~TortureMemory();
  TortureCounters& operator*() const { return *counters_; }
  TortureCounters* operator->() const { return counters_; }

 private:
  explicit TortureMemory(TortureCounters* counters) : counters_(counters) {}
  TortureCounters* counters_;
};

// One client process: publishes and reads oracle pages until it is killed or told to stop by
// SIGTERM. Returns its exit code.
struct TortureClientOptions {
  std::string counters_file;
  std::string daemons;  // control addresses, separated by commas
  std::string path;     // auto, local, tcp
  uint32_t client = 0;
  uint32_t threads = 1;
  uint64_t seed = 1;
};
int RunTortureClient(const TortureClientOptions& options);

}  // namespace forebay::testing
