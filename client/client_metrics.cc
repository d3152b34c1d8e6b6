#include "client/client_metrics.h"

#include <string>

namespace forebay {
namespace {

Counter& FetchBytes(MetricRegistry& registry, const char* path) {
  const MetricRegistry::Label labels[] = {{"path", path}};
  return registry.AddCounter("forebay_client_fetch_bytes_total",
                             "Payload bytes that fetches brought, by path.", labels);
}

}  // namespace

ClientMetrics::ClientMetrics(MetricRegistry& registry, const std::vector<std::string>& daemons)
    : lookups(registry.AddCounter("forebay_client_lookups_total", "Lookups that ended.")),
      pages_hit(registry.AddCounter("forebay_client_pages_hit_total",
                                    "Pages that lookups found usable.")),
      pages_missed(registry.AddCounter("forebay_client_pages_missed_total",
                                       "Pages that lookups asked for and did not find usable.")),
      fetch_bytes_local(FetchBytes(registry, "local")),
      fetch_bytes_tcp(FetchBytes(registry, "tcp")),
      fetch_bytes_ucx(FetchBytes(registry, "ucx")),
      fetch_parts_missed(registry.AddCounter("forebay_client_fetch_parts_missed_total",
                                             "Parts that fetches did not get.")),
      bad_frames(registry.AddCounter("forebay_client_bad_frames_total",
                                     "Frames that the accept rule refused.")),
      publish_bytes(registry.AddCounter("forebay_client_publish_bytes_total",
                                        "Payload bytes that publishing sent.")),
      publish_refused(registry.AddCounter("forebay_client_publish_parts_refused_total",
                                          "Parts that a daemon did not take.")),
      reconnects(registry.AddCounter("forebay_client_reconnects_total",
                                     "Connections to daemons that were made again.")),
      protocol_errors(registry.AddCounter("forebay_client_protocol_errors_total",
                                          "Connections closed for a malformed message.")),
      forced_closes(registry.AddCounter(
          "forebay_client_forced_closes_total",
          "Connections closed to get memory back from a transfer past its deadline.")),
      lookup_ns(
          registry.AddHistogram("forebay_client_lookup_nanoseconds", "Time that lookups took.")),
      raw_fallbacks(registry.AddCounter("forebay_client_raw_fallback_parts_total",
                                        "Parts published raw since their codec gave up on them.")),
      raw_planes(
          registry.AddCounter("forebay_client_raw_planes_total",
                              "Planes left raw within parts that were encoded under a mask.")),
      decoded_bytes(registry.AddCounter("forebay_client_decoded_bytes_total",
                                        "Raw bytes that fetches decoded.")),
      decode_ns(registry.AddCounter("forebay_client_decode_nanoseconds_total",
                                    "Time that decoding took.")) {
  // Uniform steps have a codec for each dictionary, of one name and in no registry.
  std::vector<const Codec*> codecs = {*CodecRegistry::Default().Find(CodecId::kUniform)};
  for (const auto& codec : CodecRegistry::Default().codecs()) codecs.push_back(codec.get());
  for (const Codec* codec : codecs) {
    if (codec->identity()) continue;
    const MetricRegistry::Label labels[] = {{"codec", std::string(codec->name())}};
    encodings_.push_back(
        {codec,
         registry.AddCounter("forebay_client_encoded_bytes_total",
                             "Raw bytes that publishing encoded, by codec.", labels),
         registry.AddCounter("forebay_client_encoded_payload_bytes_total",
                             "Payload bytes that they became, by codec.", labels),
         registry.AddCounter("forebay_client_encode_nanoseconds_total",
                             "Time that encoding took, by codec.", labels)});
  }
  for (const std::string& daemon : daemons) {
    const MetricRegistry::Label labels[] = {{"daemon", daemon}};
    path_rates_.push_back(&registry.AddGauge("forebay_client_path_bytes_per_second",
                                             "What a probe of the path to a daemon reached.",
                                             labels));
  }
}

void ClientMetrics::NoteEncode(const Codec& codec, uint64_t raw_bytes, uint64_t payload_bytes,
                               Nanos took) {
  for (Encoding& encoding : encodings_) {
    if (encoding.codec->name() != codec.name()) continue;
    encoding.raw_bytes.Add(raw_bytes);
    encoding.payload_bytes.Add(payload_bytes);
    encoding.ns.Add(static_cast<uint64_t>(took));
    return;
  }
}

void ClientMetrics::NoteProbe(uint16_t daemon, double bytes_per_ns) {
  path_rates_[daemon]->Set(static_cast<int64_t>(bytes_per_ns * 1e9));
}

void ClientMetrics::NoteDecode(uint64_t raw_bytes, Nanos took) {
  decoded_bytes.Add(raw_bytes);
  decode_ns.Add(static_cast<uint64_t>(took));
}

}  // namespace forebay
