#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/transport.h"

namespace forebay {

// What a FrameReader finds.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual Landing OnMessage(Bytes header, uint64_t payload_bytes) = 0;
  virtual void OnLanded(uint64_t token, uint64_t payload_bytes) = 0;
  virtual void OnPing() = 0;
};

// The receiving half of one stream: takes frames apart and reads payloads from the socket straight
// into their landings, adding each piece to its checksum while it is in the second-level cache.
//
// Limits   no allocation depends on what the peer says: heads and headers pass through one buffer
// of
//          fixed size, and at most two landings are open (a large message, and a whole one between
//          its chunks).
// Borrows  `scratch`, where dropped payloads go; the landings, until OnLanded or
// TakeOpenLandings(). Threads  one reactor. The sink may call Stop() from its callbacks.
class FrameReader {
 public:
  struct Outcome {
    enum class Kind : uint8_t {
      kDrained,  // nothing more until the descriptor says so
      kBudget,   // there may be more: call again
      kEnd,      // the peer closed its side
      kFailed,  // `status`: UNAVAILABLE where the link broke, DATA_LOSS where the peer sent garbage
      kStopped,
    };
    Kind kind = Kind::kDrained;
    size_t bytes = 0;
    absl::Status status;
  };

  FrameReader(MutableBytes scratch, FrameSink& sink);

  // Reads about `budget` bytes at most. `until_end`: the descriptor told of a hang-up, so a short
  // read does not mean that the stream is drained.
  Outcome ReadFrom(ByteStream& stream, size_t budget, bool until_end);
  // Nothing is parsed, landed or reported any more.
  void Stop() { stopped_ = true; }
  // Tokens of landings that are not complete and never will be. The reader lets go of them.
  std::vector<uint64_t> TakeOpenLandings();

 private:
  // A message whose payload is on the way.
  struct Incoming {
    Landing landing;
    bool active = false;
    bool drop = false;
    uint64_t payload_bytes = 0;
    uint64_t left_bytes = 0;
    size_t segment = 0;  // the next byte lands here
    size_t segment_offset = 0;
  };

  size_t staged_bytes() const { return staged_end_ - staged_begin_; }
  absl::Status ParseStaged();
  absl::Status ParseHead();
  absl::Status CheckTurn(const TcpFrameHead& head) const;
  absl::Status BeginBody();
  absl::Status BeginMessage(Incoming& incoming, Bytes header);
  void LandStaged();
  void Landed(size_t bytes);
  void FinishChunk();
  StreamResult ReadMore(ByteStream& stream);
  size_t StagingWish() const;

  const MutableBytes scratch_;
  FrameSink& sink_;
  bool stopped_ = false;

  // Heads and headers, and the first bytes of payloads that came with them.
  std::unique_ptr<std::byte[]> staging_;
  size_t staged_begin_ = 0;
  size_t staged_end_ = 0;

  bool have_head_ = false;
  TcpFrameHead head_;
  uint32_t next_sequence_ = 0;
  uint32_t chunk_left_ = 0;      // payload bytes of this frame still to come
  Incoming whole_;               // of a kWhole frame
  Incoming open_;                // from kBegin to the last kChunk
  Incoming* current_ = nullptr;  // whose bytes chunk_left_ counts
};

}  // namespace forebay
