// The accept rule against its own definition: a frame is accepted exactly if its header is, byte
// for byte, what the receiver would have written itself, and its bytes are vouched for.

#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/frame_header.h"
#include "base/kv_layout.h"
#include "proto/accept.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace forebay::fuzz {
namespace {

struct Shape {
  KvLayout layout;
  std::vector<PartSpec> parts;
};

const std::vector<Shape>& Shapes() {
  static const auto* const shapes = [] {
    std::vector<KvLayout> layouts;
    layouts.push_back(KvLayout::Uniform(4, 2, 16, DType::kBf16, 16, 1));
    layouts.push_back(KvLayout::Uniform(6, 4, 8, DType::kFp8E4M3, 32, 3));
    layouts.back().heads_per_part = 2;
    layouts.back().split_key_value = true;
    layouts.push_back(KvLayout::Uniform(2, 1, 64, DType::kFp16, 1, 2));
    layouts.back().layers[1] = LayerSpec{.layer_class = LayerClass::kState,
                                         .attention = AttentionKind::kNone,
                                         .dtype = DType::kOpaque8,
                                         .state_bytes = 4096};
    auto* const made = new std::vector<Shape>;
    for (KvLayout& layout : layouts) {
      FB_CHECK(layout.Validate().ok());
      std::vector<PartSpec> parts = layout.Parts();
      made->push_back({std::move(layout), std::move(parts)});
    }
    return made;
  }();
  return *shapes;
}

struct Wanted {
  const Shape& shape;
  const PartSpec& part;
  PageKey key;
  uint32_t page_index;
};

Wanted TakeWanted(FuzzInput& input) {
  const Shape& shape = Shapes()[input.Below(Shapes().size())];
  const PartSpec& part = shape.parts[input.Below(shape.parts.size())];
  const auto key = input.Take<PageKey>();
  return {shape, part, key, input.Take<uint32_t>()};
}

FrameHeader OwnHeader(const Wanted& wanted, uint64_t payload_checksum) {
  return MakeFrameHeader(wanted.shape.layout, wanted.part, wanted.key, wanted.page_index,
                         CodecId::kRaw, wanted.part.raw_bytes, payload_checksum);
}

// Any bytes at all, or the receiver's own header with a few of them changed. Sealed again, so that
// what stands behind the checksum is reached too.
FrameHeader TakeHeader(FuzzInput& input, const Wanted& wanted) {
  FrameHeader header;
  if (input.Flag()) {
    header = input.Take<FrameHeader>();
  } else {
    header = OwnHeader(wanted, input.Take<uint64_t>());
    if (input.Flag()) {
      header.codec = static_cast<uint8_t>(input.Flag() ? CodecId::kPlanes : CodecId::kUniform);
      if (header.codec == static_cast<uint8_t>(CodecId::kUniform)) header.flags = kFrameDictionary;
      header.codec_param = input.Take<uint16_t>() & 0x0707;
      header.payload_bytes /= 2;
    }
    auto* const bytes = reinterpret_cast<uint8_t*>(&header);
    for (size_t changes = input.Below(4); changes > 0; --changes) {
      const size_t at = input.Below(sizeof(header));
      bytes[at] = static_cast<uint8_t>(bytes[at] ^ input.Take<uint8_t>());
    }
  }
  if (input.Flag()) header.Seal();
  return header;
}

bool SameBytes(const FrameHeader& a, const FrameHeader& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// The definition. A raw frame may say that its codec gave up: the bytes are the same. An encoded
// one says how long it is and what it lost.
bool IsOwn(const FrameHeader& header, const Wanted& wanted) {
  FrameHeader own = OwnHeader(wanted, header.payload_checksum);
  const bool uniform = header.codec == static_cast<uint8_t>(CodecId::kUniform);
  if (uniform || header.codec == static_cast<uint8_t>(CodecId::kPlanes)) {
    if (header.payload_bytes == 0 || header.payload_bytes >= own.raw_bytes) return false;
    if (!UnpackQuality(header.codec_param).ok()) return false;
    own.codec = header.codec;
    own.codec_param = header.codec_param;
    own.payload_bytes = header.payload_bytes;
    own.flags = uniform ? kFrameDictionary : header.flags & kFrameRetentionMask;
  } else {
    own.flags = header.flags & kFrameRawFallback;
  }
  own.Seal();
  return SameBytes(own, header);
}

bool IsAllowed(const FrameHeader& header, const QualityContract& contract) {
  if ((header.flags & kFrameRetentionMask) != 0 && !contract.retention) return false;
  const absl::StatusOr<QualityBound> is = UnpackQuality(header.codec_param);
  FB_CHECK(is.ok());
  return is->k <= contract.bound.k && is->v <= contract.bound.v;
}

bool IsOneOf(const absl::Status& status, std::initializer_list<absl::StatusCode> codes) {
  for (const absl::StatusCode code : codes) {
    if (status.code() == code) return status.ok() || !status.message().empty();
  }
  return false;
}

void CheckSoundness(const FrameHeader& header) {
  const absl::Status sound = CheckFrameHeader(header);
  FB_CHECK(IsOneOf(sound, {absl::StatusCode::kOk, absl::StatusCode::kDataLoss,
                           absl::StatusCode::kUnimplemented}));
  if (!sound.ok()) return;
  FrameHeader again = header;
  again.Seal();
  FB_CHECK(SameBytes(again, header));
  FB_CHECK(header.payload_bytes <= header.raw_bytes);
}

ArrivedFrame TakeArrival(FuzzInput& input, const FrameHeader& header) {
  ArrivedFrame frame;
  if (input.Take<uint8_t>() == 1) frame.transport = absl::UnavailableError("the link broke");
  frame.header = header;
  frame.payload_bytes_arrived = header.payload_bytes;
  if (input.Take<uint8_t>() == 1) frame.payload_bytes_arrived = input.Take<uint64_t>();
  switch (input.Below(3)) {
    case 0:
      frame.checksum = header.payload_checksum;
      break;
    case 1:
      frame.checksum = input.Take<uint64_t>();
      break;
    default:
      break;
  }
  if (input.Flag()) {
    ArrivedFrame::LeasedRead leased;
    leased.deadline = input.Take<int16_t>();
    leased.read_end = input.Take<int16_t>();
    leased.released_valid = input.Flag();
    frame.leased = leased;
  }
  return frame;
}

bool IsVouchedFor(const ArrivedFrame& frame, uint64_t payload_bytes) {
  if (!frame.transport.ok() || frame.payload_bytes_arrived != payload_bytes) return false;
  const bool released = frame.leased.has_value() && frame.leased->released_valid;
  if (frame.checksum.has_value() && *frame.checksum != frame.header.payload_checksum) return false;
  if (!frame.checksum.has_value() && !released) return false;
  return released || !frame.leased.has_value() || frame.leased->read_end <= frame.leased->deadline;
}

void CheckOne(FuzzInput& input) {
  const Wanted wanted = TakeWanted(input);
  const FrameHeader header = TakeHeader(input, wanted);
  CheckSoundness(header);
  const bool own = IsOwn(header, wanted);
  const KvLayout& layout = wanted.shape.layout;
  const absl::Status identity =
      CheckFrameIdentity(header, layout, wanted.part, wanted.key, wanted.page_index);
  FB_CHECK(IsOneOf(identity, {absl::StatusCode::kOk, absl::StatusCode::kDataLoss}));
  FB_CHECK((CheckFrameHeader(header).ok() && identity.ok()) == own);

  QualityContract quality;
  quality.bound.k = static_cast<QualityClass>(1 + input.Below(4));
  quality.bound.v = static_cast<QualityClass>(1 + input.Below(4));
  quality.retention = input.Flag();
  const ExpectedFrame expected{layout, wanted.part, wanted.key, wanted.page_index, quality};
  const bool claim = own && IsAllowed(header, quality);
  FB_CHECK(CheckFrameClaim(header, expected).ok() == claim);
  // Who does not know the page's place takes the header's word for that, and for nothing else.
  const ExpectedFrame anywhere{layout, wanted.part, wanted.key, std::nullopt, quality};
  Wanted there = wanted;
  there.page_index = header.page_index;
  FB_CHECK(CheckFrameClaim(header, anywhere).ok() ==
           (IsOwn(header, there) && IsAllowed(header, quality)));

  const ArrivedFrame frame = TakeArrival(input, header);
  const absl::Status accepted = AcceptFrame(frame, expected);
  FB_CHECK(accepted.ok() == (claim && IsVouchedFor(frame, header.payload_bytes)));
  FB_CHECK(accepted.ok() || !accepted.message().empty());
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (size_t shape = 0; shape < Shapes().size(); ++shape) {
    // The receiver's own header, unchanged; then one that has only been sealed again.
    SeedBuilder own;
    own.AddBelow(shape).AddBelow(1).Add(PageKey{}).Add(uint32_t{7}).AddFlag(false);
    own.Add(uint64_t{0x1122334455667788}).AddBelow(0).AddFlag(false).Add(uint32_t{0});
    seeds.push_back(own.Take());

    const Wanted wanted{Shapes()[shape], Shapes()[shape].parts[0], PageKey{}, 3};
    SeedBuilder raw;
    raw.AddBelow(shape).AddBelow(0).Add(wanted.key).Add(wanted.page_index).AddFlag(true);
    raw.Add(OwnHeader(wanted, 99)).AddFlag(true).Add(uint16_t{0}).AddBelow(2).AddFlag(true);
    raw.Add(int16_t{5}).Add(int16_t{4}).AddFlag(true);
    seeds.push_back(raw.Take());
  }
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  forebay::fuzz::CheckOne(input);
  return 0;
}
