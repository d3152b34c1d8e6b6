#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/random.h"
#include "tests/soak/torture_shared.h"
#include "tests/support/daemon_process.h"

namespace forebay::testing {

struct TortureOptions {
  uint64_t reads = 100'000;
  double minutes_max = 60;
  uint32_t clients = 4;
  uint32_t threads = 1;
  uint64_t seed = 1;
  // Mean times between events; about this, by chance.
  Nanos daemon_kill_every = 4 * kSecond;
  Nanos client_kill_every = 3 * kSecond;
  Nanos pause_every = 2 * kSecond;
};

// Real daemons and real clients, killed and stopped at random while every page that they call good
// is checked. Prints what was done and what was found.
class TortureHarness {
 public:
  TortureHarness(TortureOptions options, std::string own_program)
      : options_(options), own_program_(std::move(own_program)), random_(options.seed) {}
  // The number of checks that failed.
  int Run();

 private:
  struct Daemon {
    std::string name;
    std::string control;  // the same at each start
    std::unique_ptr<DaemonProcess> process;
    Nanos start_at = 0;  // while it is dead
    uint64_t evicted_pages = 0;
  };
  struct Client {
    std::string counters_file;
    std::unique_ptr<TortureMemory> counters;
    std::unique_ptr<ChildProcess> process;
    Nanos resume_at = 0;               // 0: it runs
    std::map<uint32_t, int64_t> told;  // calls that were found to hang, by thread
  };

  bool StartAll();
  absl::Status StartDaemon(Daemon& daemon);
  absl::Status StartClient(size_t i);
  void Tick(Nanos now);
  void KillSomebody(Nanos now);
  void PauseSomebody(Nanos now);
  void CheckEndings();
  void WatchCalls(Nanos now);
  void CheckAccounts();
  void EndClients();
  void CheckLeaks();
  void EndDaemons();
  uint64_t Sum(std::atomic<uint64_t> TortureCounters::*member) const;
  Nanos About(Nanos mean);
  void Fault(absl::string_view what);
  void Report(double seconds);
  void Verdict(bool good, absl::string_view what);

  const TortureOptions options_;
  const std::string own_program_;
  SeededRandom random_;
  const SystemClock clock_;
  TemporaryFolder folder_;
  std::vector<Daemon> daemons_;
  std::vector<Client> clients_;
  Nanos kill_daemon_at_ = 0, kill_client_at_ = 0, pause_at_ = 0, accounts_at_ = 0, report_at_ = 0;

  uint64_t daemon_kills_ = 0, client_kills_ = 0, pauses_ = 0, client_starts_ = 0;
  uint64_t hangs_ = 0, account_checks_ = 0, account_faults_ = 0, leaks_ = 0, bad_endings_ = 0;
  uint64_t silent_daemons_ = 0;
  int passed_ = 0, failed_ = 0;
};

}  // namespace forebay::testing
