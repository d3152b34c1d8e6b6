#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "codec/codec.h"

namespace forebay {

// What a client counts. Owned by its registry.
struct ClientMetrics {
  // `daemons`: their control addresses, in order.
  ClientMetrics(MetricRegistry& registry, const std::vector<std::string>& daemons);

  Counter& lookups;
  Counter& pages_hit;
  Counter& pages_missed;
  Counter& fetch_bytes_local;
  Counter& fetch_bytes_tcp;
  Counter& fetch_bytes_ucx;
  Counter& fetch_parts_missed;
  Counter& bad_frames;
  Counter& publish_bytes;
  Counter& publish_refused;
  Counter& reconnects;
  Counter& protocol_errors;
  Counter& forced_closes;
  Histogram& lookup_ns;
  Counter& raw_fallbacks;
  Counter& decoded_bytes;
  Counter& decode_ns;

  // `codec` made `payload_bytes` of `raw_bytes`.
  void NoteEncode(const Codec& codec, uint64_t raw_bytes, uint64_t payload_bytes, Nanos took);
  void NoteDecode(uint64_t raw_bytes, Nanos took);
  void NoteProbe(uint16_t daemon, double bytes_per_ns);

 private:
  struct Encoding {
    const Codec* codec = nullptr;
    Counter& raw_bytes;
    Counter& payload_bytes;
    Counter& ns;
  };
  std::vector<Encoding> encodings_;  // by codec of the registry
  std::vector<Gauge*> path_rates_;   // by daemon
};

}  // namespace forebay
