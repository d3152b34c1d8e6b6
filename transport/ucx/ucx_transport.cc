#include "transport/ucx/ucx_transport.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "transport/ucx/ucx_status.h"

namespace forebay {
namespace {

// Progress calls of one Poll(): enough to drain what a turn can bring, few enough to stay short.
constexpr int kProgressCallsMax = 64;
// The sockets only tell of beginnings and ends; a busy turn need not ask the kernel each time.
constexpr uint32_t kTurnsBetweenSockets = 16;
// Times handshake_timeout: how long two ends have to meet, though nobody wants them any more.
constexpr int kMeetingPatience = 3;
constexpr Nanos kSlowClose = 5 * kSecond;
constexpr Nanos kDestructorPatience = 10 * kSecond;

absl::Status CheckOptions(const UcxTransportOptions& options) {
  if (options.transports.empty() || options.devices.empty()) {
    return absl::InvalidArgumentError("UCX needs a transport and a device to use");
  }
  if (options.piece_bytes < 4096 || options.rendezvous_bytes_used() < 4096) {
    return absl::InvalidArgumentError("piece_bytes and rendezvous_bytes begin at 4096");
  }
  if (options.base.peer_timeout <= 0 || options.base.keepalive_interval <= 0 ||
      options.handshake_timeout <= 0) {
    return absl::InvalidArgumentError("timeouts of a transport are positive");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(const Clock& clock,
                                                                   TransportHandler& handler,
                                                                   UcxTransportOptions options) {
  FB_RETURN_IF_ERROR(CheckOptions(options));
  FB_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker, UcxWorker::Create(options));
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll_create1: ", strerror(errno)));
  }
  return std::unique_ptr<UcxTransport>(
      new UcxTransport(clock, handler, std::move(options), std::move(worker), epoll_fd));
}

UcxTransport::UcxTransport(const Clock& clock, TransportHandler& handler,
                           UcxTransportOptions options, std::unique_ptr<UcxWorker> worker,
                           int epoll_fd)
    : clock_(clock),
      handler_(handler),
      options_(std::move(options)),
      rendezvous_bytes_(options_.rendezvous_bytes_used()),
      worker_(std::move(worker)),
      epoll_fd_(epoll_fd),
      incarnation_(RandomId()),
      now_(clock.Now()) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = kActiveMessageId;
  params.flags = UCP_AM_FLAG_PERSISTENT_DATA;
  params.cb = &UcxTransport::OnActiveMessage;
  params.arg = this;
  FB_CHECK(ucp_worker_set_am_recv_handler(worker_->get(), &params) == UCS_OK);
}

UcxTransport::~UcxTransport() {
  uint64_t requests_out = 0;
  bool all_met = true;
  for (auto& [id, endpoint] : endpoints_) {
    all_met &= HasMet(*endpoint);
    if (!endpoint->torn_down) TearDown(*endpoint);
    requests_out += endpoint->requests_out;
    for (auto& [message, incoming] : endpoint->incoming) {
      for (UcxArrival& early : incoming->early) Release(early);
    }
  }
  for (const Listener& listener : listeners_) close(listener.fd);
  close(epoll_fd_);
  // The memory of callers must be out of UCX's hands before they may free it. Nobody else is
  // waited for: lanes are flushed with CANCEL.
  const SystemClock wall;
  const Nanos until = wall.Now() + kDestructorPatience;
  while (sends_done_.size() + receives_done_.size() < requests_out) {
    ucp_worker_progress(worker_->get());
    if (wall.Now() < until) continue;
    LogError("ucx.abandoned", {{"requests", requests_out}});
    worker_->Abandon();
    return;
  }
  for (UcxArrival& arrival : arrivals_) Release(arrival);
  for (const auto& [incarnation, worker] : peer_workers_) all_met &= worker.spare.empty();
  // A worker whose ends did not all meet is not destroyed (see BeginClose); the process's end takes
  // it. Nothing of ours is in it.
  if (!all_met) worker_->Abandon();
}

void UcxTransport::Close(EndpointId id) {
  UcxEndpoint* endpoint = Find(id);
  if (endpoint != nullptr) BeginClose(*endpoint, absl::CancelledError("closed by this side"));
}

bool UcxTransport::Poll(Nanos now) {
  // A process that stood still must not take its own silence for its peers'.
  const Nanos gap = now - now_;
  if (gap > options_.base.keepalive_interval) {
    for (auto& [id, endpoint] : endpoints_) {
      if (endpoint->ping_sent != 0) endpoint->ping_sent += gap;
    }
  }
  now_ = now;
  bool worked = false;
  for (int i = 0; i < kProgressCallsMax && ucp_worker_progress(worker_->get()) != 0; ++i) {
    worked = true;
  }
  worked |= DeliverArrivals();
  worked |= DeliverReceives();
  worked |= DeliverSends();
  if (!worked || ++turns_without_sockets_ >= kTurnsBetweenSockets) worked |= PollSockets();
  worked |= FailBroken();
  worked |= DeliverRefusals();
  worked |= AdvanceClosing();
  if (now_ >= next_timer_) RunTimers();
  return worked;
}

bool UcxTransport::PrepareToSleep(std::vector<int>& fds) {
  if (!arrivals_.empty() || !sends_done_.empty() || !receives_done_.empty() || !refused_.empty() ||
      !broken_.empty()) {
    return false;
  }
  for (const EndpointId id : closing_) {
    const UcxEndpoint* endpoint = Find(id);
    if (endpoint == nullptr || endpoint->phase != UcxEndpoint::Phase::kClosing ||
        endpoint->requests_out == 0) {
      return false;
    }
  }
  if (ucp_worker_arm(worker_->get()) != UCS_OK) return false;  // there are events already
  fds.push_back(worker_->event_fd());
  fds.push_back(epoll_fd_);
  return true;
}

UcxEndpoint* UcxTransport::Find(EndpointId id) {
  auto found = endpoints_.find(id);
  return found == endpoints_.end() ? nullptr : found->second.get();
}

bool UcxTransport::FailBroken() {
  const std::vector<std::pair<EndpointId, ucs_status_t>> broken = std::exchange(broken_, {});
  for (const auto& [id, error] : broken) {
    UcxEndpoint* endpoint = Find(id);
    if (endpoint == nullptr) continue;
    const absl::Status status = UcxStatus(error, "the link to the peer");
    CloseNow(*endpoint, absl::UnavailableError(status.message()));
  }
  return !broken.empty();
}

bool UcxTransport::DeliverRefusals() {
  bool worked = false;
  while (!refused_.empty()) {
    const RefusedSend refusal = std::move(refused_.front());
    refused_.pop_front();
    handler_.OnSent(refusal.endpoint, refusal.token, refusal.status);
    worked = true;
  }
  return worked;
}

// UCX 1.13 aborts the process, or wires the next connection wrongly, where one of two ends is
// closed before they met. So the handler is told, and the endpoint stays until they did.
void UcxTransport::BeginClose(UcxEndpoint& endpoint, absl::Status why) {
  if (HasMet(endpoint)) {
    CloseNow(endpoint, std::move(why));
  } else if (!endpoint.abandoned) {
    endpoint.abandoned = true;
    endpoint.why = std::move(why);
    endpoint.deadline = now_ + kMeetingPatience * options_.handshake_timeout;
    AddTimer(endpoint.deadline);
    closing_.push_back(endpoint.id);
    ++abandoned_count_;
  }
}

// For what cannot be waited for: the peer's process or the link is gone.
void UcxTransport::CloseNow(UcxEndpoint& endpoint, absl::Status why) {
  if (endpoint.phase == UcxEndpoint::Phase::kClosing) return;
  if (endpoint.abandoned) --abandoned_count_;
  endpoint.phase = UcxEndpoint::Phase::kClosing;
  endpoint.why = std::move(why);
  endpoint.closing_since = now_;
  closing_.push_back(endpoint.id);
  TearDown(endpoint);
}

void UcxTransport::CloseForGarbage(UcxEndpoint& endpoint, const absl::Status& what) {
  ++counts_.base.protocol_errors;
  if (garbage_log_.Allow(now_)) {
    LogWarning("ucx.garbage",
               {{"peer", endpoint.peer_address.ToString()}, {"what", what.message()}});
  }
  CloseNow(endpoint, absl::UnavailableError(what.message()));
}

void UcxTransport::TearDown(UcxEndpoint& endpoint) {
  endpoint.torn_down = true;
  connections_.erase(endpoint.connection);
  RemoveSocket(endpoint);
  if (!endpoint.met && !endpoint.initiator) --strangers_count_;
  ReleaseEnd(std::move(endpoint.end));
}

bool UcxTransport::AdvanceClosing() {
  if (closing_.empty()) return false;
  bool worked = false;
  std::vector<EndpointId> waiting;
  const std::vector<EndpointId> closing = std::exchange(closing_, {});
  for (const EndpointId id : closing) {
    UcxEndpoint* endpoint = Find(id);
    if (endpoint == nullptr) continue;
    if (endpoint->abandoned && std::exchange(endpoint->announced, false)) {
      const absl::Status why = endpoint->why;
      DeliverRefusals();
      handler_.OnClosed(id, why);
      endpoint = Find(id);
      worked = true;
    }
    if (endpoint == nullptr || endpoint->phase != UcxEndpoint::Phase::kClosing) continue;
    if (endpoint->requests_out == 0) {
      HandBack(*endpoint);
      worked = true;
      continue;
    }
    waiting.push_back(id);
    if (now_ - endpoint->closing_since > kSlowClose && !endpoint->slow_close_logged) {
      endpoint->slow_close_logged = true;
      LogWarning("ucx.slow_close", {{"peer", endpoint->peer_address.ToString()},
                                    {"requests", endpoint->requests_out}});
    }
  }
  closing_.insert(closing_.end(), waiting.begin(), waiting.end());
  return worked;
}

// UCX has let go of everything of `endpoint`: so do we, and say so.
void UcxTransport::HandBack(UcxEndpoint& endpoint) {
  const EndpointId id = endpoint.id;
  const absl::Status why = endpoint.why;
  auto incoming = std::move(endpoint.incoming);
  endpoint.incoming.clear();
  for (auto& [message, entry] : incoming) {
    for (UcxArrival& early : entry->early) Release(early);
    if (entry->announced && !entry->dropped) handler_.OnLanded(id, entry->landing.token, why);
  }
  auto outgoing = std::move(endpoint.outgoing);
  endpoint.outgoing.clear();
  for (const auto& [message, entry] : outgoing) {
    if (entry.token != 0) handler_.OnSent(id, entry.token, why);
  }
  DeliverRefusals();  // of this endpoint too: before OnClosed
  const bool announced = endpoint.announced;
  if (endpoint.opened) --counts_.base.endpoints_open;
  endpoints_.erase(id);
  if (announced) handler_.OnClosed(id, why);
}

void UcxTransport::AddTimer(Nanos when) { next_timer_ = std::min(next_timer_, when); }

void UcxTransport::RunTimers() {
  next_timer_ = kForever;
  std::vector<EndpointId> ids;
  ids.reserve(endpoints_.size());
  for (const auto& [id, endpoint] : endpoints_) ids.push_back(id);
  for (const EndpointId id : ids) AddTimer(CheckEndpoint(*Find(id)));
  for (Listener& listener : listeners_) {
    if (listener.retry_at == 0) continue;
    if (now_ < listener.retry_at ||
        !Watch(listener.fd, EPOLLIN, ListenerTag(listener.fd), /*is_new=*/true).ok()) {
      AddTimer(std::max(listener.retry_at, now_ + kMillisecond));
      continue;
    }
    listener.retry_at = 0;
  }
}

// When it wants to be looked at again.
Nanos UcxTransport::CheckEndpoint(UcxEndpoint& endpoint) {
  const TransportOptions& base = options_.base;
  switch (endpoint.phase) {
    case UcxEndpoint::Phase::kClosing:
      return kForever;
    case UcxEndpoint::Phase::kOpen:
      break;
    default:
      if (now_ < endpoint.deadline) return endpoint.deadline;
      if (endpoint.abandoned) {
        CloseNow(endpoint, endpoint.why);
        return now_;
      }
      if (!endpoint.initiator) ++counts_.handshakes_dropped;
      BeginClose(endpoint, absl::DeadlineExceededError(absl::StrCat(
                               "no connection to ", endpoint.peer_address.ToString(), " in time")));
      return endpoint.abandoned ? endpoint.deadline : now_;
  }
  if (endpoint.ping_sent != 0) {
    // The ping went after keepalive_interval of silence: that counts too.
    const Nanos patience =
        std::max(base.peer_timeout - base.keepalive_interval, base.peer_timeout / 2);
    if (now_ - endpoint.ping_sent < patience) return endpoint.ping_sent + patience;
    ++counts_.peers_silent;
    BeginClose(endpoint, absl::UnavailableError(
                             absl::StrCat(endpoint.peer_address.ToString(), " gave no sign for ",
                                          base.peer_timeout / kMillisecond, " ms")));
    return now_;
  }
  if (now_ - endpoint.last_heard >= base.keepalive_interval) {
    endpoint.ping_sent = now_;
    ++counts_.pings_sent;
    SendPing(endpoint, UcxEnvelope::Kind::kPing, 0);
    return now_ + base.peer_timeout / 2;
  }
  return endpoint.last_heard + base.keepalive_interval;
}

}  // namespace forebay
