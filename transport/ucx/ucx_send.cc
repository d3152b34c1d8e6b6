// The sending half of UcxTransport.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/ucx/ucx_status.h"
#include "transport/ucx/ucx_transport.h"

namespace forebay {
namespace {

// Neighbouring ranges under this are sent as one piece: a message of UCX costs more than the copy.
constexpr size_t kSmallRangeBytes = 16 * 1024;

uint64_t TotalOf(const PayloadRanges& ranges) {
  uint64_t total = 0;
  for (const Bytes& range : ranges) total += range.size();
  return total;
}

std::string EnvelopeText(const UcxEnvelope& envelope) {
  std::string text(UcxEnvelope::kBytes, '\0');
  envelope.Write(reinterpret_cast<uint8_t*>(text.data()));
  return text;
}

void Append(std::byte*& to, Bytes from) {
  if (from.empty()) return;
  std::memcpy(to, from.data(), from.size());
  to += from.size();
}

// Takes the next piece off `ranges`, from `index` and `at` in that range: one range's bytes, or
// several small ranges copied into `copy`.
Bytes NextPiece(const PayloadRanges& ranges, size_t& index, size_t& at, size_t piece_bytes,
                std::unique_ptr<std::byte[]>& copy) {
  while (index < ranges.size() && at == ranges[index].size()) {
    ++index;
    at = 0;
  }
  if (index == ranges.size()) return {};
  size_t small_bytes = 0;
  size_t end = index;
  for (; end < ranges.size() && at == 0 && ranges[end].size() < kSmallRangeBytes; ++end) {
    if (small_bytes + ranges[end].size() > piece_bytes) break;
    small_bytes += ranges[end].size();
  }
  if (end - index < 2) {
    const Bytes piece = ranges[index].subspan(at, piece_bytes);
    at += piece.size();
    return piece;
  }
  copy.reset(new std::byte[small_bytes]);
  std::byte* to = copy.get();
  for (; index < end; ++index) Append(to, ranges[index]);
  return {copy.get(), small_bytes};
}

}  // namespace

absl::Status UcxTransport::CheckSend(UcxEndpoint* endpoint, const OutgoingMessage& message) const {
  if (message.header.empty() || message.header.size() > kHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a message header of ", message.header.size(),
                                                   " bytes; 1 to ", kHeaderBytesMax, " can go"));
  }
  const uint64_t total = TotalOf(message.payload);
  if (total > kPayloadBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a payload of ", total, " bytes; at most ", kPayloadBytesMax, " can go"));
  }
  if (endpoint == nullptr || endpoint->phase != UcxEndpoint::Phase::kOpen) {
    return absl::UnavailableError("the endpoint is not open");
  }
  if (endpoint->queued_bytes + message.header.size() + total >
      SendQueueLimit(options_.base, message.token)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(endpoint->queued_bytes, " bytes wait for this peer already"));
  }
  return absl::OkStatus();
}

void UcxTransport::Send(EndpointId id, OutgoingMessage message) {
  UcxEndpoint* endpoint = Find(id);
  absl::Status status = CheckSend(endpoint, message);
  if (!status.ok()) {
    if (message.token != 0) {
      refused_.push_back({id, message.token, std::move(status)});
    } else if (absl::IsResourceExhausted(status)) {
      BeginClose(*endpoint, std::move(status));
    }
    return;
  }
  UcxEnvelope envelope;
  envelope.kind = UcxEnvelope::Kind::kMessage;
  envelope.connection = endpoint->peer_connection;
  envelope.message = ++endpoint->last_message;
  envelope.payload_bytes = TotalOf(message.payload);
  envelope.header_bytes = static_cast<uint32_t>(message.header.size());
  UcxOutgoing& outgoing = endpoint->outgoing[envelope.message];
  outgoing.token = message.token;
  outgoing.queued_bytes = message.header.size() + envelope.payload_bytes;
  endpoint->queued_bytes += outgoing.queued_bytes;
  ++counts_.base.messages_sent;
  counts_.base.payload_bytes_sent += envelope.payload_bytes;
  if (envelope.payload_bytes < rendezvous_bytes_) {
    SendSmall(*endpoint, message, envelope);
  } else {
    SendLarge(*endpoint, message, envelope);
  }
}

// All in one active message, which UCX sends at once.
void UcxTransport::SendSmall(UcxEndpoint& endpoint, const OutgoingMessage& message,
                             UcxEnvelope envelope) {
  auto send = std::make_unique<UcxSend>();
  send->message = envelope.message;
  const bool leads = UcxEnvelope::kBytes + message.header.size() > worker_->header_bytes_max();
  if (leads) envelope.flags = UcxEnvelope::kFlagHeaderLeadsData;
  send->header = EnvelopeText(envelope);
  if (!leads) {
    send->header.append(reinterpret_cast<const char*>(message.header.data()),
                        message.header.size());
  }
  const size_t data_bytes = envelope.payload_bytes + (leads ? message.header.size() : 0);
  Bytes data;
  if (!leads && message.payload.size() == 1) {
    data = message.payload[0];
  } else if (data_bytes > 0) {
    send->copy.reset(new std::byte[data_bytes]);
    std::byte* to = send->copy.get();
    if (leads) Append(to, message.header);
    for (const Bytes& range : message.payload) Append(to, range);
    data = {send->copy.get(), data_bytes};
  }
  Post(endpoint, std::move(send), data);
}

// The header with the first piece, or alone where it is too large; then the other pieces.
void UcxTransport::SendLarge(UcxEndpoint& endpoint, const OutgoingMessage& message,
                             UcxEnvelope envelope) {
  // Held until all are posted: an early piece that completes at once must not end the message.
  ++endpoint.outgoing[envelope.message].sends_out;
  bool is_first = true;
  if (UcxEnvelope::kBytes + message.header.size() > worker_->header_bytes_max()) {
    OutgoingMessage alone;
    alone.header = message.header;
    SendSmallHeader(endpoint, alone, envelope);
    is_first = false;
  }
  size_t index = 0;
  size_t at = 0;
  while (true) {
    auto send = std::make_unique<UcxSend>();
    const Bytes piece = NextPiece(message.payload, index, at, options_.piece_bytes, send->copy);
    if (piece.empty()) break;
    send->message = envelope.message;
    envelope.kind = is_first ? UcxEnvelope::Kind::kMessage : UcxEnvelope::Kind::kPiece;
    envelope.header_bytes = is_first ? static_cast<uint32_t>(message.header.size()) : 0;
    send->header = EnvelopeText(envelope);
    if (is_first) {
      send->header.append(reinterpret_cast<const char*>(message.header.data()),
                          message.header.size());
    }
    send->rendezvous = piece.size() >= rendezvous_bytes_;
    is_first = false;
    envelope.offset += piece.size();
    Post(endpoint, std::move(send), piece);
  }
  auto outgoing = endpoint.outgoing.find(envelope.message);
  FB_CHECK(outgoing != endpoint.outgoing.end());
  --outgoing->second.sends_out;
}

void UcxTransport::SendSmallHeader(UcxEndpoint& endpoint, const OutgoingMessage& header,
                                   UcxEnvelope envelope) {
  auto send = std::make_unique<UcxSend>();
  send->message = envelope.message;
  envelope.flags = UcxEnvelope::kFlagHeaderLeadsData;
  send->header = EnvelopeText(envelope);
  send->copy.reset(new std::byte[header.header.size()]);
  std::memcpy(send->copy.get(), header.header.data(), header.header.size());
  const Bytes data(send->copy.get(), header.header.size());
  Post(endpoint, std::move(send), data);
}

void UcxTransport::SendPing(UcxEndpoint& endpoint, UcxEnvelope::Kind kind, uint64_t number) {
  UcxEnvelope envelope;
  envelope.kind = kind;
  envelope.connection = endpoint.peer_connection;
  envelope.message = number;
  auto send = std::make_unique<UcxSend>();
  send->header = EnvelopeText(envelope);
  send->resolves = kind == UcxEnvelope::Kind::kResolved;
  Post(endpoint, std::move(send), {});
}

void UcxTransport::Post(UcxEndpoint& endpoint, std::unique_ptr<UcxSend> send, Bytes data) {
  send->transport = this;
  send->endpoint = &endpoint;
  send->ucp = endpoint.end->ucp;
  ++endpoint.requests_out;
  if (send->message != 0) ++endpoint.outgoing[send->message].sends_out;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = send->rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  if (send->resolves) param.flags |= UCP_AM_SEND_FLAG_REPLY;
  param.cb.send = &UcxTransport::OnSendDone;
  param.user_data = send.get();
  // UCX counts an empty message as one of header alone.
  ucs_status_ptr_t request =
      ucp_am_send_nbx(send->ucp, kActiveMessageId, send->header.data(), send->header.size(),
                      data.empty() ? nullptr : data.data(), data.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(send.release());  // OnSendDone's from here on
    return;
  }
  send->status = UCS_PTR_STATUS(request);
  sends_done_.push_back(std::move(send));
}

void UcxTransport::OnSendDone(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<UcxSend> send(static_cast<UcxSend*>(user_data));
  send->status = status;
  UcxTransport* transport = send->transport;
  transport->sends_done_.push_back(std::move(send));
  ucp_request_free(request);
}

bool UcxTransport::DeliverSends() {
  bool worked = false;
  while (!sends_done_.empty()) {
    const std::unique_ptr<UcxSend> send = std::move(sends_done_.front());
    sends_done_.pop_front();
    worked = true;
    UcxEndpoint& endpoint = *send->endpoint;
    --endpoint.requests_out;
    FinishSend(endpoint, *send);
  }
  return worked;
}

void UcxTransport::FinishSend(UcxEndpoint& endpoint, const UcxSend& send) {
  if (send.status != UCS_OK) {
    // An end that was given back for another (see TryAgain) fails its own sends only.
    if (endpoint.end != nullptr && send.ucp == endpoint.end->ucp) {
      const absl::Status status = UcxStatus(send.status, "send to the peer");
      CloseNow(endpoint, absl::UnavailableError(status.message()));
    }
    return;  // HandBack() reports the message
  }
  // What went by rendezvous was fetched by the peer: it lives.
  if (send.rendezvous) {
    endpoint.last_heard = now_;
    endpoint.ping_sent = 0;
  }
  if (send.message == 0 || endpoint.phase == UcxEndpoint::Phase::kClosing) return;
  auto found = endpoint.outgoing.find(send.message);
  FB_CHECK(found != endpoint.outgoing.end());
  if (--found->second.sends_out > 0) return;
  const UcxOutgoing outgoing = found->second;
  endpoint.outgoing.erase(found);
  endpoint.queued_bytes -= outgoing.queued_bytes;
  if (outgoing.token != 0) handler_.OnSent(endpoint.id, outgoing.token, absl::OkStatus());
}

}  // namespace forebay
