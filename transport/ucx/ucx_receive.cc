// The receiving half of UcxTransport.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/ucx/ucx_status.h"
#include "transport/ucx/ucx_transport.h"

namespace forebay {
namespace {

// Pieces that came before their message, of one endpoint. UCX keeps the order of small ones, so a
// peer that means well needs few.
constexpr uint64_t kEarlyPiecesMax = 4096;

// Calls `visit` with each part of the segments that holds bytes of [offset, offset + bytes), in
// order.
template <typename Visit>
void ForEachPart(const std::vector<LandingSegment>& segments, uint64_t offset, uint64_t bytes,
                 Visit visit) {
  uint64_t begin = 0;
  for (const LandingSegment& segment : segments) {
    const uint64_t end = begin + segment.bytes.size();
    if (bytes == 0) return;
    if (offset < end && !segment.bytes.empty()) {
      const uint64_t take = std::min(bytes, end - offset);
      visit(segment, segment.bytes.subspan(offset - begin, take));
      offset += take;
      bytes -= take;
    }
    begin = end;
  }
}

void Scatter(const std::vector<LandingSegment>& segments, uint64_t offset, Bytes from) {
  const std::byte* at = from.data();
  ForEachPart(segments, offset, from.size(), [&](const LandingSegment&, MutableBytes part) {
    std::memcpy(part.data(), at, part.size());
    at += part.size();
  });
}

// Copies and adds to the checksums in one pass: for pieces that come in order.
void ScatterAndHash(const std::vector<LandingSegment>& segments, uint64_t offset, Bytes from) {
  const std::byte* at = from.data();
  ForEachPart(segments, offset, from.size(), [&](const LandingSegment& segment, MutableBytes part) {
    if (segment.checksum != nullptr) {
      segment.checksum->CopyAndUpdate(part.data(), at, part.size());
    } else {
      std::memcpy(part.data(), at, part.size());
    }
    at += part.size();
  });
}

// The one part that holds all of a piece; empty where it spans several.
MutableBytes WholePart(const std::vector<LandingSegment>& segments, uint64_t offset,
                       uint64_t bytes) {
  MutableBytes whole;
  ForEachPart(segments, offset, bytes, [&](const LandingSegment&, MutableBytes part) {
    if (part.size() == bytes) whole = part;
  });
  return whole;
}

}  // namespace

ucs_status_t UcxTransport::OnActiveMessage(void* transport, const void* header, size_t header_bytes,
                                           void* data, size_t data_bytes,
                                           const ucp_am_recv_param_t* param) {
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return static_cast<UcxTransport*>(transport)->TakeArrival(AsBytes(header, header_bytes), data,
                                                            data_bytes, rendezvous);
}

// Inside UCX: only notes what came. UCS_INPROGRESS keeps `data` until we receive or release it.
ucs_status_t UcxTransport::TakeArrival(Bytes header, void* data, size_t data_bytes,
                                       bool rendezvous) {
  absl::StatusOr<UcxEnvelope> envelope = ParseUcxEnvelope(header, data_bytes);
  if (!envelope.ok() || (rendezvous && envelope->header_leads_data())) {
    // No connection to close: what it says of itself cannot be believed.
    ++counts_.base.protocol_errors;
    if (garbage_log_.Allow(now_)) {
      LogWarning("ucx.garbage", {{"what", envelope.ok() ? "a header by rendezvous"
                                                        : envelope.status().message()}});
    }
    return UCS_OK;
  }
  auto connection = connections_.find(envelope->connection);
  if (connection == connections_.end()) {
    ++counts_.late_arrivals;
    return UCS_OK;
  }
  UcxArrival& arrival = arrivals_.emplace_back();
  arrival.endpoint = connection->second;
  arrival.envelope = *envelope;
  if (envelope->kind == UcxEnvelope::Kind::kMessage && !envelope->header_leads_data()) {
    const Bytes own = header.subspan(UcxEnvelope::kBytes);
    arrival.header.assign(reinterpret_cast<const char*>(own.data()), own.size());
  }
  if (data_bytes == 0) return UCS_OK;
  arrival.data = data;
  arrival.data_bytes = data_bytes;
  arrival.rendezvous = rendezvous;
  return UCS_INPROGRESS;
}

void UcxTransport::Release(UcxArrival& arrival) {
  // For a rendezvous this also tells the sender that it is done.
  if (arrival.data != nullptr) ucp_am_data_release(worker_->get(), arrival.data);
  arrival.data = nullptr;
}

bool UcxTransport::DeliverArrivals() {
  bool worked = false;
  while (!arrivals_.empty()) {
    UcxArrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    DeliverArrival(std::move(arrival));
    worked = true;
  }
  return worked;
}

void UcxTransport::DeliverArrival(UcxArrival arrival) {
  UcxEndpoint* endpoint = Find(arrival.endpoint);
  if (endpoint == nullptr || endpoint->phase == UcxEndpoint::Phase::kClosing) {
    ++counts_.late_arrivals;
    Release(arrival);
    return;
  }
  endpoint->last_heard = now_;
  endpoint->ping_sent = 0;
  const bool is_wiring = endpoint->phase == UcxEndpoint::Phase::kWiring;
  switch (arrival.envelope.kind) {
    case UcxEnvelope::Kind::kPing:
      endpoint->ping_heard = arrival.envelope.message;
      if (endpoint->end != nullptr) {
        SendPing(*endpoint, UcxEnvelope::Kind::kPong, arrival.envelope.message);
      }
      return;
    case UcxEnvelope::Kind::kPong:
      if (!is_wiring || endpoint->resolved_sent) return;
      // Of the end that we have now, not of one that was given back.
      if (arrival.envelope.message != PingNumber(*endpoint->end)) return;
      endpoint->resolved_sent = true;
      SendPing(*endpoint, UcxEnvelope::Kind::kResolved, 0);
      OpenIfResolved(*endpoint);
      return;
    case UcxEnvelope::Kind::kResolved:
      endpoint->resolved_heard = true;
      OpenIfResolved(*endpoint);
      return;
    case UcxEnvelope::Kind::kMessage:
    case UcxEnvelope::Kind::kPiece:
      // Whoever sends one is open, and has said kResolved before.
      endpoint->resolved_heard = true;
      OpenIfResolved(*endpoint);
      break;
  }
  if (endpoint->phase == UcxEndpoint::Phase::kClosing) {  // by the handler
    Release(arrival);
    return;
  }
  if (endpoint->phase != UcxEndpoint::Phase::kOpen) {
    Release(arrival);
    CloseForGarbage(*endpoint, absl::DataLossError("a message before the connection"));
  } else if (arrival.envelope.kind == UcxEnvelope::Kind::kMessage) {
    DeliverMessage(*endpoint, std::move(arrival));
  } else {
    DeliverPiece(*endpoint, std::move(arrival));
  }
}

void UcxTransport::DeliverMessage(UcxEndpoint& endpoint, UcxArrival arrival) {
  const UcxEnvelope envelope = arrival.envelope;
  std::unique_ptr<UcxIncoming>& slot = endpoint.incoming[envelope.message];
  if (slot == nullptr) slot = std::make_unique<UcxIncoming>();
  UcxIncoming& incoming = *slot;
  if (incoming.announced) {
    Release(arrival);
    CloseForGarbage(endpoint, absl::DataLossError("two messages of one number"));
    return;
  }
  incoming.announced = true;
  incoming.dropped = true;  // until its receiver answered
  incoming.payload_bytes = envelope.payload_bytes;
  ++counts_.base.messages_received;
  const Bytes header = envelope.header_leads_data()
                           ? AsBytes(arrival.data, envelope.header_bytes)
                           : AsBytes(arrival.header.data(), arrival.header.size());
  Landing landing = handler_.OnMessage(endpoint.id, header, envelope.payload_bytes);
  if (envelope.payload_bytes > 0 && !landing.segments.empty()) {
    uint64_t landing_bytes = 0;
    for (const LandingSegment& segment : landing.segments) {
      landing_bytes += segment.bytes.size();
      incoming.has_checksum |= segment.checksum != nullptr;
    }
    FB_CHECK(landing_bytes == envelope.payload_bytes);
    incoming.dropped = false;
    incoming.landing = std::move(landing);
  }
  if (endpoint.phase == UcxEndpoint::Phase::kClosing) {  // by the handler: HandBack() does the rest
    Release(arrival);
    return;
  }
  if (envelope.payload_bytes == 0) {
    Release(arrival);
    if (!incoming.early.empty()) {
      CloseForGarbage(endpoint, absl::DataLossError("pieces of an empty payload"));
    } else {
      endpoint.incoming.erase(envelope.message);
    }
    return;
  }
  std::vector<UcxArrival> pieces = std::exchange(incoming.early, {});
  endpoint.early_count -= pieces.size();
  const size_t led_bytes = envelope.header_leads_data() ? envelope.header_bytes : 0;
  if (arrival.data_bytes > led_bytes) {
    pieces.insert(pieces.begin(), std::move(arrival));
  } else {
    Release(arrival);
  }
  for (UcxArrival& piece : pieces) {
    const auto still = endpoint.incoming.find(envelope.message);
    if (endpoint.phase == UcxEndpoint::Phase::kClosing || still == endpoint.incoming.end()) {
      Release(piece);
    } else {
      TakePiece(endpoint, *still->second, std::move(piece));
    }
  }
}

void UcxTransport::DeliverPiece(UcxEndpoint& endpoint, UcxArrival arrival) {
  std::unique_ptr<UcxIncoming>& slot = endpoint.incoming[arrival.envelope.message];
  if (slot == nullptr) slot = std::make_unique<UcxIncoming>();
  if (slot->announced) {
    TakePiece(endpoint, *slot, std::move(arrival));
    return;
  }
  if (endpoint.early_count >= kEarlyPiecesMax) {
    Release(arrival);
    CloseForGarbage(endpoint, absl::DataLossError("pieces of too many messages"));
    return;
  }
  ++endpoint.early_count;
  slot->early.push_back(std::move(arrival));
}

void UcxTransport::TakePiece(UcxEndpoint& endpoint, UcxIncoming& incoming, UcxArrival arrival) {
  const UcxEnvelope& envelope = arrival.envelope;
  const size_t led_bytes = envelope.header_leads_data() ? envelope.header_bytes : 0;
  const uint64_t bytes = arrival.data_bytes - led_bytes;
  const uint64_t offset = envelope.offset;
  // The envelope was checked against its own total, which must be the message's.
  bool sound = envelope.payload_bytes == incoming.payload_bytes;
  const auto next = incoming.pieces.lower_bound(offset);
  if (next != incoming.pieces.end() && next->first < offset + bytes) sound = false;
  if (next != incoming.pieces.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second > offset) sound = false;
  }
  if (!sound) {
    Release(arrival);
    CloseForGarbage(endpoint, absl::DataLossError("pieces that overlap"));
    return;
  }
  incoming.pieces.emplace_hint(next, offset, bytes);
  if (incoming.dropped) {
    Release(arrival);
    incoming.landed_bytes += bytes;
    if (incoming.landed_bytes == incoming.payload_bytes) endpoint.incoming.erase(envelope.message);
    return;
  }
  if (arrival.rendezvous) {
    StartReceive(endpoint, incoming, arrival);
    return;
  }
  const Bytes from = AsBytes(static_cast<const std::byte*>(arrival.data) + led_bytes, bytes);
  if (incoming.has_checksum && incoming.hashed_bytes == offset) {
    ScatterAndHash(incoming.landing.segments, offset, from);
    incoming.hashed_bytes += bytes;
  } else {
    Scatter(incoming.landing.segments, offset, from);
  }
  Release(arrival);
  PieceLanded(endpoint, envelope.message, offset, bytes);
}

void UcxTransport::StartReceive(UcxEndpoint& endpoint, UcxIncoming& incoming, UcxArrival& arrival) {
  auto receive = std::make_unique<UcxReceive>();
  receive->transport = this;
  receive->endpoint = &endpoint;
  receive->message = arrival.envelope.message;
  receive->offset = arrival.envelope.offset;
  receive->bytes = arrival.data_bytes;
  // UCX 1.13 can receive into a list of ranges, at half the speed of a buffer and a copy.
  MutableBytes to = WholePart(incoming.landing.segments, receive->offset, receive->bytes);
  if (to.empty()) {
    receive->bounce.reset(new std::byte[receive->bytes]);
    to = {receive->bounce.get(), receive->bytes};
    counts_.bounced_bytes += receive->bytes;
  } else {
    counts_.rendezvous_bytes += receive->bytes;
  }
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv_am = &UcxTransport::OnReceiveDone;
  param.user_data = receive.get();
  ++endpoint.requests_out;
  void* data = std::exchange(arrival.data, nullptr);  // UCX's again, whatever happens
  ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->get(), data, to.data(), to.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(receive.release());  // OnReceiveDone's, which may have run already
    return;
  }
  receive->status = UCS_PTR_STATUS(request);
  receives_done_.push_back(std::move(receive));
}

void UcxTransport::OnReceiveDone(void* request, ucs_status_t status, size_t bytes,
                                 void* user_data) {
  std::unique_ptr<UcxReceive> receive(static_cast<UcxReceive*>(user_data));
  receive->status = status;
  if (status == UCS_OK && bytes != receive->bytes) receive->status = UCS_ERR_MESSAGE_TRUNCATED;
  UcxTransport* transport = receive->transport;
  transport->receives_done_.push_back(std::move(receive));
  ucp_request_free(request);
}

bool UcxTransport::DeliverReceives() {
  bool worked = false;
  while (!receives_done_.empty()) {
    const std::unique_ptr<UcxReceive> receive = std::move(receives_done_.front());
    receives_done_.pop_front();
    worked = true;
    UcxEndpoint& endpoint = *receive->endpoint;
    --endpoint.requests_out;
    if (receive->status != UCS_OK) {
      const absl::Status status = UcxStatus(receive->status, "fetch from the peer");
      CloseNow(endpoint, absl::UnavailableError(status.message()));
    }
    if (endpoint.phase == UcxEndpoint::Phase::kClosing) continue;
    endpoint.last_heard = now_;
    endpoint.ping_sent = 0;
    if (receive->bounce != nullptr) {
      const auto found = endpoint.incoming.find(receive->message);
      FB_CHECK(found != endpoint.incoming.end());
      Scatter(found->second->landing.segments, receive->offset,
              {receive->bounce.get(), receive->bytes});
    }
    PieceLanded(endpoint, receive->message, receive->offset, receive->bytes);
  }
  return worked;
}

// Bytes are in place. Checksums take them in order, as soon as all before them are there too.
void UcxTransport::PieceLanded(UcxEndpoint& endpoint, uint64_t message, uint64_t offset,
                               uint64_t bytes) {
  const auto found = endpoint.incoming.find(message);
  FB_CHECK(found != endpoint.incoming.end());
  UcxIncoming& incoming = *found->second;
  incoming.landed_bytes += bytes;
  counts_.base.payload_bytes_received += bytes;
  if (incoming.has_checksum) {
    if (offset >= incoming.hashed_bytes) incoming.unhashed.emplace(offset, bytes);
    while (!incoming.unhashed.empty() &&
           incoming.unhashed.begin()->first == incoming.hashed_bytes) {
      const uint64_t take = incoming.unhashed.begin()->second;
      ForEachPart(incoming.landing.segments, incoming.hashed_bytes, take,
                  [](const LandingSegment& segment, MutableBytes part) {
                    if (segment.checksum != nullptr) segment.checksum->Update(part);
                  });
      incoming.hashed_bytes += take;
      incoming.unhashed.erase(incoming.unhashed.begin());
    }
  }
  if (incoming.landed_bytes == incoming.payload_bytes) FinishIncoming(endpoint, message);
}

void UcxTransport::FinishIncoming(UcxEndpoint& endpoint, uint64_t message) {
  const auto found = endpoint.incoming.find(message);
  const uint64_t token = found->second->landing.token;
  endpoint.incoming.erase(found);
  handler_.OnLanded(endpoint.id, token, absl::OkStatus());
}

}  // namespace forebay
