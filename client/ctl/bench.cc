#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "client/ctl/subcommand.h"
#include "client/pool_client.h"

namespace forebay::ctl {
namespace {

constexpr uint32_t kPageTokens = 16;

// Eight layers of which each part holds one: a page of `page_bytes`, rounded up to whole elements.
NamespaceSpec BenchSpec(uint64_t page_bytes) {
  constexpr uint32_t kLayers = 8, kHeads = 8;
  const uint64_t per_dim = uint64_t{kLayers} * 2 * kPageTokens * kHeads * DTypeBytes(DType::kBf16);
  const auto dim =
      static_cast<uint32_t>(std::max<uint64_t>(1, (page_bytes + per_dim - 1) / per_dim));
  NamespaceSpec spec;
  spec.model = "forebayctl.bench";
  // A revision of its own: what an earlier run left behind must not be found.
  const Uint128Bytes id = RandomId();
  for (const uint8_t byte : id)
    absl::StrAppend(&spec.model_revision, absl::Hex(byte, absl::kZeroPad2));
  spec.layout = KvLayout::Uniform(kLayers, kHeads, dim, DType::kBf16, kPageTokens,
                                  /*layers_per_part=*/1);
  return spec;
}

struct Timing {
  double publish_s = 0, lookup_us = 0, fetch_s = 0;
  uint64_t bytes = 0;
  FetchResult fetch;
};

absl::StatusOr<Timing> Measure(PoolNamespace& ns, const KvLayout& layout, uint32_t page_count,
                               Nanos deadline) {
  const SystemClock clock;
  Timing timing;
  timing.bytes = layout.PageBytes() * page_count;
  std::vector<std::byte> source(timing.bytes), target(timing.bytes);
  SeededRandom random(page_count);
  for (size_t i = 0; i + 8 <= source.size(); i += 8) {
    const uint64_t value = random.Next();
    std::copy_n(reinterpret_cast<const std::byte*>(&value), 8, &source[i]);
  }
  std::vector<uint32_t> tokens(size_t{page_count} * kPageTokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i);
  const std::vector<PageKey> keys = PageKeysOf(ns.root(), tokens, kPageTokens);

  Nanos start = clock.Now();
  PublishOptions publish_options;
  publish_options.deadline = deadline;
  FB_ASSIGN_OR_RETURN(
      const PublishResult published,
      ns.Publish(keys, KvView::Contiguous(layout, source.data(), page_count), publish_options)
          .Wait());
  timing.publish_s = static_cast<double>(clock.Now() - start) / 1e9;
  if (published.pages_stored < page_count) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the pool took ", published.pages_stored, " of ", page_count,
                     " pages: ", published.first_error.message(), "; try fewer --pages"));
  }
  start = clock.Now();
  LookupOptions lookup;
  lookup.deadline = deadline;
  lookup.lease_ms = 30'000;
  FB_ASSIGN_OR_RETURN(const PrefixHit hit, ns.Lookup(keys, lookup).Wait());
  timing.lookup_us = static_cast<double>(clock.Now() - start) / 1e3;
  start = clock.Now();
  FetchOptions fetch_options;
  fetch_options.deadline = deadline;
  FB_ASSIGN_OR_RETURN(
      timing.fetch,
      ns.Fetch(hit, KvView::Contiguous(layout, target.data(), page_count), fetch_options).Wait());
  timing.fetch_s = static_cast<double>(clock.Now() - start) / 1e9;
  if (timing.fetch.page_count < page_count) {
    return absl::UnavailableError(
        absl::StrCat("only ", timing.fetch.page_count, " of ", page_count, " pages came back"));
  }
  if (target != source) return absl::DataLossError("what came back is not what was published");
  return timing;
}

absl::Status RunBench(const Context& context, const Flags& flags) {
  if (!flags.rest().empty()) return absl::InvalidArgumentError("bench takes no words");
  FB_ASSIGN_OR_RETURN(const uint64_t pages, flags.Number("--pages", 64, 1, 1 << 16));
  FB_ASSIGN_OR_RETURN(const uint64_t page_kib, flags.Number("--page-kib", 1024, 4, 1 << 18));
  ClientOptions options;
  options.daemons = {{context.daemon, 1.0}};
  options.token = context.token;
  options.name = "forebayctl bench";
  options.codec = "raw";  // what is published here is noise
  FB_ASSIGN_OR_RETURN(options.path, ParsePath(flags.Get("--path", "auto")));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<PoolClient> client,
                      PoolClient::Connect(std::move(options)));
  const NamespaceSpec spec = BenchSpec(page_kib * 1024);
  FB_ASSIGN_OR_RETURN(const std::shared_ptr<PoolNamespace> ns,
                      client->OpenNamespace(spec, context.deadline).Wait());
  FB_ASSIGN_OR_RETURN(const Timing timing, Measure(*ns, spec.layout, static_cast<uint32_t>(pages),
                                                   std::max(context.deadline, 30 * kSecond)));
  const double gb = static_cast<double>(timing.bytes) / 1e9;
  const std::string path = timing.fetch.bytes_local > 0 ? "local"
                           : timing.fetch.bytes_ucx > 0 ? "ucx"
                                                        : "tcp";
  if (context.json) {
    context.out << absl::StrFormat(
        "{\"path\": \"%s\", \"pages\": %d, \"bytes\": %d, \"publish_gb_s\": %.3f, "
        "\"lookup_us\": %.1f, \"fetch_gb_s\": %.3f, \"evidence\": \"measured\"}\n",
        path, pages, timing.bytes, gb / timing.publish_s, timing.lookup_us, gb / timing.fetch_s);
    return absl::OkStatus();
  }
  context.out << absl::StrFormat(
      "%d pages of %s over %s, each byte compared\n"
      "  publish  %6.2f GB/s\n  lookup   %6.1f us\n  fetch    %6.2f GB/s\n"
      "one run each, so a first impression; './forebay bench' measures beside ceilings\n",
      pages, HumanBytes(spec.layout.PageBytes()), path, gb / timing.publish_s, timing.lookup_us,
      gb / timing.fetch_s);
  return absl::OkStatus();
}

}  // namespace

extern const Subcommand kBench{
    .name = "bench",
    .usage = "[--pages N] [--page-kib N] [--path auto|local|tcp|ucx]",
    .summary = "publishes, looks up and fetches pages of its own, and compares every byte",
    .flags = {{"--pages", "N", "how many (64)"},
              {"--page-kib", "N", "KiB a page (1024)"},
              {"--path", "PATH", "the way to the daemon's data (auto)"}},
    .run = RunBench,
};

}  // namespace forebay::ctl
