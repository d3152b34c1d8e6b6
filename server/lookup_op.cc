#include "server/lookup_op.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "server/node_core.h"
#include "server/reply.h"
#include "server/session.h"

namespace forebay {
namespace {

// Where the parts of the first pages rest, as far as they fit one message.
std::vector<wire::SlotLocation> Locate(NodeCore& core, const std::vector<SlotRef>& slots,
                                       uint32_t part_count) {
  const size_t whole_pages = std::min<size_t>(slots.size(), wire::kLocationsMax) / part_count;
  std::vector<wire::SlotLocation> locations(whole_pages * part_count);
  for (size_t i = 0; i < locations.size(); ++i) {
    if (!slots[i].valid()) continue;
    const absl::StatusOr<Bytes> frame = core.tier->Read(slots[i]);
    if (!frame.ok()) continue;
    const DramTier::Location at = core.tier->LocationOf(slots[i].slot);
    locations[i].region = at.slab;
    locations[i].offset = at.offset;
    locations[i].frame_bytes = static_cast<uint32_t>(frame->size());
    locations[i].generation = slots[i].generation;
  }
  return locations;
}

}  // namespace

void AnswerLookup(NodeCore& core, Endpoint& endpoint, uint64_t op, const wire::Lookup& lookup,
                  const std::vector<PageKey>& keys, Nanos now) {
  if (FB_FAILPOINT_HIT("server.lookup.answer")) {
    SendError(endpoint, op, absl::UnavailableError("armed by a test"));
    return;
  }
  Session& session = *endpoint.session;
  NamespaceEntry& ns = *session.ns;
  const uint32_t part_count = static_cast<uint32_t>(ns.parts.size());
  std::vector<PageRef> pages;
  std::vector<ClassMask> classes;
  wire::LookupReply reply;
  reply.parts = part_count;
  reply.page_count = core.index().LeadingClasses(ns.id, keys, &pages, &classes);
  reply.queue_us = endpoint.gets.QueueMicroseconds(core.options.limits.get_window_bytes);

  ++ns.lookups;
  ns.lookup_pages += keys.size();
  ns.hit_pages += reply.page_count;
  core.metrics.lookups.Add();
  core.metrics.lookup_pages.Add(keys.size());
  core.metrics.lookup_hit_pages.Add(reply.page_count);

  std::vector<wire::SlotLocation> locations;
  if (reply.page_count > 0 && (lookup.flags & wire::kProbe) == 0) {
    const uint32_t lease_ms = std::min(lookup.lease_ms, core.options.limits.lease_ms_max);
    const bool locate = (lookup.flags & wire::kWantLocations) != 0 && endpoint.same_host;
    absl::StatusOr<LeaseBook::Granted> granted =
        core.leases.Grant(session.owner, absl::MakeConstSpan(pages).subspan(0, reply.page_count),
                          part_count, ns.page_frame_bytes, locate, now, lease_ms * kMillisecond);
    if (granted.ok()) {
      reply.lease = granted->lease;
      reply.lease_ms = lease_ms;
      reply.page_count = granted->page_count;
      if (locate) locations = Locate(core, granted->slots, part_count);
      for (uint32_t i = 0; i < reply.page_count; ++i) core.index().Touch(pages[i], now);
      core.WakeBy(core.leases.NextDeadline());
    } else {
      reply.status = WireStatus(granted.status());
      reply.page_count = 0;
    }
  }
  reply.location_count = static_cast<uint32_t>(locations.size());
  wire::Writer writer(wire::Kind::kLookupReply, op, reply);
  writer.Array(absl::MakeConstSpan(classes).subspan(0, reply.page_count));
  writer.PadTo8();
  writer.Array(absl::MakeConstSpan(locations));
  SendReply(endpoint, writer);
}

void AnswerRelease(NodeCore& core, Endpoint& endpoint, uint64_t op, const wire::Release& release,
                   Nanos now) {
  const LeaseBook::Released released =
      core.leases.Release(endpoint.session->owner, release.lease, release.keep_pages, now);
  if ((release.flags & wire::kNoReply) != 0) return;
  wire::ReleaseReply reply;
  reply.status = WireStatus(released.status);
  reply.valid = released.valid ? 1 : 0;
  wire::Writer writer(wire::Kind::kReleaseReply, op, reply);
  SendReply(endpoint, writer);
}

void AnswerRenew(NodeCore& core, Endpoint& endpoint, uint64_t op, const wire::Renew& renew,
                 Nanos now) {
  const uint32_t lease_ms = std::min(renew.lease_ms, core.options.limits.lease_ms_max);
  const LeaseBook::Released renewed =
      core.leases.Renew(endpoint.session->owner, renew.lease, now, lease_ms * kMillisecond);
  wire::RenewReply reply;
  reply.status = WireStatus(renewed.status);
  reply.valid = renewed.valid ? 1 : 0;
  wire::Writer writer(wire::Kind::kRenewReply, op, reply);
  SendReply(endpoint, writer);
}

void AnswerOffer(NodeCore& core, Endpoint& endpoint, uint64_t op,
                 const std::vector<PageKey>& keys) {
  const NamespaceEntry& ns = *endpoint.session->ns;
  const size_t part_count = ns.parts.size();
  const size_t key_bytes = (part_count + 7) / 8;
  if (sizeof(wire::Head) + sizeof(wire::OfferReply) + keys.size() * key_bytes > kHeaderBytesMax) {
    SendError(endpoint, op,
              absl::InvalidArgumentError(
                  absl::StrCat("an answer for ", keys.size(), " pages of ", part_count,
                               " parts does not fit one message: offer fewer at once")));
    return;
  }
  std::vector<uint8_t> wanted(keys.size() * key_bytes, 0);
  const Nanos now = core.clock.Now();
  for (size_t i = 0; i < keys.size(); ++i) {
    const PageRef page = core.index().Find(ns.id, keys[i]);
    // A publisher counts on the pages that it need not send: its own puts must not push them out.
    if (page.valid()) core.index().Touch(page, now);
    for (size_t part = 0; part < part_count; ++part) {
      const bool here =
          page.valid() && core.index().Part(page, static_cast<uint32_t>(part)).valid();
      if (!here) wanted[i * key_bytes + part / 8] |= static_cast<uint8_t>(1u << (part % 8));
    }
  }
  wire::OfferReply reply;
  reply.key_count = static_cast<uint32_t>(keys.size());
  reply.parts = static_cast<uint32_t>(part_count);
  wire::Writer writer(wire::Kind::kOfferReply, op, reply);
  writer.Array(absl::MakeConstSpan(wanted));
  SendReply(endpoint, writer);
}

void TakeReport(NodeCore& core, Endpoint& endpoint, const wire::ReportBad& report) {
  const NamespaceEntry& ns = *endpoint.session->ns;
  const PageRef page = core.index().Find(ns.id, report.key);
  if (!page.valid() || report.part >= ns.parts.size()) return;
  const SlotRef slot = core.index().Part(page, report.part);
  if (!slot.valid()) return;
  // Another generation rests there by now: what the reader saw is gone already.
  if (report.generation != 0 && report.generation != slot.generation) return;
  const absl::StatusOr<Bytes> frame = core.tier->Read(slot);
  if (!frame.ok() || frame->size() < kFrameHeaderBytes) return;

  FrameHeader header;
  std::memcpy(&header, frame->data(), sizeof(header));
  const Bytes payload = frame->subspan(kFrameHeaderBytes);
  const bool sound = CheckFrameHeader(header).ok() && header.payload_bytes == payload.size() &&
                     header.payload_checksum == ChecksumOf(payload);
  if (sound) {
    core.metrics.bad_reports_unfounded.Add();
    return;
  }
  core.metrics.bad_frames.Add();
  LogError("frame.bad", {{"node", core.options.node},
                         {"slot", slot.slot},
                         {"generation", slot.generation},
                         {"frame_bytes", frame->size()}});
  core.store.DropPart(page, report.part);
}

}  // namespace forebay
