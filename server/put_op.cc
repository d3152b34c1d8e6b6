#include "server/put_op.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/broken.h"
#include "base/check.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "proto/accept.h"
#include "server/node_core.h"
#include "server/reply.h"
#include "server/session.h"

namespace forebay {
namespace {

// What logs say of a page.
absl::Hex PagePrefix(const PageKey& key) { return absl::Hex(key.Prefix64() & 0xffffffff); }

// Two puts of one part that differ: the first stays, and somebody computes what it should not.
void ReportConflict(NodeCore& core, const Endpoint& endpoint, const wire::PutItem& put) {
  core.metrics.identity_conflicts.Add();
  if (!core.log_limiter.Allow(core.clock.Now())) return;
  LogWarning("put.identity_conflict", {{"node", core.options.node},
                                       {"namespace", endpoint.session->ns->id},
                                       {"client", endpoint.session->client_name},
                                       {"page_prefix", PagePrefix(put.key)},
                                       {"part", put.part}});
}

// True if the part is here already; compares what is here with what came.
bool Present(NodeCore& core, const Endpoint& endpoint, PageRef page, const wire::PutItem& put) {
  const std::optional<FrameHeader> stored = core.store.HeaderOf(page, put.part);
  if (!stored.has_value()) return false;
  // Two writers may have encoded the same bytes differently, each for its own path.
  const FrameHeader& other = put.header;
  const bool alike = stored->codec == other.codec && stored->codec_param == other.codec_param &&
                     stored->flags == other.flags && stored->payload_bytes == other.payload_bytes;
  if (alike && stored->payload_checksum != other.payload_checksum) {
    ReportConflict(core, endpoint, put);
  }
  return true;
}

}  // namespace

PutOp::PutOp(uint64_t op, std::vector<wire::PutItem> items, Nanos now)
    : op_(op), started_at_(now), items_(items.size()) {
  for (size_t i = 0; i < items.size(); ++i) items_[i].put = items[i];
}

Landing PutOp::Begin(NodeCore& core, Endpoint& endpoint, uint64_t op,
                     std::vector<wire::PutItem> items, uint64_t payload_bytes, Nanos now) {
  uint64_t sum_bytes = 0;
  for (const wire::PutItem& item : items) sum_bytes += item.header.payload_bytes;
  if (sum_bytes != payload_bytes) {
    // Nobody could say which byte belongs to which item.
    RefuseMalformed(core, endpoint, op,
                    absl::InvalidArgumentError(
                        absl::StrCat("a put of ", items.size(), " items says ", sum_bytes,
                                     " bytes of payload and has ", payload_bytes)));
    return Landing::Drop();
  }
  std::unique_ptr<PutOp> put(new PutOp(op, std::move(items), now));
  Session& session = *endpoint.session;
  if (session.puts_in_flight >= core.options.limits.puts_per_session_max) {
    put->RefuseAll(absl::StatusCode::kResourceExhausted);
    put->Count(core);
    put->Answer(endpoint, absl::ResourceExhaustedError("too many puts under way"));
    return Landing::Drop();
  }
  if (FB_FAILPOINT_HIT("server.put.admit")) put->RefuseAll(absl::StatusCode::kUnavailable);
  put->Check(core, endpoint);
  put->OpenSlots(core, endpoint, now);
  if (!put->WantsAny()) {
    put->ClosePages(core, endpoint);
    put->Count(core);
    put->Answer(endpoint, absl::OkStatus());
    return Landing::Drop();
  }
  Landing landing = put->MakeLanding(core);
  landing.token = core.next_token++;
  if (FB_BROKEN("publish_before_copy")) {
    for (Item& item : put->items_) {
      if (item.slot.valid()) put->Publish(core, endpoint, item, absl::OkStatus());
    }
  }
  ++session.puts_in_flight;
  ++core.puts_in_flight;
  core.WakeBy(now + core.options.limits.put_timeout_ms * kMillisecond);
  endpoint.puts.emplace(landing.token, std::move(put));
  return landing;
}

absl::Status PutOp::CheckItem(const Endpoint& endpoint, const wire::PutItem& put) {
  const NamespaceEntry& ns = *endpoint.session->ns;
  if (put.part >= ns.parts.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("part ", put.part, " of a page of ", ns.parts.size(), " parts"));
  }
  if (put.parent == put.key) return absl::InvalidArgumentError("a page is its own parent");
  const PartSpec& part = ns.parts[put.part];
  const bool length_differs = put.header.raw_bytes != part.raw_bytes ||
                              put.header.payload_bytes == 0 ||
                              (put.header.codec == static_cast<uint8_t>(CodecId::kRaw) &&
                               put.header.payload_bytes != part.raw_bytes);
  if (length_differs && !FB_BROKEN("skip_length")) {
    return absl::InvalidArgumentError(
        absl::StrCat("part ", put.part, " has ", part.raw_bytes, " bytes; the frame says ",
                     put.header.raw_bytes, " raw and ", put.header.payload_bytes, " of payload"));
  }
  return CheckFrameClaim(put.header,
                         {ns.spec.layout, part, put.key, std::nullopt, ns.spec.quality});
}

void PutOp::Check(NodeCore& core, const Endpoint& endpoint) {
  for (Item& item : items_) {
    if (item.code != absl::StatusCode::kOk) continue;
    const absl::Status status = CheckItem(endpoint, item.put);
    if (status.ok()) continue;
    item.code = status.code();
    if (core.log_limiter.Allow(core.clock.Now())) {
      LogWarning("put.refused", {{"node", core.options.node},
                                 {"namespace", endpoint.session->ns->id},
                                 {"client", endpoint.session->client_name},
                                 {"page_prefix", PagePrefix(item.put.key)},
                                 {"part", item.put.part},
                                 {"why", status.message()}});
    }
  }
}

void PutOp::OpenSlots(NodeCore& core, const Endpoint& endpoint, Nanos now) {
  // All pages first: none of this message's may make room for another of it.
  for (Item& item : items_) {
    if (item.code != absl::StatusCode::kOk) continue;
    item.page = core.store.OpenPage(endpoint.session->ns->id, item.put.key, item.put.parent,
                                    item.put.header.page_index, now);
  }
  const PageKey* full_page = nullptr;  // its earlier part found no room
  for (Item& item : items_) {
    if (item.code != absl::StatusCode::kOk) continue;
    if (full_page != nullptr && *full_page == item.put.key) {
      item.code = absl::StatusCode::kResourceExhausted;
      continue;
    }
    OpenSlot(core, endpoint, item, now);
    if (item.code == absl::StatusCode::kResourceExhausted) full_page = &item.put.key;
  }
}

void PutOp::OpenSlot(NodeCore& core, const Endpoint& endpoint, Item& item, Nanos now) {
  if (Present(core, endpoint, item.page, item.put)) {
    item.code = absl::StatusCode::kAlreadyExists;
    return;
  }
  const uint32_t ns = endpoint.session->ns->id;
  const bool may_evict = !core.store.RefusedLately(ns, item.put.parent, now);
  const absl::StatusOr<SlotRef> slot =
      core.store.Allocate(kFrameHeaderBytes + item.put.header.payload_bytes, may_evict);
  if (slot.ok()) {
    item.slot = *slot;
    return;
  }
  item.code = slot.status().code();
  if (absl::IsResourceExhausted(slot.status())) core.store.NoteRefused(ns, item.put.key, now);
}

Landing PutOp::MakeLanding(NodeCore& core) {
  Landing landing;
  landing.segments.reserve(items_.size());
  for (Item& item : items_) {
    const size_t payload_bytes = item.put.header.payload_bytes;
    if (item.slot.valid()) {
      const MutableBytes frame = core.tier->FillMemory(item.slot);
      landing.segments.push_back({frame.subspan(kFrameHeaderBytes, payload_bytes), &item.checksum});
      continue;
    }
    for (size_t done = 0; done < payload_bytes;) {
      const size_t bytes = std::min(payload_bytes - done, core.scratch().size());
      landing.segments.push_back({core.scratch().subspan(0, bytes), nullptr});
      done += bytes;
    }
  }
  return landing;
}

void PutOp::OnLanded(NodeCore& core, Endpoint& endpoint, const absl::Status& status) {
  absl::Status landed = status;
  if (FB_FAILPOINT_HIT("server.put.landed")) landed = absl::UnavailableError("armed by a test");
  for (Item& item : items_) {
    if (item.slot.valid()) Publish(core, endpoint, item, landed);
  }
  ClosePages(core, endpoint);
  --endpoint.session->puts_in_flight;
  --core.puts_in_flight;
  Count(core);
  Answer(endpoint, landed);
}

void PutOp::Publish(NodeCore& core, const Endpoint& endpoint, Item& item,
                    const absl::Status& landed) {
  const NamespaceEntry& ns = *endpoint.session->ns;
  ArrivedFrame frame;
  frame.transport = landed;
  frame.header = item.put.header;
  frame.payload_bytes_arrived = item.checksum.bytes();
  frame.checksum = item.checksum.Digest();
  absl::Status status = AcceptFrame(frame, {ns.spec.layout, ns.parts[item.put.part], item.put.key,
                                            std::nullopt, ns.spec.quality});
  if (FB_BROKEN("publish_before_copy")) status = absl::OkStatus();
  const SlotRef slot = std::exchange(item.slot, SlotRef{});
  if (!status.ok()) {
    // OnLanded is the fence: the transport writes no more into this slot.
    core.store.Discard(slot);
    item.code = status.code();
    return;
  }
  status = core.store.Publish(item.page, item.put.part, slot, item.put.header);
  item.code = status.code();
  if (absl::IsAlreadyExists(status)) {
    Present(core, endpoint, item.page, item.put);
  } else if (status.ok() && core.index().Complete(item.page)) {
    core.subscriptions.OnPageComplete(core, ns.id, item.put.key);
  }
}

void PutOp::ClosePages(NodeCore& core, const Endpoint& endpoint) {
  const uint32_t part_count = static_cast<uint32_t>(endpoint.session->ns->parts.size());
  for (Item& item : items_) {
    if (item.page.valid()) core.store.ClosePage(std::exchange(item.page, PageRef{}), part_count);
  }
}

void PutOp::Answer(Endpoint& endpoint, const absl::Status& status) const {
  wire::PutReply reply;
  reply.status = WireStatus(status);
  reply.item_count = static_cast<uint32_t>(items_.size());
  std::vector<uint32_t> codes;
  codes.reserve(items_.size());
  for (const Item& item : items_) codes.push_back(static_cast<uint32_t>(item.code));
  wire::Writer writer(wire::Kind::kPutReply, op_, reply);
  writer.Array(absl::MakeConstSpan(codes));
  SendReply(endpoint, writer);
}

void PutOp::RefuseAll(absl::StatusCode code) {
  for (Item& item : items_) item.code = code;
}

bool PutOp::WantsAny() const {
  return std::any_of(items_.begin(), items_.end(),
                     [](const Item& item) { return item.slot.valid(); });
}

void PutOp::Count(NodeCore& core) const {
  for (const Item& item : items_) {
    switch (item.code) {
      case absl::StatusCode::kOk:
        core.metrics.put_stored.Add();
        core.metrics.put_bytes.Add(item.put.header.payload_bytes);
        break;
      case absl::StatusCode::kAlreadyExists:
        core.metrics.put_present.Add();
        break;
      case absl::StatusCode::kResourceExhausted:
        core.metrics.put_full.Add();
        break;
      case absl::StatusCode::kDataLoss:
        core.metrics.put_corrupt.Add();
        break;
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kUnimplemented:
        core.metrics.put_invalid.Add();
        break;
      default:
        core.metrics.put_failed.Add();
    }
  }
}

}  // namespace forebay
