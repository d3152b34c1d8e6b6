// Real daemons and clients, killed and stopped at random, and every page that they call good
// checked.
//
//   forebay-torture [--reads=N] [--minutes=M] [--clients=N] [--threads=N] [--seed=N]
//
// `forebay-torture client …` is one of its clients.

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "tests/soak/torture_harness.h"

namespace forebay::testing {
namespace {

// --name=value
std::map<std::string, std::string> FlagsOf(int argc, char** argv, int first) {
  std::map<std::string, std::string> flags;
  for (int i = first; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (!absl::ConsumePrefix(&argument, "--")) return {{"?", argv[i]}};
    const size_t equals = argument.find('=');
    if (equals == absl::string_view::npos) return {{"?", argv[i]}};
    flags[std::string(argument.substr(0, equals))] = std::string(argument.substr(equals + 1));
  }
  return flags;
}

template <typename Number>
bool Take(std::map<std::string, std::string>& flags, const char* name, Number* value) {
  const auto flag = flags.find(name);
  if (flag == flags.end()) return true;
  const std::string text = flag->second;
  flags.erase(flag);
  if constexpr (std::is_floating_point_v<Number>) {
    return absl::SimpleAtod(text, value) && *value > 0;
  } else {
    return absl::SimpleAtoi(text, value);
  }
}

int RunClient(std::map<std::string, std::string> flags) {
  TortureClientOptions options;
  options.counters_file = flags["counters"];
  options.daemons = flags["daemons"];
  options.path = flags["path"];
  const bool good = Take(flags, "client", &options.client) &&
                    Take(flags, "threads", &options.threads) && Take(flags, "seed", &options.seed);
  return good ? RunTortureClient(options) : 2;
}

int RunHarness(std::map<std::string, std::string> flags) {
  TortureOptions options;
  const bool good = Take(flags, "reads", &options.reads) &&
                    Take(flags, "minutes", &options.minutes_max) &&
                    Take(flags, "clients", &options.clients) &&
                    Take(flags, "threads", &options.threads) && Take(flags, "seed", &options.seed);
  if (!good || !flags.empty() || options.clients == 0) {
    std::fprintf(stderr,
                 "usage: forebay-torture [--reads=N] [--minutes=M] [--clients=N] "
                 "[--threads=N] [--seed=N]\n");
    return 2;
  }
  SetLogLevel(LogLevel::kError);
  // A short run meets its kills early.
  if (options.reads <= 1'000'000) {
    options.daemon_kill_every = 1500 * kMillisecond;
    options.client_kill_every = kSecond;
    options.pause_every = kSecond;
  }
  char own[PATH_MAX] = {};
  if (readlink("/proc/self/exe", own, sizeof(own) - 1) <= 0) return 2;
  return TortureHarness(options, own).Run() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace forebay::testing

int main(int argc, char** argv) {
  const bool client = argc > 1 && std::string(argv[1]) == "client";
  auto flags = forebay::testing::FlagsOf(argc, argv, client ? 2 : 1);
  return client ? forebay::testing::RunClient(std::move(flags))
                : forebay::testing::RunHarness(std::move(flags));
}
