#include "client/small_ops.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/core_services.h"

namespace forebay {
namespace {

// After a daemon refused a subscription (it has no room for one, say) before it is asked again.
constexpr Nanos kAskAgain = 50 * kMillisecond;

}  // namespace

OpenOp::OpenOp(CoreServices& services, uint64_t id, ClientNamespace& ns, Nanos deadline, Done done)
    : ClientOp(services, id, deadline), ns_(ns), done_(std::move(done)) {
  ns_.Watch(*this);
}

OpenOp::~OpenOp() { ns_.Unwatch(*this); }

absl::StatusOr<Landing> OpenOp::OnReply(DaemonLink& /*link*/, uint64_t /*request*/,
                                        wire::Reader& /*reader*/, uint64_t /*payload_bytes*/) {
  return absl::InternalError("opening asks nothing");
}

void OpenOp::OnRequestLost(DaemonLink& /*link*/, uint64_t /*request*/,
                           const absl::Status& /*why*/) {}

std::string OpenOp::Reasons() const {
  std::string reasons;
  for (const std::unique_ptr<DaemonLink>& link : ns_.links) {
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ",
                    services().options.daemons[link->index()].control, ": ",
                    link->last_error().ok() ? "no answer" : link->last_error().message());
  }
  return reasons;
}

void OpenOp::Advance(Nanos now) {
  if (done()) return;
  size_t ready = 0;
  size_t settled = 0;
  for (const std::unique_ptr<DaemonLink>& link : ns_.links) {
    if (link->refused()) {
      Finish(absl::Status(link->last_error().code(),
                          absl::StrCat(services().options.daemons[link->index()].control, ": ",
                                       link->last_error().message())));
      return;
    }
    ready += link->ready();
    settled += link->ready() || link->failures() > 0;
  }
  if (cancelled()) {
    Finish(absl::CancelledError("opening the namespace was cancelled"));
  } else if (ready > 0 && (settled == ns_.links.size() || now >= deadline())) {
    Finish(absl::OkStatus());
  } else if (now >= deadline()) {
    Finish(absl::UnavailableError(absl::StrCat("no daemon is reachable: ", Reasons())));
  }
}

void OpenOp::Finish(absl::Status status) {
  SetDone();
  done_(std::move(status));
}

ReleaseOp::ReleaseOp(CoreServices& services, uint64_t id, ClientNamespace& ns,
                     const std::vector<LeaseGrant>& grants, Nanos deadline, Done done)
    : ClientOp(services, id, deadline), ns_(ns), done_(std::move(done)) {
  for (const LeaseGrant& grant : grants) {
    DaemonLink& link = *ns_.links[grant.daemon];
    if (grant.lease == 0 || !link.ready() || link.epoch() != grant.epoch) {
      valid_ = false;
      continue;
    }
    wire::Release release;
    release.lease = grant.lease;
    const uint64_t request = link.BeginRequest(*this);
    requests_[request] = grant.daemon;
    wire::Writer writer(wire::Kind::kRelease, request, release);
    link.Send(writer.Take());
  }
}

absl::StatusOr<Landing> ReleaseOp::OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                           uint64_t /*payload_bytes*/) {
  WakeUp();
  wire::ReleaseReply reply;
  if (reader.kind() == wire::Kind::kReleaseReply) {
    FB_RETURN_IF_ERROR(reader.Read(&reply));
    FB_RETURN_IF_ERROR(reader.Finish());
  } else if (reader.kind() != wire::Kind::kError) {
    return absl::InvalidArgumentError("an answer to a release of another kind");
  }
  valid_ = valid_ && reply.status == 0 && reply.valid == 1;
  link.EndRequest(request);
  requests_.erase(request);
  return Landing::Drop();
}

void ReleaseOp::OnRequestLost(DaemonLink& /*link*/, uint64_t request, const absl::Status& /*why*/) {
  valid_ = false;
  requests_.erase(request);
  WakeUp();
}

void ReleaseOp::Advance(Nanos now) {
  if (!requests_.empty() && !cancelled() && now < deadline()) return;
  for (const auto& [request, daemon] : requests_) {
    valid_ = false;
    ns_.links[daemon]->EndRequest(request);
  }
  SetDone();
  done_(valid_);
}

SubscribeOp::SubscribeOp(CoreServices& services, uint64_t id, ClientNamespace& ns,
                         std::vector<PageKey> keys, Nanos deadline, OnProgress on_progress,
                         Done done)
    : ClientOp(services, id, deadline),
      ns_(ns),
      keys_(std::move(keys)),
      on_progress_(std::move(on_progress)),
      done_(std::move(done)),
      streams_(ns.links.size()) {
  ns_.Watch(*this);
  ns_.placement.NodesOf(keys_, &nodes_);
  for (uint32_t page = 0; page < keys_.size(); ++page) streams_[nodes_[page]].pages.push_back(page);
}

SubscribeOp::~SubscribeOp() { ns_.Unwatch(*this); }

void SubscribeOp::Ask(uint16_t daemon, Nanos now) {
  Stream& stream = streams_[daemon];
  DaemonLink& link = *ns_.links[daemon];
  stream.begin = stream.complete;
  const uint32_t count =
      std::min<uint32_t>(wire::kKeysMax, static_cast<uint32_t>(stream.pages.size()) - stream.begin);
  std::vector<PageKey> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back(keys_[stream.pages[stream.begin + i]]);
  wire::Subscribe subscribe;
  subscribe.namespace_id = link.namespace_id();
  subscribe.key_count = count;
  subscribe.deadline_ms = static_cast<uint32_t>(
      std::clamp<Nanos>((deadline() - now) / kMillisecond, 1, wire::kSubscribeMsMax));
  stream.request = link.BeginRequest(*this);
  wire::Writer writer(wire::Kind::kSubscribe, stream.request, subscribe);
  writer.Array<PageKey>(keys);
  link.Send(writer.Take());
}

absl::StatusOr<Landing> SubscribeOp::OnReply(DaemonLink& link, uint64_t request,
                                             wire::Reader& reader, uint64_t /*payload_bytes*/) {
  WakeUp();
  Stream& stream = streams_[link.index()];
  if (reader.kind() == wire::Kind::kError) {
    link.EndRequest(request);
    stream.request = 0;
    stream.ask_at = services().clock.Now() + kAskAgain;
    return Landing::Drop();
  }
  if (reader.kind() != wire::Kind::kSubscribeEvent) {
    return absl::InvalidArgumentError("an answer to a subscription of another kind");
  }
  wire::SubscribeEvent event;
  FB_RETURN_IF_ERROR(reader.Read(&event));
  FB_RETURN_IF_ERROR(reader.Finish());
  const auto asked =
      std::min<uint32_t>(wire::kKeysMax, static_cast<uint32_t>(stream.pages.size()) - stream.begin);
  if (event.page_count > asked) {
    return absl::InvalidArgumentError("a subscription event with more pages than were asked for");
  }
  // Events may overtake each other, so only the final one may say less than another did.
  const uint32_t complete = stream.begin + event.page_count;
  stream.complete = event.final != 0 ? complete : std::max(stream.complete, complete);
  if (event.final == 0) return Landing::Drop();
  link.EndRequest(request);
  stream.request = 0;
  if (event.page_count < asked) stream.ask_at = services().clock.Now() + kAskAgain;
  return Landing::Drop();
}

void SubscribeOp::OnRequestLost(DaemonLink& link, uint64_t /*request*/,
                                const absl::Status& /*why*/) {
  Stream& stream = streams_[link.index()];
  stream.request = 0;
  stream.complete = 0;  // what it held may be gone with it
  WakeUp();
}

uint32_t SubscribeOp::LeadingPages() const {
  // The first page that is missing, over all daemons.
  uint32_t leading = static_cast<uint32_t>(keys_.size());
  for (const Stream& stream : streams_) {
    if (stream.complete < stream.pages.size()) {
      leading = std::min(leading, stream.pages[stream.complete]);
    }
  }
  return leading;
}

void SubscribeOp::Advance(Nanos now) {
  const uint32_t leading = LeadingPages();
  if (leading != told_) {
    told_ = leading;
    if (on_progress_) on_progress_(leading);
  }
  if (leading == keys_.size() || cancelled() || now >= deadline()) {
    Finish();
    return;
  }
  Nanos wake = deadline();
  for (uint16_t daemon = 0; daemon < streams_.size(); ++daemon) {
    Stream& stream = streams_[daemon];
    const bool complete = stream.complete == stream.pages.size();
    if (complete || stream.request != 0 || !ns_.links[daemon]->ready()) continue;
    if (now < stream.ask_at) {
      wake = std::min(wake, stream.ask_at);
    } else {
      Ask(daemon, now);
    }
  }
  SetWakeAt(wake);
}

void SubscribeOp::Finish() {
  SetDone();
  for (uint16_t daemon = 0; daemon < streams_.size(); ++daemon) {
    Stream& stream = streams_[daemon];
    if (stream.request == 0) continue;
    DaemonLink& link = *ns_.links[daemon];
    link.EndRequest(stream.request);
    if (!link.ready()) continue;
    wire::Cancel cancel;
    cancel.target = stream.request;
    wire::Writer writer(wire::Kind::kCancel, services().NextId(), cancel);
    link.Send(writer.Take());
  }
  if (cancelled()) {
    done_(absl::CancelledError("the subscription was cancelled"));
  } else {
    done_(LeadingPages());
  }
}

}  // namespace forebay
