#include "client/daemon_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/broken.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/wire_version.h"
#include "client/client_namespace.h"
#include "proto/host_id.h"

namespace forebay {
namespace {

// The path of a data address; kAuto for one that only a simulation has.
PathChoice PathOf(absl::string_view address) {
  const absl::StatusOr<PathChoice> path = ParsePath(SchemeOf(address));
  return path.ok() ? *path : PathChoice::kAuto;
}

bool IsRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

// A weight of a quarter: a change shows after a few samples, and one slow transfer does not.
constexpr double kAverageWeight = 0.25;
// Through a socket and the kernel, of the rate of a plain copy.
constexpr double kTransportCopyShare = 0.5;
// Smaller transfers measure latency, not bandwidth.
constexpr uint64_t kTransferBytesMin = 256 << 10;

}  // namespace

DaemonLink::DaemonLink(CoreServices& services, ClientNamespace& ns, uint16_t index)
    : services_(services), ns_(ns), index_(index), id_(services.NextId()) {
  SetTimer(services.clock.Now());
}

void DaemonLink::SetTimer(Nanos at) {
  timer_ = at;
  services_.NoteTimer(at);
}

void DaemonLink::SetState(State state) {
  state_ = state;
  ns_.NoteLinkChange();
}

void DaemonLink::Tick(Nanos now) {
  if (now < timer_) return;
  timer_ = kForever;
  switch (state_) {
    case State::kWaiting:
      StartOpening(now);
      return;
    case State::kOpening:
      FailAttempt(absl::UnavailableError("the control plane did not answer"));
      return;
    case State::kConnecting:
    case State::kGreeting:
      Abort(absl::UnavailableError("no answer in time"));
      return;
    case State::kReady:
    case State::kShut:
      return;
  }
}

void DaemonLink::StartOpening(Nanos now) {
  const uint64_t attempt = ++attempt_;
  SetState(State::kOpening);
  // The opener promises an answer by the deadline; the quarter more is for one that does not keep
  // it.
  SetTimer(now + ns_.connect_timeout + ns_.connect_timeout / 4);
  OpenSessionRequest request;
  request.spec = ns_.spec;
  request.wire_version_min = kWireVersionMin;
  request.wire_version_max = kWireVersionMax;
  request.client_name = services_.options.name;
  services_.opener.Open(
      services_.options.daemons[index_].control, request, now + ns_.connect_timeout,
      [inbox = services_.inbox, link = id_, attempt](absl::StatusOr<OpenSessionReply> reply) {
        inbox->Put({link, attempt, std::move(reply)});
      });
}

void DaemonLink::OnSession(uint64_t attempt, absl::StatusOr<OpenSessionReply> reply) {
  if (state_ != State::kOpening || attempt != attempt_) return;
  if (!reply.ok()) {
    refused_ = IsRefusal(reply.status());
    FailAttempt(reply.status());
    return;
  }
  refused_ = false;
  if (absl::Status status = TakeSession(*reply); !status.ok()) {
    FailAttempt(std::move(status));
    return;
  }
  SetState(State::kConnecting);
  address_errors_.clear();
  TryNextAddress();
}

absl::Status DaemonLink::TakeSession(const OpenSessionReply& reply) {
  if (reply.wire_version < kWireVersionMin || reply.wire_version > kWireVersionMax) {
    return absl::FailedPreconditionError(absl::StrCat("the daemon chose wire version ",
                                                      reply.wire_version, ", this client speaks ",
                                                      kWireVersionMin, " to ", kWireVersionMax));
  }
  if (ns_.root.has_value() && *ns_.root != reply.root) {
    return absl::FailedPreconditionError(
        "the daemon gives the namespace another root key than the first that answered: its "
        "tenant's "
        "secret differs, so its pages are not interchangeable");
  }
  ns_.root = reply.root;
  session_ = reply;
  addresses_.clear();
  const PathChoice choice = services_.options.path;
  for (const std::string& address : reply.data_addresses) {
    const PathChoice path = PathOf(address);
    if (choice != PathChoice::kAuto && path != choice) continue;
    if (path == PathChoice::kLocal && !SameHost(reply.host_id, services_.options.host_id)) continue;
    addresses_.push_back(address);
  }
  if (addresses_.empty()) {
    std::string offered;
    for (const std::string& address : reply.data_addresses) {
      absl::StrAppend(&offered, offered.empty() ? "" : ", ", address);
    }
    return absl::UnavailableError(absl::StrCat("no data address for path ", PathName(choice),
                                               " from here; the daemon offers: ", offered));
  }
  return absl::OkStatus();
}

void DaemonLink::TryNextAddress() {
  SetState(State::kConnecting);
  while (!addresses_.empty()) {
    const std::string address = std::move(addresses_.front());
    addresses_.pop_front();
    const Nanos deadline = services_.clock.Now() + ns_.connect_timeout / 3;
    absl::StatusOr<TransportPorts::Port*> port = services_.ports.PortFor(address);
    absl::StatusOr<EndpointId> endpoint = port.ok() ? (*port)->Connect(address, deadline, *this)
                                                    : absl::StatusOr<EndpointId>(port.status());
    if (endpoint.ok()) {
      port_ = *port;
      endpoint_ = *endpoint;
      path_ = PathOf(address);
      closing_ = false;
      close_reason_ = absl::OkStatus();
      SetTimer(deadline);
      return;
    }
    absl::StrAppend(&address_errors_, address_errors_.empty() ? "" : "; ", address, ": ",
                    endpoint.status().message());
  }
  FailAttempt(absl::UnavailableError(address_errors_));
}

void DaemonLink::FailAttempt(absl::Status why) {
  last_error_ = std::move(why);
  ++failures_;
  const Nanos least = services_.options.reconnect_interval_min;
  const Nanos most = services_.options.reconnect_interval_max;
  const uint32_t doublings = std::min<uint32_t>(failures_ - 1, 20);
  const Nanos interval = std::min(most, least << doublings);
  // Between a half and the whole: clients that lost one daemon together do not return together.
  const Nanos jittered =
      interval / 2 +
      static_cast<Nanos>(services_.random.Below(static_cast<uint64_t>(interval / 2) + 1));
  SetState(State::kWaiting);
  SetTimer(services_.clock.Now() + jittered);
}

void DaemonLink::Shut() {
  if (state_ == State::kShut) return;
  SetState(State::kShut);
  timer_ = kForever;
  if (endpoint_ != 0) {
    Abort(absl::CancelledError("the namespace is closed"));
  } else {
    LoseRequests(absl::CancelledError("the namespace is closed"));
  }
}

void DaemonLink::Abort(absl::Status why) {
  if (endpoint_ == 0 || closing_) return;
  closing_ = true;
  close_reason_ = std::move(why);
  ns_.NoteLinkChange();
  port_->transport().Close(endpoint_);
}

DaemonStatus DaemonLink::Describe() const {
  DaemonStatus status;
  status.control = services_.options.daemons[index_].control;
  status.connected = ready();
  if (status.connected) {
    status.path = path_ == PathChoice::kAuto ? "loopback" : std::string(PathName(path_));
  }
  if (!last_error_.ok()) status.last_error = last_error_.ToString();
  status.reconnects = reconnects_;
  return status;
}

uint64_t DaemonLink::BeginRequest(ClientOp& op) {
  const uint64_t request = services_.NextId();
  requests_[request] = &op;
  return request;
}

void DaemonLink::Send(Bytes header) {
  port_->transport().Send(endpoint_, OutgoingMessage{header, PayloadRanges(), /*token=*/0});
}

uint64_t DaemonLink::SendPayload(Bytes header, PayloadRanges payload, ClientOp& op) {
  const uint64_t token = services_.NextId();
  sends_[token] = &op;
  port_->transport().Send(endpoint_, OutgoingMessage{header, std::move(payload), token});
  return token;
}

MutableBytes DaemonLink::LendSendBuffer(size_t header_bytes, size_t bytes) {
  return port_->transport().LendSendBuffer(endpoint_, header_bytes, bytes);
}

size_t DaemonLink::send_buffer_bytes_max() const {
  return port_->transport().send_buffer_bytes_max();
}

uint64_t DaemonLink::NewLanding(ClientOp& op) {
  const uint64_t token = services_.NextId();
  landings_[token] = &op;
  return token;
}

void DaemonLink::NoteLatency(Nanos ns) {
  latency_ns_ += static_cast<Nanos>(kAverageWeight * static_cast<double>(ns - latency_ns_));
}

void DaemonLink::NoteTransfer(uint64_t bytes, bool raw, Nanos ns) {
  if (bytes < kTransferBytesMin || ns <= 0) return;
  const double rate = static_cast<double>(bytes) / static_cast<double>(ns);
  bytes_per_ns_ += kAverageWeight * (rate - bytes_per_ns_);
  // Where a codec may have held it up, it says only that the path gives at least that much.
  if (probed() && (raw || rate > probed_bytes_per_ns_)) {
    probed_bytes_per_ns_ += kAverageWeight * (rate - probed_bytes_per_ns_);
  }
}

void DaemonLink::NoteProbe(Nanos latency, double bytes_per_ns) {
  if (!probed()) {
    latency_ns_ = latency;
    bytes_per_ns_ = probed_bytes_per_ns_ = bytes_per_ns;
  } else {
    NoteLatency(latency);
    probed_bytes_per_ns_ += kAverageWeight * (bytes_per_ns - probed_bytes_per_ns_);
  }
  services_.metrics.NoteProbe(index_, probed_bytes_per_ns_);
}

PathRates DaemonLink::path_rates() const {
  const double copy = services_.codecs.copy_bytes_per_ns();
  PathRates rates;
  rates.latency_ns = latency_ns_;
  rates.codec_threads = services_.options.codec_threads;
  rates.processors = services_.options.processors;
  rates.same_host = SameHost(session_.host_id, services_.options.host_id);
  if (path_ == PathChoice::kLocal) {
    rates.shared_memory = true;
    rates.bytes_per_ns = copy;
    return rates;
  }
  rates.bytes_per_ns = probed() ? probed_bytes_per_ns_ : bytes_per_ns_;
  // Where no copy was measured, as in a simulation, moving is no matter.
  rates.copy_bytes_per_ns = copy > 0 ? std::max(kTransportCopyShare * copy, rates.bytes_per_ns) : 0;
  return rates;
}

void DaemonLink::OnConnected(const PeerDescription& peer) {
  if (state_ != State::kConnecting || closing_) return;
  regions_ = LinkRegions::MapAgain(peer.shared_regions);
  SetState(State::kGreeting);
  hello_ = services_.NextId();
  wire::Hello hello;
  hello.session = session_.session;
  hello.boot_epoch = session_.boot_epoch;
  wire::Writer writer(wire::Kind::kHello, hello_, hello);
  Send(writer.Take());
}

absl::Status DaemonLink::OnGreeting(wire::Reader& reader) {
  if (reader.head().op != hello_)
    return absl::InvalidArgumentError("an answer before the greeting");
  if (reader.kind() == wire::Kind::kError) {
    absl::Status told;
    FB_RETURN_IF_ERROR(wire::ReadError(reader, &told));
    return told;
  }
  if (reader.kind() != wire::Kind::kHelloReply) {
    return absl::InvalidArgumentError("an answer to the greeting of another kind");
  }
  wire::HelloReply reply;
  FB_RETURN_IF_ERROR(reader.Read(&reply));
  FB_RETURN_IF_ERROR(reader.Finish());
  if (reply.status != 0) {
    return absl::Status(static_cast<absl::StatusCode>(reply.status),
                        "the daemon refuses the session");
  }
  if (reply.boot_epoch != session_.boot_epoch) {
    return absl::FailedPreconditionError("another daemon, or another run of it, answers there");
  }
  if (was_ready_) {
    ++reconnects_;
    services_.metrics.reconnects.Add();
  }
  was_ready_ = true;
  failures_ = 0;
  last_error_ = absl::OkStatus();
  timer_ = kForever;
  SetState(State::kReady);
  return absl::OkStatus();
}

Landing DaemonLink::OnMessage(Bytes header, uint64_t payload_bytes) {
  if (closing_) return Landing::Drop();
  absl::StatusOr<wire::Reader> reader = wire::Reader::Of(header);
  absl::Status fault;
  if (!reader.ok()) {
    fault = reader.status();
  } else if (state_ == State::kGreeting) {
    fault = OnGreeting(*reader);
    if (fault.ok()) return Landing::Drop();
    Abort(std::move(fault));
    return Landing::Drop();
  } else {
    const auto it = requests_.find(reader->head().op);
    if (it == requests_.end()) {
      OnOrphan(*reader);
      return Landing::Drop();
    }
    absl::StatusOr<Landing> landing =
        it->second->OnReply(*this, reader->head().op, *reader, payload_bytes);
    if (landing.ok()) return *std::move(landing);
    fault = landing.status();
  }
  services_.metrics.protocol_errors.Add();
  LogWarning("client.bad_message",
             {{"daemon", services_.options.daemons[index_].control}, {"error", fault.ToString()}});
  Abort(std::move(fault));
  return Landing::Drop();
}

// An answer to a call that has ended. A lease in it belongs to nobody, so it goes back at once.
void DaemonLink::OnOrphan(wire::Reader& reader) {
  if (reader.kind() != wire::Kind::kLookupReply || state_ != State::kReady) return;
  wire::LookupReply reply;
  if (!reader.Read(&reply).ok() || reply.lease == 0) return;
  wire::Release release;
  release.lease = reply.lease;
  release.flags = wire::kNoReply;
  wire::Writer writer(wire::Kind::kRelease, services_.NextId(), release);
  Send(writer.Take());
}

void DaemonLink::OnLanded(uint64_t token, const absl::Status& status) {
  const auto it = landings_.find(token);
  if (it == landings_.end()) return;
  ClientOp* op = it->second;
  landings_.erase(it);
  op->OnLanded(*this, token, status);
}

void DaemonLink::OnSent(uint64_t token, const absl::Status& status) {
  const auto it = sends_.find(token);
  if (it == sends_.end()) return;
  ClientOp* op = it->second;
  sends_.erase(it);
  op->OnSent(*this, token, status);
}

void DaemonLink::LoseRequests(const absl::Status& why) {
  const absl::btree_map<uint64_t, ClientOp*> lost = std::exchange(requests_, {});
  for (const auto& [request, op] : lost) op->OnRequestLost(*this, request, why);
}

void DaemonLink::OnClosed(const absl::Status& why) {
  const absl::Status reason =
      close_reason_.ok() ? absl::UnavailableError(absl::StrCat("connection lost: ", why.message()))
                         : close_reason_;
  endpoint_ = 0;
  closing_ = false;
  regions_.reset();
  if (!FB_BROKEN("ignore_epoch")) ++epoch_;
  LoseRequests(reason);
  switch (state_) {
    case State::kShut:
      ns_.NoteLinkChange();
      return;
    case State::kConnecting:
    case State::kGreeting:
      absl::StrAppend(&address_errors_, address_errors_.empty() ? "" : "; ", PathName(path_), ": ",
                      (close_reason_.ok() ? why : close_reason_).message());
      TryNextAddress();
      return;
    default:
      FailAttempt(reason);
  }
}

}  // namespace forebay
