#include "transport/tcp/frame_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace forebay {
namespace {

constexpr size_t kWriteRanges = 128;

}  // namespace

void FrameWriter::QueuePing(FrameType type) {
  auto ping = std::make_unique<Outgoing>();
  ping->prefix.resize(sizeof(TcpFrameHead));
  ping->type = type;
  small_.push_front(std::move(ping));
}

void FrameWriter::QueueMessage(const OutgoingMessage& message, uint64_t payload_bytes,
                               size_t queued_bytes) {
  auto outgoing = std::make_unique<Outgoing>();
  outgoing->prefix.resize(sizeof(TcpFrameHead) + message.header.size());
  std::memcpy(outgoing->prefix.data() + sizeof(TcpFrameHead), message.header.data(),
              message.header.size());
  outgoing->payload = message.payload;
  outgoing->payload_bytes = payload_bytes;
  outgoing->done = {message.token, queued_bytes, payload_bytes, /*is_message=*/true};
  queued_payload_bytes_ += payload_bytes;
  const bool small = payload_bytes <= std::min(kSmallPayloadBytes, chunk_bytes_);
  (small ? small_ : large_).push_back(std::move(outgoing));
}

FrameWriter::Outcome FrameWriter::WriteTo(ByteStream& stream, size_t budget,
                                          std::vector<Done>& done) {
  Outcome outcome;
  for (;;) {
    Refill();
    if (pieces_.empty()) return outcome;
    if (outcome.bytes >= budget) {
      outcome.kind = Outcome::Kind::kBudget;
      return outcome;
    }
    std::array<iovec, kWriteRanges> ranges;
    size_t count = 0;
    size_t offset = piece_offset_;
    for (const Piece& piece : pieces_) {
      if (count == kWriteRanges) break;
      const auto* data =
          piece.data != nullptr ? piece.data : reinterpret_cast<const std::byte*>(&piece.head);
      ranges[count++] = {const_cast<std::byte*>(data) + offset, piece.bytes - offset};
      offset = 0;
    }
    StreamResult result = stream.Write(absl::MakeConstSpan(ranges.data(), count));
    outcome.bytes += result.bytes;
    Written(result.bytes, done);
    if (result.kind == StreamResult::Kind::kDone) continue;
    outcome.kind = result.kind == StreamResult::Kind::kWouldBlock ? Outcome::Kind::kBlocked
                                                                  : Outcome::Kind::kFailed;
    outcome.status = std::move(result.status);
    return outcome;
  }
}

std::vector<FrameWriter::Done> FrameWriter::TakeUnsent() {
  std::vector<Done> unsent;
  for (auto* queue : {&committed_, &large_, &small_}) {
    for (const std::unique_ptr<Outgoing>& message : *queue) {
      if (message->done.is_message) unsent.push_back(message->done);
    }
    queue->clear();
  }
  pieces_.clear();
  pieces_bytes_ = 0;
  piece_offset_ = 0;
  queued_payload_bytes_ = 0;
  return unsent;
}

void FrameWriter::Refill() {
  // One chunk ahead keeps the socket fed and leaves the order of the rest open.
  while (pieces_bytes_ < chunk_bytes_) {
    const bool small_turn = large_.empty() || small_in_turn_ < chunk_bytes_;
    if (!small_.empty() && small_turn) {
      CommitSmall();
    } else if (!large_.empty()) {
      CommitLarge();
    } else {
      return;
    }
  }
}

void FrameWriter::CommitSmall() {
  std::unique_ptr<Outgoing> message = std::move(small_.front());
  small_.pop_front();
  small_in_turn_ += message->prefix.size() + message->payload_bytes;
  CommitFrame(*message, message->type, message->payload_bytes);
  pieces_.back().ends_message = true;
  committed_.push_back(std::move(message));
}

void FrameWriter::CommitLarge() {
  Outgoing& message = *large_.front();
  const uint64_t left = message.payload_bytes - message.begun_bytes;
  const uint64_t chunk = std::min<uint64_t>(left, chunk_bytes_);
  FrameType type = FrameType::kChunk;
  if (message.begun_bytes == 0) type = chunk < left ? FrameType::kBegin : FrameType::kWhole;
  CommitFrame(message, type, chunk);
  small_in_turn_ = 0;
  if (message.begun_bytes < message.payload_bytes) return;
  pieces_.back().ends_message = true;
  committed_.push_back(std::move(large_.front()));
  large_.pop_front();
}

void FrameWriter::CommitFrame(Outgoing& message, FrameType type, uint64_t chunk_bytes) {
  TcpFrameHead head;
  head.type = static_cast<uint8_t>(type);
  head.sequence = next_sequence_++;
  head.chunk_bytes = static_cast<uint32_t>(chunk_bytes);
  head.payload_bytes = static_cast<uint32_t>(message.payload_bytes);
  if (type == FrameType::kChunk) {
    head.Seal();
    AddPiece(nullptr, sizeof(head));
    pieces_.back().head = head;
  } else {
    const Bytes header = Bytes(message.prefix).subspan(sizeof(head));
    head.header_bytes = static_cast<uint32_t>(header.size());
    head.header_checksum = header.empty() ? 0 : Checksum32Of(header);
    head.Seal();
    std::memcpy(message.prefix.data(), &head, sizeof(head));
    AddPiece(message.prefix.data(), message.prefix.size());
  }
  CommitPayload(message, chunk_bytes);
}

void FrameWriter::CommitPayload(Outgoing& message, uint64_t chunk_bytes) {
  message.begun_bytes += chunk_bytes;
  while (chunk_bytes > 0) {
    const Bytes rest = message.payload[message.range].subspan(message.range_offset);
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(rest.size(), chunk_bytes));
    if (bytes > 0) AddPiece(rest.data(), bytes);
    chunk_bytes -= bytes;
    message.range_offset += bytes;
    if (bytes == rest.size()) {
      ++message.range;
      message.range_offset = 0;
    }
  }
}

void FrameWriter::AddPiece(const std::byte* data, size_t bytes) {
  FB_CHECK(bytes > 0);
  Piece& piece = pieces_.emplace_back();
  piece.data = data;
  piece.bytes = bytes;
  pieces_bytes_ += bytes;
}

void FrameWriter::Written(size_t bytes, std::vector<Done>& done) {
  pieces_bytes_ -= bytes;
  while (bytes > 0) {
    const Piece& piece = pieces_.front();
    const size_t here = std::min(bytes, piece.bytes - piece_offset_);
    bytes -= here;
    piece_offset_ += here;
    if (piece_offset_ < piece.bytes) return;
    if (piece.ends_message) {
      const Done& message = committed_.front()->done;
      queued_payload_bytes_ -= message.payload_bytes;
      if (message.is_message) done.push_back(message);
      committed_.pop_front();
    }
    pieces_.pop_front();
    piece_offset_ = 0;
  }
}

}  // namespace forebay
