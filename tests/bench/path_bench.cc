// forebay-path-bench: one fetch of the same pages, raw and as the codec that is chosen for the
// path, in turns. tests/bench/shaped_paths.py runs it over links of many speeds.

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "client/pool_client.h"
#include "tests/bench/report.h"

namespace forebay::bench {
namespace {

constexpr char kUsage[] =
    R"(forebay-path-bench --daemon HOST:PORT [--path tcp|local|ucx] [--quality CONTRACT]
                   [--codec auto|NAME] [--mib N] [--rounds N]

Publishes N MiB of made-up keys and values raw and by the codec, fetches both in turns, and prints
one JSON object: codec, ratio (raw bytes over bytes that crossed), raw_ms and codec_ms (medians of
fetches), share (median of the rounds' codec_ms / raw_ms), model_share (as the chooser expected).
)";

struct Arguments {
  std::string daemon, path = "tcp", quality = "exact", codec = "auto";
  uint32_t mib = 32, rounds = 5;
};

absl::StatusOr<Arguments> Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--daemon") {
      arguments.daemon = value;
    } else if (flag == "--path") {
      arguments.path = value;
    } else if (flag == "--quality") {
      arguments.quality = value;
    } else if (flag == "--codec") {
      arguments.codec = value;
    } else if (flag == "--mib" && absl::SimpleAtoi(value, &arguments.mib)) {
    } else if (flag == "--rounds" && absl::SimpleAtoi(value, &arguments.rounds)) {
    } else {
      return absl::InvalidArgumentError(absl::StrCat("wrong flag or value: ", flag, " ", value));
    }
  }
  if (arguments.daemon.empty() || argc % 2 == 0) return absl::InvalidArgumentError(kUsage);
  return arguments;
}

// As a layer of 8 KV heads of 128 channels has them: near normal, a scale and for keys an offset
// for each channel.
void FillCache(const KvLayout& layout, std::vector<std::byte>* memory) {
  SeededRandom random(7);
  const size_t plane = layout.KeyPlaneBytes(0, layout.layers[0].kv_heads) / 2;
  for (size_t i = 0; i < memory->size() / 2; ++i) {
    double sum = 0;
    for (int k = 0; k < 3; ++k) sum += static_cast<double>(random.Below(1 << 16)) / (1 << 16);
    const size_t channel = i % 128;
    const bool key = i / plane % 2 == 0;
    const double scale = key && channel % 31 == 3 ? 8 : 0.5 + static_cast<double>(channel % 7) / 4;
    const auto value = static_cast<float>((sum - 1.5) * scale + (key ? scale : 0));
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const auto bf16 = static_cast<uint16_t>(bits >> 16);
    std::memcpy(memory->data() + 2 * i, &bf16, sizeof(bf16));
  }
}

// One client, and a chain that it has published.
struct Side {
  std::unique_ptr<PoolClient> client;
  std::shared_ptr<PoolNamespace> ns;
  std::vector<PageKey> keys;
  PathCodec codec;
};

constexpr Nanos kDeadline = 300 * kSecond;

absl::StatusOr<Side> Publish(const Arguments& arguments, const std::string& codec,
                             std::vector<std::byte>& source, uint32_t page_count) {
  ClientOptions options;
  options.daemons = {{arguments.daemon, 1.0}};
  options.progress = Progress::kCaller;
  options.codec = codec;
  FB_ASSIGN_OR_RETURN(options.path, ParsePath(arguments.path));
  NamespaceSpec spec;
  spec.model = "path-bench";
  const Uint128Bytes id = RandomId();
  for (const uint8_t byte : id) absl::StrAppend(&spec.model_revision, absl::Hex(byte));
  spec.layout = KvLayout::Uniform(/*layer_count=*/1, /*kv_heads=*/8, /*head_dim=*/128, DType::kBf16,
                                  /*page_tokens=*/64, /*layers_per_part=*/1);
  FB_ASSIGN_OR_RETURN(spec.quality, QualityContract::Parse(arguments.quality));
  Side side;
  FB_ASSIGN_OR_RETURN(side.client, PoolClient::Connect(std::move(options)));
  FB_ASSIGN_OR_RETURN(side.ns, side.client->OpenNamespace(spec, kDeadline).Wait());
  std::vector<uint32_t> tokens(size_t{page_count} * spec.layout.page_tokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i);
  side.keys = PageKeysOf(side.ns->root(), tokens, spec.layout.page_tokens);
  FB_ASSIGN_OR_RETURN(const std::vector<PathCodec> paths,
                      side.ns->ExplainCodecs(source.size()).Wait());
  side.codec = paths.front();
  if (source.empty()) return side;
  PublishOptions publish;
  publish.deadline = kDeadline;
  FB_ASSIGN_OR_RETURN(
      const PublishResult published,
      side.ns
          ->Publish(side.keys, KvView::Contiguous(spec.layout, source.data(), page_count), publish)
          .Wait());
  if (published.pages_stored != page_count) return published.first_error;
  return side;
}

absl::StatusOr<std::pair<double, uint64_t>> Fetch(Side& side, std::vector<std::byte>& target) {
  const SystemClock clock;
  LookupOptions lookup;
  lookup.deadline = kDeadline;
  FB_ASSIGN_OR_RETURN(const PrefixHit hit, side.ns->Lookup(side.keys, lookup).Wait());
  const auto page_count = static_cast<uint32_t>(side.keys.size());
  FetchOptions options;
  options.deadline = kDeadline;
  const Nanos start = clock.Now();
  FB_ASSIGN_OR_RETURN(
      const FetchResult fetched,
      side.ns
          ->Fetch(hit, KvView::Contiguous(side.ns->spec().layout, target.data(), page_count),
                  options)
          .Wait());
  const Nanos took = clock.Now() - start;
  if (fetched.page_count != page_count) {
    return absl::UnavailableError(absl::StrCat(fetched.page_count, " of ", page_count,
                                               " pages came: ", fetched.first_error.ToString()));
  }
  return std::pair(static_cast<double>(took) / kMillisecond, fetched.bytes);
}

absl::Status Run(const Arguments& arguments) {
  const KvLayout layout = KvLayout::Uniform(1, 8, 128, DType::kBf16, 64, 1);
  const auto page_count =
      static_cast<uint32_t>((uint64_t{arguments.mib} << 20) / layout.PageBytes());
  std::vector<std::byte> source(layout.PageBytes() * page_count), target(source.size());
  FillCache(layout, &source);
  FB_ASSIGN_OR_RETURN(Side raw, Publish(arguments, "raw", source, page_count));
  FB_ASSIGN_OR_RETURN(Side coded, Publish(arguments, arguments.codec, source, page_count));
  std::vector<double> raw_ms, coded_ms, shares;
  uint64_t crossed = 0;
  for (uint32_t round = 0; round < arguments.rounds; ++round) {
    FB_ASSIGN_OR_RETURN(const auto plain, Fetch(raw, target));
    FB_ASSIGN_OR_RETURN(const auto smaller, Fetch(coded, target));
    raw_ms.push_back(plain.first);
    coded_ms.push_back(smaller.first);
    shares.push_back(smaller.first / plain.first);
    crossed = smaller.second;
  }
  if (raw.ns->spec().quality.bound.exact() && target != source) {
    return absl::DataLossError("what was fetched is not what was published");
  }
  double model = 1;
  for (const CodecEstimate& estimate : coded.codec.choice.estimates) {
    if (estimate.name != coded.codec.choice.name) continue;
    model = static_cast<double>(estimate.total_ns) /
            static_cast<double>(coded.codec.choice.estimates.front().total_ns);
  }
  std::cout << absl::StrFormat(
      "{\"codec\": \"%s\", \"gbit_per_s\": %.3f, \"ratio\": %.3f, \"raw_ms\": %.3f, "
      "\"codec_ms\": %.3f, \"share\": %.4f, \"model_share\": %.4f}\n",
      coded.codec.choice.name, 8 * coded.codec.rates.bytes_per_ns,
      static_cast<double>(source.size()) / static_cast<double>(crossed), Median(raw_ms),
      Median(coded_ms), Median(shares), model);
  return absl::OkStatus();
}

}  // namespace
}  // namespace forebay::bench

int main(int argc, char** argv) {
  const absl::StatusOr<forebay::bench::Arguments> arguments = forebay::bench::Parse(argc, argv);
  const absl::Status status = arguments.ok() ? forebay::bench::Run(*arguments) : arguments.status();
  if (status.ok()) return 0;
  std::cerr << "forebay-path-bench: " << status.message() << "\n";
  return arguments.ok() ? 1 : 2;
}
