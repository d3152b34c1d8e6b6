// The part of a fetch that copies from memory which the daemon shares.

#include <algorithm>
#include <cstring>

#include "base/broken.h"
#include "client/core_services.h"
#include "client/fetch_op.h"

namespace forebay {

// True if the item is being copied now, or was settled. False: it must come by Get, because its
// location is unknown, its lease is over, or its connection is not the one that granted it.
bool FetchOp::BeginLocal(const Item& item) {
  const wire::SlotLocation* location = hit_->LocationOf(item.page, item.part);
  if (location == nullptr || hit_->released.load(std::memory_order_acquire)) return false;
  const LeaseGrant& grant = hit_->grants[hit_->grant_of[item.page]];
  const DaemonLink& link = *ns_.links[grant.daemon];
  if (grant.lease == 0 || grant.epoch != link.epoch() || link.regions() == nullptr) return false;
  if (services().clock.Now() >= grant.deadline && !FB_BROKEN("skip_lease_check")) return false;
  const Bytes frame = FrameAt(*link.regions(), *location);
  if (frame.empty()) return false;
  // A copy of the header, so that it cannot change between the checks.
  std::memcpy(&local_.header, frame.data(), sizeof(local_.header));
  const PartSpec& part = ns_.parts[item.part];
  const bool sound = CheckFrameClaim(local_.header, Expected(item)).ok();
  if (!sound || local_.header.payload_bytes != part.raw_bytes ||
      frame.size() != kFrameHeaderBytes + size_t{part.raw_bytes}) {
    return false;  // the daemon looks at it itself when it answers the Get
  }
  link.regions()->MapIn(location->region, frame);
  local_.active = true;
  local_.item = item;
  local_.grant = &grant;
  local_.frame = frame;
  local_.run = 0;
  local_.run_offset = 0;
  local_.payload_offset = 0;
  local_.checksum.Reset();
  view_.PartRuns(ns_.spec.layout, part, item.page, &local_.runs);
  return true;
}

// Copies up to `slice` bytes. True when the item is settled.
bool FetchOp::ContinueLocal(uint64_t* slice) {
  const Bytes payload = local_.frame.subspan(kFrameHeaderBytes);
  while (local_.run < local_.runs.size()) {
    if (*slice == 0) return false;
    const MutableBytes run = local_.runs[local_.run];
    const size_t bytes = std::min<uint64_t>(run.size() - local_.run_offset, *slice);
    local_.checksum.CopyAndUpdate(run.data() + local_.run_offset,
                                  payload.data() + local_.payload_offset, bytes);
    local_.run_offset += bytes;
    local_.payload_offset += bytes;
    *slice -= bytes;
    if (local_.run_offset < run.size()) continue;
    ++local_.run;
    local_.run_offset = 0;
  }
  EndLocal();
  return true;
}

void FetchOp::EndLocal() {
  local_.active = false;
  const Item item = local_.item;
  ArrivedFrame frame;
  frame.header = local_.header;
  frame.payload_bytes_arrived = local_.payload_offset;
  frame.checksum = local_.checksum.Digest();
  frame.leased = ArrivedFrame::LeasedRead{local_.grant->deadline, services().clock.Now(), false};
  const absl::Status accepted = AcceptFrame(frame, Expected(item));
  Stream& stream = streams_[local_.grant->daemon];
  if (accepted.code() == absl::StatusCode::kFailedPrecondition) {
    // The lease may be over, which says nothing about the frame: the daemon can still send it.
    stream.again.push_back(item);
    return;
  }
  Settle(item, accepted, hit_->LocationOf(item.page, item.part)->generation);
  if (!accepted.ok()) return;
  stream.bytes += local_.header.payload_bytes;
  result_.bytes += local_.header.payload_bytes;
  result_.bytes_local += local_.header.payload_bytes;
}

}  // namespace forebay
