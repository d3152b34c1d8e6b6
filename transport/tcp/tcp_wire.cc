#include "transport/tcp/tcp_wire.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"

namespace forebay {
namespace {

constexpr size_t kHelloSealedBytes = sizeof(TcpHello) - sizeof(uint32_t);
constexpr size_t kHeadSealedBytes = sizeof(TcpFrameHead) - sizeof(uint32_t);

// Structs are copied to the wire as they lie in memory.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

absl::Status BadHead(absl::string_view what, const TcpFrameHead& head) {
  return absl::DataLossError(absl::StrCat("frame ", head.sequence, " of type ", head.type, " has ",
                                          what, ": header ", head.header_bytes, " bytes, chunk ",
                                          head.chunk_bytes, " of ", head.payload_bytes, " bytes"));
}

absl::Status CheckLengths(const TcpFrameHead& head) {
  if (head.header_bytes > kHeaderBytesMax) return BadHead("too long a header", head);
  if (head.payload_bytes > kPayloadBytesMax) return BadHead("too long a payload", head);
  switch (static_cast<FrameType>(head.type)) {
    case FrameType::kWhole:
      if (head.header_bytes == 0) return BadHead("no header", head);
      if (head.chunk_bytes != head.payload_bytes) return BadHead("only a part of it", head);
      return absl::OkStatus();
    case FrameType::kBegin:
      if (head.header_bytes == 0) return BadHead("no header", head);
      if (head.chunk_bytes >= head.payload_bytes) return BadHead("all of it", head);
      return absl::OkStatus();
    case FrameType::kChunk:
      if (head.header_bytes != 0) return BadHead("a header", head);
      if (head.chunk_bytes == 0 || head.chunk_bytes > head.payload_bytes) {
        return BadHead("an impossible length", head);
      }
      return absl::OkStatus();
    case FrameType::kPing:
    case FrameType::kPong:
      if (head.header_bytes != 0 || head.chunk_bytes != 0 || head.payload_bytes != 0) {
        return BadHead("a body", head);
      }
      return absl::OkStatus();
  }
  return BadHead("an unknown type", head);
}

}  // namespace

uint32_t Checksum32Of(Bytes bytes) { return static_cast<uint32_t>(ChecksumOf(bytes)); }

void TcpHello::Seal() { checksum = Checksum32Of(AsBytes(this, kHelloSealedBytes)); }

absl::StatusOr<TcpHello> ParseHello(Bytes bytes, uint32_t magic) {
  FB_CHECK(bytes.size() == sizeof(TcpHello));
  TcpHello hello;
  std::memcpy(&hello, bytes.data(), sizeof(hello));
  if (hello.magic != magic) {
    return absl::DataLossError(absl::StrCat("no hello of this protocol: it starts with 0x",
                                            absl::Hex(hello.magic, absl::kZeroPad8)));
  }
  if (hello.checksum != Checksum32Of(bytes.subspan(0, kHelloSealedBytes))) {
    return absl::DataLossError("a hello with a wrong checksum");
  }
  if (hello.stream_count < 1 || hello.stream_count > kStreamsMax ||
      hello.stream_index >= hello.stream_count) {
    return absl::DataLossError(
        absl::StrCat("a hello for stream ", hello.stream_index, " of ", hello.stream_count));
  }
  return hello;
}

void TcpFrameHead::Seal() { head_checksum = Checksum32Of(AsBytes(this, kHeadSealedBytes)); }

absl::StatusOr<TcpFrameHead> ParseFrameHead(Bytes bytes) {
  FB_CHECK(bytes.size() == sizeof(TcpFrameHead));
  TcpFrameHead head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != TcpFrameHead::kMagic) {
    return absl::DataLossError(
        absl::StrCat("a frame that starts with 0x", absl::Hex(head.magic, absl::kZeroPad8)));
  }
  if (head.head_checksum != Checksum32Of(bytes.subspan(0, kHeadSealedBytes))) {
    return absl::DataLossError("a frame head with a wrong checksum");
  }
  if (head.reserved != std::array<uint8_t, 3>{}) return BadHead("reserved bits set", head);
  const absl::Status lengths = CheckLengths(head);
  if (!lengths.ok()) return lengths;
  return head;
}

}  // namespace forebay
