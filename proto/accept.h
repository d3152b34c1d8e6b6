#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/broken.h"
#include "base/clock.h"
#include "base/frame_header.h"
#include "base/kv_layout.h"
#include "base/page_key.h"

// The accept rule: the one function that decides whether bytes are the frame that their receiver
// wants. The daemon asks it before it publishes a put, the client before it believes a get or a
// read in place. Nothing else in the product makes a frame good.
//
// FB_BROKEN: base/broken.h.
namespace forebay {

// How a frame came, and what is known of its bytes where they now lie.
struct ArrivedFrame {
  absl::Status transport;              // how the transport ended: OnLanded, or OK for memory
  FrameHeader header;                  // a copy, so that it cannot change under the check
  uint64_t payload_bytes_arrived = 0;  // bytes that lie at the destination

  // Of the payload as it lies at its destination. Absent where it was not computed (a view that is
  // used in place): then only the daemon's word at release makes the frame good.
  std::optional<uint64_t> checksum;

  // Where the bytes were copied from, or still rest in, memory of the daemon's that only a lease
  // keeps still: the conservative end of that lease (LeaseDeadline) and the time after the last
  // byte was read. Absent for bytes that a transport delivered.
  struct LeasedRead {
    Nanos deadline = 0;
    Nanos read_end = 0;
    bool released_valid = false;  // the daemon's answer to Release was valid
  };
  std::optional<LeasedRead> leased;
};

// What the receiver asked for, by its own idea of it. Borrows.
struct ExpectedFrame {
  const KvLayout& layout;
  const PartSpec& part;
  const PageKey& key;
  // The page's place in its chain. A daemon that receives a put does not know the chain and takes
  // the header's word; a reader always knows.
  std::optional<uint32_t> page_index;
  const QualityContract& quality;
};

// When a holder must stop to believe in a lease: `asked_at` is the time before the request left, so
// the daemon's own expiry is later whatever the network did. One percent covers clocks that run at
// different rates, 5 ms the time between a check and the use of what it allowed.
inline Nanos LeaseDeadline(Nanos asked_at, uint32_t lease_ms) {
  const Nanos lease_ns = static_cast<Nanos>(lease_ms) * kMillisecond;
  return asked_at + lease_ns - lease_ns / 100 - 5 * kMillisecond;
}

namespace accept_internal {

inline absl::Status CheckLengths(const ArrivedFrame& frame, const ExpectedFrame& expected) {
  if (FB_BROKEN("skip_length")) return absl::OkStatus();
  if (frame.payload_bytes_arrived != frame.header.payload_bytes) {
    return absl::DataLossError(absl::StrCat("a payload of ", frame.payload_bytes_arrived,
                                            " bytes arrived where the frame header says ",
                                            frame.header.payload_bytes));
  }
  if (frame.header.codec == static_cast<uint8_t>(CodecId::kRaw) &&
      frame.header.payload_bytes != expected.part.raw_bytes) {
    return absl::DataLossError(absl::StrCat("a raw payload of ", frame.header.payload_bytes,
                                            " bytes where the part has ", expected.part.raw_bytes));
  }
  return absl::OkStatus();
}

inline absl::Status CheckBytes(const ArrivedFrame& frame) {
  if (FB_BROKEN("skip_checksum")) return absl::OkStatus();
  if (frame.checksum.has_value()) {
    if (*frame.checksum != frame.header.payload_checksum) {
      return absl::DataLossError("the payload's checksum differs from the frame header's");
    }
  } else if (!frame.leased.has_value() || !frame.leased->released_valid) {
    return absl::FailedPreconditionError(
        "a payload without a checksum, and no valid release that could stand for it");
  }
  return absl::OkStatus();
}

inline absl::Status CheckLease(const ArrivedFrame& frame) {
  if (FB_BROKEN("skip_lease_check")) return absl::OkStatus();
  if (frame.leased.has_value() && !frame.leased->released_valid &&
      frame.leased->read_end > frame.leased->deadline) {
    return absl::FailedPreconditionError("the lease may have ended before the last byte was read");
  }
  return absl::OkStatus();
}

}  // namespace accept_internal

// Whether `header` alone can be that of the frame that is expected: what a daemon checks before it
// gives memory to a put. AcceptFrame asks it again, with the bytes in place.
//
// Errors   as AcceptFrame's
inline absl::Status CheckFrameClaim(const FrameHeader& header, const ExpectedFrame& expected) {
  if (absl::Status sound = CheckFrameHeader(header); !sound.ok()) return sound;
  if (FB_BROKEN("skip_identity")) return absl::OkStatus();
  if (absl::Status other = CheckFrameIdentity(header, expected.layout, expected.part, expected.key,
                                              expected.page_index.value_or(header.page_index));
      !other.ok()) {
    return other;
  }
  return CheckFrameQuality(header, expected.quality, expected.part);
}

// OK exactly if
//   the transport succeeded, and the lengths agree,
//   and the header is sound and is of the page and part that the receiver asked for,
//   and its quality is one that the namespace's contract allows,
//   and the checksum of what arrived is the header's (or a valid release stands for it),
//   and a leased read ended before the conservative deadline (or its release was valid).
//
// Errors   the transport's own; DATA_LOSS: these bytes are not that frame; UNIMPLEMENTED: a version
//          or codec unknown here; FAILED_PRECONDITION: the lease does not vouch for them. To a
//          reader each of them is a miss.
// Threads  any.
inline absl::Status AcceptFrame(const ArrivedFrame& frame, const ExpectedFrame& expected) {
  if (!frame.transport.ok()) return frame.transport;
  if (absl::Status status = CheckFrameClaim(frame.header, expected); !status.ok()) return status;
  if (absl::Status status = accept_internal::CheckLengths(frame, expected); !status.ok()) {
    return status;
  }
  // The lease first: bytes read after it ended may be anything, which says nothing of the frame.
  if (absl::Status status = accept_internal::CheckLease(frame); !status.ok()) return status;
  return accept_internal::CheckBytes(frame);
}

}  // namespace forebay
