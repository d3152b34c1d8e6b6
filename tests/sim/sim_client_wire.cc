// What a simulated client does with the messages of its core, and how it reads in place.

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "proto/wire.h"
#include "tests/sim/sim_client.h"

namespace forebay::testing {
namespace {

// The header of a message, unpacked: a fixed body and an array.
template <typename Body, typename Item>
struct Unpacked {
  wire::Head head;
  Body body;
  std::vector<Item> items;

  static std::optional<Unpacked> Of(Bytes header, uint32_t Body::*count) {
    absl::StatusOr<wire::Reader> reader = wire::Reader::Of(header);
    Unpacked all;
    if (!reader.ok() || !reader->Read(&all.body).ok()) return std::nullopt;
    all.head = reader->head();
    if (!reader->ReadArray(all.body.*count, UINT16_MAX, &all.items).ok()) return std::nullopt;
    return all;
  }
};

// The bytes of several ranges in one.
std::vector<std::byte> Gather(const PayloadRanges& ranges) {
  std::vector<std::byte> all;
  for (const Bytes range : ranges) all.insert(all.end(), range.begin(), range.end());
  return all;
}

// The first `bytes` of the ranges.
PayloadRanges Front(const PayloadRanges& ranges, size_t bytes) {
  PayloadRanges front;
  for (const Bytes range : ranges) {
    if (bytes == 0) break;
    front.push_back(range.subspan(0, std::min(bytes, range.size())));
    bytes -= front.back().size();
  }
  return front;
}

}  // namespace

void SimClient::OnSend(EndpointId endpoint, OutgoingMessage& message) {
  const absl::StatusOr<wire::Reader> reader = wire::Reader::Of(message.header);
  if (!reader.ok()) return;
  const double spoiled = calm_ ? 0 : world_.plan.mislabelled_puts + world_.plan.short_puts;
  switch (reader->kind()) {
    case wire::Kind::kGet:
      if (!calm_ && random_.Chance(world_.plan.misdirected_gets)) MisdirectGet(message);
      break;
    case wire::Kind::kPut:
      if (random_.Chance(spoiled)) SpoilPut(message);
      break;
    case wire::Kind::kRelease: {
      wire::Release release;
      wire::Reader body = *reader;
      if (!body.Read(&release).ok()) break;
      const auto granted = lease_endpoint_.find(release.lease);
      if (granted != lease_endpoint_.end() && granted->second != endpoint) {
        world_.Violation("epoch", absl::StrCat(name_,
                                               ": a lease of an earlier connection was given "
                                               "back on a later one"));
      }
      break;
    }
    default:
      break;
  }
}

void SimClient::OnMessage(EndpointId endpoint, Bytes header) {
  absl::StatusOr<wire::Reader> reader = wire::Reader::Of(header);
  wire::LookupReply reply;
  if (!reader.ok() || reader->kind() != wire::Kind::kLookupReply || !reader->Read(&reply).ok() ||
      reply.lease == 0) {
    return;
  }
  if (!lease_endpoint_.emplace(reply.lease, endpoint).second) {
    world_.Violation("leases", absl::StrCat(name_, ": one id for two leases"));
  }
}

// As if the node mixed up two of its pages: both answers are sound frames of the wrong page. The
// memory of `message.header` is the core's, and only it reads it, after this.
void SimClient::MisdirectGet(OutgoingMessage& message) {
  auto get = Unpacked<wire::Get, wire::GetItem>::Of(message.header, &wire::Get::item_count);
  if (!get.has_value() || get->items.size() < 2) return;
  const size_t a = random_.Below(get->items.size());
  const size_t b = random_.Below(get->items.size());
  if (get->items[a].part != get->items[b].part) return;
  world_.Event("misdirect", id_, a, b);
  auto* const items =
      const_cast<std::byte*>(message.header.data()) + sizeof(wire::Head) + sizeof(wire::Get);
  std::memcpy(items + a * sizeof(wire::GetItem), &get->items[b], sizeof(wire::GetItem));
  std::memcpy(items + b * sizeof(wire::GetItem), &get->items[a], sizeof(wire::GetItem));
}

// As if the writer were wrong: the last frame of the put gets another's key, or half its length.
void SimClient::SpoilPut(OutgoingMessage& message) {
  auto put = Unpacked<wire::Put, wire::PutItem>::Of(message.header, &wire::Put::item_count);
  if (!put.has_value() || put->items.empty()) return;
  auto* const items =
      const_cast<std::byte*>(message.header.data()) + sizeof(wire::Head) + sizeof(wire::Put);
  wire::PutItem& last = put->items.back();
  const double share = world_.plan.short_puts + world_.plan.mislabelled_puts;
  if (random_.Chance(world_.plan.short_puts / share)) {
    const std::vector<std::byte> all = Gather(message.payload);
    const size_t before = all.size() - last.header.payload_bytes;
    last.header.payload_bytes /= 2;
    last.header.raw_bytes = last.header.payload_bytes;
    last.header.payload_checksum =
        ChecksumOf(Bytes(all).subspan(before, last.header.payload_bytes));
    last.header.Seal();
    message.payload = Front(message.payload, before + last.header.payload_bytes);
    world_.Event("short put", id_, put->items.size());
  } else {
    const std::vector<PageKey> others = ns_.Chain(static_cast<uint32_t>(random_.Below(kSimChains)));
    last.key = others[random_.Below(others.size())];
    world_.Event("mislabel", id_, put->items.size());
  }
  std::memcpy(items + (put->items.size() - 1) * sizeof(wire::PutItem), &last, sizeof(last));
}

// Reads some parts in place, as an engine does that uses pages where they rest. Like
// PrefixHit::View, it looks at the header first; what it then reads counts only if the release says
// so.
void SimClient::BeginView(Slot& slot) {
  slot.viewing = true;
  slot.view_at = 0;
  slot.view_offset = 0;
  const uint32_t pages = 1 + static_cast<uint32_t>(random_.Below(slot.hit->page_count()));
  for (uint32_t page = 0; page < pages; ++page) {
    for (uint32_t part = 0; part < ns_.parts.size(); ++part) {
      slot.views.push_back({page, part, {}, {}});
    }
  }
  world_.Event("view", id_, pages);
}

// Whether `part` may still be read, by all that the client knows.
bool SimClient::StepViewPart(Slot& slot, const ViewPart& part) const {
  const Hit& hit = *slot.hit;
  const LeaseGrant& grant = hit.grants[hit.grant_of[part.page]];
  const wire::SlotLocation* location = hit.LocationOf(part.page, static_cast<uint16_t>(part.part));
  if (location == nullptr || grant.regions == nullptr) return false;
  if (slot.view_offset > 0) return true;  // It began; the engine goes on with what it has.
  if (hit.released || clock_.Now() >= grant.deadline) return false;
  const Bytes frame = FrameAt(*grant.regions, *location);
  if (frame.empty()) return false;
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof(header));
  const PartSpec& spec = ns_.parts[part.part];
  return CheckFrameClaim(header,
                         {ns_.spec.layout, spec, hit.keys[part.page], part.page, ns_.spec.quality})
             .ok() &&
         header.payload_bytes == frame.size() - kFrameHeaderBytes &&
         header.payload_bytes == spec.raw_bytes;
}

// One piece of one part a turn.
bool SimClient::StepView(Slot& slot) {
  if (world_.now() < slot.stall_until) return false;
  if (slot.view_at == slot.views.size()) {
    EndView(slot);
    return true;
  }
  ViewPart& part = slot.views[slot.view_at];
  if (!StepViewPart(slot, part)) {
    // Not there any more: what was read before may still count.
    slot.views.resize(slot.view_at);
    return true;
  }
  const Hit& hit = *slot.hit;
  const Bytes frame = FrameAt(*hit.grants[hit.grant_of[part.page]].regions,
                              *hit.LocationOf(part.page, static_cast<uint16_t>(part.part)));
  const Bytes payload = frame.subspan(kFrameHeaderBytes);
  if (slot.view_offset == 0) std::memcpy(&part.header, frame.data(), sizeof(part.header));
  const size_t bytes = std::min<size_t>(payload.size() - slot.view_offset, 1024);
  part.bytes.insert(part.bytes.end(), payload.begin() + static_cast<ptrdiff_t>(slot.view_offset),
                    payload.begin() + static_cast<ptrdiff_t>(slot.view_offset + bytes));
  slot.view_offset += bytes;
  if (random_.Below(150) == 0) {
    slot.stall_until = world_.now() + Duration(0, 2 * world_.plan.lease_ms_max * kMillisecond);
    world_.Event("stall", id_, part.page, part.part);
  }
  if (slot.view_offset == payload.size()) {
    ++slot.view_at;
    slot.view_offset = 0;
  }
  return true;
}

void SimClient::EndView(Slot& slot) {
  slot.viewing = false;
  const uint64_t call = BeginCall("release", 500 * kMillisecond);
  const uint64_t id =
      core_->Release(slot.hit, Ends<bool>(call, [this, &slot](absl::StatusOr<bool> valid) {
                       if (valid.ok() && *valid) CheckViews(slot);
                       End(slot);
                     }));
  if (id != 0) Began(call, id);
}

void SimClient::CheckViews(const Slot& slot) {
  for (const ViewPart& part : slot.views) {
    ArrivedFrame frame;
    frame.header = part.header;
    frame.payload_bytes_arrived = part.bytes.size();
    // Where memory rots, a release cannot vouch for it; such a reader computes the checksum.
    if (world_.plan.rots > 0) frame.checksum = ChecksumOf(part.bytes);
    frame.leased = ArrivedFrame::LeasedRead{0, world_.now(), /*released_valid=*/true};
    const PageKey& key = slot.hit->keys[part.page];
    const PartSpec& spec = ns_.parts[part.part];
    if (!AcceptFrame(frame, {ns_.spec.layout, spec, key, part.page, ns_.spec.quality}).ok())
      continue;
    ++world_.recorder.views_checked;
    const std::string fault = world_.ledger.Fault(ns_index_, key, part.part, part.bytes,
                                                  slot.since[slot.hit->daemons[part.page]]);
    if (fault.empty()) continue;
    world_.Violation("wrong page", absl::StrCat(name_, ": a read in place of page ", part.page,
                                                " part ", part.part, " was called valid: ", fault));
    return;
  }
}

}  // namespace forebay::testing
