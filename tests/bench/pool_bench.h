#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool_client.h"
#include "tests/bench/ceilings.h"
#include "tests/bench/report.h"
#include "tests/support/daemon_process.h"

namespace forebay::bench {

// How much is measured. kSmoke shows that everything runs, and nothing about speed.
enum class Effort : uint8_t { kSmoke, kQuick, kFull };

struct BenchOptions {
  Effort effort = Effort::kFull;
  template <typename T>
  T ByEffort(T smoke, T quick, T full) const {
    return effort == Effort::kSmoke ? smoke : effort == Effort::kQuick ? quick : full;
  }
  int rounds() const { return ByEffort(1, 3, 9); }
  uint64_t total_bytes() const { return ByEffort(1ull << 20, 64ull << 20, 256ull << 20); }
  int calls() const { return ByEffort(20, 500, 5000); }  // of what takes microseconds
  std::vector<uint64_t> part_sizes() const;
#if defined(FOREBAY_HAVE_UCX)
  std::vector<std::string> paths = {"local", "tcp", "ucx"};
#else
  std::vector<std::string> paths = {"local", "tcp"};
#endif
  // Of quality: checkpoints (none: those that are found), a file for its rows as JSON, names of
  // rows (none: all), whether a claim that fails makes the bench fail, and texts whose steps
  // alone are looked at besides.
  std::vector<std::string> models;
  std::string data_file;
  std::vector<std::string> only;
  bool check = false;
  std::optional<uint32_t> more_texts;
};

// A client of one real daemon over one path, with a namespace whose pages are one part each.
class PoolUnderTest {
 public:
  // A chain of `page_count` pages of `part_bytes`, none of them published.
  static absl::StatusOr<std::unique_ptr<PoolUnderTest>> Open(
      const forebay::testing::DaemonProcess& daemon, const std::string& path, uint64_t part_bytes,
      uint32_t page_count, Progress progress = Progress::kCaller);

  const KvLayout& layout() const { return spec_.layout; }
  PoolNamespace& ns() { return *ns_; }
  const std::vector<PageKey>& keys() const { return keys_; }
  // Other keys of the same shape: a chain that nobody has published.
  std::vector<PageKey> FreshKeys();

  absl::StatusOr<PublishResult> Publish(const std::vector<PageKey>& keys, Buffer& from);
  absl::StatusOr<PrefixHit> Lookup(const std::vector<PageKey>& keys, bool probe);
  absl::StatusOr<FetchResult> Fetch(const PrefixHit& hit, Buffer& to);

 private:
  NamespaceSpec spec_;
  std::unique_ptr<PoolClient> client_;
  std::shared_ptr<PoolNamespace> ns_;
  std::vector<PageKey> keys_;
  uint32_t page_count_ = 0;
};

absl::Status BenchFetch(const BenchOptions& options, Report* report);
absl::Status BenchPublish(const BenchOptions& options, Report* report);
absl::Status BenchLookup(const BenchOptions& options, Report* report);
absl::Status BenchView(const BenchOptions& options, Report* report);
absl::Status BenchClients(const BenchOptions& options, Report* report);
absl::Status BenchCodec(const BenchOptions& options, Report* report);
absl::Status BenchIndex(const BenchOptions& options, Report* report);
// What codecs and dropped tokens cost in quality; fails for a model that is named and not there.
absl::Status BenchQuality(const BenchOptions& options, Report* report);
// Redis and Mooncake Store, where they are installed, beside us in the same run.
absl::Status BenchPeers(const BenchOptions& options, Report* report);

}  // namespace forebay::bench
