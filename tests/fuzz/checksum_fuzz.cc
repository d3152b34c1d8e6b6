// However a payload is cut, hashed and copied, its checksum is that of the whole, and what was
// copied is what was hashed.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/random.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/guarded_memory.h"

namespace forebay::fuzz {
namespace {

// Beyond what is streamed round the caches (8 KiB), with room for pieces on both sides of it.
constexpr size_t kWholeBytesMax = 40 * 1024;
constexpr size_t kMarginBytes = 64;
constexpr std::byte kUntouched{0xa5};

struct Memory {
  // What the bytes are decides nothing in the code: they are random once, for all inputs.
  Memory() {
    SeededRandom random(/*seed=*/1);
    for (std::byte& byte : source.Last(kWholeBytesMax))
      byte = static_cast<std::byte>(random.Next());
  }

  GuardedMemory source{kWholeBytesMax};
  GuardedMemory copy{kWholeBytesMax + kMarginBytes};
};

Memory& Places() {
  static auto* const memory = new Memory;
  return *memory;
}

// Where the next piece ends: few bytes, about a stripe of 64, or many.
size_t TakePiece(FuzzInput& input, size_t left) {
  constexpr std::array<size_t, 4> kBounds = {2, 130, 300, 20'000};
  const size_t bound = kBounds[input.Below(kBounds.size())];
  return std::min(left, input.Below(bound));
}

bool IsUntouched(Bytes bytes) {
  // Equal to itself one byte on, and its first byte is right.
  return bytes.empty() || (bytes[0] == kUntouched &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

// Takes the next piece in by one of the two ways, and checks what became of `copy`.
void TakeIn(Bytes piece, bool with_copy, MutableBytes copy, RunningChecksum& running) {
  if (with_copy) {
    running.CopyAndUpdate(copy.data(), piece.data(), piece.size());
    FB_CHECK(piece.empty() || std::memcmp(copy.data(), piece.data(), piece.size()) == 0);
  } else {
    running.Update(piece);
    FB_CHECK(IsUntouched(copy));
  }
}

void CheckOne(FuzzInput& input) {
  const MutableBytes whole =
      Places().source.Last(std::min(kWholeBytesMax, size_t{input.Take<uint16_t>()}));
  // The copy begins anywhere within a cache line, as only aligned ones are streamed.
  const size_t shift = input.Flag() ? 0 : input.Below(kMarginBytes);
  const MutableBytes room = Places().copy.Last(whole.size() + kMarginBytes);
  std::memset(room.data(), static_cast<int>(kUntouched), room.size());
  const MutableBytes copy = room.subspan(shift, whole.size());

  RunningChecksum running;
  size_t done = 0;
  while (done < whole.size()) {
    // An input that has ended says nothing of pieces any more.
    const size_t left = whole.size() - done;
    const size_t bytes = input.empty() ? left : TakePiece(input, left);
    const auto how = input.Take<uint8_t>();
    TakeIn(whole.subspan(done, bytes), (how & 1) != 0, copy.subspan(done, bytes), running);
    done += bytes;
    FB_CHECK(running.bytes() == done);
    // A digest on the way is that of what has come, and changes nothing.
    if ((how & 14) == 14) FB_CHECK(running.Digest() == ChecksumOf(whole.subspan(0, done)));
  }
  const uint64_t expected = ChecksumOf(whole);
  FB_CHECK(running.Digest() == expected);

  FB_CHECK(CopyAndChecksum(copy.data(), whole.data(), whole.size()) == expected);
  FB_CHECK(whole.empty() || std::memcmp(copy.data(), whole.data(), whole.size()) == 0);
  FB_CHECK(IsUntouched(room.subspan(0, shift)));
  FB_CHECK(IsUntouched(room.subspan(shift + whole.size())));
  running.Reset();
  FB_CHECK(running.bytes() == 0 && running.Digest() == ChecksumOf({}));
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const size_t bytes : {0, 1, 64, 240, 241, 256, 257, 1024, 8192, 20'000, 40'960}) {
    for (const bool aligned : {false, true}) {
      SeedBuilder seed;
      seed.AddBelow(bytes).AddFlag(aligned);
      if (!aligned) seed.AddBelow(5);
      for (size_t piece = 0; piece < 12; ++piece) {
        constexpr std::array<size_t, 4> kPieces = {1, 64, 257, 9000};
        seed.AddBelow(piece % 4).AddBelow(kPieces[piece % 4]);
        seed.Add(static_cast<uint8_t>(piece * 5));
      }
      seeds.push_back(seed.Take());
    }
  }
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  forebay::fuzz::CheckOne(input);
  return 0;
}
