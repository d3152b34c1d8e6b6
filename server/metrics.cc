#include "server/metrics.h"

namespace forebay {
namespace {

Counter& ByResult(MetricRegistry& registry, const char* name, const char* help,
                  const char* result) {
  const MetricRegistry::Label labels[] = {{"result", result}};
  return registry.AddCounter(name, help, labels);
}

Counter& GetItems(MetricRegistry& registry, const char* result) {
  return ByResult(registry, "forebay_get_items_total",
                  "Parts asked for by gets, by how each was answered.", result);
}

Counter& PutItems(MetricRegistry& registry, const char* result) {
  return ByResult(registry, "forebay_put_items_total",
                  "Parts offered by puts, by how each was answered.", result);
}

Gauge& Slots(MetricRegistry& registry, const char* state) {
  const MetricRegistry::Label labels[] = {{"state", state}};
  return registry.AddGauge("forebay_dram_slots", "Slots of the DRAM tier, by state.", labels);
}

}  // namespace

ServerMetrics::ServerMetrics(MetricRegistry& r)
    : sessions_opened(r.AddCounter("forebay_sessions_opened_total", "Sessions opened.")),
      sessions_refused(r.AddCounter("forebay_sessions_refused_total",
                                    "Requests for a session that were refused.")),
      namespaces_forgotten(r.AddCounter("forebay_namespaces_forgotten_total",
                                        "Idle namespaces forgotten to make room for others.")),
      hellos_refused(r.AddCounter("forebay_hellos_refused_total",
                                  "Endpoints refused for an unknown session or another epoch.")),
      malformed_messages(
          r.AddCounter("forebay_malformed_messages_total",
                       "Messages that broke the protocol; each closes its endpoint.")),
      permission_denied(r.AddCounter("forebay_permission_denied_total",
                                     "Requests for a namespace that is not the session's own.")),
      lookups(r.AddCounter("forebay_lookups_total", "Lookups answered.")),
      lookup_pages(r.AddCounter("forebay_lookup_pages_total", "Pages that lookups asked for.")),
      lookup_hit_pages(r.AddCounter("forebay_lookup_hit_pages_total",
                                    "Leading pages that lookups found complete.")),
      leases_granted(r.AddCounter("forebay_leases_granted_total", "Leases granted.")),
      leases_refused(
          r.AddCounter("forebay_leases_refused_total", "Leases refused or shortened for a limit.")),
      leases_expired(
          r.AddCounter("forebay_leases_expired_total", "Leases that ended by their deadline.")),
      releases_invalid(r.AddCounter("forebay_releases_invalid_total",
                                    "Releases and renewals of a lease that no longer held.")),
      get_hits(GetItems(r, "hit")),
      get_misses(GetItems(r, "miss")),
      get_late(GetItems(r, "late")),
      get_refused(GetItems(r, "refused")),
      get_bytes(r.AddCounter("forebay_get_bytes_total", "Payload bytes that gets handed out.")),
      put_stored(PutItems(r, "stored")),
      put_present(PutItems(r, "present")),
      put_full(PutItems(r, "full")),
      put_corrupt(PutItems(r, "corrupt")),
      put_invalid(PutItems(r, "invalid")),
      put_failed(PutItems(r, "failed")),
      put_bytes(r.AddCounter("forebay_put_bytes_total", "Payload bytes stored by puts.")),
      put_timeouts(r.AddCounter("forebay_put_timeouts_total",
                                "Puts given up for their time; each closes its endpoint.")),
      identity_conflicts(r.AddCounter("forebay_identity_conflicts_total",
                                      "Puts of a stored part with other bytes: the first stays.")),
      evicted_pages(r.AddCounter("forebay_evicted_pages_total", "Pages dropped to make room.")),
      evicted_bytes(
          r.AddCounter("forebay_evicted_bytes_total", "Bytes of frames dropped to make room.")),
      bad_frames(r.AddCounter("forebay_bad_frames_total",
                              "Stored frames whose bytes no longer matched; each was dropped.")),
      bad_reports_unfounded(r.AddCounter("forebay_bad_reports_unfounded_total",
                                         "Reports of a bad frame that the daemon found sound.")),
      sessions(r.AddGauge("forebay_sessions", "Sessions open.")),
      namespaces(r.AddGauge("forebay_namespaces", "Namespaces known.")),
      endpoints(r.AddGauge("forebay_endpoints", "Endpoints of the data plane open.")),
      leases(r.AddGauge("forebay_leases", "Leases live.")),
      leased_bytes(r.AddGauge("forebay_leased_bytes", "Bytes of frames that leases hold.")),
      puts_in_flight(r.AddGauge("forebay_puts_in_flight", "Puts whose bytes are arriving.")),
      get_bytes_in_flight(r.AddGauge("forebay_get_bytes_in_flight",
                                     "Bytes of frames pinned for gets, queued or being sent.")),
      subscriptions(r.AddGauge("forebay_subscriptions", "Subscriptions that wait.")),
      pages(r.AddGauge("forebay_pages", "Pages in the index.")),
      frames(r.AddGauge("forebay_frames", "Frames in the index.")),
      frame_bytes(r.AddGauge("forebay_frame_bytes", "Bytes of frames in the index.")),
      dram_capacity_bytes(r.AddGauge("forebay_dram_capacity_bytes", "Bytes of the DRAM tier.")),
      dram_used_bytes(
          r.AddGauge("forebay_dram_used_bytes", "Bytes of DRAM slots that are not free.")),
      slots_free(Slots(r, "free")),
      slots_filling(Slots(r, "filling")),
      slots_sealed(Slots(r, "sealed")),
      slots_draining(Slots(r, "draining")),
      slots_quarantine(Slots(r, "quarantine")),
      slot_pins(r.AddGauge("forebay_dram_slot_pins", "Pins on DRAM slots.")) {}

}  // namespace forebay
