#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/kv_layout.h"
#include "base/page_key.h"
#include "base/quality.h"

namespace forebay {

// Which codec made a payload. Wire format: never renumbered. An unknown one is a miss.
enum class CodecId : uint8_t { kRaw = 1, kPlanes = 2, kUniform = 3 };

// Frame flags.
inline constexpr uint16_t kFrameRetentionMask = 1;  // tokens are missing: the payload says which
inline constexpr uint16_t kFrameRawFallback = 2;    // the codec gave up on this part: raw bytes
inline constexpr uint16_t kFrameWideScale = 4;      // scales in fp32
inline constexpr uint16_t kFrameDictionary = 8;     // the payload starts with a 32-byte name
inline constexpr uint16_t kFrameFlagsKnown = 15;

// The first 64 bytes of every frame, little endian. A frame decodes with nothing but itself and the
// namespace's layout. docs/wire.md has the table; frame_header_test.cc the golden bytes.
struct FrameHeader {
  uint32_t magic = kMagic;
  uint8_t format_version = kFormatVersion;
  uint8_t codec = 0;         // CodecId
  uint16_t codec_param = 0;  // the weakest classes of its layers: PackQuality
  uint8_t stream = 0;        // Stream
  uint8_t dtype = 0;         // DType
  uint16_t page_tokens = 0;
  uint16_t layer_begin = 0;
  uint16_t layer_count = 0;
  uint16_t head_begin = 0;
  uint16_t head_count = 0;
  uint16_t flags = 0;
  uint16_t reserved = 0;
  uint32_t raw_bytes = 0;
  uint32_t payload_bytes = 0;
  std::array<uint8_t, 16> identity{};  // the first 16 bytes of the page's key
  uint64_t payload_checksum = 0;       // XXH3-64 of the payload
  uint32_t page_index = 0;             // position of the page in its chain
  uint32_t header_checksum = 0;        // low 32 bits of XXH3-64 of the 60 bytes before

  static constexpr uint32_t kMagic = 0x31594246;  // "FBY1"
  static constexpr uint8_t kFormatVersion = 1;

  // Sets header_checksum.
  void Seal();
};
static_assert(sizeof(FrameHeader) == 64);
inline constexpr size_t kFrameHeaderBytes = sizeof(FrameHeader);

// A sealed header for the part `part` of the page `key`, all but the checksum of the payload.
FrameHeader MakeFrameHeader(const KvLayout& layout, const PartSpec& part, const PageKey& key,
                            uint32_t page_index, CodecId codec, uint32_t payload_bytes,
                            uint64_t payload_checksum);

// Whether `header` is sound: magic, version, known codec and flags, header checksum.
//   DATA_LOSS            magic or checksum differ: these bytes are no frame
//   UNIMPLEMENTED        a version, codec or flag that this build does not know: a miss, counted
absl::Status CheckFrameHeader(const FrameHeader& header);

// Whether a sound `header` is the frame that its reader asked for, by the reader's own idea of it:
// identity and position of the page, range, stream, dtype, raw bytes.
//   DATA_LOSS            naming the field that differs
absl::Status CheckFrameIdentity(const FrameHeader& header, const KvLayout& layout,
                                const PartSpec& part, const PageKey& key, uint32_t page_index);

// Whether a sound `header` keeps the classes that `contract` asks for in at least one layer of the
// part; what each layer has is in the payload (codec/planes_codec.h).
//   DATA_LOSS            naming what it has and what is the least; or dropped tokens
absl::Status CheckFrameQuality(const FrameHeader& header, const QualityContract& contract,
                               const PartSpec& part);

}  // namespace forebay
