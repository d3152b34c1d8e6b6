#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "transport/local/record_ring.h"
#include "transport/local/shared_area.h"
#include "transport/local/unique_fd.h"
#include "transport/transport.h"

namespace forebay {

// Memory of ours that peers map, by where it lies in this process.
struct ExportedMemory {
  Bytes bytes;
  uint32_t region = 0;  // its index in the export
};

// An open local endpoint: moves messages through the shared area.
//
// A message is a kMessage record with its header, then its payload in chunks, each a record. A
// chunk lies in the sender's staging area, where the sender copied it or its caller, to whom the
// area was lent, put it together; or, when the payload is in memory that the sender exports, right
// there, with no copy by the sender. The receiver copies chunks to where they land, checksums on
// the way, and moves its head past the record: that is the one acknowledgement. It frees the
// staging, and the last one of a message is what OnSent reports.
//
// Messages without payload overtake payloads that still wait in the sender.
//
// Both sides poll; the one that slept is woken by a byte on the socket, and only if it said in the
// shared words that it sleeps. A byte on a socket of our own description, and not an eventfd, which
// would be one description for both: a peer could make it block, or drain our wake-ups.
//
// Reading out of memory that a peer may take back any time follows the rule of a sequence lock: the
// sender sets `closed` before it hands payloads back, and the receiver looks at `closed` after it
// copied, before it says that anything landed.
//
// Borrows  everything in Setup but the socket, the area and the regions.
// Threads  one reactor. Callbacks only from Poll() and HandBack().
class LocalChannel {
 public:
  // What all channels of a transport share.
  struct Setup {
    TransportOptions options;
    TransportHandler* handler = nullptr;
    TransportCounts* counts = nullptr;
    absl::Span<const ExportedMemory> exported;  // sorted by address
    MutableBytes header_scratch;                // kHeaderBytesMax, of one callback at a time
    uint64_t staged_chunk_bytes = 64 * 1024;
    uint64_t shared_chunk_bytes = 256 * 1024;
    uint64_t shared_in_flight_bytes = 8ull << 20;
  };

  // `own` names our side of `area`; `regions` are the peer's, mapped.
  LocalChannel(EndpointId id, const Setup& setup, UniqueFd socket, SharedArea area, LocalSide own,
               std::vector<ReadOnlyRegion> regions, Nanos now);
  LocalChannel(const LocalChannel&) = delete;
  LocalChannel& operator=(const LocalChannel&) = delete;

  // As Transport::Send(), of a message whose sizes were checked. OK: OnSent comes later, for sure.
  // Otherwise the message is not taken, and the caller answers its token.
  absl::Status Send(OutgoingMessage message);
  // As Transport::LendSendBuffer(): a run of the staging area.
  MutableBytes LendSendBuffer(size_t header_bytes, size_t bytes);
  // Moves what can be moved, about `bytes_max` of payload at most. True if anything moved.
  bool Poll(Nanos now, uint64_t bytes_max);
  // The socket is readable: takes the wake-up bytes away, and notices the peer's death.
  void DrainSocket();

  // Says in the shared words what we want to be woken for. The caller puts a full fence between
  // this and HasWork().
  void AnnounceSleep();
  bool HasWork() const;
  void EndSleep();
  Nanos NextDeadline() const;

  // Ends the channel: nothing is sent or taken from here on. The first status stays.
  void Fail(absl::Status why);
  bool open() const { return why_.ok(); }
  const absl::Status& why() const { return why_; }
  // Hands back every landing and every send. Requires !open().
  void HandBack();

  int socket() const { return socket_.get(); }
  std::vector<Bytes> peer_regions() const;

 private:
  // A message that waits, whole or in part, to be written.
  struct Outgoing {
    std::vector<std::byte> header;
    PayloadRanges payload;
    uint64_t payload_bytes = 0;
    uint64_t token = 0;
    bool started = false;  // its kMessage record is written
    uint64_t sent_bytes = 0;
    size_t range = 0;  // next byte to send: which range, and where in it
    size_t range_at = 0;
  };
  // A record that the peer has not consumed, which matters to us when it does.
  struct InFlight {
    uint64_t end = 0;           // of the record in the ring
    uint64_t staging_tail = 0;  // staged bytes up to here are free then
    uint64_t shared_bytes = 0;
    uint64_t token = 0;         // last record of a message: OnSent then, unless 0
    uint64_t queued_bytes = 0;  // of the whole message
  };
  // The run of the staging area that is lent, until the next Send() or Poll().
  struct Lent {
    MutableBytes bytes;
    uint64_t skipped = 0;  // to the end of the area, where the run is at its beginning
    size_t header_bytes = 0;
  };
  // The message whose payload is arriving.
  struct Incoming {
    Landing landing;
    uint64_t left_bytes = 0;
    size_t segment = 0;
    size_t segment_at = 0;
    bool dropped = false;
  };

  bool TakeAcknowledgements(Nanos now);
  bool Receive(Nanos now, uint64_t bytes_max);
  void ReceiveMessage(const RecordHead& head);
  void ReceiveChunk(const RecordHead& head);
  void FinishIncoming(const absl::Status& status);
  void Land(Bytes chunk);
  bool PeerTookItBack() const;
  bool Pump(uint64_t bytes_max);
  bool WriteMessage(Outgoing& message);
  uint64_t WriteChunk(Outgoing& message);
  uint64_t WriteShared(Outgoing& message, const ExportedMemory& memory);
  uint64_t WriteStaged(Outgoing& message);
  void WriteLent(const OutgoingMessage& message, uint64_t queued_bytes);
  const ExportedMemory* Exported(const std::byte* byte) const;
  MutableBytes FreeStaging() const;
  MutableBytes FreeStaging(uint64_t wanted, uint64_t* skipped) const;
  void Track(const Outgoing& message, uint64_t shared_bytes);
  void CheckPeer(Nanos now);
  void FailForGarbage(absl::string_view what);
  void TakeLastWords(absl::string_view why);
  void Ring(uint32_t reason);
  bool outstanding() const { return writer_.tail() != writer_.consumed(); }

  const EndpointId id_;
  const Setup& setup_;
  const absl::Span<const ExportedMemory> exported_;  // none where the peer did not map it
  UniqueFd socket_;
  SharedArea area_;
  std::vector<ReadOnlyRegion> regions_;
  SideWords& own_;
  SideWords& peer_;
  const MutableBytes staging_;
  const Bytes peer_staging_;
  RecordWriter writer_;
  RecordReader reader_;

  std::deque<Outgoing> control_;  // without payload
  std::deque<Outgoing> bulk_;
  std::deque<InFlight> in_flight_;
  uint64_t queued_bytes_ = 0;  // headers and payloads, from Send() until OnSent
  uint64_t staging_tail_ = 0;  // positions like those of a ring: see FreeStaging()
  uint64_t staging_head_ = 0;
  Lent lent_;
  uint64_t shared_in_flight_ = 0;
  uint64_t tokens_in_flight_ = 0;
  bool pump_blocked_ = false;  // the last Pump() ended for want of room
  uint64_t last_words_bytes_ = 0;

  bool receiving_ = false;
  Incoming incoming_;

  absl::Status why_;          // OK while open
  Nanos now_;                 // of the last poll
  Nanos waiting_since_ = -1;  // for the peer to read something; -1: nothing to read
  Nanos heard_at_;            // when the peer last did anything
};

}  // namespace forebay
