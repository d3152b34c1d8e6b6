#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "base/bytes.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/transport.h"

namespace forebay {

// A payload up to this size may overtake larger ones.
inline constexpr size_t kSmallPayloadBytes = 64 * 1024;

// The sending half of one stream: a queue of messages that are written, vectored, straight from the
// memory of their owners.
//
// Small messages overtake large ones at the borders of chunks, and the other way round after a
// chunk's worth of small ones: neither waits for more than a bounded number of bytes of the other.
//
// Borrows  payloads, until their message is reported as sent or taken by TakeUnsent().
// Threads  one reactor.
class FrameWriter {
 public:
  struct Done {
    uint64_t token;
    size_t queued_bytes;
    uint64_t payload_bytes;
    bool is_message;  // false for a ping
  };
  struct Outcome {
    enum class Kind : uint8_t {
      kIdle,     // everything is written
      kBlocked,  // the socket is full
      kBudget,   // there is more: call again
      kFailed,   // `status`
    };
    Kind kind = Kind::kIdle;
    size_t bytes = 0;
    absl::Status status;
  };

  explicit FrameWriter(size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  void QueuePing(FrameType type);
  // `queued_bytes` comes back in Done.
  void QueueMessage(const OutgoingMessage& message, uint64_t payload_bytes, size_t queued_bytes);

  // Writes about `budget` bytes at most, and appends what is written whole to `done`.
  Outcome WriteTo(ByteStream& stream, size_t budget, std::vector<Done>& done);
  // Everything not written whole. The writer lets go of it.
  std::vector<Done> TakeUnsent();

  bool idle() const { return pieces_.empty() && small_.empty() && large_.empty(); }
  uint64_t queued_payload_bytes() const { return queued_payload_bytes_; }

 private:
  struct Outgoing {
    // Room for a head, then the header.
    absl::InlinedVector<std::byte, 256> prefix;
    PayloadRanges payload;
    uint64_t payload_bytes = 0;
    uint64_t begun_bytes = 0;  // of the payload, in frames that are committed
    size_t range = 0;          // where the next frame begins
    size_t range_offset = 0;
    Done done{};
    FrameType type = FrameType::kWhole;
  };
  // A run of bytes whose place on the wire is settled. `data` null: they are `head`.
  struct Piece {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    bool ends_message = false;
    TcpFrameHead head;
  };

  // Settles what comes next on the wire.
  void Refill();
  void CommitSmall();
  void CommitLarge();
  void CommitFrame(Outgoing& message, FrameType type, uint64_t chunk_bytes);
  void CommitPayload(Outgoing& message, uint64_t chunk_bytes);
  void AddPiece(const std::byte* data, size_t bytes);
  void Written(size_t bytes, std::vector<Done>& done);

  const size_t chunk_bytes_;
  std::deque<std::unique_ptr<Outgoing>> small_;
  std::deque<std::unique_ptr<Outgoing>> large_;
  std::deque<std::unique_ptr<Outgoing>> committed_;  // all frames of it are in pieces_
  std::deque<Piece> pieces_;
  size_t pieces_bytes_ = 0;
  size_t piece_offset_ = 0;   // written of pieces_.front()
  size_t small_in_turn_ = 0;  // bytes of small messages since the last chunk of a large one
  uint32_t next_sequence_ = 0;
  uint64_t queued_payload_bytes_ = 0;
};

}  // namespace forebay
