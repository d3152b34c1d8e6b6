#include "client/codec_choice.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace forebay {
namespace {

// What a less exact codec, and a change, must at least save.
constexpr double kTie = 0.95;
constexpr double kHysteresis = 0.90;
// The least that any codec must save over raw, which costs no processor that others may want: what
// is predicted of a path where processors, and not the link, are the bound is known no better.
constexpr double kOverRaw = 0.85;

double NanosFor(double bytes, double bytes_per_ns) {
  return bytes_per_ns > 0 ? bytes / bytes_per_ns : 0;
}

CodecEstimate Estimate(const CodecCandidate& candidate, const PathRates& path, uint64_t raw_bytes,
                       uint64_t chunk_bytes) {
  const CodecRates& rates = candidate.rates;
  const auto bytes = static_cast<double>(raw_bytes);
  const double payload = bytes / rates.ratio;
  // Over shared memory everything is a matter of the memory's bandwidth, which threads share.
  const bool apart = path.codec_threads > 0 && !path.shared_memory;
  const int threads = apart ? path.codec_threads : 1;
  const double encode = NanosFor(bytes, rates.encode_bytes_per_ns * threads);
  const double cross = NanosFor(payload, path.bytes_per_ns);
  const double decode = NanosFor(bytes, rates.decode_bytes_per_ns * threads);
  const double copy = path.shared_memory ? cross : NanosFor(payload, path.copy_bytes_per_ns);
  // `coding` by the threads, and `copy`.
  const auto end = [&](double coding) {
    if (!apart) return coding + copy;
    double busy = 0;
    if (path.processors > 0) {
      busy = (coding * threads + copy * (path.same_host ? 2 : 1)) / path.processors;
    }
    return std::max({coding, copy, busy});
  };
  const double sender = end(encode);
  const double receiver = end(decode);
  const auto chunks = static_cast<double>(
      std::max<uint64_t>(1, (raw_bytes + chunk_bytes - 1) / std::max<uint64_t>(chunk_bytes, 1)));
  const double slowest = std::max({sender, cross, receiver});
  const double total = static_cast<double>(path.latency_ns) + (encode + cross + decode) / chunks +
                       slowest * (chunks - 1) / chunks;
  CodecEstimate estimate;
  estimate.name = candidate.name;
  estimate.ratio = rates.ratio;
  estimate.encode_ns = std::llround(encode);
  estimate.cross_ns = std::llround(cross);
  estimate.decode_ns = std::llround(decode);
  estimate.total_ns = std::llround(total);
  return estimate;
}

bool Saves(const CodecEstimate& a, const CodecEstimate& b, double share) {
  return static_cast<double>(a.total_ns) < share * static_cast<double>(b.total_ns);
}

std::string Reason(const CodecEstimate& chosen, const CodecEstimate& raw, const char* kept) {
  if (chosen.name == raw.name) {
    return absl::StrFormat("no codec saves enough over raw%s", kept);
  }
  const Nanos slowest = std::max({chosen.encode_ns, chosen.cross_ns, chosen.decode_ns});
  const char* bound = slowest == chosen.cross_ns    ? "the link"
                      : slowest == chosen.encode_ns ? "encoding"
                                                    : "decoding";
  return absl::StrFormat("%.2f of raw's time, bound by %s%s",
                         static_cast<double>(chosen.total_ns) / static_cast<double>(raw.total_ns),
                         bound, kept);
}

}  // namespace

CodecChoice ChooseCodec(absl::Span<const CodecCandidate> candidates, const QualityBound& bound,
                        const PathRates& path, uint64_t raw_bytes, uint64_t chunk_bytes,
                        const std::string& current) {
  CodecChoice choice;
  choice.estimates.reserve(candidates.size());
  const CodecEstimate* raw = nullptr;
  const CodecEstimate* best = nullptr;
  const CodecEstimate* held = nullptr;
  for (const CodecCandidate& candidate : candidates) {
    CodecEstimate& estimate =
        choice.estimates.emplace_back(Estimate(candidate, path, raw_bytes, chunk_bytes));
    estimate.allowed = bound.Allows(candidate.quality);
    if (!estimate.allowed) continue;
    if (estimate.name == "raw") raw = &estimate;
    FB_CHECK(raw != nullptr);
    const bool current_one = estimate.name == current;
    if (raw != &estimate && !Saves(estimate, *raw, current_one ? kTie : kOverRaw)) continue;
    if (current_one) held = &estimate;
    if (best == nullptr || Saves(estimate, *best, kTie)) best = &estimate;
  }
  const bool stays = held != nullptr && held != best && !Saves(*best, *held, kHysteresis);
  if (stays) best = held;
  choice.name = best->name;
  choice.reason = Reason(*best, *raw, stays ? "; kept, since another would save too little" : "");
  return choice;
}

}  // namespace forebay
