#include "tests/soak/torture_harness.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/rpc/admin_client.h"

namespace forebay::testing {
namespace {

constexpr int kDaemons = 3;
constexpr uint64_t kCapacityBytes = 8ull << 20;  // a third of what the clients publish, or less
constexpr uint64_t kSlabBytes = 512ull << 10;
constexpr Nanos kTick = 20 * kMillisecond;
constexpr Nanos kAdminDeadline = 5 * kSecond;
// Longest time after the clients' end until nothing may be held: leases, sessions, puts, and grace.
constexpr uint32_t kSessionIdleMs = 2000;
constexpr uint32_t kPutTimeoutMs = 2000;
constexpr Nanos kHeldFor = 8 * kSecond;
constexpr Nanos kEndLimit = 15 * kSecond;

void PauseFor(Nanos time) {
  const timespec wait{time / kSecond, time % kSecond};
  nanosleep(&wait, nullptr);
}

std::string Describe(const v1::StatusReply& status) {
  const v1::SlotCounts& slots = status.slots();
  return absl::StrCat(status.node(), ": ", status.slot_count(), " slots: free ", slots.free(),
                      ", filling ", slots.filling(), ", sealed ", slots.sealed(), ", draining ",
                      slots.draining(), ", quarantine ", slots.quarantine(), "; frames ",
                      status.frames(), ", pins ", slots.pins(), ", leases ", status.leases(),
                      ", sessions ", status.sessions());
}

// The value of a metric without labels in Prometheus text.
uint64_t MetricOf(const std::string& text, absl::string_view name) {
  const size_t at = text.find(absl::StrCat("\n", name, " "));
  if (at == std::string::npos) return 0;
  const size_t begin = at + 1 + name.size() + 1;
  uint64_t value = 0;
  return absl::SimpleAtoi(text.substr(begin, text.find('\n', begin) - begin), &value) ? value : 0;
}

}  // namespace

void TortureHarness::Fault(absl::string_view what) {
  std::printf("FAULT %s\n", std::string(what).c_str());
  std::fflush(stdout);
}

Nanos TortureHarness::About(Nanos mean) {
  return mean / 2 + static_cast<Nanos>(random_.Below(static_cast<uint64_t>(mean)));
}

uint64_t TortureHarness::Sum(std::atomic<uint64_t> TortureCounters::*member) const {
  uint64_t sum = 0;
  for (const Client& client : clients_) sum += ((**client.counters).*member).load();
  return sum;
}

absl::Status TortureHarness::StartDaemon(Daemon& daemon) {
  DaemonProcess::Options options;
  options.name = daemon.name;
  options.capacity_bytes = kCapacityBytes;
  options.slab_bytes = kSlabBytes;
  if (!daemon.control.empty()) options.control_address = daemon.control;
  options.extra_config =
      absl::StrCat("limits { session_idle_ms: ", kSessionIdleMs, " put_timeout_ms: ", kPutTimeoutMs,
                   " }\nlog_level: \"error\"\n");
  FB_ASSIGN_OR_RETURN(daemon.process, DaemonProcess::Start(folder_, options));
  daemon.control = daemon.process->control();
  return absl::OkStatus();
}

absl::Status TortureHarness::StartClient(size_t i) {
  Client& client = clients_[i];
  constexpr const char* kPaths[] = {"auto", "tcp", "local", "tcp"};
  std::vector<std::string> controls;
  for (const Daemon& daemon : daemons_) controls.push_back(daemon.control);
  ChildProcess::Options options;
  options.command = {own_program_,
                     "client",
                     "--counters=" + client.counters_file,
                     "--daemons=" + absl::StrJoin(controls, ","),
                     absl::StrCat("--path=", kPaths[i % std::size(kPaths)]),
                     absl::StrCat("--client=", i),
                     absl::StrCat("--threads=", options_.threads),
                     absl::StrCat("--seed=", ++client_starts_ + options_.seed * 1000)};
  options.output_file = folder_.File(absl::StrCat("client", i, ".log"));
  for (std::atomic<int64_t>& due : (*client.counters)->due) due = 0;
  (*client.counters)->ready = 0;
  client.resume_at = 0;
  FB_ASSIGN_OR_RETURN(client.process, ChildProcess::Start(options));
  return absl::OkStatus();
}

bool TortureHarness::StartAll() {
  for (int i = 0; i < kDaemons; ++i) {
    Daemon& daemon = daemons_.emplace_back();
    daemon.name = absl::StrCat("daemon", i);
    const absl::Status started = StartDaemon(daemon);
    if (started.ok()) continue;
    Fault(started.ToString());
    return false;
  }
  clients_.resize(options_.clients);
  for (size_t i = 0; i < clients_.size(); ++i) {
    clients_[i].counters_file = folder_.File(absl::StrCat("client", i, ".counters"));
    absl::StatusOr<std::unique_ptr<TortureMemory>> memory =
        TortureMemory::Open(clients_[i].counters_file);
    absl::Status started = memory.status();
    if (started.ok()) {
      clients_[i].counters = *std::move(memory);
      started = StartClient(i);
    }
    if (started.ok()) continue;
    Fault(started.ToString());
    return false;
  }
  return true;
}

void TortureHarness::KillSomebody(Nanos now) {
  if (now >= kill_daemon_at_) {
    kill_daemon_at_ = now + About(options_.daemon_kill_every);
    Daemon& daemon = daemons_[random_.Below(daemons_.size())];
    if (daemon.process != nullptr) {
      daemon.process.reset();  // SIGKILL
      ++daemon_kills_;
      daemon.start_at = now + static_cast<Nanos>(random_.Below(kSecond));
    }
  }
  if (now >= kill_client_at_) {
    kill_client_at_ = now + About(options_.client_kill_every);
    const size_t i = random_.Below(clients_.size());
    clients_[i].process.reset();  // SIGKILL
    ++client_kills_;
    const absl::Status started = StartClient(i);
    if (!started.ok()) Fault(started.ToString());
  }
  for (Daemon& daemon : daemons_) {
    if (daemon.process != nullptr || now < daemon.start_at) continue;
    const absl::Status started = StartDaemon(daemon);
    if (started.ok()) continue;
    ++bad_endings_;
    Fault(absl::StrCat(daemon.name, " does not start again: ", started.ToString()));
    daemon.start_at = clock_.Now() + kSecond;
  }
}

// Stops a reader for longer than its lease, most times, and lets those go on whose time has come.
void TortureHarness::PauseSomebody(Nanos now) {
  for (Client& client : clients_) {
    if (client.resume_at == 0 || now < client.resume_at) continue;
    client.resume_at = 0;
    (*client.counters)->resumed_at = now;
    client.process->Signal(SIGCONT);
  }
  if (now < pause_at_) return;
  pause_at_ = now + About(options_.pause_every);
  Client& client = clients_[random_.Below(clients_.size())];
  if (client.resume_at != 0) return;
  client.process->Signal(SIGSTOP);
  client.resume_at = now + 100 * kMillisecond + static_cast<Nanos>(random_.Below(2 * kSecond));
  ++pauses_;
}

// Nobody ends by himself.
void TortureHarness::CheckEndings() {
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (clients_[i].process->Running()) continue;
    ++bad_endings_;
    const absl::StatusOr<int> how = clients_[i].process->Wait(0);
    const auto log = ReadTextFile(folder_.File(absl::StrCat("client", i, ".log")));
    Fault(absl::StrCat(
        "client ", i, " ended by itself: ", how.ok() ? DescribeExit(*how) : how.status().ToString(),
        "\n", log.ok() ? log->substr(log->size() > 2000 ? log->size() - 2000 : 0) : ""));
    if (!StartClient(i).ok()) Fault("and does not start again");
  }
  for (Daemon& daemon : daemons_) {
    if (daemon.process == nullptr || daemon.process->process().Running()) continue;
    ++bad_endings_;
    const absl::StatusOr<int> how = daemon.process->process().Wait(0);
    const std::string log = daemon.process->Log();
    Fault(absl::StrCat(
        daemon.name, " ended by itself: ", how.ok() ? DescribeExit(*how) : how.status().ToString(),
        "\n", log.substr(log.size() > 2000 ? log.size() - 2000 : 0)));
    daemon.process.reset();
    daemon.start_at = clock_.Now();
  }
}

void TortureHarness::WatchCalls(Nanos now) {
  for (size_t i = 0; i < clients_.size(); ++i) {
    Client& client = clients_[i];
    if (client.resume_at != 0) continue;
    for (uint32_t thread = 0; thread < kTortureThreadsMax; ++thread) {
      const int64_t due = (*client.counters)->due[thread];
      // A call that a pause cut through has all of its time again after it.
      const Nanos resumed = (*client.counters)->resumed_at;
      if (due == 0 || now <= due || now <= resumed + 6 * kSecond) continue;
      if (client.told[thread] == due) continue;
      client.told[thread] = due;
      ++hangs_;
      Fault(absl::StrCat("client ", i, ": a call should have ended ", (now - due) / kMillisecond,
                         " ms ago, and a second of grace besides"));
    }
  }
}

void TortureHarness::CheckAccounts() {
  for (Daemon& daemon : daemons_) {
    if (daemon.process == nullptr) continue;
    const AdminClient admin(daemon.control, "", kAdminDeadline);
    const absl::StatusOr<v1::StatusReply> status = admin.Status();
    if (!status.ok()) {
      ++silent_daemons_;
      Fault(absl::StrCat(daemon.name, " does not answer: ", status.status().ToString()));
      continue;
    }
    ++account_checks_;
    const v1::SlotCounts& slots = status->slots();
    const uint64_t sum =
        slots.free() + slots.filling() + slots.sealed() + slots.draining() + slots.quarantine();
    const bool exact = sum == status->slot_count() && slots.sealed() == status->frames() &&
                       (slots.draining() == 0 || slots.pins() > 0);
    if (!exact) {
      ++account_faults_;
      Fault(absl::StrCat("accounts are not exact: ", Describe(*status)));
    }
    const absl::StatusOr<std::string> metrics = admin.Metrics();
    if (!metrics.ok()) continue;
    daemon.evicted_pages =
        std::max(daemon.evicted_pages, MetricOf(*metrics, "forebay_evicted_pages_total"));
  }
}

void TortureHarness::Tick(Nanos now) {
  KillSomebody(now);
  PauseSomebody(now);
  CheckEndings();
  WatchCalls(now);
  if (now >= accounts_at_) {
    accounts_at_ = now + kSecond;
    CheckAccounts();
  }
  if (now >= report_at_) {
    report_at_ = now + 10 * kSecond;
    std::printf(
        "reads %lu, wrong %lu, misses %lu, daemon kills %lu, client kills %lu, pauses %lu\n",
        Sum(&TortureCounters::reads), Sum(&TortureCounters::wrong), Sum(&TortureCounters::misses),
        daemon_kills_, client_kills_, pauses_);
    std::fflush(stdout);
  }
}

void TortureHarness::EndClients() {
  for (Client& client : clients_) {
    (*client.counters)->resumed_at = clock_.Now();
    client.process->Signal(SIGCONT);
    // One that has just started does not know SIGTERM yet.
    const Nanos until = clock_.Now() + kEndLimit;
    while ((*client.counters)->ready == 0 && clock_.Now() < until) PauseFor(kTick);
    client.process->Signal(SIGTERM);
  }
  for (size_t i = 0; i < clients_.size(); ++i) {
    const absl::StatusOr<int> how = clients_[i].process->Wait(kEndLimit);
    if (how.ok() && ExitedWell(*how)) continue;
    ++bad_endings_;
    Fault(absl::StrCat("client ", i, " does not end well: ",
                       how.ok() ? DescribeExit(*how) : how.status().ToString()));
  }
}

// With no client left, every lease, session and put must have run out by kHeldFor.
void TortureHarness::CheckLeaks() {
  for (Daemon& daemon : daemons_) {
    if (daemon.process == nullptr && !StartDaemon(daemon).ok()) ++bad_endings_;
  }
  const Nanos until = clock_.Now() + kHeldFor;
  for (Daemon& daemon : daemons_) {
    for (;;) {
      const absl::StatusOr<v1::StatusReply> status =
          AdminClient(daemon.control, "", kAdminDeadline).Status();
      const bool idle = status.ok() && status->slots().pins() == 0 &&
                        status->slots().filling() == 0 && status->slots().draining() == 0 &&
                        status->slots().quarantine() == 0 && status->leases() == 0 &&
                        status->sessions() == 0;
      if (idle) break;
      if (clock_.Now() >= until) {
        ++leaks_;
        Fault(absl::StrCat("still held: ",
                           status.ok() ? Describe(*status) : status.status().ToString()));
        break;
      }
      PauseFor(100 * kMillisecond);
    }
  }
}

void TortureHarness::EndDaemons() {
  for (Daemon& daemon : daemons_) {
    if (daemon.process == nullptr) continue;
    daemon.process->process().Signal(SIGTERM);
    const absl::StatusOr<int> how = daemon.process->process().Wait(kEndLimit);
    if (how.ok() && ExitedWell(*how)) continue;
    ++bad_endings_;
    Fault(absl::StrCat(daemon.name, " does not end well: ",
                       how.ok() ? DescribeExit(*how) : how.status().ToString()));
  }
}

void TortureHarness::Verdict(bool good, absl::string_view what) {
  ++(good ? passed_ : failed_);
  std::printf("  %s  %s\n", good ? "ok    " : "FAILED", std::string(what).c_str());
}

void TortureHarness::Report(double seconds) {
  const uint64_t reads = Sum(&TortureCounters::reads);
  uint64_t evicted = 0;
  for (const Daemon& daemon : daemons_) evicted += daemon.evicted_pages;
  std::printf("torture, seed %lu: %.0f s, %.0f reads a second\n", options_.seed, seconds,
              static_cast<double>(reads) / seconds);
  std::printf("  reads %lu (%lu in place), %.1f GiB, misses %lu, pages stored %lu, calls %lu\n",
              reads, Sum(&TortureCounters::views),
              static_cast<double>(Sum(&TortureCounters::bytes)) / (1ull << 30),
              Sum(&TortureCounters::misses), Sum(&TortureCounters::pages_stored),
              Sum(&TortureCounters::calls));
  std::printf("  daemon kills %lu, client kills %lu, pauses %lu, pages evicted at least %lu\n",
              daemon_kills_, client_kills_, pauses_, evicted);
  for (const Client& client : clients_) {
    if ((*client.counters)->wrong > 0) Fault((*client.counters)->first_wrong);
  }
  const uint64_t wrong = Sum(&TortureCounters::wrong);
  const uint64_t late = Sum(&TortureCounters::late);
  Verdict(reads >= options_.reads, absl::StrCat(reads, " of ", options_.reads, " checked reads"));
  Verdict(wrong == 0, absl::StrCat(wrong, " wrong pages"));
  Verdict(hangs_ == 0 && late == 0,
          absl::StrCat(hangs_ + late, " calls past their deadline by a second"));
  Verdict(account_faults_ == 0 && account_checks_ > 0,
          absl::StrCat(account_faults_, " of ", account_checks_, " accounts not exact"));
  Verdict(leaks_ == 0, absl::StrCat(leaks_, " daemons that hold something for nobody"));
  Verdict(bad_endings_ == 0,
          absl::StrCat(bad_endings_, " processes that ended as they should not"));
  Verdict(silent_daemons_ == 0, absl::StrCat(silent_daemons_, " status calls without an answer"));
  Verdict(daemon_kills_ > 0 && client_kills_ > 0 && pauses_ > 0,
          "daemons and clients were killed, and readers stopped");
  Verdict(evicted > 0, "pages were evicted");
  std::printf("%d passed, %d failed\n", passed_, failed_);
}

int TortureHarness::Run() {
  const Nanos began = clock_.Now();
  if (!StartAll()) return 1;
  const Nanos until = began + static_cast<Nanos>(options_.minutes_max * 60) * kSecond;
  kill_daemon_at_ = began + About(options_.daemon_kill_every);
  kill_client_at_ = began + About(options_.client_kill_every);
  pause_at_ = began + About(options_.pause_every);
  for (;;) {
    const Nanos now = clock_.Now();
    if (now >= until) break;
    const bool enough = daemon_kills_ > 1 && client_kills_ > 1 && pauses_ > 1;
    if (enough && Sum(&TortureCounters::reads) >= options_.reads) break;
    Tick(now);
    PauseFor(kTick);
  }
  const double seconds = static_cast<double>(clock_.Now() - began) / static_cast<double>(kSecond);
  EndClients();
  CheckAccounts();
  CheckLeaks();
  EndDaemons();
  Report(seconds);
  return failed_;
}

}  // namespace forebay::testing
