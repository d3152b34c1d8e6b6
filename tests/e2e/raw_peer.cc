#include "tests/e2e/raw_peer.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "client/rpc/grpc_session_opener.h"

namespace forebay::testing {
namespace {

constexpr Nanos kAnswerLimit = 10 * kSecond;
constexpr Nanos kOpenDeadline = 20 * kSecond;

}  // namespace

absl::StatusOr<OpenSessionReply> OpenSessionAt(const std::string& control,
                                               const OpenSessionRequest& request) {
  GrpcSessionOpener opener("");
  absl::StatusOr<OpenSessionReply> result = absl::UnknownError("open");
  absl::Notification done;
  const SystemClock clock;
  opener.Open(control, request, clock.Now() + kOpenDeadline,
              [&](absl::StatusOr<OpenSessionReply> reply) {
                result = std::move(reply);
                done.Notify();
              });
  done.WaitForNotification();
  return result;
}

OpenSessionRequest RequestFor(const NamespaceSpec& spec) {
  return {spec, kWireVersionMin, kWireVersionMax, "raw peer"};
}

absl::Status RawPeer::Answer::status() const {
  uint32_t code = 0;
  if (header.size() < sizeof(wire::Head) + sizeof(code)) return absl::OkStatus();
  std::memcpy(&code, header.data() + sizeof(wire::Head), sizeof(code));
  std::string text;
  if (kind == wire::Kind::kError) {
    const size_t begin = sizeof(wire::Head) + sizeof(wire::Error);
    text.assign(reinterpret_cast<const char*>(header.data()) + begin, header.size() - begin);
  }
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

absl::StatusCode RawPeer::Answer::put_item() const {
  uint32_t code = UINT32_MAX;
  const size_t begin = sizeof(wire::Head) + sizeof(wire::PutReply);
  if (kind == wire::Kind::kPutReply && header.size() == begin + sizeof(code)) {
    std::memcpy(&code, header.data() + begin, sizeof(code));
  }
  return static_cast<absl::StatusCode>(code);
}

absl::StatusOr<std::unique_ptr<RawPeer>> RawPeer::Connect(const std::string& address) {
  std::unique_ptr<RawPeer> peer(new RawPeer);
  FB_ASSIGN_OR_RETURN(peer->transport_, TcpTransport::Create(peer->clock_, *peer, {}));
  FB_ASSIGN_OR_RETURN(peer->endpoint_,
                      peer->transport_->Connect(address, peer->clock_.Now() + kAnswerLimit));
  RawPeer& it = *peer;
  it.PollUntil([&it] { return it.connected_ || it.closed_; });
  if (!peer->connected_) return absl::UnavailableError(absl::StrCat("no endpoint at ", address));
  return peer;
}

absl::StatusOr<std::unique_ptr<RawPeer>> RawPeer::Greet(const std::string& address,
                                                        const OpenSessionReply& session) {
  FB_ASSIGN_OR_RETURN(std::unique_ptr<RawPeer> peer, Connect(address));
  wire::Hello hello;
  hello.session = session.session;
  hello.boot_epoch = session.boot_epoch;
  FB_ASSIGN_OR_RETURN(const Answer answer, peer->Ask(MessageOf(wire::Kind::kHello, hello)));
  if (answer.closed || answer.kind != wire::Kind::kHelloReply) {
    return absl::UnavailableError("no answer to the greeting");
  }
  FB_RETURN_IF_ERROR(answer.status());
  return peer;
}

void RawPeer::Send(Bytes header, absl::string_view payload) {
  OutgoingMessage message{header, {}, 0};
  if (!payload.empty()) {
    message.token = ++last_token_;
    payloads_.emplace_back(message.token, std::string(payload));
    const std::string& kept = payloads_.back().second;
    message.payload.push_back(AsBytes(kept.data(), kept.size()));
  }
  transport_->Send(endpoint_, std::move(message));
}

absl::StatusOr<RawPeer::Answer> RawPeer::Await() {
  PollUntil([this] { return closed_ || !answers_.empty(); });
  if (!answers_.empty()) {
    Answer answer = std::move(answers_.front());
    answers_.pop_front();
    return answer;
  }
  if (closed_) {
    Answer end;
    end.closed = true;
    return end;
  }
  return absl::DeadlineExceededError("the daemon neither answers nor closes");
}

absl::StatusOr<RawPeer::Answer> RawPeer::Ask(Bytes header, absl::string_view payload) {
  Send(header, payload);
  return Await();
}

bool RawPeer::PollUntil(const std::function<bool()>& done) {
  const Nanos until = clock_.Now() + kAnswerLimit;
  while (!done()) {
    const Nanos now = clock_.Now();
    if (now >= until) return false;
    if (transport_->Poll(now)) continue;
    std::vector<int> fds;
    if (!transport_->PrepareToSleep(fds)) continue;
    std::vector<pollfd> polled;
    for (const int fd : fds) polled.push_back({fd, POLLIN, 0});
    const Nanos wake = std::min({until, transport_->NextDeadline(), now + 20 * kMillisecond});
    poll(polled.data(), polled.size(),
         static_cast<int>(std::max<Nanos>(wake - now, kMillisecond) / kMillisecond));
  }
  return true;
}

void RawPeer::OnConnected(EndpointId, const PeerDescription&) { connected_ = true; }

Landing RawPeer::OnMessage(EndpointId, Bytes header, uint64_t) {
  Answer answer;
  answer.header.assign(header.begin(), header.end());
  wire::Head head;
  std::memcpy(&head, header.data(), std::min(header.size(), sizeof(head)));
  answer.kind = static_cast<wire::Kind>(head.kind);
  answer.op = head.op;
  answers_.push_back(std::move(answer));
  return Landing::Drop();
}

void RawPeer::OnLanded(EndpointId, uint64_t, const absl::Status&) {}

void RawPeer::OnSent(EndpointId, uint64_t token, const absl::Status&) {
  std::erase_if(payloads_, [token](const auto& kept) { return kept.first == token; });
}

void RawPeer::OnClosed(EndpointId, const absl::Status&) { closed_ = true; }

OnePut::OnePut(const OpenSessionReply& session, const KvLayout& layout, const PageKey& page_key,
               uint16_t part)
    : namespace_id(session.namespace_id) {
  const PartSpec spec = layout.Parts()[part];
  payload.resize(spec.raw_bytes);
  SeededRandom random(page_key.Prefix64() + part);
  for (char& c : payload) c = static_cast<char>(random.Next());
  item.key = page_key;
  item.parent = session.root;
  item.part = part;
  item.header =
      MakeFrameHeader(layout, spec, page_key, /*page_index=*/0, CodecId::kRaw, spec.raw_bytes,
                      ChecksumOf(AsBytes(payload.data(), payload.size())));
}

std::vector<std::byte> OnePut::Header() const {
  wire::Put put;
  put.namespace_id = namespace_id;
  put.item_count = 1;
  wire::Writer writer(wire::Kind::kPut, /*op=*/7, put);
  writer.Array(absl::MakeConstSpan(&item, 1));
  const Bytes bytes = writer.Take();
  return {bytes.begin(), bytes.end()};
}

absl::StatusOr<uint32_t> ProbePages(RawPeer& peer, uint32_t namespace_id,
                                    const std::vector<PageKey>& keys) {
  wire::Lookup lookup;
  lookup.namespace_id = namespace_id;
  lookup.flags = wire::kProbe;
  lookup.key_count = static_cast<uint32_t>(keys.size());
  wire::Writer writer(wire::Kind::kLookup, /*op=*/7, lookup);
  writer.Array(absl::MakeConstSpan(keys));
  FB_ASSIGN_OR_RETURN(const RawPeer::Answer answer, peer.Ask(writer.Take()));
  wire::LookupReply reply;
  if (answer.closed || answer.kind != wire::Kind::kLookupReply ||
      answer.header.size() < sizeof(wire::Head) + sizeof(reply)) {
    return absl::UnavailableError("no answer to a lookup");
  }
  std::memcpy(&reply, answer.header.data() + sizeof(wire::Head), sizeof(reply));
  FB_RETURN_IF_ERROR(absl::Status(static_cast<absl::StatusCode>(reply.status), "lookup"));
  return reply.page_count;
}

}  // namespace forebay::testing
