#pragma once

#include "base/metrics.h"

namespace forebay {

// What a client counts. Owned by its registry.
struct ClientMetrics {
  explicit ClientMetrics(MetricRegistry& registry);

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
};

}  // namespace forebay
