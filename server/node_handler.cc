#include "server/node_handler.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "server/lookup_op.h"
#include "server/reply.h"

namespace forebay {
namespace {

// Between the departure of an endpoint's last message and its end: a peer on TCP that still sends
// would otherwise meet a reset that overtakes the message.
constexpr Nanos kLinger = 20 * kMillisecond;

}  // namespace

NodeHandler::~NodeHandler() {
  for (auto& [id, endpoint] : endpoints_) endpoint->gets.DropWaiting(core_);
}

Endpoint* NodeHandler::Find(EndpointId id) {
  const auto found = endpoints_.find(id);
  return found == endpoints_.end() ? nullptr : found->second.get();
}

void NodeHandler::OnConnected(EndpointId id, const PeerDescription& peer) {
  FB_CHECK(transport_ != nullptr);
  auto endpoint = std::make_unique<Endpoint>();
  endpoint->transport = transport_;
  endpoint->id = id;
  endpoint->peer = peer.address;
  endpoint->same_host = peer.same_host;
  endpoint->hello_by = core_.clock.Now() + core_.options.limits.hello_timeout_ms * kMillisecond;
  core_.WakeBy(endpoint->hello_by);
  endpoints_.emplace(id, std::move(endpoint));
}

Landing NodeHandler::OnMessage(EndpointId id, Bytes header, uint64_t payload_bytes) {
  Endpoint* const endpoint = Find(id);
  if (endpoint == nullptr || endpoint->closing) return Landing::Drop();
  absl::StatusOr<wire::Reader> reader = wire::Reader::Of(header);
  if (!reader.ok()) {
    RefuseMalformed(core_, *endpoint, /*op=*/0, reader.status());
    return Landing::Drop();
  }
  return Dispatch(*endpoint, *reader, payload_bytes, core_.clock.Now());
}

Landing NodeHandler::Dispatch(Endpoint& endpoint, wire::Reader& reader, uint64_t payload_bytes,
                              Nanos now) {
  const uint64_t op = reader.head().op;
  const wire::Kind kind = reader.kind();
  if (endpoint.session == nullptr && kind != wire::Kind::kHello) {
    RefuseMalformed(core_, endpoint, op,
                    absl::UnauthenticatedError("the first message must be Hello"));
    return Landing::Drop();
  }
  if (payload_bytes > 0 && kind != wire::Kind::kPut) {
    RefuseMalformed(core_, endpoint, op, absl::InvalidArgumentError("only a Put has a payload"));
    return Landing::Drop();
  }
  if (kind == wire::Kind::kHello) {
    HandleHello(endpoint, reader);
    return Landing::Drop();
  }
  if (draining_ && kind != wire::Kind::kRelease && kind != wire::Kind::kCancel) {
    SendError(endpoint, op, absl::UnavailableError("this daemon is shutting down"));
    return Landing::Drop();
  }
  if (kind == wire::Kind::kPut) return HandlePut(endpoint, reader, payload_bytes, now);
  if (absl::Status status = Handle(endpoint, reader, now); !status.ok()) {
    RefuseMalformed(core_, endpoint, op, status);
  }
  return Landing::Drop();
}

absl::Status NodeHandler::Handle(Endpoint& endpoint, wire::Reader& reader, Nanos now) {
  switch (reader.kind()) {
    case wire::Kind::kLookup:
      return HandleLookup(endpoint, reader, now);
    case wire::Kind::kRelease:
      return HandleRelease(endpoint, reader, now);
    case wire::Kind::kRenew:
      return HandleRenew(endpoint, reader, now);
    case wire::Kind::kGet:
      return HandleGet(endpoint, reader, now);
    case wire::Kind::kOffer:
      return HandleOffer(endpoint, reader);
    case wire::Kind::kSubscribe:
      return HandleSubscribe(endpoint, reader, now);
    case wire::Kind::kCancel:
      return HandleCancel(endpoint, reader);
    case wire::Kind::kPing:
      return HandlePing(endpoint, reader);
    case wire::Kind::kProbe:
      return HandleProbe(endpoint, reader);
    case wire::Kind::kReportBad:
      return HandleReportBad(endpoint, reader);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a daemon takes no message of kind ", reader.head().kind));
  }
}

void NodeHandler::HandleHello(Endpoint& endpoint, wire::Reader& reader) {
  const uint64_t op = reader.head().op;
  wire::Hello hello;
  absl::Status status = reader.Read(&hello);
  if (status.ok()) status = reader.Finish();
  if (status.ok() && endpoint.session != nullptr) {
    status = absl::InvalidArgumentError("Hello came twice");
  }
  if (!status.ok()) {
    RefuseMalformed(core_, endpoint, op, status);
    return;
  }
  wire::HelloReply reply;
  reply.boot_epoch = core_.tier->boot_epoch();
  Session* const session = sessions_.Find(hello.session);
  if (draining_) {
    reply.status = static_cast<uint32_t>(absl::StatusCode::kUnavailable);
  } else if (hello.boot_epoch != reply.boot_epoch) {
    reply.status = static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition);
  } else if (session == nullptr) {
    reply.status = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  }
  wire::Writer writer(wire::Kind::kHelloReply, op, reply);
  if (reply.status != 0) {
    core_.metrics.hellos_refused.Add();
    SendLast(core_, endpoint, writer);
    return;
  }
  sessions_.Bind(*session, endpoint);
  endpoint.hello_by = kForever;
  SendReply(endpoint, writer);
}

absl::Status NodeHandler::HandleLookup(Endpoint& endpoint, wire::Reader& reader, Nanos now) {
  wire::Lookup lookup;
  std::vector<PageKey> keys;
  FB_RETURN_IF_ERROR(reader.Read(&lookup));
  FB_RETURN_IF_ERROR(reader.ReadArray(lookup.key_count, wire::kKeysMax, &keys));
  FB_RETURN_IF_ERROR(reader.Finish());
  if ((lookup.flags & ~(wire::kWantLocations | wire::kProbe)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("unknown lookup flags ", lookup.flags));
  }
  if ((lookup.flags & wire::kProbe) == 0 &&
      (lookup.lease_ms == 0 || lookup.lease_ms > wire::kLeaseMsMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease of ", lookup.lease_ms, " ms is not in [1, ", wire::kLeaseMsMax, "]"));
  }
  const uint64_t op = reader.head().op;
  if (!CheckNamespace(core_, endpoint, op, lookup.namespace_id)) return absl::OkStatus();
  AnswerLookup(core_, endpoint, op, lookup, keys, now);
  return absl::OkStatus();
}

absl::Status NodeHandler::HandleRelease(Endpoint& endpoint, wire::Reader& reader, Nanos now) {
  wire::Release release;
  FB_RETURN_IF_ERROR(reader.Read(&release));
  FB_RETURN_IF_ERROR(reader.Finish());
  AnswerRelease(core_, endpoint, reader.head().op, release, now);
  return absl::OkStatus();
}

absl::Status NodeHandler::HandleRenew(Endpoint& endpoint, wire::Reader& reader, Nanos now) {
  wire::Renew renew;
  FB_RETURN_IF_ERROR(reader.Read(&renew));
  FB_RETURN_IF_ERROR(reader.Finish());
  if (renew.lease_ms == 0 || renew.lease_ms > wire::kLeaseMsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a renewal by ", renew.lease_ms,
                                                   " ms is not in [1, ", wire::kLeaseMsMax, "]"));
  }
  AnswerRenew(core_, endpoint, reader.head().op, renew, now);
  return absl::OkStatus();
}

absl::Status NodeHandler::HandleGet(Endpoint& endpoint, wire::Reader& reader, Nanos now) {
  wire::Get get;
  std::vector<wire::GetItem> items;
  FB_RETURN_IF_ERROR(reader.Read(&get));
  FB_RETURN_IF_ERROR(reader.ReadArray(get.item_count, wire::kGetItemsMax, &items));
  FB_RETURN_IF_ERROR(reader.Finish());
  if (items.empty()) return absl::InvalidArgumentError("a get of no items");
  const uint64_t op = reader.head().op;
  if (!CheckNamespace(core_, endpoint, op, get.namespace_id)) return absl::OkStatus();
  endpoint.gets.Admit(core_, endpoint, op, get, items, now);
  return absl::OkStatus();
}

Landing NodeHandler::HandlePut(Endpoint& endpoint, wire::Reader& reader, uint64_t payload_bytes,
                               Nanos now) {
  wire::Put put;
  std::vector<wire::PutItem> items;
  absl::Status status = reader.Read(&put);
  if (status.ok()) status = reader.ReadArray(put.item_count, wire::kPutItemsMax, &items);
  if (status.ok()) status = reader.Finish();
  if (status.ok() && items.empty()) status = absl::InvalidArgumentError("a put of no items");
  const uint64_t op = reader.head().op;
  if (!status.ok()) {
    RefuseMalformed(core_, endpoint, op, status);
    return Landing::Drop();
  }
  if (!CheckNamespace(core_, endpoint, op, put.namespace_id)) return Landing::Drop();
  return PutOp::Begin(core_, endpoint, op, std::move(items), payload_bytes, now);
}

absl::Status NodeHandler::HandleOffer(Endpoint& endpoint, wire::Reader& reader) {
  wire::Offer offer;
  std::vector<PageKey> keys;
  FB_RETURN_IF_ERROR(reader.Read(&offer));
  FB_RETURN_IF_ERROR(reader.ReadArray(offer.key_count, wire::kKeysMax, &keys));
  FB_RETURN_IF_ERROR(reader.Finish());
  const uint64_t op = reader.head().op;
  if (!CheckNamespace(core_, endpoint, op, offer.namespace_id)) return absl::OkStatus();
  AnswerOffer(core_, endpoint, op, keys);
  return absl::OkStatus();
}

absl::Status NodeHandler::HandleSubscribe(Endpoint& endpoint, wire::Reader& reader, Nanos now) {
  wire::Subscribe subscribe;
  std::vector<PageKey> keys;
  FB_RETURN_IF_ERROR(reader.Read(&subscribe));
  FB_RETURN_IF_ERROR(reader.ReadArray(subscribe.key_count, wire::kKeysMax, &keys));
  FB_RETURN_IF_ERROR(reader.Finish());
  if (subscribe.deadline_ms == 0 || subscribe.deadline_ms > wire::kSubscribeMsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a subscription of ", subscribe.deadline_ms,
                                                   " ms is not in [1, ", wire::kSubscribeMsMax,
                                                   "]"));
  }
  const uint64_t op = reader.head().op;
  if (!CheckNamespace(core_, endpoint, op, subscribe.namespace_id)) return absl::OkStatus();
  core_.subscriptions.Add(core_, endpoint, op, std::move(keys), subscribe.deadline_ms, now);
  return absl::OkStatus();
}

absl::Status NodeHandler::HandleCancel(Endpoint& endpoint, wire::Reader& reader) {
  wire::Cancel cancel;
  FB_RETURN_IF_ERROR(reader.Read(&cancel));
  FB_RETURN_IF_ERROR(reader.Finish());
  endpoint.gets.Cancel(core_, cancel.target);
  core_.subscriptions.Cancel(endpoint, cancel.target);
  return absl::OkStatus();
}

absl::Status NodeHandler::HandlePing(Endpoint& endpoint, wire::Reader& reader) {
  FB_RETURN_IF_ERROR(reader.Finish());
  wire::Head pong;
  pong.kind = static_cast<uint8_t>(wire::Kind::kPong);
  pong.op = reader.head().op;
  endpoint.transport->Send(endpoint.id, OutgoingMessage{AsBytes(&pong, sizeof(pong)), {}, 0});
  return absl::OkStatus();
}

absl::Status NodeHandler::HandleProbe(Endpoint& endpoint, wire::Reader& reader) {
  static constexpr std::array<std::byte, 64 * 1024> kZeros{};
  wire::Probe probe;
  FB_RETURN_IF_ERROR(reader.Read(&probe));
  FB_RETURN_IF_ERROR(reader.Finish());
  if (probe.reply_bytes > wire::kProbeBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a probe of ", probe.reply_bytes,
                                                   " bytes; the limit is ", wire::kProbeBytesMax));
  }
  // One at a time, so that nobody can make this daemon send without end.
  if (endpoint.probe_token != 0) {
    SendError(endpoint, reader.head().op, absl::ResourceExhaustedError("a probe is under way"));
    return absl::OkStatus();
  }
  wire::Head head;
  head.kind = static_cast<uint8_t>(wire::Kind::kProbeReply);
  head.op = reader.head().op;
  OutgoingMessage message{AsBytes(&head, sizeof(head)), {}, 0};
  for (size_t left = probe.reply_bytes; left > 0;) {
    const size_t bytes = std::min(left, kZeros.size());
    message.payload.push_back(Bytes(kZeros).first(bytes));
    left -= bytes;
  }
  if (!message.payload.empty()) message.token = endpoint.probe_token = core_.next_token++;
  endpoint.transport->Send(endpoint.id, std::move(message));
  return absl::OkStatus();
}

absl::Status NodeHandler::HandleReportBad(Endpoint& endpoint, wire::Reader& reader) {
  wire::ReportBad report;
  FB_RETURN_IF_ERROR(reader.Read(&report));
  FB_RETURN_IF_ERROR(reader.Finish());
  if (!CheckNamespace(core_, endpoint, reader.head().op, report.namespace_id)) {
    return absl::OkStatus();
  }
  TakeReport(core_, endpoint, report);
  return absl::OkStatus();
}

void NodeHandler::OnLanded(EndpointId id, uint64_t token, const absl::Status& status) {
  Endpoint* const endpoint = Find(id);
  FB_CHECK(endpoint != nullptr);  // OnClosed comes after every OnLanded.
  const auto found = endpoint->puts.find(token);
  FB_CHECK(found != endpoint->puts.end());
  const std::unique_ptr<PutOp> put = std::move(found->second);
  endpoint->puts.erase(found);
  put->OnLanded(core_, *endpoint, status);
}

void NodeHandler::OnSent(EndpointId id, uint64_t token, const absl::Status& status) {
  Endpoint* const endpoint = Find(id);
  // A message to an endpoint that was gone already is handed back after its OnClosed.
  if (endpoint == nullptr) return;
  const Nanos now = core_.clock.Now();
  if (endpoint->gets.OnSent(core_, *endpoint, token, now)) return;
  if (token == endpoint->probe_token) endpoint->probe_token = 0;
  if (token == endpoint->last_token) {
    endpoint->close_at = status.ok() ? now + kLinger : now;
    core_.WakeBy(endpoint->close_at);
  }
}

void NodeHandler::OnClosed(EndpointId id, const absl::Status& why) {
  const auto found = endpoints_.find(id);
  if (found == endpoints_.end()) return;
  Endpoint& endpoint = *found->second;
  FB_CHECK(endpoint.puts.empty());
  endpoint.gets.DropWaiting(core_);
  core_.subscriptions.DropEndpoint(endpoint);
  sessions_.Unbind(endpoint, core_.clock.Now());
  Log(LogLevel::kDebug, "endpoint.closed",
      {{"node", core_.options.node}, {"peer", endpoint.peer}, {"why", why.message()}});
  endpoints_.erase(found);
}

bool NodeHandler::SweepEndpoint(Endpoint& endpoint, Nanos now, Nanos* next) {
  if (endpoint.ended) return true;
  if (now >= endpoint.close_at || now >= endpoint.hello_by) return false;
  *next = std::min({*next, endpoint.close_at, endpoint.hello_by});
  if (!endpoint.puts.empty()) {
    const Nanos give_up_at = endpoint.puts.begin()->second->started_at() +
                             core_.options.limits.put_timeout_ms * kMillisecond;
    if (now >= give_up_at) {
      core_.metrics.put_timeouts.Add();
      return false;
    }
    *next = std::min(*next, give_up_at);
  }
  if (!endpoint.closing) endpoint.gets.Pump(core_, endpoint, now);
  *next = std::min(*next, endpoint.gets.NextDeadline());
  return true;
}

Nanos NodeHandler::Sweep(Nanos now) {
  Nanos next = kForever;
  std::vector<EndpointId> done;
  for (auto& [id, endpoint] : endpoints_) {
    if (!SweepEndpoint(*endpoint, now, &next)) done.push_back(id);
  }
  for (const EndpointId id : done) {
    Endpoint& endpoint = *endpoints_.at(id);
    endpoint.closing = true;
    endpoint.ended = true;
    transport_->Close(id);
  }
  return next;
}

void NodeHandler::Drain() { draining_ = true; }

void NodeHandler::CloseDrained(bool all) {
  std::vector<EndpointId> done;
  for (const auto& [id, endpoint] : endpoints_) {
    if (all || (endpoint->puts.empty() && endpoint->gets.idle())) done.push_back(id);
  }
  for (const EndpointId id : done) transport_->Close(id);
}

}  // namespace forebay
