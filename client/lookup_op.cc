#include "client/lookup_op.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "client/core_services.h"
#include "proto/accept.h"

namespace forebay {

LookupOp::LookupOp(CoreServices& services, uint64_t id, ClientNamespace& ns,
                   std::vector<PageKey> keys, const LookupOptions& options, Nanos now,
                   Nanos deadline, Done done)
    : ClientOp(services, id, deadline),
      ns_(ns),
      keys_(std::move(keys)),
      options_(options),
      started_at_(now),
      done_(std::move(done)),
      streams_(ns.links.size()),
      masks_(keys_.size()),
      found_(keys_.size()) {
  ns_.placement.NodesOf(keys_, &nodes_);
  for (uint32_t page = 0; page < keys_.size(); ++page) streams_[nodes_[page]].pages.push_back(page);
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].pages.empty() || !ns_.links[i]->ready()) {
      streams_[i].ended = true;
    } else {
      Ask(i, now);
    }
  }
}

void LookupOp::Ask(uint32_t index, Nanos now) {
  Stream& stream = streams_[index];
  DaemonLink& link = *ns_.links[index];
  const bool mapped = link.regions() != nullptr && !link.regions()->empty();
  const bool locations = mapped && !options_.probe;
  stream.message_begin = stream.asked;
  // So many pages that the locations of all their parts fit one answer; a page of more parts than
  // kLocationsFew pages allow is fetched by Get where its location is left out.
  constexpr uint32_t kLocationsFew = 16;
  const auto parts = static_cast<uint32_t>(ns_.parts.size());
  const uint32_t most = locations
                            ? std::clamp(wire::kLocationsMax / parts, kLocationsFew, wire::kKeysMax)
                            : wire::kKeysMax;
  const uint32_t count =
      std::min<uint32_t>(most, static_cast<uint32_t>(stream.pages.size()) - stream.asked);
  std::vector<PageKey> keys(count);
  for (uint32_t i = 0; i < count; ++i) keys[i] = keys_[stream.pages[stream.asked + i]];
  stream.asked += count;
  stream.epoch = link.epoch();
  // Before the message leaves, so that the daemon's lease ends after the one that we believe in.
  stream.asked_at = now;
  stream.request = link.BeginRequest(*this);

  wire::Lookup lookup;
  lookup.namespace_id = link.namespace_id();
  lookup.lease_ms = options_.probe ? 0 : options_.lease_ms;
  lookup.key_count = count;
  if (options_.probe) lookup.flags |= wire::kProbe;
  if (locations) lookup.flags |= wire::kWantLocations;
  wire::Writer writer(wire::Kind::kLookup, stream.request, lookup);
  writer.Array<PageKey>(keys);
  link.Send(writer.Take());
}

absl::StatusOr<Landing> LookupOp::OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                          uint64_t /*payload_bytes*/) {
  Stream& stream = streams_[link.index()];
  link.EndRequest(request);
  stream.request = 0;
  WakeUp();
  if (reader.kind() == wire::Kind::kError) {
    stream.ended = true;
    return Landing::Drop();
  }
  if (reader.kind() != wire::Kind::kLookupReply) {
    return absl::InvalidArgumentError("an answer to a lookup of another kind");
  }
  wire::LookupReply reply;
  std::vector<ClassMask> masks;
  std::vector<wire::SlotLocation> locations;
  FB_RETURN_IF_ERROR(reader.Read(&reply));
  FB_RETURN_IF_ERROR(
      reader.ReadArray(reply.page_count, stream.asked - stream.message_begin, &masks));
  FB_RETURN_IF_ERROR(reader.SkipPadTo8());
  FB_RETURN_IF_ERROR(reader.ReadArray(reply.location_count, wire::kLocationsMax, &locations));
  FB_RETURN_IF_ERROR(reader.Finish());
  if (reply.status != 0) {
    stream.ended = true;
    return Landing::Drop();
  }
  const auto parts = static_cast<uint32_t>(ns_.parts.size());
  if (!locations.empty() && (reply.parts != parts || locations.size() % parts != 0 ||
                             locations.size() / parts > reply.page_count)) {
    return absl::InvalidArgumentError("a lookup reply with locations that fit no page");
  }
  link.NoteLatency(services().clock.Now() - stream.asked_at);
  TakeReply(stream, reply, std::move(masks), std::move(locations));
  return Landing::Drop();
}

void LookupOp::TakeReply(Stream& stream, const wire::LookupReply& reply,
                         std::vector<ClassMask> masks, std::vector<wire::SlotLocation> locations) {
  const auto index = static_cast<uint32_t>(&stream - streams_.data());
  for (uint32_t i = 0; i < reply.page_count; ++i) {
    const uint32_t page = stream.pages[stream.message_begin + i];
    masks_[page] = masks[i];
    found_[page] = true;
  }
  stream.queue_us = reply.queue_us;
  stream.ended =
      reply.page_count < stream.asked - stream.message_begin || stream.asked == stream.pages.size();
  Answer answer;
  answer.stream = index;
  answer.first = stream.message_begin;
  answer.grant.daemon = static_cast<uint16_t>(index);
  answer.grant.epoch = stream.epoch;
  answer.grant.lease = reply.lease;
  answer.grant.deadline = LeaseDeadline(stream.asked_at, reply.lease_ms);
  answer.grant.page_count = reply.page_count;
  if (!locations.empty()) answer.grant.regions = ns_.links[index]->regions();
  answer.locations = std::move(locations);
  answers_.push_back(std::move(answer));
}

void LookupOp::OnRequestLost(DaemonLink& link, uint64_t /*request*/, const absl::Status& /*why*/) {
  Stream& stream = streams_[link.index()];
  stream.request = 0;
  stream.ended = true;
  // What it granted is void with the connection.
  for (uint32_t page : stream.pages) found_[page] = false;
  WakeUp();
}

void LookupOp::Advance(Nanos now) {
  bool ended = true;
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    if (stream.ended) continue;
    if (stream.request == 0) {
      if (ns_.links[i]->ready()) {
        Ask(i, now);
      } else {
        stream.ended = true;
        continue;
      }
    }
    ended = false;
  }
  if (ended || cancelled() || now >= deadline()) Finish(now);
}

uint32_t LookupOp::UsablePages() const {
  const auto leading = std::find(found_.begin(), found_.end(), false) - found_.begin();
  return ns_.rule.UsablePages(absl::MakeConstSpan(masks_).first(leading));
}

void LookupOp::CutLease(const Answer& answer, uint32_t keep_pages) {
  DaemonLink& link = *ns_.links[answer.stream];
  if (answer.grant.lease == 0 || !link.ready() || link.epoch() != answer.grant.epoch) return;
  wire::Release release;
  release.lease = answer.grant.lease;
  release.keep_pages = keep_pages;
  release.flags = wire::kNoReply;
  wire::Writer writer(wire::Kind::kRelease, services().NextId(), release);
  link.Send(writer.Take());
}

std::shared_ptr<Hit> LookupOp::MakeHit(uint32_t page_count) {
  auto hit = std::make_shared<Hit>();
  hit->ns = ns_.id;
  hit->parts = static_cast<uint32_t>(ns_.parts.size());
  hit->daemons.assign(nodes_.begin(), nodes_.begin() + page_count);
  hit->grant_of.resize(page_count);
  for (Answer& answer : answers_) {
    const std::vector<uint32_t>& pages = streams_[answer.stream].pages;
    uint32_t keep = 0;
    while (keep < answer.grant.page_count && pages[answer.first + keep] < page_count) ++keep;
    if (keep < answer.grant.page_count) CutLease(answer, keep);
    if (keep == 0) continue;
    answer.grant.page_count = keep;
    const size_t located = std::min<size_t>(keep, answer.locations.size() / hit->parts);
    if (located > 0 && hit->locations.empty()) {
      hit->locations.resize(size_t{page_count} * hit->parts);
    }
    for (uint32_t i = 0; i < keep; ++i) {
      const uint32_t page = pages[answer.first + i];
      hit->grant_of[page] = static_cast<uint32_t>(hit->grants.size());
      if (i >= located) continue;
      std::copy_n(answer.locations.begin() + static_cast<ptrdiff_t>(size_t{i} * hit->parts),
                  hit->parts,
                  hit->locations.begin() + static_cast<ptrdiff_t>(size_t{page} * hit->parts));
    }
    hit->grants.push_back(answer.grant);
  }
  keys_.resize(page_count);
  hit->keys = std::move(keys_);
  hit->fetch_estimate = Estimate(*hit);
  return hit;
}

// Daemons answer in parallel, so the slowest decides.
Nanos LookupOp::Estimate(const Hit& hit) const {
  std::vector<uint64_t> bytes(ns_.links.size());
  const uint32_t pages = hit.page_count();
  uint64_t full_bytes = 0;
  for (const PartSpec& part : ns_.parts) {
    if (part.layer_class == LayerClass::kFull) {
      full_bytes += part.raw_bytes;
      continue;
    }
    for (uint32_t page = 0; page < pages; ++page) {
      if (ns_.Needs(part, page, pages)) bytes[hit.daemons[page]] += part.raw_bytes;
    }
  }
  for (uint16_t daemon : hit.daemons) bytes[daemon] += full_bytes;
  Nanos slowest = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    const DaemonLink& link = *ns_.links[i];
    const Nanos time = link.latency_ns() + Nanos{streams_[i].queue_us} * kMicrosecond +
                       static_cast<Nanos>(static_cast<double>(bytes[i]) / link.bytes_per_ns());
    slowest = std::max(slowest, time);
  }
  return slowest;
}

void LookupOp::Finish(Nanos now) {
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    if (stream.request == 0) continue;
    // Its answer, if one still comes, is an orphan: the link gives the lease back.
    ns_.links[i]->EndRequest(stream.request);
    stream.request = 0;
  }
  SetDone();
  ClientMetrics& metrics = services().metrics;
  const auto asked = static_cast<uint32_t>(keys_.size());
  const uint32_t usable = cancelled() ? 0 : UsablePages();
  std::shared_ptr<Hit> hit = MakeHit(usable);
  metrics.lookups.Add();
  metrics.pages_hit.Add(usable);
  metrics.pages_missed.Add(asked - usable);
  metrics.lookup_ns.Add(static_cast<uint64_t>(std::max<Nanos>(0, now - started_at_)));
  if (cancelled()) {
    done_(absl::CancelledError("the lookup was cancelled"));
  } else {
    done_(std::move(hit));
  }
}

}  // namespace forebay
