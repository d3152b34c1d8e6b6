#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/random.h"

// The bytes that two UCX transports say to each other: hellos over a TCP socket, and the envelope
// around each active message. Little-endian. Everything here comes from a peer and is checked.
namespace forebay {

// The front of each active message's header; the message's own header follows it, unless it is too
// large for UCX and leads the data instead.
struct UcxEnvelope {
  enum class Kind : uint8_t {
    kMessage = 1,  // begins a message: its header, and perhaps the first piece of its payload
    kPiece = 2,    // more of its payload
    kPing = 3,     // answered by kPong; also the first thing that each side says
    kPong = 4,
    kResolved = 5,  // follows the first pong: see UcxTransport
  };
  static constexpr size_t kBytes = 48;
  static constexpr uint32_t kMagic = 0x4d414246;  // "FBAM"
  static constexpr uint8_t kVersion = 1;
  static constexpr uint16_t kFlagHeaderLeadsData = 1;

  Kind kind = Kind::kPing;
  uint16_t flags = 0;
  uint64_t connection = 0;     // the receiver's own, random: what it said in its hello
  uint64_t message = 0;        // the sender's count, from 1; of a ping and its pong: any number
  uint64_t payload_bytes = 0;  // of the whole message
  uint64_t offset = 0;         // of this piece in the payload
  uint32_t header_bytes = 0;   // of the message's header; kMessage only

  bool header_leads_data() const { return (flags & kFlagHeaderLeadsData) != 0; }
  void Write(uint8_t* to) const;  // kBytes
};

// Also checks that what the envelope says fits `header_bytes_after` (the rest of the active
// message's header) and `data_bytes`, the limits of transport.h, and itself.
// DATA_LOSS says what is wrong.
absl::StatusOr<UcxEnvelope> ParseUcxEnvelope(Bytes header, size_t data_bytes);

// What goes over the socket, before there is an endpoint of UCX.
struct UcxHello {
  enum class Kind : uint16_t {
    kHello = 1,   // who I am, and how UCX reaches me
    kReady = 2,   // I made my endpoint number `serial` towards you; make yours
    kRetry = 3,   // that number is taken here; the next free one is `serial`
    kRefuse = 4,  // no more endpoints here
  };
  static constexpr uint32_t kMagic = 0x58554246;  // "FBUX"
  static constexpr uint16_t kVersion = 1;
  static constexpr size_t kFrontBytes = 48;
  static constexpr size_t kAddressBytesMax = 4096;

  Kind kind = Kind::kHello;
  uint32_t serial = 0;         // of the endpoint of UCX between these two workers, from 0
  uint64_t connection = 0;     // what the peer's envelopes to me must say; kHello only
  Uint128Bytes incarnation{};  // of the worker; kHello only
  std::string worker_address;  // kHello only

  std::string Encode() const;
};

// Takes one hello off the front of `buffer`. False while it is not all there. DATA_LOSS for what is
// no hello of this version.
absl::StatusOr<bool> TakeUcxHello(std::string& buffer, UcxHello& hello);

}  // namespace forebay
