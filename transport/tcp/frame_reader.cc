#include "transport/tcp/frame_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

// Read at once where a head is awaited: enough for a burst of small messages, little enough that
// the payload bytes which come with them, and are copied, do not matter.
constexpr size_t kStagingReadBytes = 16 * 1024;
constexpr size_t kStagingBytes = kStagingReadBytes + sizeof(TcpFrameHead) + kHeaderBytesMax;
// Landed by one read, and then checksummed: must stay in a second-level cache.
constexpr size_t kLandReadBytes = 256 * 1024;
constexpr size_t kLandRanges = 128;

}  // namespace

FrameReader::FrameReader(MutableBytes scratch, FrameSink& sink)
    : scratch_(scratch), sink_(sink), staging_(new std::byte[kStagingBytes]) {}

FrameReader::Outcome FrameReader::ReadFrom(ByteStream& stream, size_t budget, bool until_end) {
  Outcome outcome;
  bool drained = false;
  for (;;) {
    const absl::Status parsed = ParseStaged();
    if (stopped_) {
      outcome.kind = Outcome::Kind::kStopped;
      return outcome;
    }
    if (!parsed.ok()) {
      outcome.kind = Outcome::Kind::kFailed;
      outcome.status = parsed;
      return outcome;
    }
    if (drained) return outcome;
    if (outcome.bytes >= budget) {
      outcome.kind = Outcome::Kind::kBudget;
      return outcome;
    }
    StreamResult result = ReadMore(stream);
    outcome.bytes += result.bytes;
    switch (result.kind) {
      case StreamResult::Kind::kDone:
        break;
      case StreamResult::Kind::kWouldBlock:
        drained = result.bytes == 0 || !until_end;
        break;
      case StreamResult::Kind::kEnd:
        outcome.kind = Outcome::Kind::kEnd;
        return outcome;
      case StreamResult::Kind::kFailed:
        outcome.kind = Outcome::Kind::kFailed;
        outcome.status = std::move(result.status);
        return outcome;
    }
  }
}

std::vector<uint64_t> FrameReader::TakeOpenLandings() {
  std::vector<uint64_t> tokens;
  for (Incoming* incoming : {&whole_, &open_}) {
    if (incoming->active && !incoming->drop) tokens.push_back(incoming->landing.token);
    *incoming = Incoming();
  }
  current_ = nullptr;
  chunk_left_ = 0;
  stopped_ = true;
  return tokens;
}

absl::Status FrameReader::ParseStaged() {
  while (!stopped_) {
    if (chunk_left_ > 0) {
      if (staged_bytes() == 0) return absl::OkStatus();
      LandStaged();
      continue;
    }
    if (!have_head_) {
      if (staged_bytes() < sizeof(TcpFrameHead)) return absl::OkStatus();
      FB_RETURN_IF_ERROR(ParseHead());
    }
    if (staged_bytes() < head_.header_bytes) return absl::OkStatus();
    FB_RETURN_IF_ERROR(BeginBody());
  }
  return absl::OkStatus();
}

absl::Status FrameReader::ParseHead() {
  FB_ASSIGN_OR_RETURN(head_, ParseFrameHead(AsBytes(&staging_[staged_begin_], sizeof(head_))));
  FB_RETURN_IF_ERROR(CheckTurn(head_));
  staged_begin_ += sizeof(head_);
  ++next_sequence_;
  have_head_ = true;
  return absl::OkStatus();
}

// Whether the frame may come now.
absl::Status FrameReader::CheckTurn(const TcpFrameHead& head) const {
  if (head.sequence != next_sequence_) {
    return absl::DataLossError(
        absl::StrCat("frame ", head.sequence, " where ", next_sequence_, " was due"));
  }
  const auto type = static_cast<FrameType>(head.type);
  if (type == FrameType::kBegin && open_.active) {
    return absl::DataLossError("a second large message before the first one's end");
  }
  if (type != FrameType::kChunk) return absl::OkStatus();
  if (!open_.active || head.payload_bytes != open_.payload_bytes ||
      head.chunk_bytes > open_.left_bytes) {
    return absl::DataLossError(absl::StrCat("a chunk of ", head.chunk_bytes, " bytes where ",
                                            open_.active ? open_.left_bytes : 0, " are due"));
  }
  return absl::OkStatus();
}

// The head and all of the message's header are here.
absl::Status FrameReader::BeginBody() {
  have_head_ = false;
  const Bytes header = AsBytes(&staging_[staged_begin_], head_.header_bytes);
  const auto type = static_cast<FrameType>(head_.type);
  switch (type) {
    case FrameType::kPing:
      sink_.OnPing();
      return absl::OkStatus();
    case FrameType::kPong:
      return absl::OkStatus();
    case FrameType::kChunk:
      current_ = &open_;
      break;
    case FrameType::kWhole:
    case FrameType::kBegin:
      if (Checksum32Of(header) != head_.header_checksum) {
        return absl::DataLossError("a message header with a wrong checksum");
      }
      current_ = type == FrameType::kWhole ? &whole_ : &open_;
      FB_RETURN_IF_ERROR(BeginMessage(*current_, header));
      break;
  }
  staged_begin_ += head_.header_bytes;
  chunk_left_ = head_.chunk_bytes;
  return absl::OkStatus();
}

absl::Status FrameReader::BeginMessage(Incoming& incoming, Bytes header) {
  FB_CHECK(!incoming.active);
  const uint64_t payload_bytes = head_.payload_bytes;
  Landing landing = sink_.OnMessage(header, payload_bytes);
  if (payload_bytes == 0) return absl::OkStatus();
  incoming.landing = std::move(landing);
  incoming.active = true;
  incoming.payload_bytes = payload_bytes;
  incoming.left_bytes = payload_bytes;
  incoming.segment = 0;
  incoming.segment_offset = 0;
  incoming.drop = incoming.landing.segments.empty();
  if (incoming.drop) return absl::OkStatus();
  uint64_t room = 0;
  for (const LandingSegment& segment : incoming.landing.segments) room += segment.bytes.size();
  if (room == payload_bytes) return absl::OkStatus();
  // A bug of the receiver's: its endpoint ends, and the landing is handed back with the rest.
  return absl::InternalError(
      absl::StrCat("a landing of ", room, " bytes for a payload of ", payload_bytes));
}

// Payload bytes that came along with a head: the only ones that are copied here.
void FrameReader::LandStaged() {
  size_t left = std::min<size_t>(staged_bytes(), chunk_left_);
  while (left > 0) {
    size_t bytes = left;
    if (!current_->drop) {
      const LandingSegment& segment = current_->landing.segments[current_->segment];
      bytes = std::min(left, segment.bytes.size() - current_->segment_offset);
      if (bytes > 0) {
        std::memcpy(segment.bytes.data() + current_->segment_offset, &staging_[staged_begin_],
                    bytes);
      }
    }
    staged_begin_ += bytes;
    left -= bytes;
    Landed(bytes);
  }
}

// `bytes` more are in place.
void FrameReader::Landed(size_t bytes) {
  Incoming& incoming = *current_;
  incoming.left_bytes -= bytes;
  chunk_left_ -= static_cast<uint32_t>(bytes);
  while (!incoming.drop && incoming.segment < incoming.landing.segments.size()) {
    const LandingSegment& segment = incoming.landing.segments[incoming.segment];
    const size_t here = std::min(bytes, segment.bytes.size() - incoming.segment_offset);
    if (here > 0 && segment.checksum != nullptr) {
      segment.checksum->Update(segment.bytes.subspan(incoming.segment_offset, here));
    }
    incoming.segment_offset += here;
    bytes -= here;
    if (incoming.segment_offset < segment.bytes.size()) break;
    ++incoming.segment;
    incoming.segment_offset = 0;
  }
  FB_CHECK(incoming.drop || bytes == 0);
  if (chunk_left_ == 0) FinishChunk();
}

void FrameReader::FinishChunk() {
  Incoming& incoming = *current_;
  current_ = nullptr;
  if (incoming.left_bytes > 0) return;
  const Incoming done = std::exchange(incoming, Incoming());
  if (!done.drop) sink_.OnLanded(done.landing.token, done.payload_bytes);
}

// How much to read into the staging buffer, behind the payload of this frame.
size_t FrameReader::StagingWish() const {
  if (have_head_) return head_.header_bytes - staged_bytes();
  // More of the open message is likely next: only the head must not go to its landing.
  const uint64_t open_left = open_.active ? open_.left_bytes : 0;
  const uint64_t in_this_frame = current_ == &open_ ? chunk_left_ : 0;
  if (open_left > in_this_frame) return sizeof(TcpFrameHead) - staged_bytes();
  return kStagingReadBytes;
}

StreamResult FrameReader::ReadMore(ByteStream& stream) {
  std::array<iovec, kLandRanges + 1> ranges;
  size_t count = 0;
  size_t payload = 0;
  const size_t payload_max = std::min<size_t>(chunk_left_, kLandReadBytes);
  if (chunk_left_ > 0 && current_->drop) {
    payload = std::min(payload_max, scratch_.size());
    ranges[count++] = {scratch_.data(), payload};
  } else if (chunk_left_ > 0) {
    size_t offset = current_->segment_offset;
    for (size_t i = current_->segment; payload < payload_max && count < kLandRanges; ++i) {
      const MutableBytes segment = current_->landing.segments[i].bytes.subspan(offset);
      const size_t bytes = std::min(segment.size(), payload_max - payload);
      if (bytes > 0) ranges[count++] = {segment.data(), bytes};
      payload += bytes;
      offset = 0;
    }
  }
  if (payload == chunk_left_) {
    if (staged_begin_ > 0) {
      std::memmove(&staging_[0], &staging_[staged_begin_], staged_bytes());
      staged_end_ -= staged_begin_;
      staged_begin_ = 0;
    }
    const size_t wish = StagingWish();
    FB_CHECK(wish > 0 && staged_end_ + wish <= kStagingBytes);
    ranges[count++] = {&staging_[staged_end_], wish};
  }
  StreamResult result = stream.Read(absl::MakeConstSpan(ranges.data(), count));
  const size_t landed = std::min(result.bytes, payload);
  staged_end_ += result.bytes - landed;
  if (landed > 0) Landed(landed);
  return result;
}

}  // namespace forebay
