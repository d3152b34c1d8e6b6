#include "tests/bench/pool_bench.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "tests/bench/ucx_pair.h"

namespace forebay::bench {
namespace {

using forebay::testing::DaemonProcess;
using forebay::testing::TemporaryFolder;

constexpr uint32_t kPageTokens = 16;
constexpr uint32_t kHeads = 8;
constexpr Nanos kDeadline = 60 * kSecond;
constexpr uint32_t kLookupPages = 64;

absl::StatusOr<std::unique_ptr<DaemonProcess>> StartDaemon(const BenchOptions& bench,
                                                           const TemporaryFolder& folder,
                                                           const std::string& path) {
  DaemonProcess::Options options;
  // Room for all that a bench publishes, in slabs that parts of 16 MiB and their headers fill well.
  options.capacity_bytes = bench.ByEffort(64ull << 20, 2048ull << 20, 2048ull << 20);
  options.slab_bytes = bench.ByEffort(8ull << 20, 128ull << 20, 128ull << 20);
  options.populate = true;
  if (path == "ucx") options.ucx_address = "127.0.0.1:0";
  return DaemonProcess::Start(folder, options);
}

NamespaceSpec SpecFor(uint64_t part_bytes) {
  NamespaceSpec spec;
  spec.model = absl::StrCat("bench-", part_bytes);
  const uint64_t dim = part_bytes / (2 * kPageTokens * kHeads * DTypeBytes(DType::kBf16));
  spec.layout = KvLayout::Uniform(/*layer_count=*/1, kHeads, static_cast<uint32_t>(dim),
                                  DType::kBf16, kPageTokens, /*layers_per_part=*/1);
  return spec;
}

uint32_t PagesFor(const BenchOptions& options, uint64_t part_bytes) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(options.total_bytes() / part_bytes, 8, 4096));
}

double Rate(uint64_t bytes, Nanos taken) {
  return static_cast<double>(bytes) / static_cast<double>(std::max<Nanos>(taken, 1));
}

absl::Status CheckSame(Buffer& a, Buffer& b, size_t bytes) {
  if (std::memcmp(a.data(), b.data(), bytes) == 0) return absl::OkStatus();
  return absl::DataLossError("what was fetched is not what was published");
}

// Different bytes everywhere, so that a page in another's place shows.
void FillUnique(Buffer& buffer, uint64_t seed) {
  SeededRandom random(seed);
  for (size_t at = 0; at + 8 <= buffer.bytes(); at += 8) {
    const uint64_t value = random.Next();
    std::memcpy(buffer.data() + at, &value, 8);
  }
}

// What a path cannot pass, measured in the same run.
class Ceiling {
 public:
  static absl::StatusOr<Ceiling> Start(const std::string& path) {
    Ceiling ceiling;
    if (path == "ucx") {
      FB_ASSIGN_OR_RETURN(ceiling.ucx_, UcxPair::Start());
    } else if (path != "local") {
      FB_ASSIGN_OR_RETURN(ceiling.sockets_, SocketPair::Start());
    }
    return ceiling;
  }

  absl::StatusOr<double> Rate(bool receive, Buffer& to, Buffer& from, uint64_t part,
                              uint64_t total) {
    if (ucx_ != nullptr) {
      return receive ? ucx_->ReceiveRate(to, part, total) : ucx_->SendRate(from, part, total);
    }
    if (sockets_ == nullptr) return MemcpyRate(to, from, part, total);
    return receive ? sockets_->ReceiveRate(to, part, total) : sockets_->SendRate(from, part, total);
  }
  std::string name() const {
    if (ucx_ != nullptr) return "raw UCX active messages";
    return sockets_ == nullptr ? "memcpy, one thread" : "plain TCP socket pair";
  }

 private:
  std::unique_ptr<SocketPair> sockets_;
  std::unique_ptr<UcxPair> ucx_;
};

// Microseconds of `count` calls of `call`, one by one.
template <typename Call>
absl::StatusOr<std::vector<double>> TimesUs(int count, const Call& call) {
  const SystemClock clock;
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const Nanos start = clock.Now();
    FB_RETURN_IF_ERROR(call());
    times.push_back(static_cast<double>(clock.Now() - start) / 1e3);
  }
  return times;
}

Figure LatencyFigure(const std::string& name, const std::string& path, uint64_t pages,
                     const std::vector<double>& times, double round_trip_us) {
  Figure figure;
  figure.name = name;
  figure.path = path;
  figure.bytes = pages;
  figure.value = Median(times);
  figure.unit = "us";
  figure.ceiling = round_trip_us;
  figure.ceiling_name = "64-byte TCP round trip";
  figure.ratio = figure.value / round_trip_us;
  figure.spread = Spread(times);
  figure.note = absl::StrCat("(p99 ", static_cast<int>(Quantile(times, 0.99)), " us)");
  return figure;
}

}  // namespace

std::vector<uint64_t> BenchOptions::part_sizes() const {
  if (effort == Effort::kSmoke) return {64ull << 10};
  if (effort == Effort::kQuick) return {64ull << 10, 256ull << 10, 1ull << 20};
  return {4ull << 10, 16ull << 10, 64ull << 10, 256ull << 10, 1ull << 20, 4ull << 20, 16ull << 20};
}

absl::StatusOr<std::unique_ptr<PoolUnderTest>> PoolUnderTest::Open(const DaemonProcess& daemon,
                                                                   const std::string& path,
                                                                   uint64_t part_bytes,
                                                                   uint32_t page_count,
                                                                   Progress progress) {
  auto pool = std::make_unique<PoolUnderTest>();
  pool->spec_ = SpecFor(part_bytes);
  pool->page_count_ = page_count;
  ClientOptions options;
  options.daemons = {{daemon.control(), 1.0}};
  options.progress = progress;
  options.name = "bench";
  options.codec = "raw";  // what is published here is noise
  options.default_deadline = kDeadline;
  FB_ASSIGN_OR_RETURN(options.path, ParsePath(path));
  FB_ASSIGN_OR_RETURN(pool->client_, PoolClient::Connect(std::move(options)));
  FB_ASSIGN_OR_RETURN(pool->ns_, pool->client_->OpenNamespace(pool->spec_, kDeadline).Wait());
  pool->keys_ = pool->FreshKeys();
  return pool;
}

std::vector<PageKey> PoolUnderTest::FreshKeys() {
  std::vector<uint32_t> tokens(size_t{page_count_} * kPageTokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i);
  // Never the same chain twice in this process: a chain that is there already costs nothing to put.
  static std::atomic<uint32_t> chain{0};
  tokens[0] = 0x80000000u + chain++;
  return PageKeysOf(ns_->root(), tokens, kPageTokens);
}

absl::StatusOr<PublishResult> PoolUnderTest::Publish(const std::vector<PageKey>& keys,
                                                     Buffer& from) {
  const auto pages = static_cast<uint32_t>(keys.size());
  FB_ASSIGN_OR_RETURN(
      PublishResult result,
      ns_->Publish(keys, KvView::Contiguous(spec_.layout, from.data(), pages), {}).Wait());
  if (result.pages_stored == pages) return result;
  return absl::ResourceExhaustedError(absl::StrCat("stored ", result.pages_stored, " of ", pages,
                                                   " pages: ", result.first_error.ToString()));
}

absl::StatusOr<PrefixHit> PoolUnderTest::Lookup(const std::vector<PageKey>& keys, bool probe) {
  LookupOptions options;
  options.lease_ms = 30'000;
  options.probe = probe;
  FB_ASSIGN_OR_RETURN(PrefixHit hit, ns_->Lookup(keys, options).Wait());
  if (hit.page_count() == keys.size()) return hit;
  return absl::NotFoundError(
      absl::StrCat("only ", hit.page_count(), " of ", keys.size(), " pages are there"));
}

absl::StatusOr<FetchResult> PoolUnderTest::Fetch(const PrefixHit& hit, Buffer& to) {
  FB_ASSIGN_OR_RETURN(
      FetchResult result,
      ns_->Fetch(hit, KvView::Contiguous(spec_.layout, to.data(), hit.page_count()), {}).Wait());
  if (result.page_count == hit.page_count()) return result;
  return absl::UnavailableError(
      absl::StrCat("fetched ", result.page_count, " of ", hit.page_count(), " pages"));
}

absl::Status BenchFetch(const BenchOptions& options, Report* report) {
  for (const std::string& path : options.paths) {
    report->Section(absl::StrCat("fetch into the caller's buffer, checked, over ", path));
    TemporaryFolder folder;
    FB_ASSIGN_OR_RETURN(Ceiling plain, Ceiling::Start(path));
    FB_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(options, folder, path));
    for (const uint64_t part : options.part_sizes()) {
      const uint32_t pages = PagesFor(options, part);
      const uint64_t total = part * pages;
      Buffer source(total, 1), target(total, 2), other(total, 3);
      FillUnique(source, part);
      FB_ASSIGN_OR_RETURN(const auto pool, PoolUnderTest::Open(*daemon, path, part, pages));
      FB_RETURN_IF_ERROR(pool->Publish(pool->keys(), source).status());
      const SystemClock clock;
      PairedRounds rounds;
      for (int round = 0; round < options.rounds(); ++round) {
        FB_ASSIGN_OR_RETURN(const double ceiling,
                            plain.Rate(/*receive=*/true, target, other, part, total));
        FB_ASSIGN_OR_RETURN(const PrefixHit hit, pool->Lookup(pool->keys(), false));
        const Nanos start = clock.Now();
        FB_RETURN_IF_ERROR(pool->Fetch(hit, target).status());
        rounds.ours.push_back(Rate(total, clock.Now() - start));
        rounds.ceiling.push_back(ceiling);
        FB_RETURN_IF_ERROR(CheckSame(source, target, total));
        std::memset(target.data(), 0, total);
      }
      Figure figure = rounds.ToFigure();
      figure.name = "fetch";
      figure.path = path;
      figure.bytes = part;
      figure.unit = "GB/s";
      figure.ceiling_name = plain.name();
      report->Add(figure);
    }
  }
  return absl::OkStatus();
}

absl::Status BenchPublish(const BenchOptions& options, Report* report) {
  for (const std::string& path : options.paths) {
    report->Section(absl::StrCat("publish from the caller's buffer over ", path));
    TemporaryFolder folder;
    FB_ASSIGN_OR_RETURN(Ceiling plain, Ceiling::Start(path));
    FB_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(options, folder, path));
    for (const uint64_t part : options.part_sizes()) {
      const uint32_t pages = PagesFor(options, part);
      const uint64_t total = part * pages;
      Buffer source(total, 1), other(total, 3);
      FillUnique(source, part);
      FB_ASSIGN_OR_RETURN(const auto pool, PoolUnderTest::Open(*daemon, path, part, pages));
      const SystemClock clock;
      PairedRounds rounds;
      // The first chain finds memory that nobody has touched: not counted.
      FB_RETURN_IF_ERROR(pool->Publish(pool->FreshKeys(), source).status());
      for (int round = 0; round < options.rounds(); ++round) {
        FB_ASSIGN_OR_RETURN(const double ceiling,
                            plain.Rate(/*receive=*/false, other, source, part, total));
        const std::vector<PageKey> keys = pool->FreshKeys();
        const Nanos start = clock.Now();
        FB_RETURN_IF_ERROR(pool->Publish(keys, source).status());
        rounds.ours.push_back(Rate(total, clock.Now() - start));
        rounds.ceiling.push_back(ceiling);
      }
      Figure figure = rounds.ToFigure();
      figure.name = "publish";
      figure.path = path;
      figure.bytes = part;
      figure.unit = "GB/s";
      figure.ceiling_name = plain.name();
      report->Add(figure);
    }
  }
  return absl::OkStatus();
}

absl::Status BenchLookup(const BenchOptions& options, Report* report) {
  report->Section("lookup of a 64-page chain: time of one call");
  for (const std::string& path : options.paths) {
    TemporaryFolder folder;
    FB_ASSIGN_OR_RETURN(const auto pair, SocketPair::Start());
    FB_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(options, folder, path));
    FB_ASSIGN_OR_RETURN(const double round_trip, pair->RoundTripUs(500));
    Buffer source(kLookupPages * (64 << 10), 1);
    FB_ASSIGN_OR_RETURN(const auto pool,
                        PoolUnderTest::Open(*daemon, path, 64 << 10, kLookupPages));
    FB_RETURN_IF_ERROR(pool->Publish(pool->keys(), source).status());
    for (const bool probe : {true, false}) {
      FB_ASSIGN_OR_RETURN(const std::vector<double> times, TimesUs(options.calls(), [&] {
                            return pool->Lookup(pool->keys(), probe).status();
                          }));
      report->Add(LatencyFigure(probe ? "lookup (probe)" : "lookup (lease)", path, kLookupPages,
                                times, round_trip));
    }
  }
  return absl::OkStatus();
}

absl::Status BenchView(const BenchOptions& options, Report* report) {
  report->Section("zero-copy view of 64 leased pages: lookup, 64 views, release");
  TemporaryFolder folder;
  FB_ASSIGN_OR_RETURN(const auto pair, SocketPair::Start());
  FB_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(options, folder, "local"));
  FB_ASSIGN_OR_RETURN(const double round_trip, pair->RoundTripUs(500));
  Buffer source(kLookupPages * (64 << 10), 1);
  FB_ASSIGN_OR_RETURN(const auto pool,
                      PoolUnderTest::Open(*daemon, "local", 64 << 10, kLookupPages));
  FB_RETURN_IF_ERROR(pool->Publish(pool->keys(), source).status());
  uint64_t seen = 0;
  FB_ASSIGN_OR_RETURN(
      const std::vector<double> times, TimesUs(options.calls(), [&]() -> absl::Status {
        FB_ASSIGN_OR_RETURN(PrefixHit hit, pool->Lookup(pool->keys(), false));
        for (uint32_t page = 0; page < kLookupPages; ++page) {
          FB_ASSIGN_OR_RETURN(const Bytes bytes, hit.View(page, 0));
          seen += bytes.size() + static_cast<uint64_t>(bytes[0]);
        }
        FB_ASSIGN_OR_RETURN(const bool valid, hit.Release().Wait());
        return valid ? absl::OkStatus() : absl::DataLossError("the lease did not hold");
      }));
  if (seen == 0) return absl::InternalError("no byte was seen");
  report->Add(LatencyFigure("view", "local", kLookupPages, times, round_trip));
  return absl::OkStatus();
}

absl::Status BenchClients(const BenchOptions& options, Report* report) {
  constexpr uint64_t kPart = 1 << 20;
  for (const std::string& path : options.paths) {
    report->Section(absl::StrCat("several clients fetch at once over ", path, ", all together"));
    TemporaryFolder folder;
    FB_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(options, folder, path));
    for (const int clients : {1, 2, 4}) {
      const uint32_t pages = options.ByEffort(4u, 64u, 64u);
      std::vector<std::unique_ptr<PoolUnderTest>> pools;
      std::vector<std::unique_ptr<Buffer>> targets;
      Buffer source(kPart * pages, 1);
      for (int i = 0; i < clients; ++i) {
        FB_ASSIGN_OR_RETURN(auto pool, PoolUnderTest::Open(*daemon, path, kPart, pages));
        FB_RETURN_IF_ERROR(pool->Publish(pool->keys(), source).status());
        pools.push_back(std::move(pool));
        targets.push_back(std::make_unique<Buffer>(kPart * pages, 2));
      }
      const SystemClock clock;
      std::vector<double> rates;
      for (int round = 0; round < options.rounds(); ++round) {
        std::vector<absl::Status> results(clients);
        std::vector<std::thread> threads;
        const Nanos start = clock.Now();
        for (int i = 0; i < clients; ++i) {
          threads.emplace_back([&, i] {
            const absl::StatusOr<PrefixHit> hit = pools[i]->Lookup(pools[i]->keys(), false);
            results[i] = hit.ok() ? pools[i]->Fetch(*hit, *targets[i]).status() : hit.status();
          });
        }
        for (std::thread& thread : threads) thread.join();
        rates.push_back(Rate(kPart * pages * clients, clock.Now() - start));
        for (const absl::Status& result : results) FB_RETURN_IF_ERROR(result);
      }
      Figure figure;
      figure.name = absl::StrCat("fetch, ", clients, " clients");
      figure.path = path;
      figure.bytes = kPart;
      figure.value = Median(rates);
      figure.unit = "GB/s";
      figure.spread = Spread(rates);
      report->Add(figure);
    }
  }
  return absl::OkStatus();
}

}  // namespace forebay::bench
