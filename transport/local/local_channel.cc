#include "transport/local/local_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/failpoint.h"
#include "base/log.h"

namespace forebay {
namespace {

// Staged chunks begin on cache lines.
constexpr uint64_t kStagingAlignment = 64;
// Chunks of a payload that is smaller than a few whole ones; below the least, a record costs more
// than copying apart gains.
constexpr uint64_t kChunkBytesMin = 16 * 1024;
constexpr uint64_t kChunksPerPayload = 4;
// Wake-up bytes taken in one go; a peer that sends more gets its turn again later.
constexpr int kWakeUpsMax = 64;
// Part of a ring that records of exported memory may fill, so that headers always find room.
constexpr uint64_t kSharedRecordsPerRing = 4;
// What a record counts against the payload budget of a poll, so that empty ones end it too.
constexpr uint64_t kRecordCostBytes = 256;
// Payload that Send() moves on the spot; the rest waits for Poll().
constexpr uint64_t kSendAtOnceBytes = 256 * 1024;

uint64_t AlignUp(uint64_t value) {
  return (value + kStagingAlignment - 1) & ~(kStagingAlignment - 1);
}

uint64_t TotalBytes(const std::vector<LandingSegment>& segments) {
  uint64_t total = 0;
  for (const LandingSegment& segment : segments) total += segment.bytes.size();
  return total;
}

}  // namespace

LocalChannel::LocalChannel(EndpointId id, const Setup& setup, UniqueFd socket, SharedArea area,
                           LocalSide own, std::vector<ReadOnlyRegion> regions, Nanos now)
    : id_(id),
      setup_(setup),
      exported_(own == LocalSide::kAcceptor ? setup.exported : absl::Span<const ExportedMemory>()),
      socket_(std::move(socket)),
      area_(std::move(area)),
      regions_(std::move(regions)),
      own_(area_.words(own)),
      peer_(area_.words(OtherSide(own))),
      staging_(area_.staging(own)),
      peer_staging_(area_.staging(OtherSide(own))),
      writer_(area_.ring(own), own_.tail, peer_.head),
      reader_(area_.ring(OtherSide(own)), peer_.tail, own_.head),
      now_(now),
      heard_at_(now) {}

std::vector<Bytes> LocalChannel::peer_regions() const {
  std::vector<Bytes> regions;
  regions.reserve(regions_.size());
  for (const ReadOnlyRegion& region : regions_) regions.push_back(region.bytes());
  return regions;
}

absl::Status LocalChannel::Send(OutgoingMessage message) {
  if (!open()) return why_;
  Outgoing outgoing;
  for (const Bytes& range : message.payload) outgoing.payload_bytes += range.size();
  outgoing.token = message.token;
  const uint64_t bytes = message.header.size() + outgoing.payload_bytes;
  const Lent lent = std::exchange(lent_, {});
  if (queued_bytes_ + bytes > SendQueueLimit(setup_.options, message.token)) {
    absl::Status full = absl::ResourceExhaustedError(
        absl::StrCat(queued_bytes_, " bytes are queued already, ", bytes, " more are too many"));
    // Nobody would learn that a message without a token is lost, so the endpoint goes instead.
    if (message.token == 0) Fail(full);
    return full;
  }
  queued_bytes_ += bytes;
  if (!lent.bytes.empty() && !message.payload.empty() &&
      message.payload[0].data() == lent.bytes.data()) {
    FB_CHECK(message.payload.size() == 1 && outgoing.payload_bytes == lent.bytes.size() &&
             message.header.size() <= lent.header_bytes);
    staging_tail_ += lent.skipped;
    WriteLent(message, bytes);
    return absl::OkStatus();
  }
  if (!message.payload.empty()) {  // a loan that is over would be overwritten while it waits
    const std::byte* const first = message.payload[0].data();
    FB_CHECK(first < staging_.data() || first >= staging_.data() + staging_.size());
  }
  const bool at_once = control_.empty() && writer_.Fits(message.header.size());
  if (outgoing.payload_bytes == 0 && at_once) {
    writer_.Write({.kind = RecordKind::kMessage,
                   .header_bytes = static_cast<uint32_t>(message.header.size())},
                  message.header);
    if (message.token != 0) ++tokens_in_flight_;
    in_flight_.push_back({.end = writer_.tail(),
                          .staging_tail = staging_tail_,
                          .token = message.token,
                          .queued_bytes = bytes});
    ++setup_.counts->messages_sent;
    writer_.Publish();
    Ring(kWakeOnRecords);
    return absl::OkStatus();
  }
  outgoing.header.assign(message.header.begin(), message.header.end());
  outgoing.payload = std::move(message.payload);
  (outgoing.payload_bytes == 0 ? control_ : bulk_).push_back(std::move(outgoing));
  Pump(kSendAtOnceBytes);
  return absl::OkStatus();
}

MutableBytes LocalChannel::LendSendBuffer(size_t header_bytes, size_t bytes) {
  lent_ = {};
  // What waits is staged first: the area is freed in the order of the ring.
  if (!open() || !control_.empty() || !bulk_.empty()) return {};
  if (bytes == 0 || bytes > staging_.size() / 2) return {};
  const uint64_t chunks = (bytes + setup_.shared_chunk_bytes - 1) / setup_.shared_chunk_bytes;
  if (RecordBytes(header_bytes) + chunks * RecordBytes(0) > writer_.free_bytes()) return {};
  uint64_t skipped = 0;
  const MutableBytes room = FreeStaging(bytes, &skipped);
  if (room.empty()) return {};
  lent_ = {.bytes = room.subspan(0, bytes), .skipped = skipped, .header_bytes = header_bytes};
  return lent_.bytes;
}

bool LocalChannel::Poll(Nanos now, uint64_t bytes_max) {
  now_ = now;
  lent_ = {};
  bool worked = false;
  if (open()) worked |= TakeAcknowledgements(now);
  if (open()) worked |= Receive(now, bytes_max);
  if (open() && PeerTookItBack()) TakeLastWords("the peer closed the endpoint");
  if (open()) worked |= Pump(bytes_max);
  if (open()) CheckPeer(now);
  return worked || !open();
}

bool LocalChannel::TakeAcknowledgements(Nanos now) {
  if (!writer_.HasNews()) return false;
  if (!writer_.Refresh()) {
    FailForGarbage("acknowledges what was not sent");
    return true;
  }
  heard_at_ = now;
  waiting_since_ = outstanding() ? now : -1;
  while (open() && !in_flight_.empty() && in_flight_.front().end <= writer_.consumed()) {
    const InFlight done = in_flight_.front();
    in_flight_.pop_front();
    staging_head_ = done.staging_tail;
    shared_in_flight_ -= done.shared_bytes;
    queued_bytes_ -= done.queued_bytes;
    if (in_flight_.empty()) {
      // Begin anew at the start, whose lines both caches still hold.
      staging_head_ = 0;
      staging_tail_ = 0;
    }
    if (done.token == 0) continue;
    --tokens_in_flight_;
    setup_.handler->OnSent(id_, done.token, absl::OkStatus());
  }
  return true;
}

bool LocalChannel::Receive(Nanos now, uint64_t bytes_max) {
  if (!reader_.HasNews()) return false;
  heard_at_ = now;
  uint64_t moved = 0;
  bool worked = false;
  while (open() && moved < bytes_max) {
    if (reader_.available() == 0) {
      if (!reader_.HasNews()) break;
      if (!reader_.Refresh()) {
        FailForGarbage("its ring's end is nowhere in the ring");
        break;
      }
    }
    worked = true;
    moved += kRecordCostBytes;
    const RecordHead head = reader_.Peek();
    switch (head.kind) {
      case RecordKind::kMessage:
        ReceiveMessage(head);
        break;
      case RecordKind::kStaged:
      case RecordKind::kShared:
        ReceiveChunk(head);
        moved += head.payload_bytes;
        break;
      case RecordKind::kPing:
        reader_.Consume(0);
        break;
      default:
        FailForGarbage("a record of no known kind");
    }
  }
  if (open() && reader_.Publish()) Ring(kWakeOnConsumed);
  return worked;
}

void LocalChannel::ReceiveMessage(const RecordHead& head) {
  if (head.header_bytes == 0 || head.header_bytes > kHeaderBytesMax ||
      head.payload_bytes > kPayloadBytesMax ||
      RecordBytes(head.header_bytes) > reader_.available()) {
    return FailForGarbage("a message of impossible size");
  }
  if (head.payload_bytes != 0 && receiving_) {
    return FailForGarbage("a payload within a payload");
  }
  const MutableBytes header = setup_.header_scratch.subspan(0, head.header_bytes);
  reader_.CopyHeader(header);
  reader_.Consume(head.header_bytes);
  ++setup_.counts->messages_received;
  if (head.payload_bytes == 0) {
    setup_.handler->OnMessage(id_, header, 0);
    return;
  }
  Landing landing = setup_.handler->OnMessage(id_, header, head.payload_bytes);
  // Our own handler's promise, whatever the peer sent.
  FB_CHECK(landing.segments.empty() || TotalBytes(landing.segments) == head.payload_bytes);
  receiving_ = true;
  incoming_ = Incoming{};
  incoming_.left_bytes = head.payload_bytes;
  incoming_.dropped = landing.segments.empty();
  incoming_.landing = std::move(landing);
}

void LocalChannel::ReceiveChunk(const RecordHead& head) {
  if (!receiving_ || head.payload_bytes == 0 || head.payload_bytes > incoming_.left_bytes) {
    return FailForGarbage("payload bytes of no message");
  }
  Bytes memory = peer_staging_;
  if (head.kind == RecordKind::kShared) {
    if (head.region >= regions_.size()) return FailForGarbage("a region that was not shared");
    memory = regions_[head.region].bytes();
  }
  if (head.payload_bytes > memory.size() || head.offset > memory.size() - head.payload_bytes) {
    return FailForGarbage("payload bytes outside the shared memory");
  }
  if (!incoming_.dropped) Land(memory.subspan(head.offset, head.payload_bytes));
  if (PeerTookItBack()) return Fail(absl::UnavailableError("the peer closed the endpoint"));
  incoming_.left_bytes -= head.payload_bytes;
  setup_.counts->payload_bytes_received += head.payload_bytes;
  reader_.Consume(0);
  // After each chunk, so that the sender fills the next while we copy.
  reader_.Publish();
  Ring(kWakeOnConsumed);
  if (incoming_.left_bytes == 0) FinishIncoming(absl::OkStatus());
}

void LocalChannel::Land(Bytes chunk) {
  while (!chunk.empty()) {
    const LandingSegment& segment = incoming_.landing.segments[incoming_.segment];
    const size_t bytes = std::min(chunk.size(), segment.bytes.size() - incoming_.segment_at);
    std::byte* to = segment.bytes.data() + incoming_.segment_at;
    if (segment.checksum != nullptr) {
      segment.checksum->CopyAndUpdate(to, chunk.data(), bytes);
    } else if (bytes != 0) {
      std::memcpy(to, chunk.data(), bytes);
    }
    chunk.remove_prefix(bytes);
    incoming_.segment_at += bytes;
    if (incoming_.segment_at == segment.bytes.size()) {
      ++incoming_.segment;
      incoming_.segment_at = 0;
    }
  }
}

bool LocalChannel::PeerTookItBack() const {
  SharedFence(std::memory_order_acquire);
  return peer_.closed.load(std::memory_order_relaxed) != 0;
}

void LocalChannel::FinishIncoming(const absl::Status& status) {
  receiving_ = false;
  if (incoming_.dropped) return;
  const uint64_t token = incoming_.landing.token;
  incoming_.landing = {};
  setup_.handler->OnLanded(id_, token, status);
}

bool LocalChannel::Pump(uint64_t bytes_max) {
  bool worked = false;
  while (!control_.empty() && WriteMessage(control_.front())) {
    control_.pop_front();
    worked = true;
  }
  uint64_t moved = 0;
  while (!bulk_.empty() && moved < bytes_max) {
    Outgoing& message = bulk_.front();
    if (!message.started && !WriteMessage(message)) break;
    const uint64_t bytes = WriteChunk(message);
    if (bytes == 0) break;
    worked = true;
    moved += bytes;
    // After each chunk, so that the receiver copies it while we fill the next.
    writer_.Publish();
    Ring(kWakeOnRecords);
    if (message.sent_bytes == message.payload_bytes) bulk_.pop_front();
  }
  pump_blocked_ = !control_.empty() || (!bulk_.empty() && moved < bytes_max);
  if (worked) {
    writer_.Publish();
    Ring(kWakeOnRecords);
  }
  return worked;
}

bool LocalChannel::WriteMessage(Outgoing& message) {
  if (!writer_.Fits(message.header.size())) return false;
  writer_.Write({.kind = RecordKind::kMessage,
                 .header_bytes = static_cast<uint32_t>(message.header.size()),
                 .payload_bytes = message.payload_bytes},
                message.header);
  message.started = true;
  ++setup_.counts->messages_sent;
  if (message.payload_bytes == 0) Track(message, /*shared_bytes=*/0);
  return true;
}

uint64_t LocalChannel::WriteChunk(Outgoing& message) {
  if (!writer_.Fits(0)) return 0;
  while (message.range_at == message.payload[message.range].size()) {
    ++message.range;
    message.range_at = 0;
  }
  const std::byte* next = message.payload[message.range].data() + message.range_at;
  const ExportedMemory* memory = Exported(next);
  const uint64_t bytes = memory != nullptr ? WriteShared(message, *memory) : WriteStaged(message);
  setup_.counts->payload_bytes_sent += bytes;
  return bytes;
}

uint64_t LocalChannel::WriteShared(Outgoing& message, const ExportedMemory& memory) {
  const Bytes range = message.payload[message.range].subspan(message.range_at);
  const auto offset = static_cast<uint64_t>(range.data() - memory.bytes.data());
  const uint64_t bytes =
      std::min({uint64_t{range.size()}, memory.bytes.size() - offset, setup_.shared_chunk_bytes});
  const uint64_t ring_used = writer_.tail() - writer_.consumed();
  if (shared_in_flight_ + bytes > setup_.shared_in_flight_bytes ||
      ring_used > area_.ring(LocalSide::kAcceptor).size() / kSharedRecordsPerRing) {
    return 0;
  }
  writer_.Write({.kind = RecordKind::kShared,
                 .payload_bytes = bytes,
                 .offset = offset,
                 .region = memory.region});
  message.range_at += bytes;
  message.sent_bytes += bytes;
  shared_in_flight_ += bytes;
  Track(message, bytes);
  return bytes;
}

uint64_t LocalChannel::WriteStaged(Outgoing& message) {
  // Quarters of a small payload, so that the receiver copies one while we fill the next.
  const uint64_t chunk_bytes =
      std::min(setup_.staged_chunk_bytes,
               std::max(kChunkBytesMin, message.payload_bytes / kChunksPerPayload));
  const uint64_t wanted = std::min(message.payload_bytes - message.sent_bytes, chunk_bytes);
  uint64_t skipped = 0;
  const MutableBytes room = FreeStaging(wanted, &skipped);
  if (room.empty()) return 0;
  staging_tail_ += skipped;
  const auto offset = static_cast<uint64_t>(room.data() - staging_.data());
  uint64_t bytes = 0;
  while (bytes < wanted) {
    const Bytes range = message.payload[message.range].subspan(message.range_at);
    const uint64_t part = std::min(wanted - bytes, uint64_t{range.size()});
    if (part != 0) std::memcpy(room.data() + bytes, range.data(), part);
    bytes += part;
    message.range_at += part;
    if (bytes == wanted) break;
    ++message.range;
    message.range_at = 0;
    if (Exported(message.payload[message.range].data()) != nullptr) break;
  }
  staging_tail_ += AlignUp(bytes);
  writer_.Write({.kind = RecordKind::kStaged, .payload_bytes = bytes, .offset = offset});
  message.sent_bytes += bytes;
  Track(message, /*shared_bytes=*/0);
  return bytes;
}

// The message and its chunks, which lie in the staging area already. There is room for the records.
void LocalChannel::WriteLent(const OutgoingMessage& message, uint64_t queued_bytes) {
  const Bytes payload = message.payload[0];
  writer_.Write({.kind = RecordKind::kMessage,
                 .header_bytes = static_cast<uint32_t>(message.header.size()),
                 .payload_bytes = payload.size()},
                message.header);
  const auto offset = static_cast<uint64_t>(payload.data() - staging_.data());
  for (uint64_t at = 0; at < payload.size();) {
    const uint64_t bytes = std::min(payload.size() - at, setup_.shared_chunk_bytes);
    writer_.Write({.kind = RecordKind::kStaged, .payload_bytes = bytes, .offset = offset + at});
    at += bytes;
    staging_tail_ += AlignUp(bytes);
    const bool last = at == payload.size();
    in_flight_.push_back({.end = writer_.tail(),
                          .staging_tail = staging_tail_,
                          .token = last ? message.token : 0,
                          .queued_bytes = last ? queued_bytes : 0});
  }
  if (message.token != 0) ++tokens_in_flight_;
  ++setup_.counts->messages_sent;
  setup_.counts->payload_bytes_sent += payload.size();
  writer_.Publish();
  Ring(kWakeOnRecords);
}

// `wanted` free bytes in one run, or none. `skipped`: what stays unused before the area's end.
MutableBytes LocalChannel::FreeStaging(uint64_t wanted, uint64_t* skipped) const {
  const MutableBytes room = FreeStaging();
  *skipped = 0;
  if (room.size() >= wanted) return room;
  // What is left before the end of the area is too short: go round, if the beginning is free.
  const uint64_t to_end = staging_.size() - staging_tail_ % staging_.size();
  const uint64_t used = staging_tail_ - staging_head_;
  if (room.size() < to_end || staging_.size() - used < to_end + wanted) return {};
  *skipped = to_end;
  return staging_;
}

// The free bytes from where the next chunk begins to the end of the area or the oldest chunk.
MutableBytes LocalChannel::FreeStaging() const {
  const uint64_t at = staging_tail_ % staging_.size();
  const uint64_t used = staging_tail_ - staging_head_;
  return staging_.subspan(at, std::min(staging_.size() - at, staging_.size() - used));
}

void LocalChannel::Track(const Outgoing& message, uint64_t shared_bytes) {
  const bool last = message.sent_bytes == message.payload_bytes;
  if (last && message.token != 0) ++tokens_in_flight_;
  in_flight_.push_back({.end = writer_.tail(),
                        .staging_tail = staging_tail_,
                        .shared_bytes = shared_bytes,
                        .token = last ? message.token : 0,
                        .queued_bytes = last ? message.header.size() + message.payload_bytes : 0});
}

const ExportedMemory* LocalChannel::Exported(const std::byte* byte) const {
  auto after = std::upper_bound(
      exported_.begin(), exported_.end(), byte,
      [](const std::byte* at, const ExportedMemory& memory) { return at < memory.bytes.data(); });
  if (after == exported_.begin()) return nullptr;
  const ExportedMemory& memory = *--after;
  return byte < memory.bytes.data() + memory.bytes.size() ? &memory : nullptr;
}

void LocalChannel::CheckPeer(Nanos now) {
  if (outstanding()) {
    if (waiting_since_ < 0) waiting_since_ = now;
    if (now - waiting_since_ >= setup_.options.peer_timeout) {
      Fail(absl::UnavailableError(absl::StrCat("the peer read nothing for ",
                                               (now - waiting_since_) / kMillisecond, " ms")));
    }
    return;
  }
  waiting_since_ = -1;
  const Nanos interval = setup_.options.keepalive_interval;
  if (interval <= 0 || now - heard_at_ < interval) return;
  writer_.Write({.kind = RecordKind::kPing});
  writer_.Publish();
  Ring(kWakeOnRecords);
  waiting_since_ = now;
}

Nanos LocalChannel::NextDeadline() const {
  if (outstanding()) {
    return (waiting_since_ < 0 ? now_ : waiting_since_) + setup_.options.peer_timeout;
  }
  const Nanos interval = setup_.options.keepalive_interval;
  return interval <= 0 ? kForever : heard_at_ + interval;
}

void LocalChannel::DrainSocket() {
  for (int i = 0; i < kWakeUpsMax && open(); ++i) {
    std::byte wake_up[8];
    const ssize_t bytes = recv(socket_.get(), wake_up, sizeof(wake_up), MSG_DONTWAIT);
    if (bytes > 0) continue;
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    // The end of the file, or a reset: the kernel closed it when the peer died, if not the peer.
    return TakeLastWords("the peer is gone");
  }
}

// Messages without payload that the peer sent before it went are whole, and often say why it goes.
void LocalChannel::TakeLastWords(absl::string_view why) {
  while (open() && (reader_.available() > 0 || reader_.HasNews())) {
    if (reader_.available() == 0 && !reader_.Refresh()) break;
    if (reader_.available() == 0) break;
    const RecordHead head = reader_.Peek();
    if (head.kind != RecordKind::kMessage || head.payload_bytes != 0) break;
    ReceiveMessage(head);
    // A peer that lives on could go on writing: what one ring holds is enough.
    if ((last_words_bytes_ += RecordBytes(head.header_bytes)) >
        area_.ring(LocalSide::kAcceptor).size()) {
      break;
    }
  }
  Fail(absl::UnavailableError(why));
}

void LocalChannel::Ring(uint32_t reason) {
  // With the fence of whoever goes to sleep: either it sees what we wrote, or we see that it
  // sleeps.
  SharedFence(std::memory_order_seq_cst);
  if ((peer_.sleeping.load(std::memory_order_relaxed) & reason) == 0) return;
  if (reason == kWakeOnConsumed) {
    const uint64_t awaited = peer_.wake_head.load(std::memory_order_relaxed);
    if (static_cast<int64_t>(reader_.published() - awaited) < 0) return;
  }
  if (peer_.sleeping.exchange(0, std::memory_order_acq_rel) == 0) return;
  // EAGAIN: it has wake-ups that it did not take yet. Anything else the next DrainSocket() meets
  // too.
  const std::byte wake_up{1};
  static_cast<void>(send(socket_.get(), &wake_up, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

void LocalChannel::AnnounceSleep() {
  uint32_t wanted = kWakeOnRecords;
  if (!in_flight_.empty()) {
    // Not at each chunk: at the first message that we must report, or when half of what fills the
    // ring is gone, where more waits.
    if (!control_.empty() || !bulk_.empty()) {
      wanted |= kWakeOnConsumed;
      own_.wake_head.store(in_flight_[in_flight_.size() / 2].end, std::memory_order_relaxed);
    } else if (tokens_in_flight_ > 0) {
      wanted |= kWakeOnConsumed;
      const auto first = std::find_if(in_flight_.begin(), in_flight_.end(),
                                      [](const InFlight& record) { return record.token != 0; });
      own_.wake_head.store(first->end, std::memory_order_relaxed);
    }
  }
  own_.sleeping.store(wanted, std::memory_order_release);
}

bool LocalChannel::HasWork() const {
  if (!open() || reader_.HasNews() || PeerTookItBack()) return true;
  if (writer_.HasNews() && (tokens_in_flight_ > 0 || pump_blocked_)) return true;
  return (!control_.empty() || !bulk_.empty()) && !pump_blocked_;
}

void LocalChannel::EndSleep() { own_.sleeping.store(0, std::memory_order_relaxed); }

void LocalChannel::FailForGarbage(absl::string_view what) {
  ++setup_.counts->protocol_errors;
  Fail(absl::UnavailableError(absl::StrCat("the peer broke the protocol: ", what)));
}

void LocalChannel::Fail(absl::Status why) {
  FB_CHECK(!why.ok());
  if (!open()) return;
  why_ = std::move(why);
  own_.closed.store(1, std::memory_order_relaxed);
  // Before any payload is handed back and written over: the other half of PeerTookItBack().
  SharedFence(std::memory_order_seq_cst);
  shutdown(socket_.get(), SHUT_RDWR);
}

void LocalChannel::HandBack() {
  FB_CHECK(!open());
  if (receiving_) FinishIncoming(why_);
  std::vector<uint64_t> tokens;
  for (const InFlight& record : in_flight_) tokens.push_back(record.token);
  for (const Outgoing& message : bulk_) tokens.push_back(message.token);
  for (const Outgoing& message : control_) tokens.push_back(message.token);
  in_flight_.clear();
  bulk_.clear();
  control_.clear();
  for (const uint64_t token : tokens) {
    if (token != 0) setup_.handler->OnSent(id_, token, why_);
  }
}

}  // namespace forebay
