#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/ctl/spec_of.h"
#include "client/ctl/subcommand.h"
#include "client/pool_client.h"

namespace forebay::ctl {
namespace {

// 64 tokens of a layer of 8 KV heads, in bf16: what codecs meet most.
NamespaceSpec AnyModel() {
  NamespaceSpec spec;
  spec.model = "forebayctl.explain";
  spec.layout = KvLayout::Uniform(/*layer_count=*/1, /*kv_heads=*/8, /*head_dim=*/128, DType::kBf16,
                                  /*page_tokens=*/64, /*layers_per_part=*/1);
  return spec;
}

double Milliseconds(Nanos ns) { return static_cast<double>(ns) / kMillisecond; }

std::string EstimateJson(const CodecEstimate& estimate) {
  return absl::StrFormat(
      "{\"codec\": %s, \"allowed\": %s, \"ratio\": %.3f, \"encode_ms\": %.3f, \"cross_ms\": %.3f, "
      "\"decode_ms\": %.3f, \"total_ms\": %.3f}",
      JsonQuote(estimate.name), estimate.allowed ? "true" : "false", estimate.ratio,
      Milliseconds(estimate.encode_ns), Milliseconds(estimate.cross_ns),
      Milliseconds(estimate.decode_ns), Milliseconds(estimate.total_ns));
}

void PrintJson(const Context& context, const QualityContract& quality, uint64_t bytes,
               const PathCodec& path) {
  std::vector<std::string> estimates;
  for (const CodecEstimate& estimate : path.choice.estimates) {
    estimates.push_back(EstimateJson(estimate));
  }
  context.out << absl::StrFormat(
      "{\"daemon\": %s, \"path\": %s, \"gbit_per_s\": %.3f, \"latency_us\": %.1f, "
      "\"shared_memory\": %s, \"quality\": %s, \"bytes\": %d, \"codec\": %s, \"reason\": %s, "
      "\"estimates\": [%s]}\n",
      JsonQuote(path.control), JsonQuote(path.path), 8 * path.rates.bytes_per_ns,
      static_cast<double>(path.rates.latency_ns) / kMicrosecond,
      path.rates.shared_memory ? "true" : "false", JsonQuote(quality.ToString()), bytes,
      JsonQuote(path.choice.name), JsonQuote(path.choice.reason), absl::StrJoin(estimates, ", "));
}

void PrintTable(const Context& context, const QualityContract& quality, uint64_t bytes,
                const PathCodec& path) {
  context.out << absl::StrFormat("%s over %s: %.2f Gbit/s, %.0f us\n", path.control,
                                 path.rates.shared_memory ? "shared memory" : path.path,
                                 8 * path.rates.bytes_per_ns,
                                 static_cast<double>(path.rates.latency_ns) / kMicrosecond)
              << absl::StrFormat("%s within \"%s\", %s: %s\n\n", HumanBytes(bytes),
                                 quality.ToString(), path.choice.name, path.choice.reason)
              << absl::StrFormat("  %-14s %7s %11s %11s %11s %11s\n", "codec", "ratio", "encode ms",
                                 "cross ms", "decode ms", "together ms");
  for (const CodecEstimate& estimate : path.choice.estimates) {
    context.out << absl::StrFormat(
        "%s %-14s %7.2f %11.2f %11.2f %11.2f %11.2f%s\n",
        estimate.name == path.choice.name ? "*" : " ", estimate.name, estimate.ratio,
        Milliseconds(estimate.encode_ns), Milliseconds(estimate.cross_ns),
        Milliseconds(estimate.decode_ns), Milliseconds(estimate.total_ns),
        estimate.allowed ? "" : "  below the contract");
  }
}

absl::Status RunExplainCodec(const Context& context, const Flags& flags) {
  FB_ASSIGN_OR_RETURN(const uint64_t mib, flags.Number("--mib", 64, 1, 1 << 20));
  FB_ASSIGN_OR_RETURN(const uint64_t id, flags.Number("--namespace", 0, 0, UINT32_MAX));
  NamespaceSpec spec = AnyModel();
  if (flags.Has("--namespace")) {
    FB_ASSIGN_OR_RETURN(spec, SpecOf(context, id, flags.Get("--salt")));
  }
  if (flags.Has("--quality")) {
    FB_ASSIGN_OR_RETURN(spec.quality, QualityContract::Parse(flags.Get("--quality")));
  }
  ClientOptions options;
  options.daemons = {{context.daemon, 1.0}};
  options.token = context.token;
  options.name = "forebayctl";
  FB_ASSIGN_OR_RETURN(options.path, ParsePath(flags.Get("--path", "auto")));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<PoolClient> client,
                      PoolClient::Connect(std::move(options)));
  FB_ASSIGN_OR_RETURN(const std::shared_ptr<PoolNamespace> ns,
                      client->OpenNamespace(spec, context.deadline).Wait());
  const uint64_t bytes = mib << 20;
  FB_ASSIGN_OR_RETURN(const std::vector<PathCodec> paths, ns->ExplainCodecs(bytes).Wait());
  for (const PathCodec& path : paths) {
    if (context.json) {
      PrintJson(context, spec.quality, bytes, path);
    } else {
      PrintTable(context, spec.quality, bytes, path);
    }
  }
  return absl::OkStatus();
}

}  // namespace

extern const Subcommand kExplainCodec{
    .name = "explain codec",
    .usage = "[--namespace ID | --quality CONTRACT] [--mib N] [--path PATH]",
    .summary = "as which codec a client here would publish over its path to the daemon, and why",
    .flags = {{"--namespace", "ID", "within its contract, as 'forebayctl namespaces' lists it"},
              {"--quality", "CONTRACT", "\"exact\" (default), \"near/fair, layers 0-1 exact\", …"},
              {"--mib", "N", "raw MiB to publish (64)"},
              {"--path", "PATH", "auto (default), local, tcp or ucx"},
              {"--salt", "SALT", "the namespace's cache salt, if it has one"}},
    .run = RunExplainCodec,
};

}  // namespace forebay::ctl
