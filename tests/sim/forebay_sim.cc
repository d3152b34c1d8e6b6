// Worlds of three daemons and several clients in one thread, each from one seed.
//
//   forebay-sim [--seeds A-B] [--seed N] [--seconds T] [--jobs N] [--until-found] [--twice]
//               [--verbose]
//
// --until-found stops at the first seed that breaks a rule; --twice runs each seed twice and
// requires the same events. Each seed runs in a process of its own, so that a crash is a finding
// like any other.

#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/random.h"
#include "tests/sim/plan.h"
#include "tests/sim/recorder.h"
#include "tests/sim/simulation.h"

namespace {

forebay::SeededRandom* seeded_entropy = nullptr;

}  // namespace

// The kernel's random bits, as this program has them: of the seed. Boot epochs, session ids and the
// permutation of lease ids come from here (base/random.cc), so that a seed decides everything.
extern "C" ssize_t getrandom(void* buffer, size_t bytes, unsigned int /*flags*/) {
  static forebay::SeededRandom* const fallback = new forebay::SeededRandom(1);
  forebay::SeededRandom& random = seeded_entropy == nullptr ? *fallback : *seeded_entropy;
  auto* const out = static_cast<unsigned char*>(buffer);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(random.Next());
  return static_cast<ssize_t>(bytes);
}

namespace forebay::testing {
namespace {

struct Options {
  uint64_t first_seed = 1;
  uint64_t last_seed = 64;
  int64_t milliseconds = 1500;
  uint64_t jobs = 2;
  bool until_found = false;
  bool twice = false;
  bool verbose = false;
};

struct Sums {
  uint64_t seeds = 0, violations = 0, events = 0;
  uint64_t pages_checked = 0, views_checked = 0, pages_stored = 0, misses = 0;
  std::map<uint64_t, std::string> hashes;  // by seed, with --twice
};

Recorder* dying_recorder = nullptr;

// Not safe in general; in a test that ends anyway, better than silence.
void OnCrash(int signal) {
  std::signal(signal, SIG_DFL);
  if (dying_recorder != nullptr) {
    std::fprintf(stderr, "last events before signal %d:\n%s", signal,
                 dying_recorder->Last().c_str());
  }
  std::raise(signal);
}

// One world; its report goes to `out`, one line of numbers first. Returns whether it held.
bool RunSeed(uint64_t seed, const Options& options, FILE* out) {
  seeded_entropy = new SeededRandom(seed ^ 0x5eed);
  Recorder recorder;
  dying_recorder = &recorder;
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS}) std::signal(signal, OnCrash);
  const SimPlan plan = SimPlan::Draw(seed, options.milliseconds * kMillisecond);
  const uint64_t hash = RunSimulation(plan, recorder);
  std::fprintf(out, "%lu %lu %lu %lu %lu %016lx\n", recorder.events(), recorder.pages_checked,
               recorder.views_checked, recorder.pages_stored, recorder.misses, hash);
  if (options.verbose || !recorder.violations().empty()) {
    std::fprintf(out, "%s\n", plan.ToString().c_str());
  }
  if (recorder.violations().empty()) return true;
  for (const std::string& violation : recorder.violations()) {
    std::fprintf(out, "VIOLATION %s\n", violation.c_str());
  }
  std::fprintf(out, "the last events (time, what, who, numbers):\n%s", recorder.Last().c_str());
  std::fprintf(out, "again: forebay-sim --seed %lu --seconds %g\n", seed,
               static_cast<double>(options.milliseconds) / 1000);
  return false;
}

struct Child {
  uint64_t seed = 0;
  FILE* report = nullptr;
};

Child Start(uint64_t seed, const Options& options, pid_t* pid) {
  Child child{seed, std::tmpfile()};
  std::fflush(nullptr);
  *pid = fork();
  if (*pid == 0) {
    dup2(fileno(child.report), 2);
    const bool held = RunSeed(seed, options, child.report);
    std::fflush(nullptr);
    _exit(held ? 0 : 1);
  }
  return child;
}

void Finish(const Child& child, int wait_status, const Options& options, Sums& sums) {
  std::string text;
  std::rewind(child.report);
  char buffer[4096];
  for (size_t got; (got = std::fread(buffer, 1, sizeof(buffer), child.report)) > 0;) {
    text.append(buffer, got);
  }
  std::fclose(child.report);
  ++sums.seeds;
  const bool held = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
  const std::vector<std::string> numbers =
      absl::StrSplit(text.substr(0, text.find('\n')), ' ', absl::SkipEmpty());
  uint64_t* const into[] = {&sums.events, &sums.pages_checked, &sums.views_checked,
                            &sums.pages_stored, &sums.misses};
  for (size_t i = 0; held && i < std::min(numbers.size(), std::size(into)); ++i) {
    uint64_t value = 0;
    if (absl::SimpleAtoi(numbers[i], &value)) *into[i] += value;
  }
  if (held && options.twice && numbers.size() == 6) {
    const auto [first, is_first] = sums.hashes.emplace(child.seed, numbers[5]);
    if (!is_first && first->second != numbers[5]) {
      ++sums.violations;
      std::printf("seed %lu FAILED\nVIOLATION repetition: two runs differ: %s and %s\n", child.seed,
                  first->second.c_str(), numbers[5].c_str());
    }
  }
  if (held && options.verbose) std::printf("seed %lu: %s", child.seed, text.c_str());
  if (held) return;
  ++sums.violations;
  std::printf(
      "seed %lu FAILED%s\n%s\n", child.seed,
      WIFSIGNALED(wait_status) ? absl::StrCat(" by signal ", WTERMSIG(wait_status)).c_str() : "",
      text.c_str());
  std::fflush(stdout);
}

int RunAll(const Options& options) {
  const auto began = std::chrono::steady_clock::now();
  Sums sums;
  std::map<pid_t, Child> running;
  uint64_t next = options.first_seed;
  uint64_t runs_left = options.twice ? 2 : 1;  // of `next`
  const auto more = [&] {
    return next <= options.last_seed && !(options.until_found && sums.violations > 0);
  };
  while (more() || !running.empty()) {
    while (more() && running.size() < options.jobs) {
      pid_t pid = 0;
      const Child child = Start(next, options, &pid);
      running[pid] = child;
      if (--runs_left > 0) continue;
      ++next;
      runs_left = options.twice ? 2 : 1;
    }
    int wait_status = 0;
    const pid_t pid = wait(&wait_status);
    const auto found = running.find(pid);
    if (found == running.end()) continue;
    Finish(found->second, wait_status, options, sums);
    running.erase(found);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf(
      "%lu seeds in %.1f s: %lu with violations; %lu events, %lu pages stored, %lu fetched "
      "pages and %lu views checked, %lu misses\n",
      sums.seeds, seconds, sums.violations, sums.events, sums.pages_stored, sums.pages_checked,
      sums.views_checked, sums.misses);
  return sums.violations == 0 ? 0 : 1;
}

bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    options.verbose |= argument == "--verbose";
    options.until_found |= argument == "--until-found";
    options.twice |= argument == "--twice";
    if (argument == "--verbose" || argument == "--until-found" || argument == "--twice") continue;
    std::string value;
    const std::vector<std::string> halves = absl::StrSplit(argument, absl::MaxSplits('=', 1));
    if (halves.size() == 2) {
      value = halves[1];
    } else if (i + 1 < argc) {
      value = argv[++i];
    }
    double seconds = 0;
    bool good = false;
    if (halves[0] == "--seed") {
      good = absl::SimpleAtoi(value, &options.first_seed);
      options.last_seed = options.first_seed;
    } else if (halves[0] == "--seeds") {
      const std::vector<std::string> ends = absl::StrSplit(value, '-');
      good = ends.size() == 2 && absl::SimpleAtoi(ends[0], &options.first_seed) &&
             absl::SimpleAtoi(ends[1], &options.last_seed);
    } else if (halves[0] == "--seconds") {
      good = absl::SimpleAtod(value, &seconds) && seconds > 0;
      options.milliseconds = static_cast<int64_t>(seconds * 1000);
    } else if (halves[0] == "--jobs") {
      good = absl::SimpleAtoi(value, &options.jobs) && options.jobs > 0;
    }
    if (!good) return false;
  }
  return true;
}

}  // namespace
}  // namespace forebay::testing

int main(int argc, char** argv) {
  forebay::testing::Options options;
  if (!forebay::testing::Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: forebay-sim [--seeds A-B] [--seed N] [--seconds T] [--jobs N] "
                 "[--until-found] [--twice] [--verbose]\n");
    return 2;
  }
  forebay::SetLogLevel(forebay::LogLevel::kError);
  if (std::getenv("FOREBAY_SIM_LOGS") == nullptr) {
    // Nodes report the frames that we damage; that is no news here.
    forebay::SetLogFd(-1);
  }
  return forebay::testing::RunAll(options);
}
