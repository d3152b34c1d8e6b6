#include "client/probe_op.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "client/core_services.h"

namespace forebay {
namespace {

constexpr int kLatencies = 3;
// The first transfer warms the path up; another follows where it is soon done, so that the last is
// long against the bursts which links let through.
struct Transfer {
  uint32_t bytes;
  double least_bytes_per_ns;  // that the one before reached
};
constexpr Transfer kTransfers[] = {{256u << 10, 0}, {4u << 20, 0.05}, {16u << 20, 0.5}};

}  // namespace

ProbeOp::ProbeOp(CoreServices& services, uint64_t id, ClientNamespace& ns, Nanos deadline,
                 std::function<void()> done)
    : ClientOp(services, id, deadline), ns_(ns), done_(std::move(done)) {
  for (const std::unique_ptr<DaemonLink>& link : ns_.links) {
    if (!link->ready() || link->path() == PathChoice::kLocal) continue;
    link->NoteProbeBegun(services.clock.Now());
    Ask(*link, paths_[link->index()], 0);
  }
}

void ProbeOp::Ask(DaemonLink& link, Path& path, uint32_t bytes) {
  if (path.memory.bytes < bytes) {
    services().buffers.Give(std::move(path.memory));
    path.memory = services().buffers.Take(bytes);
    // Page faults are not the path's.
    std::memset(path.memory.span().data(), 0, bytes);
  }
  path.request = link.BeginRequest(*this);
  path.asked_at = services().clock.Now();
  path.bytes = bytes;
  wire::Probe probe;
  probe.reply_bytes = bytes;
  wire::Writer writer(wire::Kind::kProbe, path.request, probe);
  link.Send(writer.Take());
}

void ProbeOp::Advance(Nanos now) {
  if (done()) return;
  if (cancelled() || now >= deadline()) {
    TellDone();
    SetWakeAt(kForever);
    std::vector<uint16_t> unanswered;
    for (const auto& [daemon, path] : paths_) {
      if (!path.landing) unanswered.push_back(daemon);
      // Closing hands the memory back; only a namespace that closes is in such a hurry.
      if (path.landing && cancelled()) ns_.links[daemon]->Abort(absl::CancelledError("closed"));
    }
    for (uint16_t daemon : unanswered) End(daemon);
  }
  if (!paths_.empty()) return;
  SetDone();
  TellDone();
}

void ProbeOp::TellDone() {
  if (done_) std::exchange(done_, nullptr)();
}

absl::StatusOr<Landing> ProbeOp::OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                         uint64_t payload_bytes) {
  WakeUp();
  link.EndRequest(request);
  Path& path = paths_.at(link.index());
  path.request = 0;
  if (reader.kind() == wire::Kind::kError) {
    absl::Status told;
    FB_RETURN_IF_ERROR(wire::ReadError(reader, &told));
    End(link.index());
    return Landing::Drop();
  }
  if (reader.kind() != wire::Kind::kProbeReply || payload_bytes > wire::kProbeBytesMax) {
    return absl::InvalidArgumentError("an answer to a probe of another kind");
  }
  FB_RETURN_IF_ERROR(reader.Finish());
  if (payload_bytes == 0) {
    path.latency = std::min(path.latency, services().clock.Now() - path.asked_at);
    Ask(link, path, ++path.latencies < kLatencies ? 0 : kTransfers[0].bytes);
    return Landing::Drop();
  }
  if (payload_bytes > path.memory.bytes) {
    return absl::InvalidArgumentError("a probe was answered with more bytes than it asked for");
  }
  path.landing = true;
  Landing landing;
  landing.segments.push_back({path.memory.span().first(payload_bytes), nullptr});
  landing.token = link.NewLanding(*this);
  return landing;
}

void ProbeOp::OnLanded(DaemonLink& link, uint64_t /*token*/, const absl::Status& status) {
  WakeUp();
  Path& path = paths_.at(link.index());
  path.landing = false;
  const Nanos took = std::max<Nanos>(services().clock.Now() - path.asked_at - path.latency, 1);
  double rate = static_cast<double>(path.bytes) / static_cast<double>(took);
  // What the longer one took beyond the shorter, since each also pays for a start; but no more than
  // twice what it reached, in case the shorter one was held up.
  if (path.bytes_before > 0 && took > path.took_before) {
    const auto more = static_cast<double>(path.bytes - path.bytes_before);
    rate = std::min(more / static_cast<double>(took - path.took_before), 2 * rate);
  }
  path.bytes_before = path.bytes;
  path.took_before = took;
  if (status.ok() && link.ready() && !cancelled()) {
    for (const Transfer& next : kTransfers) {
      if (next.bytes <= path.bytes || rate < next.least_bytes_per_ns) continue;
      Ask(link, path, next.bytes);
      return;
    }
  }
  if (status.ok()) link.NoteProbe(path.latency, rate);
  End(link.index());
}

void ProbeOp::OnRequestLost(DaemonLink& link, uint64_t /*request*/, const absl::Status& /*why*/) {
  WakeUp();
  paths_.at(link.index()).request = 0;
  End(link.index());
}

void ProbeOp::End(uint16_t daemon) {
  const auto it = paths_.find(daemon);
  if (it->second.request != 0) ns_.links[daemon]->EndRequest(it->second.request);
  services().buffers.Give(std::move(it->second.memory));
  paths_.erase(it);
}

}  // namespace forebay
