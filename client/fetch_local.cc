// The part of a fetch that copies from memory which the daemon shares.

#include <algorithm>
#include <cstring>

#include "base/broken.h"
#include "client/core_services.h"
#include "client/fetch_op.h"

namespace forebay {

// True if the item is being copied now, or was settled. False: it must come by Get, because its
// location is unknown, its lease is over, or its connection is not the one that granted it.
bool FetchOp::BeginLocal(Stream& stream, const Item& item) {
  LocalCopy& local = stream.local;
  const wire::SlotLocation* location = hit_->LocationOf(item.page, item.part);
  if (location == nullptr || hit_->released.load(std::memory_order_acquire)) return false;
  const LeaseGrant& grant = hit_->grants[hit_->grant_of[item.page]];
  const DaemonLink& link = *ns_.links[grant.daemon];
  if (grant.lease == 0 || grant.epoch != link.epoch() || link.regions() == nullptr) return false;
  if (services().clock.Now() >= grant.deadline && !FB_BROKEN("skip_lease_check")) return false;
  const Bytes frame = FrameAt(*link.regions(), *location);
  if (frame.empty()) return false;
  // A copy of the header, so that it cannot change between the checks.
  std::memcpy(&local.header, frame.data(), sizeof(local.header));
  const PartSpec& part = ns_.parts[item.part];
  const bool sound = CheckFrameClaim(local.header, Expected(item)).ok();
  if (!sound || frame.size() != kFrameHeaderBytes + size_t{local.header.payload_bytes}) {
    return false;  // the daemon looks at it itself when it answers the Get
  }
  link.regions()->MapIn(location->region, frame);
  local.active = true;
  local.item = item;
  local.grant = &grant;
  local.frame = frame;
  local.run = 0;
  local.run_offset = 0;
  local.payload_offset = 0;
  local.checksum.Reset();
  if (local.header.codec == static_cast<uint8_t>(CodecId::kRaw)) {
    view_.PartRuns(ns_.spec.layout, part, item.page, &local.runs);
  } else {
    // A copy, since a decoder reads its input more than once and this may change meanwhile.
    local.encoded =
        std::make_shared<BufferPool::Buffer>(services().buffers.Take(local.header.payload_bytes));
    local.runs = {local.encoded->span().first(local.header.payload_bytes)};
  }
  return true;
}

// Copies up to `slice` bytes. True when the item is settled.
bool FetchOp::ContinueLocal(Stream& stream, uint64_t* slice) {
  LocalCopy& local = stream.local;
  const Bytes payload = local.frame.subspan(kFrameHeaderBytes);
  while (local.run < local.runs.size()) {
    if (*slice == 0) return false;
    const MutableBytes run = local.runs[local.run];
    const size_t bytes = std::min<uint64_t>(run.size() - local.run_offset, *slice);
    local.checksum.CopyAndUpdate(run.data() + local.run_offset,
                                 payload.data() + local.payload_offset, bytes);
    local.run_offset += bytes;
    local.payload_offset += bytes;
    *slice -= bytes;
    if (local.run_offset < run.size()) continue;
    ++local.run;
    local.run_offset = 0;
  }
  EndLocal(stream);
  return true;
}

void FetchOp::EndLocal(Stream& stream) {
  LocalCopy& local = stream.local;
  local.active = false;
  const Item item = local.item;
  ArrivedFrame frame;
  frame.header = local.header;
  frame.payload_bytes_arrived = local.payload_offset;
  frame.checksum = local.checksum.Digest();
  frame.leased = ArrivedFrame::LeasedRead{local.grant->deadline, services().clock.Now(), false};
  const absl::Status accepted = AcceptFrame(frame, Expected(item));
  const DaemonLink& link = *ns_.links[local.grant->daemon];
  const bool lease_given_up = hit_->released.load(std::memory_order_acquire) || !link.ready() ||
                              link.epoch() != local.grant->epoch;
  if (accepted.code() == absl::StatusCode::kFailedPrecondition || lease_given_up) {
    // The lease may be over, which says nothing about the frame: the daemon can still send it.
    stream.again.push_back(item);
    GiveMemory(std::move(local.encoded));
    return;
  }
  const uint64_t generation = hit_->LocationOf(item.page, item.part)->generation;
  const uint16_t daemon = local.grant->daemon;
  if (accepted.ok() && local.encoded != nullptr) {
    stream.outstanding_bytes += ns_.parts[item.part].raw_bytes;
    DecodeJob job;
    job.daemon = daemon;
    job.path = PathChoice::kLocal;
    job.memory = std::move(local.encoded);
    AddToDecode(item, local.header, local.runs.front(), generation, &job);
    StartDecode(std::move(job));
    return;
  }
  GiveMemory(std::move(local.encoded));
  Settle(item, accepted, generation);
  if (accepted.ok()) CountBytes(daemon, PathChoice::kLocal, local.header.payload_bytes);
}

}  // namespace forebay
