#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/bench/pool_bench.h"
#include "tests/bench/redis_peer.h"

namespace forebay::bench {
namespace {

using forebay::testing::ChildProcess;
using forebay::testing::DaemonProcess;
using forebay::testing::TemporaryFolder;

constexpr uint32_t kBatch = 16;
constexpr uint32_t kExistKeys = 128;

double Rate(uint64_t bytes, Nanos taken) {
  return static_cast<double>(bytes) / static_cast<double>(std::max<Nanos>(taken, 1));
}

Figure PeerFigure(const std::string& name, const std::string& path, uint64_t bytes, double ours,
                  double theirs, const std::string& unit, const std::string& peer) {
  Figure figure;
  figure.name = name;
  figure.path = path;
  figure.bytes = bytes;
  figure.value = ours;
  figure.unit = unit;
  figure.ceiling = theirs;
  figure.ceiling_name = peer;
  figure.ratio = ours / theirs;
  return figure;
}

// Our own get and put of `batch` pages a call, over one path, until `bytes` have crossed: GB/s. A
// get is a lookup with a lease and a fetch, as an engine does it; a put is a publish of new pages.
struct OurRates {
  double get = 0, put = 0;
};

absl::StatusOr<OurRates> MeasureOurs(const DaemonProcess& daemon, const std::string& path,
                                     uint64_t part, uint32_t batch, uint64_t bytes) {
  const SystemClock clock;
  FB_ASSIGN_OR_RETURN(const auto pool, PoolUnderTest::Open(daemon, path, part, batch));
  Buffer source(part * batch, 1), target(part * batch, 2);
  const auto chains = static_cast<uint32_t>(std::clamp<uint64_t>(bytes / (part * batch), 4, 4000));
  std::vector<std::vector<PageKey>> keys;
  for (uint32_t i = 0; i < chains; ++i) keys.push_back(pool->FreshKeys());
  OurRates rates;
  Nanos start = clock.Now();
  for (const auto& chain : keys) FB_RETURN_IF_ERROR(pool->Publish(chain, source).status());
  rates.put = Rate(part * batch * chains, clock.Now() - start);
  start = clock.Now();
  for (const auto& chain : keys) {
    FB_ASSIGN_OR_RETURN(const PrefixHit hit, pool->Lookup(chain, false));
    FB_RETURN_IF_ERROR(pool->Fetch(hit, target).status());
  }
  rates.get = Rate(part * batch * chains, clock.Now() - start);
  if (std::memcmp(source.data(), target.data(), part * batch) != 0) {
    return absl::DataLossError("what was fetched is not what was published");
  }
  return rates;
}

// The same pages one at a time, in place: what a reader gets that needs no copy of its own. Every
// 4 KiB is looked at; a page counts when the daemon has confirmed its lease at release.
absl::StatusOr<double> MeasureViews(const DaemonProcess& daemon, uint64_t part, uint64_t bytes) {
  const SystemClock clock;
  FB_ASSIGN_OR_RETURN(const auto pool, PoolUnderTest::Open(daemon, "local", part, 1));
  Buffer source(part, 1);
  const auto count = static_cast<uint32_t>(std::clamp<uint64_t>(bytes / part, 4, 4000));
  std::vector<std::vector<PageKey>> keys;
  for (uint32_t i = 0; i < count; ++i) {
    keys.push_back(pool->FreshKeys());
    FB_RETURN_IF_ERROR(pool->Publish(keys.back(), source).status());
  }
  uint64_t seen = 0;
  const Nanos start = clock.Now();
  for (const auto& chain : keys) {
    FB_ASSIGN_OR_RETURN(PrefixHit hit, pool->Lookup(chain, false));
    FB_ASSIGN_OR_RETURN(const Bytes view, hit.View(0, 0));
    for (size_t at = 0; at < view.size(); at += 4096) seen += static_cast<uint64_t>(view[at]);
    FB_ASSIGN_OR_RETURN(const bool valid, hit.Release().Wait());
    if (!valid) return absl::DataLossError("the lease did not hold");
  }
  const Nanos taken = clock.Now() - start;
  if (seen != count * (part / 4096)) return absl::DataLossError("a view shows other bytes");
  return Rate(part * count, taken);
}

absl::StatusOr<OurRates> MeasureRedis(RedisPeer& redis, uint64_t part, uint64_t bytes) {
  const SystemClock clock;
  const auto count = static_cast<uint32_t>(std::clamp<uint64_t>(bytes / part, 8, 4000));
  Buffer source(part, 1), target(part, 2);
  OurRates rates;
  Nanos start = clock.Now();
  for (uint32_t i = 0; i < count; ++i) {
    FB_RETURN_IF_ERROR(redis.Set(absl::StrCat("k", i), source.data(), part));
  }
  rates.put = Rate(part * count, clock.Now() - start);
  start = clock.Now();
  for (uint32_t i = 0; i < count; ++i) {
    FB_RETURN_IF_ERROR(redis.Get(absl::StrCat("k", i), target.data(), part));
  }
  rates.get = Rate(part * count, clock.Now() - start);
  FB_RETURN_IF_ERROR(redis.Flush());
  return rates;
}

absl::StatusOr<std::unique_ptr<DaemonProcess>> StartDaemon(const TemporaryFolder& folder) {
  DaemonProcess::Options options;
  options.capacity_bytes = 3072ull << 20;
  options.populate = true;
  return DaemonProcess::Start(folder, options);
}

absl::Status BesideRedis(const BenchOptions& options, const DaemonProcess& daemon, Report* report) {
  absl::StatusOr<std::unique_ptr<RedisPeer>> redis = RedisPeer::Start();
  if (absl::IsNotFound(redis.status())) {
    report->Section("beside Redis: left out, redis-server is not installed");
    return absl::OkStatus();
  }
  FB_RETURN_IF_ERROR(redis.status());
  report->Section("beside Redis GET and SET (TCP loopback), one at a time");
  for (const uint64_t part : {64ull << 10, 1ull << 20}) {
    std::map<std::string, PairedRounds> rounds;
    for (int round = 0; round < options.rounds(); ++round) {
      FB_ASSIGN_OR_RETURN(const OurRates theirs, MeasureRedis(**redis, part, 64ull << 20));
      for (const std::string& path : options.paths) {
        if (path == "ucx") continue;  // this daemon does not offer it; the peers speak plain TCP
        FB_ASSIGN_OR_RETURN(const OurRates ours, MeasureOurs(daemon, path, part, 1, 64ull << 20));
        rounds["get " + path].ours.push_back(ours.get);
        rounds["get " + path].ceiling.push_back(theirs.get);
        rounds["put " + path].ours.push_back(ours.put);
        rounds["put " + path].ceiling.push_back(theirs.put);
      }
      FB_ASSIGN_OR_RETURN(const double views, MeasureViews(daemon, part, 64ull << 20));
      rounds["view local"].ours.push_back(views);
      rounds["view local"].ceiling.push_back(theirs.get);
    }
    for (const auto& [name, pairs] : rounds) {
      Figure figure = pairs.ToFigure();
      figure.name = name.substr(0, name.find(' '));
      figure.path = name.substr(name.find(' ') + 1);
      figure.bytes = part;
      figure.unit = "GB/s";
      figure.ceiling_name = "Redis";
      report->Add(figure);
    }
  }
  return absl::OkStatus();
}

// "name size" -> value, as the script prints them.
absl::StatusOr<std::map<std::pair<std::string, uint64_t>, double>> RunMooncake(
    const std::string& python, bool pool, double seconds) {
  TemporaryFolder folder;
  ChildProcess::Options child;
  child.command = {python, FOREBAY_SOURCE_DIR "/tests/bench/mooncake_peer.py", "--seconds",
                   absl::StrCat(seconds)};
  if (!pool) child.command.push_back("--no-pool");
  child.output_file = folder.File("mooncake.out");
  FB_ASSIGN_OR_RETURN(const auto process, ChildProcess::Start(child));
  FB_ASSIGN_OR_RETURN(const int status, process->Wait(300 * kSecond));
  FB_ASSIGN_OR_RETURN(const std::string text, forebay::testing::ReadTextFile(child.output_file));
  if (!forebay::testing::ExitedWell(status)) {
    const size_t tail = text.size() > 400 ? text.size() - 400 : 0;
    return absl::UnavailableError(absl::StrCat("Mooncake did not run: ", text.substr(tail)));
  }
  std::map<std::pair<std::string, uint64_t>, double> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t size = 0;
    double value = 0;
    if (words >> name >> size >> value) values[{name, size}] = value;
  }
  return values;
}

absl::Status BesideMooncake(const BenchOptions& options, const DaemonProcess& daemon,
                            Report* report) {
  const char* folder = std::getenv("FOREBAY_MOONCAKE_VENV");
  const std::string python = folder == nullptr ? "" : absl::StrCat(folder, "/bin/python");
  if (python.empty() || !std::filesystem::exists(python)) {
    report->Section("beside Mooncake Store: left out, its package is not installed");
    return absl::OkStatus();
  }
  report->Section("beside Mooncake Store over TCP, the better of its two settings");
  const double seconds = options.ByEffort(0.1, 0.5, 1.5);
  FB_ASSIGN_OR_RETURN(auto theirs, RunMooncake(python, true, seconds));
  FB_ASSIGN_OR_RETURN(const auto without_pool, RunMooncake(python, false, seconds));
  for (const auto& [key, value] : without_pool) {
    const bool time = key.first == "exist_128";
    theirs[key] = time ? std::min(theirs[key], value) : std::max(theirs[key], value);
  }
  for (const uint64_t part : {64ull << 10, 256ull << 10, 1ull << 20, 4ull << 20}) {
    for (const uint32_t batch : {1u, kBatch}) {
      const std::string suffix = batch == 1 ? "" : "_batch";
      std::vector<double> gets, puts;
      for (int round = 0; round < options.rounds(); ++round) {
        FB_ASSIGN_OR_RETURN(const OurRates ours,
                            MeasureOurs(daemon, "tcp", part, batch, 128ull << 20));
        gets.push_back(ours.get);
        puts.push_back(ours.put);
      }
      report->Add(PeerFigure("get" + suffix, "tcp", part, Median(gets),
                             theirs[{"get" + suffix, part}], "GB/s", "Mooncake Store"));
      report->Add(PeerFigure("put" + suffix, "tcp", part, Median(puts),
                             theirs[{"put" + suffix, part}], "GB/s", "Mooncake Store"));
    }
  }
  FB_ASSIGN_OR_RETURN(const auto pool, PoolUnderTest::Open(daemon, "tcp", 4096, kExistKeys));
  Buffer source(4096 * kExistKeys, 1);
  FB_RETURN_IF_ERROR(pool->Publish(pool->keys(), source).status());
  const SystemClock clock;
  std::vector<double> times;
  for (int i = 0; i < 2000; ++i) {
    const Nanos start = clock.Now();
    FB_RETURN_IF_ERROR(pool->Lookup(pool->keys(), true).status());
    times.push_back(static_cast<double>(clock.Now() - start) / 1e3);
  }
  report->Add(PeerFigure("exist", "tcp", kExistKeys, Median(times),
                         theirs[{"exist_128", kExistKeys}], "us", "Mooncake Store"));
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchPeers(const BenchOptions& options, Report* report) {
  TemporaryFolder folder;
  FB_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(folder));
  FB_RETURN_IF_ERROR(BesideRedis(options, *daemon, report));
  return BesideMooncake(options, *daemon, report);
}

}  // namespace forebay::bench
