#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/random.h"
#include "transport/transport.h"

// The bytes of transport/tcp on the wire: a hello each way on every stream, then frames. Little
// endian; docs/wire.md has the tables and tcp_wire_test.cc the golden bytes.
namespace forebay {

// What a TcpHello answers.
enum class HelloVerdict : uint8_t {
  kAccepted = 0,
  kWireVersion = 1,  // no version that both speak; the reply has the answerer's range
  kFull = 2,         // endpoints_max reached
  kGroup = 3,        // the stream does not fit the group that it names
};

// The first 64 bytes on each stream: from the side that connected, and, once every stream of the
// group is there, back.
//
// A group is one endpoint: the streams that carry the same random `group`. `incarnation` is random
// for each transport: streams that reached two processes, one before and one after a restart, are
// never joined.
struct TcpHello {
  uint32_t magic = kMagic;
  uint16_t wire_version_min = 0;
  uint16_t wire_version_max = 0;
  uint8_t stream_index = 0;
  uint8_t stream_count = 1;
  uint8_t verdict = 0;  // HelloVerdict; 0 in a request
  uint8_t reserved0 = 0;
  Uint128Bytes group{};
  Uint128Bytes incarnation{};
  std::array<uint8_t, 16> reserved1{};
  uint32_t checksum = 0;  // low 32 bits of XXH3-64 of the 60 bytes before

  static constexpr uint32_t kMagic = 0x48544246;       // "FBTH"
  static constexpr uint32_t kReplyMagic = 0x52544246;  // "FBTR"

  void Seal();
};
static_assert(sizeof(TcpHello) == 64);

inline constexpr int kStreamsMax = 8;

// DATA_LOSS for what is no hello with this magic.
absl::StatusOr<TcpHello> ParseHello(Bytes bytes, uint32_t magic);

enum class FrameType : uint8_t {
  kWhole = 1,  // a message: header and all of its payload
  kBegin = 2,  // a message: header and the first bytes of its payload
  kChunk = 3,  // more of the message that kBegin opened on this stream
  kPing = 4,   // asks for a kPong
  kPong = 5,
};

// Before every frame. A stream has at most one message open between kBegin and its last kChunk;
// whole messages and pings may come in between, so that a small message never waits for more than
// one chunk of a large one.
struct TcpFrameHead {
  uint32_t magic = kMagic;
  uint8_t type = 0;  // FrameType
  std::array<uint8_t, 3> reserved{};
  uint32_t sequence = 0;         // of this frame on its stream and direction, from 0
  uint32_t header_bytes = 0;     // of the message; 0 but in kWhole and kBegin
  uint32_t header_checksum = 0;  // low 32 bits of XXH3-64 of the message's header
  uint32_t chunk_bytes = 0;      // payload bytes of this frame
  uint32_t payload_bytes = 0;    // of the whole message
  uint32_t head_checksum = 0;    // low 32 bits of XXH3-64 of the 28 bytes before

  static constexpr uint32_t kMagic = 0x46544246;  // "FBTF"

  void Seal();
};
static_assert(sizeof(TcpFrameHead) == 32);
static_assert(kPayloadBytesMax <= UINT32_MAX);

uint32_t Checksum32Of(Bytes bytes);

// A head that may be obeyed: its magic, checksum, type and lengths are sound by themselves. Else
// DATA_LOSS that says which is not.
absl::StatusOr<TcpFrameHead> ParseFrameHead(Bytes bytes);

}  // namespace forebay
