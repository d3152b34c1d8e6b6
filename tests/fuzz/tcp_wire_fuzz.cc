// Hellos and frame heads of transport/tcp: one is accepted exactly if it is what its struct and
// docs/wire.md allow, and an accepted one seals to the same bytes.

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/guarded_memory.h"
#include "transport/tcp/tcp_wire.h"

namespace forebay::fuzz {
namespace {

template <typename T>
bool SameBytes(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

template <typename T>
bool IsSealed(const T& value) {
  T sealed = value;
  sealed.Seal();
  return SameBytes(sealed, value);
}

// Held where a byte too far ends the process.
template <typename T>
Bytes Held(const T& value) {
  static auto* const memory = new GuardedMemory(sizeof(T));
  return memory->Hold(AsBytes(&value, sizeof(value)));
}

// Sound lengths and types are rare among random ones, so half of the fields are drawn near them.
uint32_t TakeLength(FuzzInput& input, uint64_t max) {
  switch (input.Below(4)) {
    case 0:
      return 0;
    case 1:
      return static_cast<uint32_t>(max - 1 + input.Below(3));
    case 2:
      return static_cast<uint32_t>(input.Below(300));
    default:
      return input.Take<uint32_t>();
  }
}

bool IsHello(const TcpHello& hello, uint32_t magic) {
  return hello.magic == magic && IsSealed(hello) && hello.stream_count >= 1 &&
         hello.stream_count <= kStreamsMax && hello.stream_index < hello.stream_count;
}

void CheckHello(FuzzInput& input) {
  auto hello = input.Take<TcpHello>();
  if (input.Flag()) {
    hello.magic = input.Flag() ? TcpHello::kMagic : TcpHello::kReplyMagic;
    hello.stream_count = input.Take<uint8_t>() % (kStreamsMax + 2);
    hello.stream_index = input.Take<uint8_t>() % (kStreamsMax + 2);
  }
  if (input.Flag()) hello.Seal();
  for (const uint32_t magic : {TcpHello::kMagic, TcpHello::kReplyMagic}) {
    const absl::StatusOr<TcpHello> parsed = ParseHello(Held(hello), magic);
    FB_CHECK(parsed.ok() == IsHello(hello, magic));
    if (parsed.ok()) {
      FB_CHECK(SameBytes(*parsed, hello));
    } else {
      FB_CHECK(parsed.status().code() == absl::StatusCode::kDataLoss);
      FB_CHECK(!parsed.status().message().empty());
    }
  }
}

bool HasSoundLengths(const TcpFrameHead& head) {
  const bool has_header = head.header_bytes > 0 && head.header_bytes <= kHeaderBytesMax;
  if (head.payload_bytes > kPayloadBytesMax) return false;
  switch (head.type) {
    case 1:  // the whole of a message
      return has_header && head.chunk_bytes == head.payload_bytes;
    case 2:  // its beginning
      return has_header && head.chunk_bytes < head.payload_bytes;
    case 3:  // more of it
      return head.header_bytes == 0 && head.chunk_bytes > 0 &&
             head.chunk_bytes <= head.payload_bytes;
    case 4:  // ping
    case 5:  // pong
      return head.header_bytes == 0 && head.chunk_bytes == 0 && head.payload_bytes == 0;
    default:
      return false;
  }
}

void CheckFrameHead(FuzzInput& input) {
  auto head = input.Take<TcpFrameHead>();
  if (input.Flag()) {
    head.magic = TcpFrameHead::kMagic;
    head.type %= 7;
    if (input.Flag()) head.reserved = {};
    head.header_bytes = TakeLength(input, kHeaderBytesMax);
    head.payload_bytes = TakeLength(input, kPayloadBytesMax);
    head.chunk_bytes = input.Flag() ? head.payload_bytes : TakeLength(input, head.payload_bytes);
  }
  if (input.Flag()) head.Seal();
  const bool sound = head.magic == TcpFrameHead::kMagic && IsSealed(head) &&
                     head.reserved == std::array<uint8_t, 3>{} && HasSoundLengths(head);
  const absl::StatusOr<TcpFrameHead> parsed = ParseFrameHead(Held(head));
  FB_CHECK(parsed.ok() == sound);
  if (parsed.ok()) {
    FB_CHECK(SameBytes(*parsed, head));
  } else {
    FB_CHECK(parsed.status().code() == absl::StatusCode::kDataLoss);
    FB_CHECK(!parsed.status().message().empty());
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const uint32_t magic : {TcpHello::kMagic, TcpHello::kReplyMagic}) {
    TcpHello hello;
    hello.magic = magic;
    hello.wire_version_max = 1;
    hello.stream_count = 4;
    hello.stream_index = 3;
    hello.Seal();
    SeedBuilder seed;
    seeds.push_back(seed.AddFlag(false).Add(hello).AddFlag(false).AddFlag(false).Take());
  }
  for (uint8_t type = 1; type <= 5; ++type) {
    TcpFrameHead head;
    head.type = type;
    head.header_bytes = type <= 2 ? 40 : 0;
    head.payload_bytes = type <= 3 ? 1000 : 0;
    head.chunk_bytes = type == 1 ? 1000 : type <= 3 ? 500 : 0;
    head.Seal();
    SeedBuilder seed;
    seeds.push_back(seed.AddFlag(true).Add(head).AddFlag(false).AddFlag(false).Take());
  }
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  if (input.Flag()) {
    forebay::fuzz::CheckFrameHead(input);
  } else {
    forebay::fuzz::CheckHello(input);
  }
  return 0;
}
