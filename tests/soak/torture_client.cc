#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/random.h"
#include "client/pool_client.h"
#include "tests/oracle/page_check.h"
#include "tests/oracle/page_stamp.h"
#include "tests/soak/torture_shared.h"

namespace forebay::testing {
namespace {

constexpr uint32_t kPageTokens = 16;
constexpr uint32_t kChains = 96;
constexpr uint32_t kPagesMax = 64;
constexpr Nanos kCallDeadline = 2 * kSecond;
constexpr uint32_t kLeaseMs = 500;

std::atomic<bool> stop{false};

// One part a page, of 4 or 16 KiB.
struct TortureNamespace {
  std::string name;
  NamespaceSpec spec;
  size_t page_bytes = 0;
};

std::vector<TortureNamespace> MakeNamespaces() {
  std::vector<TortureNamespace> all;
  for (const uint32_t layers : {1u, 4u}) {
    TortureNamespace& ns = all.emplace_back();
    ns.name = absl::StrCat("torture/", layers);
    ns.spec.model = ns.name;
    ns.spec.model_revision = "1";
    ns.spec.layout = KvLayout::Uniform(layers, /*kv_heads=*/2, /*head_dim=*/32, DType::kBf16,
                                       kPageTokens, /*layers_per_part=*/layers);
    ns.spec.position_encoding = "rope:theta=10000";
    ns.page_bytes = ns.spec.layout.PageBytes();
  }
  return all;
}

// Chains share beginnings, and some are read far more often than others.
std::vector<uint32_t> TokensOf(uint32_t chain) {
  const uint32_t pages = 8 + (chain * 7) % (kPagesMax - 7);
  const uint32_t shared = std::min(pages, 8 * (chain % 5)) * kPageTokens;
  std::vector<uint32_t> tokens(pages * kPageTokens);
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = i < shared ? (chain % 8) * 1'000'000 + i : (100 + chain) * 1'000'000 + i;
  }
  return tokens;
}

class Worker {
 public:
  Worker(PoolClient& client, const TortureClientOptions& options, uint32_t thread,
         TortureCounters& counters)
      : client_(client),
        options_(options),
        thread_(thread),
        counters_(counters),
        random_(options.seed * 977 + thread),
        namespaces_(MakeNamespaces()),
        memory_(namespaces_.back().page_bytes * kPagesMax) {}

  void Run() {
    while (!stop && !OpenAll()) {
    }
    while (!stop) {
      // Four reads of 4 KiB pages to one of 16 KiB.
      const size_t which = random_.Below(5) == 0 ? 1 : 0;
      const uint32_t chain = static_cast<uint32_t>(
          random_.Below(2) == 0 ? random_.Below(kChains) : random_.Below(kChains / 8));
      keys_ = PageKeysOf(opened_[which]->root(), TokensOf(chain), kPageTokens);
      if (Read(which) < keys_.size()) Publish(which);
    }
  }

 private:
  // A call of `deadline` is under way: the harness watches it, and so does its end.
  template <typename Function>
  auto Watched(Nanos deadline, Function function) {
    const Nanos began = clock_.Now();
    counters_.due[thread_] = began + deadline + kTortureCallGrace;
    auto result = function();
    const Nanos due = counters_.due[thread_].exchange(0);
    ++counters_.calls;
    // A call that a pause cut through, or that one has just followed, says nothing.
    if (clock_.Now() > due && counters_.resumed_at < began) ++counters_.late;
    return result;
  }

  bool OpenAll() {
    opened_.clear();
    for (const TortureNamespace& ns : namespaces_) {
      const auto opened =
          Watched(3 * kSecond, [&] { return client_.OpenNamespace(ns.spec, 3 * kSecond).Wait(); });
      if (!opened.ok()) return false;
      opened_.push_back(*opened);
      ++counters_.connected;
    }
    return true;
  }

  KvView ViewOf(size_t which) {
    return KvView::Contiguous(namespaces_[which].spec.layout, memory_.data(),
                              static_cast<uint32_t>(keys_.size()));
  }

  void Judge(size_t which, uint32_t page, Bytes bytes, const char* how) {
    const PageStamp stamp = PageStamp::Of(namespaces_[which].name, keys_[page], 0, 0, 0);
    const PageFinding finding = CheckPage(bytes, PageExpectation::AnyAttempt(stamp));
    ++counters_.reads;
    counters_.bytes += bytes.size();
    if (finding.ok()) return;
    if (counters_.wrong == 0) {
      std::snprintf(counters_.first_wrong, sizeof(counters_.first_wrong), "%s of page %u: %s", how,
                    page, finding.ToString().c_str());
    }
    ++counters_.wrong;
  }

  // Looks up, fetches and checks; returns the pages that the lookup found.
  size_t Read(size_t which) {
    LookupOptions lookup;
    lookup.deadline = kCallDeadline;
    lookup.lease_ms = kLeaseMs;
    const auto hit =
        Watched(kCallDeadline, [&] { return opened_[which]->Lookup(keys_, lookup).Wait(); });
    if (!hit.ok()) return 0;
    const uint32_t found = hit->page_count();
    counters_.misses += keys_.size() - found;
    if (found == 0) return 0;
    if (random_.Below(4) == 0) {
      ReadInPlace(which, *hit);
    } else {
      Fetch(which, *hit);
    }
    return found;
  }

  void Fetch(size_t which, const PrefixHit& hit) {
    FetchOptions options;
    options.deadline = kCallDeadline;
    const auto fetched = Watched(
        kCallDeadline, [&] { return opened_[which]->Fetch(hit, ViewOf(which), options).Wait(); });
    if (!fetched.ok()) return;
    const size_t page_bytes = namespaces_[which].page_bytes;
    for (uint32_t i = 0; i < fetched->pages.size(); ++i) {
      if (!fetched->pages[i]) {
        ++counters_.misses;
        continue;
      }
      Judge(which, i, Bytes(memory_.data() + i * page_bytes, page_bytes), "fetch");
    }
  }

  void ReadInPlace(size_t which, PrefixHit hit) {
    const size_t page_bytes = namespaces_[which].page_bytes;
    std::vector<uint32_t> read;
    for (uint32_t i = 0; i < hit.page_count(); ++i) {
      const absl::StatusOr<Bytes> bytes = hit.View(i, 0);
      if (!bytes.ok()) continue;
      std::memcpy(memory_.data() + i * page_bytes, bytes->data(), page_bytes);
      read.push_back(i);
    }
    if (read.empty()) return Fetch(which, hit);
    const auto valid = Watched(5 * kSecond, [&] { return hit.Release().Wait(); });
    if (!valid.ok() || !*valid) {
      counters_.misses += read.size();
      return;
    }
    counters_.views += read.size();
    for (const uint32_t i : read) {
      Judge(which, i, Bytes(memory_.data() + i * page_bytes, page_bytes), "read in place");
    }
  }

  void Publish(size_t which) {
    const size_t page_bytes = namespaces_[which].page_bytes;
    ++attempt_;
    for (size_t i = 0; i < keys_.size(); ++i) {
      FillPage({memory_.data() + i * page_bytes, page_bytes},
               PageStamp::Of(namespaces_[which].name, keys_[i], 0, options_.client, attempt_));
    }
    PublishOptions options;
    options.deadline = kCallDeadline;
    const auto published = Watched(kCallDeadline, [&] {
      return opened_[which]->Publish(keys_, ViewOf(which), options).Wait();
    });
    if (published.ok()) counters_.pages_stored += published->pages_stored;
  }

  PoolClient& client_;
  const TortureClientOptions& options_;
  const uint32_t thread_;
  TortureCounters& counters_;
  SeededRandom random_;
  const SystemClock clock_;
  const std::vector<TortureNamespace> namespaces_;
  std::vector<std::shared_ptr<PoolNamespace>> opened_;
  std::vector<std::byte> memory_;
  std::vector<PageKey> keys_;
  uint64_t attempt_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TortureMemory>> TortureMemory::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(TortureCounters)) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot make ", path));
  }
  void* const at =
      mmap(nullptr, sizeof(TortureCounters), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at == MAP_FAILED) return absl::UnavailableError(absl::StrCat("cannot map ", path));
  return std::unique_ptr<TortureMemory>(new TortureMemory(static_cast<TortureCounters*>(at)));
}

TortureMemory::~TortureMemory() { munmap(counters_, sizeof(TortureCounters)); }

int RunTortureClient(const TortureClientOptions& options) {
  std::signal(SIGTERM, [](int) { stop = true; });
  SetLogLevel(LogLevel::kError);
  const auto memory = TortureMemory::Open(options.counters_file);
  if (!memory.ok()) return 3;
  TortureCounters& counters = ***memory;
  for (std::atomic<int64_t>& due : counters.due) due = 0;
  ClientOptions client;
  client.name = absl::StrCat("torture", options.client);
  for (const absl::string_view address : absl::StrSplit(options.daemons, ',')) {
    client.daemons.push_back({std::string(address), 1.0});
  }
  const absl::StatusOr<PathChoice> path = ParsePath(options.path);
  if (!path.ok()) return 3;
  client.path = *path;
  client.reconnect_interval_max = 500 * kMillisecond;
  auto connected = PoolClient::Connect(std::move(client));
  if (!connected.ok()) return 3;
  counters.ready = 1;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < std::min(options.threads, kTortureThreadsMax); ++i) {
    threads.emplace_back([&, i] { Worker(**connected, options, i, counters).Run(); });
  }
  for (std::thread& thread : threads) thread.join();
  counters.ready = 0;
  connected->reset();
  return 0;
}

}  // namespace forebay::testing
