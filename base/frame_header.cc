#include "base/frame_header.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/broken.h"
#include "base/checksum.h"
#include "base/quality.h"

namespace forebay {
namespace {

// The struct is the wire format, as it lies in memory.
static_assert(std::endian::native == std::endian::little);
static_assert(offsetof(FrameHeader, identity) == 32);
static_assert(offsetof(FrameHeader, payload_checksum) == 48);
static_assert(offsetof(FrameHeader, header_checksum) == 60);

uint32_t HeaderChecksumOf(const FrameHeader& header) {
  return static_cast<uint32_t>(
      ChecksumOf(AsBytes(&header, offsetof(FrameHeader, header_checksum))));
}

absl::Status Differs(absl::string_view field, uint64_t found, uint64_t expected) {
  return absl::DataLossError(
      absl::StrCat("frame of another part: ", field, " is ", found, ", expected ", expected));
}

absl::Status UnknownOf(absl::string_view codec, const FrameHeader& header) {
  return absl::UnimplementedError(absl::StrCat("flags ", header.flags, ", parameter ",
                                               header.codec_param, " and ", header.reserved,
                                               " are not known of ", codec, " frames"));
}

absl::Status CheckRawFrame(const FrameHeader& header) {
  // A raw payload has neither parameters nor masks: whoever set them meant bytes that this build
  // would misread.
  if ((header.flags & ~kFrameRawFallback) != 0 || header.codec_param != 0 || header.reserved != 0) {
    return UnknownOf("raw", header);
  }
  if (header.payload_bytes != header.raw_bytes) {
    return absl::DataLossError(absl::StrCat("a raw frame of ", header.payload_bytes,
                                            " payload bytes for ", header.raw_bytes, " raw bytes"));
  }
  return absl::OkStatus();
}

// `may` and `must`: flags that it may have besides those that it must have.
absl::Status CheckEncodedFrame(const FrameHeader& header, uint16_t may, uint16_t must) {
  if ((header.flags & ~may) != must || header.reserved != 0 ||
      !UnpackQuality(header.codec_param).ok()) {
    return UnknownOf("encoded", header);
  }
  // What is not smaller stays raw, so that nobody needs more room than for the part itself.
  if (header.payload_bytes == 0 || header.payload_bytes >= header.raw_bytes) {
    return absl::DataLossError(absl::StrCat("an encoded frame of ", header.payload_bytes,
                                            " payload bytes for ", header.raw_bytes, " raw bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

void FrameHeader::Seal() { header_checksum = HeaderChecksumOf(*this); }

FrameHeader MakeFrameHeader(const KvLayout& layout, const PartSpec& part, const PageKey& key,
                            uint32_t page_index, CodecId codec, uint32_t payload_bytes,
                            uint64_t payload_checksum) {
  FrameHeader header;
  header.codec = static_cast<uint8_t>(codec);
  header.stream = static_cast<uint8_t>(part.stream);
  header.dtype = static_cast<uint8_t>(part.dtype);
  header.page_tokens = static_cast<uint16_t>(layout.page_tokens);
  header.layer_begin = part.layer_begin;
  header.layer_count = part.layer_count;
  header.head_begin = part.head_begin;
  header.head_count = part.head_count;
  header.raw_bytes = part.raw_bytes;
  header.payload_bytes = payload_bytes;
  std::memcpy(header.identity.data(), key.bytes.data(), header.identity.size());
  header.payload_checksum = payload_checksum;
  header.page_index = page_index;
  header.Seal();
  return header;
}

absl::Status CheckFrameHeader(const FrameHeader& header) {
  if (header.magic != FrameHeader::kMagic) {
    return absl::DataLossError("not a frame: the magic differs");
  }
  // The checksum stands before the version: a flipped version is a fault, not an unknown format.
  if (header.header_checksum != HeaderChecksumOf(header)) {
    return absl::DataLossError("the checksum of the frame header differs");
  }
  if (header.format_version != FrameHeader::kFormatVersion) {
    return absl::UnimplementedError(
        absl::StrCat("frame format version ", header.format_version, " is not known"));
  }
  switch (static_cast<CodecId>(header.codec)) {
    case CodecId::kRaw:
      return CheckRawFrame(header);
    case CodecId::kPlanes:
      return CheckEncodedFrame(header, kFrameRetentionMask, 0);
    case CodecId::kUniform:
      return CheckEncodedFrame(header, 0, kFrameDictionary);
  }
  return absl::UnimplementedError(absl::StrCat("codec ", header.codec, " is not known"));
}

absl::Status CheckFrameIdentity(const FrameHeader& header, const KvLayout& layout,
                                const PartSpec& part, const PageKey& key, uint32_t page_index) {
  if (std::memcmp(header.identity.data(), key.bytes.data(), header.identity.size()) != 0 &&
      !FB_BROKEN("skip_identity")) {
    return absl::DataLossError("frame of another part: the identity differs");
  }
  if (header.page_index != page_index) {
    return Differs("page index", header.page_index, page_index);
  }
  if (header.page_tokens != layout.page_tokens) {
    return Differs("page tokens", header.page_tokens, layout.page_tokens);
  }
  if (header.layer_begin != part.layer_begin) {
    return Differs("first layer", header.layer_begin, part.layer_begin);
  }
  if (header.layer_count != part.layer_count) {
    return Differs("layer count", header.layer_count, part.layer_count);
  }
  if (header.head_begin != part.head_begin) {
    return Differs("first head", header.head_begin, part.head_begin);
  }
  if (header.head_count != part.head_count) {
    return Differs("head count", header.head_count, part.head_count);
  }
  if (header.stream != static_cast<uint8_t>(part.stream)) {
    return Differs("stream", header.stream, static_cast<uint8_t>(part.stream));
  }
  if (header.dtype != static_cast<uint8_t>(part.dtype)) {
    return Differs("dtype", header.dtype, static_cast<uint8_t>(part.dtype));
  }
  if (header.raw_bytes != part.raw_bytes && !FB_BROKEN("skip_length")) {
    return Differs("raw bytes", header.raw_bytes, part.raw_bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckFrameQuality(const FrameHeader& header, const QualityContract& contract,
                               const PartSpec& part) {
  if ((header.flags & kFrameRetentionMask) != 0 && !contract.retention) {
    return absl::DataLossError("a frame of which tokens were dropped, where none may be");
  }
  const absl::StatusOr<QualityBound> is = UnpackQuality(header.codec_param);
  if (!is.ok()) return is.status();
  const QualityBound wanted = contract.WeakestOf(part);
  if (wanted.Allows(*is)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "a frame of the quality ", QualityClassName(is->k), "/", QualityClassName(is->v), ", where ",
      QualityClassName(wanted.k), "/", QualityClassName(wanted.v), " is the least"));
}

}  // namespace forebay
