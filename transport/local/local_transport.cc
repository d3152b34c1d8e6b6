#include "transport/local/local_transport.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/failpoint.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

// A spinning reactor looks at its sockets this often: the rings need no system call, and a death is
// still noticed within a fraction of a millisecond.
constexpr uint64_t kPollsPerSocketLook = 64;
constexpr Nanos kSocketLookInterval = 200 * kMicrosecond;
constexpr int kEventsPerLook = 64;
constexpr int kAcceptsPerLook = 16;
// A handshake that waits for what no descriptor tells of tries again this much later.
constexpr Nanos kBlockedRetry = kMillisecond;
// Without descriptors accept(2) fails until somebody closes some.
constexpr Nanos kAcceptPause = 100 * kMillisecond;
// Chunks are at most this part of the staging area, so that both sides always have one to copy.
constexpr uint64_t kChunksPerStaging = 4;
// What epoll tells of a listener: its index with this bit. Of an endpoint: its id.
constexpr uint64_t kListenerTag = 1ull << 63;

// One count for all transports of the process: an id is never used again within it.
EndpointId NewEndpointId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

absl::Status CheckMessage(const OutgoingMessage& message) {
  if (message.header.empty() || message.header.size() > kHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a header of ", message.header.size(),
                                                   " bytes: wanted 1 to ", kHeaderBytesMax));
  }
  uint64_t bytes = 0;
  for (const Bytes& range : message.payload) {
    if (range.size() > kPayloadBytesMax - bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a payload of more than ", kPayloadBytesMax, " bytes"));
    }
    bytes += range.size();
  }
  if (bytes != 0 && message.token == 0) {
    return absl::InvalidArgumentError("a payload needs a token: it is borrowed until OnSent");
  }
  return absl::OkStatus();
}

absl::Status Watch(const UniqueFd& epoll, int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = tag;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot watch a socket: ", std::strerror(errno)));
}

}  // namespace

// An endpoint from its first packet to OnClosed.
struct LocalTransport::Peer {
  EndpointId id = 0;
  LocalSide side = LocalSide::kConnector;
  std::string address;
  Nanos deadline = kForever;                  // of the handshake
  std::unique_ptr<LocalHandshake> handshake;  // until it is open
  std::unique_ptr<LocalChannel> channel;      // from then on
  bool watched = false;                       // in epoll
  bool readable = false;                      // its handshake can go on
  bool announced = false;                     // the handler knows of it: OnClosed is due
  absl::Status dropped;                       // why it ended before it was open

  bool ended() const { return channel != nullptr ? !channel->open() : !dropped.ok(); }
};

absl::StatusOr<std::unique_ptr<LocalTransport>> LocalTransport::Create(
    const Clock& clock, TransportHandler& handler, LocalTransportOptions options) {
  auto transport =
      std::unique_ptr<LocalTransport>(new LocalTransport(clock, handler, std::move(options)));
  FB_RETURN_IF_ERROR(transport->Init());
  return transport;
}

LocalTransport::LocalTransport(const Clock& clock, TransportHandler& handler,
                               LocalTransportOptions options)
    : clock_(clock), handler_(handler), options_(std::move(options)) {}

absl::Status LocalTransport::Init() {
  FB_RETURN_IF_ERROR(SharedArea::Validate(
      {.ring_bytes = options_.ring_bytes, .staging_bytes = options_.staging_bytes}));
  if (options_.exports.size() > kRegionsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.exports.size(), " exported regions: at most ", kRegionsMax));
  }
  for (const LocalTransportOptions::Export& exported : options_.exports) {
    FB_RETURN_IF_ERROR(CheckExportable(exported.fd, exported.bytes));
    const auto region = static_cast<uint32_t>(handshake_exports_.size());
    handshake_exports_.push_back({.fd = exported.fd, .bytes = exported.bytes});
    if (exported.memory == nullptr) continue;
    exported_.push_back({.bytes = AsBytes(exported.memory, exported.bytes), .region = region});
  }
  std::sort(exported_.begin(), exported_.end(),
            [](const ExportedMemory& a, const ExportedMemory& b) {
              return a.bytes.data() < b.bytes.data();
            });
  header_scratch_.resize(kHeaderBytesMax);
  setup_.options = options_.base;
  setup_.handler = &handler_;
  setup_.counts = &counts_;
  setup_.exported = exported_;
  setup_.header_scratch = absl::MakeSpan(header_scratch_);
  setup_.staged_chunk_bytes =
      std::min(options_.chunk_bytes, options_.staging_bytes / kChunksPerStaging);
  own_uid_ = geteuid();
  now_ = clock_.Now();
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (epoll_.ok()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("cannot make an epoll: ", std::strerror(errno)));
}

LocalTransport::~LocalTransport() {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->channel != nullptr) peer->channel->Fail(absl::CancelledError("destroyed"));
  }
}

absl::StatusOr<std::string> LocalTransport::Listen(absl::string_view address) {
  FB_ASSIGN_OR_RETURN(const LocalAddress parsed, LocalAddress::Parse(address));
  FB_ASSIGN_OR_RETURN(LocalListener listener, LocalListener::Open(parsed, options_.socket_mode));
  FB_RETURN_IF_ERROR(Watch(epoll_, listener.fd(), kListenerTag | listeners_.size()));
  listeners_.push_back(std::move(listener));
  return std::string(address);
}

absl::StatusOr<EndpointId> LocalTransport::Connect(absl::string_view address, Nanos deadline) {
  FB_ASSIGN_OR_RETURN(LocalAddress parsed, LocalAddress::Parse(address));
  if (by_id_.size() >= options_.base.endpoints_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(by_id_.size(), " endpoints are open, the most that are allowed"));
  }
  Peer& peer = AddPeer(
      std::make_unique<ConnectorHandshake>(std::move(parsed), own_uid_, options_.allowed_uids),
      LocalSide::kConnector, deadline);
  peer.address = std::string(address);
  peer.announced = true;
  AdvanceHandshake(peer);
  return peer.id;
}

void LocalTransport::Send(EndpointId endpoint, OutgoingMessage message) {
  const uint64_t token = message.token;
  const absl::Status valid = CheckMessage(message);
  if (!valid.ok()) {
    FB_CHECK(token != 0);  // nobody could be told
    return FailSend(endpoint, token, valid);
  }
  Peer* peer = Find(endpoint);
  if (peer == nullptr || peer->channel == nullptr) {
    return FailSend(endpoint, token, absl::UnavailableError("the endpoint is not open"));
  }
  absl::Status sent = peer->channel->Send(std::move(message));
  if (!peer->channel->open()) reap_ = true;
  if (!sent.ok()) FailSend(endpoint, token, std::move(sent));
}

MutableBytes LocalTransport::LendSendBuffer(EndpointId endpoint, size_t header_bytes,
                                            size_t bytes) {
  Peer* peer = Find(endpoint);
  if (peer == nullptr || peer->channel == nullptr) return {};
  return peer->channel->LendSendBuffer(header_bytes, bytes);
}

void LocalTransport::Close(EndpointId endpoint) {
  Peer* peer = Find(endpoint);
  if (peer != nullptr) Drop(*peer, absl::CancelledError("closed by this side"));
}

LocalTransport::Peer* LocalTransport::Find(EndpointId endpoint) {
  const auto it = by_id_.find(endpoint);
  return it == by_id_.end() ? nullptr : it->second;
}

LocalTransport::Peer& LocalTransport::AddPeer(std::unique_ptr<LocalHandshake> handshake,
                                              LocalSide side, Nanos deadline) {
  auto peer = std::make_unique<Peer>();
  peer->id = NewEndpointId();
  peer->side = side;
  peer->deadline = deadline;
  peer->handshake = std::move(handshake);
  by_id_[peer->id] = peer.get();
  peers_.push_back(std::move(peer));
  return *peers_.back();
}

void LocalTransport::FailSend(EndpointId endpoint, uint64_t token, absl::Status status) {
  if (token != 0) failed_sends_.push_back({endpoint, token, std::move(status)});
}

bool LocalTransport::HandBackFailedSends() {
  std::vector<FailedSend> failed;
  failed.swap(failed_sends_);  // a callback may send again
  for (const FailedSend& send : failed) handler_.OnSent(send.endpoint, send.token, send.status);
  return !failed.empty();
}

bool LocalTransport::HasFailedSend(EndpointId endpoint) const {
  return std::any_of(failed_sends_.begin(), failed_sends_.end(),
                     [endpoint](const FailedSend& send) { return send.endpoint == endpoint; });
}

bool LocalTransport::Poll(Nanos now) {
  FB_CHECK(!in_poll_);
  in_poll_ = true;
  now_ = now;
  bool worked = HandBackFailedSends();
  if (now >= accept_again_at_) WatchListeners(true);
  if (asleep_ || ++polls_since_sockets_ >= kPollsPerSocketLook ||
      now - sockets_polled_at_ >= kSocketLookInterval) {
    worked |= PollSockets();
  }
  if (asleep_) {
    asleep_ = false;
    for (const std::unique_ptr<Peer>& peer : peers_) {
      if (peer->channel != nullptr) peer->channel->EndSleep();
    }
  }
  const size_t count = peers_.size();  // callbacks may add more
  for (size_t i = 0; i < count; ++i) {
    Peer& peer = *peers_[(first_ + i) % count];
    if (peer.channel != nullptr) {
      if (peer.channel->open()) worked |= peer.channel->Poll(now, options_.poll_bytes_max);
    } else if (!peer.ended()) {
      if (peer.readable || peer.handshake->blocked()) AdvanceHandshake(peer);
      if (peer.channel != nullptr) worked = true;
      if (peer.channel == nullptr && now >= peer.deadline) {
        Drop(peer, absl::DeadlineExceededError("the peer did not answer in time"));
      }
    }
    if (peer.ended()) reap_ = true;
  }
  if (count != 0) first_ = (first_ + 1) % count;
  if (reap_) worked |= Reap();
  in_poll_ = false;
  return worked;
}

bool LocalTransport::PollSockets() {
  polls_since_sockets_ = 0;
  sockets_polled_at_ = now_;
  epoll_event events[kEventsPerLook];
  const int count = epoll_wait(epoll_.get(), events, kEventsPerLook, /*timeout=*/0);
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = events[i].data.u64;
    if ((tag & kListenerTag) != 0) {
      Accept(tag & ~kListenerTag);
      continue;
    }
    Peer* peer = Find(tag);
    if (peer == nullptr) continue;
    if (peer->channel != nullptr) {
      if (peer->channel->open()) peer->channel->DrainSocket();
    } else {
      peer->readable = true;
    }
  }
  return count > 0;
}

void LocalTransport::Accept(size_t listener) {
  for (int i = 0; i < kAcceptsPerLook; ++i) {
    UniqueFd socket(
        accept4(listeners_[listener].fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.ok()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        LogWarning("local.accept_failed", {{"error", std::strerror(errno)}});
        WatchListeners(false);
      }
      return;
    }
    absl::StatusOr<PeerCredentials> credentials = CredentialsOf(socket.get());
    absl::Status refused = credentials.status();
    if (credentials.ok() && !PeerIsAllowed(credentials->uid, own_uid_, options_.allowed_uids)) {
      refused = absl::PermissionDeniedError(
          absl::StrCat("uid ", credentials->uid, " may not connect to a daemon of uid ", own_uid_));
    } else if (by_id_.size() >= options_.base.endpoints_max) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("the daemon has ", by_id_.size(), " endpoints, the most that are allowed"));
    }
    if (!refused.ok()) {
      if (log_limiter_.Allow(now_)) {
        LogWarning("local.peer_refused", {{"why", refused.message()}});
      }
      static_cast<void>(SendRefusal(socket.get(), refused));
      continue;
    }
    Peer& peer = AddPeer(
        std::make_unique<AcceptorHandshake>(
            std::move(socket), *credentials,
            SharedArea::Sizes{options_.ring_bytes, options_.staging_bytes}, handshake_exports_),
        LocalSide::kAcceptor, now_ + options_.base.peer_timeout);
    peer.address = "local:";
    AdvanceHandshake(peer);
  }
}

void LocalTransport::AdvanceHandshake(Peer& peer) {
  peer.readable = false;
  absl::Status status;
  if (!peer.handshake->done()) status = peer.handshake->Advance();
  if (status.ok() && !peer.watched && peer.handshake->socket() >= 0 && !peer.handshake->blocked()) {
    status = Watch(epoll_, peer.handshake->socket(), peer.id);
    peer.watched = status.ok();
  }
  if (!status.ok()) {
    if (absl::IsInvalidArgument(status)) {
      ++counts_.protocol_errors;
      status =
          absl::UnavailableError(absl::StrCat("the peer broke the protocol: ", status.message()));
    }
    return Drop(peer, std::move(status));
  }
  // OnConnected comes from Poll() alone, also where Connect() got this far.
  if (peer.handshake->done() && in_poll_) return Open(peer);
  if (peer.handshake->done()) peer.readable = true;
}

void LocalTransport::Open(Peer& peer) {
  LocalHandshake& handshake = *peer.handshake;
  PeerDescription description;
  description.same_host = true;
  description.pid = handshake.peer().pid;
  description.uid = handshake.peer().uid;
  description.address = absl::StrCat(
      peer.address, peer.side == LocalSide::kAcceptor ? "pid:" : " pid:", description.pid,
      " uid:", description.uid);
  peer.channel =
      std::make_unique<LocalChannel>(peer.id, setup_, handshake.TakeSocket(), handshake.TakeArea(),
                                     peer.side, handshake.TakeRegions(), now_);
  peer.handshake = nullptr;
  peer.announced = true;
  description.shared_regions = peer.channel->peer_regions();
  ++counts_.endpoints_open;
  handler_.OnConnected(peer.id, description);
}

void LocalTransport::Drop(Peer& peer, absl::Status why) {
  reap_ = true;
  if (peer.channel != nullptr) {
    peer.channel->Fail(std::move(why));
  } else if (peer.dropped.ok()) {
    peer.dropped = std::move(why);
  }
}

bool LocalTransport::Reap() {
  reap_ = false;
  bool worked = false;
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = *peers_[i];
    if (!peer.ended()) continue;
    worked = true;
    if (peer.channel != nullptr) peer.channel->HandBack();
    if (HasFailedSend(peer.id)) {  // OnSent comes first, with the next poll
      reap_ = true;
      continue;
    }
    const std::unique_ptr<Peer> gone = std::move(peers_[i]);
    by_id_.erase(gone->id);
    if (gone->channel != nullptr) --counts_.endpoints_open;
    const absl::Status why = gone->channel != nullptr ? gone->channel->why() : gone->dropped;
    if (log_limiter_.Allow(now_)) {
      LogInfo("local.endpoint_closed", {{"endpoint", gone->id}, {"why", why.ToString()}});
    }
    if (gone->announced) handler_.OnClosed(gone->id, why);
  }
  peers_.erase(std::remove(peers_.begin(), peers_.end(), nullptr), peers_.end());
  return worked;
}

void LocalTransport::WatchListeners(bool watch) {
  accept_again_at_ = watch ? kForever : now_ + kAcceptPause;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    epoll_event event{};
    event.events = watch ? EPOLLIN : 0u;
    event.data.u64 = kListenerTag | i;
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listeners_[i].fd(), &event);
  }
}

bool LocalTransport::PrepareToSleep(std::vector<int>& fds) {
  if (reap_ || !failed_sends_.empty()) return false;
  asleep_ = true;  // so that the next poll looks at the sockets and ends the sleep
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->channel != nullptr) peer->channel->AnnounceSleep();
    if (peer->readable) return false;
  }
  // With the fence in LocalChannel::Ring().
  SharedFence(std::memory_order_seq_cst);
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->channel != nullptr && peer->channel->HasWork()) return false;
  }
  fds.push_back(epoll_.get());
  return true;
}

Nanos LocalTransport::NextDeadline() const {
  Nanos next = accept_again_at_;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->channel != nullptr) {
      next = std::min(next, peer->channel->NextDeadline());
    } else {
      next = std::min(next, peer->handshake->blocked() ? now_ + kBlockedRetry : peer->deadline);
    }
  }
  return next;
}

}  // namespace forebay
