#include <algorithm>
#include <vector>

#include "base/random.h"
#include "base/status_macros.h"
#include "tests/bench/pool_bench.h"
#include "tiers/page_index.h"

namespace forebay::bench {
namespace {

constexpr uint32_t kChainPages = 64;

PageKey RandomKey(SeededRandom& random) {
  PageKey key;
  for (size_t i = 0; i < key.bytes.size(); i += 8) {
    const uint64_t value = random.Next();
    std::copy_n(reinterpret_cast<const uint8_t*>(&value), 8, &key.bytes[i]);
  }
  return key;
}

}  // namespace

absl::Status BenchIndex(const BenchOptions& options, Report* report) {
  report->Section("the index alone: longest prefix of 64-page chains, one core");
  const uint32_t chains = options.ByEffort(1'000u, 100'000u, 1'000'000u) / kChainPages;
  FB_ASSIGN_OR_RETURN(auto policy, MakeEvictionPolicy("s3fifo"));
  PageIndex index(std::move(policy));
  const KvLayout layout = KvLayout::Uniform(4, 8, 128, DType::kBf16, 16, 4);
  const uint32_t ns = index.AddNamespace(PageShape::Of(layout));
  SeededRandom random(7);
  std::vector<std::vector<PageKey>> keys(chains);
  uint32_t slot = 0;
  for (std::vector<PageKey>& chain : keys) {
    PageKey parent = RandomKey(random);
    for (uint32_t page = 0; page < kChainPages; ++page) {
      chain.push_back(RandomKey(random));
      const PageRef ref = index.FindOrAdd(ns, chain.back(), parent, page, page);
      FB_RETURN_IF_ERROR(index.SetPart(ref, 0, SlotRef{slot++, 1}, 4096));
      parent = chain.back();
    }
  }
  const SystemClock clock;
  std::vector<double> rates;
  std::vector<PageRef> pages;
  std::vector<ClassMask> classes;
  for (int round = 0; round < options.rounds(); ++round) {
    uint64_t found = 0;
    const uint32_t lookups = options.ByEffort(20u, 2'000u, 20'000u);
    const Nanos start = clock.Now();
    for (uint32_t i = 0; i < lookups; ++i) {
      found += index.LeadingClasses(ns, keys[random.Below(chains)], &pages, &classes);
    }
    const Nanos taken = clock.Now() - start;
    if (found != uint64_t{lookups} * kChainPages) return absl::InternalError("pages are missing");
    rates.push_back(static_cast<double>(found) * 1e3 / static_cast<double>(taken));
  }
  Figure figure;
  figure.name = "index lookup";
  figure.path = "memory";
  figure.bytes = kChainPages;
  figure.value = Median(rates);
  figure.unit = "Mkeys/s";
  figure.spread = Spread(rates);
  report->Add(figure);
  return absl::OkStatus();
}

}  // namespace forebay::bench
