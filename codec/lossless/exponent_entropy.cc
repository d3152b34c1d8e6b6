#include "codec/lossless/exponent_entropy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "codec/entropy/rans32.h"
#include "codec/lossless/channel_kernel.h"

namespace forebay::exponent_split {
namespace {

constexpr size_t kElementBytes = 2;
constexpr size_t kStride = rans32::kSymbolsMax;
constexpr size_t kKeysAtOnce = 2 * Rans32Reader::kBlockSymbols;
// Elements at the end, whose rests are the tail of the R32 stream.
constexpr size_t kTailElements = sizeof(Rans32Tail);
// Room for the ceilings of one run, so often that they fill whole vectors.
constexpr size_t kPeriodMax = 16384;
constexpr int kNibbleMax = 15;
constexpr size_t kSampleMin = 8192;

constexpr size_t Aligned(size_t bytes) { return (bytes + 15) & ~size_t{15}; }

uint8_t* At(MutableBytes bytes, size_t at) { return reinterpret_cast<uint8_t*>(bytes.data()) + at; }
const uint8_t* At(Bytes bytes, size_t at) {
  return reinterpret_cast<const uint8_t*>(bytes.data()) + at;
}

// Where key bytes stand below ceilings. Runs differ in theirs.
struct Ceilings {
  Ceilings(Kind k, const SplitChannels& c) : kind(k), channels(c) {
    period = c.channels;
    while (period % 32 != 0 && 2 * period <= kPeriodMax) period *= 2;
  }

  static bool Possible(const SplitChannels& channels, size_t element_count) {
    return channels.channels > 0 && channels.channels <= kPeriodMax && channels.run > 0 &&
           channels.channels <= channels.run && element_count % channels.run == 0;
  }
  // A base and the nibbles of one run.
  size_t run_bytes() const { return 1 + (channels.channels + 1) / 2; }
  size_t BytesOf(size_t element_count) const { return element_count / channels.run * run_bytes(); }

  // From the largest key bytes of the run, [period].
  void Choose(const uint8_t* maxima, uint8_t* stream) const {
    const int shift = kind == Kind::kBf16 ? 0 : 3;
    int exponents[kPeriodMax];
    int highest = 0;
    for (size_t c = 0; c < channels.channels; ++c) {
      uint8_t most = 0;
      for (size_t at = c; at < period; at += channels.channels) most = std::max(most, maxima[at]);
      exponents[c] = most >> shift;
      highest = std::max(highest, exponents[c]);
    }
    const int base = std::max(0, highest - kNibbleMax);
    stream[0] = static_cast<uint8_t>(base);
    std::memset(stream + 1, 0, run_bytes() - 1);
    for (size_t c = 0; c < channels.channels; ++c) {
      const int nibble = std::max(0, exponents[c] - base);
      stream[1 + c / 2] = static_cast<uint8_t>(stream[1 + c / 2] | nibble << c % 2 * 4);
    }
  }
  // The way back, [period]. Any stream has ceilings.
  void Expand(const uint8_t* stream, uint8_t* ceilings) const {
    for (size_t c = 0; c < channels.channels; ++c) {
      const int exponent = stream[0] + (stream[1 + c / 2] >> c % 2 * 4 & kNibbleMax);
      const auto ceiling = static_cast<uint8_t>(kind == Kind::kBf16 ? exponent : exponent << 3 | 7);
      for (size_t at = c; at < period; at += channels.channels) ceilings[at] = ceiling;
    }
  }

  Kind kind;
  SplitChannels channels;
  size_t period;
};

// Mirrors keys at `at` and those that follow, run by run. Expands ceilings as runs change.
class Mirrors {
 public:
  Mirrors(const Ceilings& ceilings, const uint8_t* stream) : ceilings_(ceilings), stream_(stream) {}

  void Apply(size_t at, uint8_t* keys, size_t count) {
    const size_t run_elements = ceilings_.channels.run;
    while (count > 0) {
      const size_t run = at / run_elements;
      if (run != run_) ceilings_.Expand(stream_ + run * ceilings_.run_bytes(), expanded_);
      run_ = run;
      const size_t in_run = at % run_elements;
      const size_t now = std::min(count, run_elements - in_run);
      Mirror(expanded_, ceilings_.period, in_run, keys, now);
      at += now;
      keys += now;
      count -= now;
    }
  }

 private:
  const Ceilings& ceilings_;
  const uint8_t* stream_;
  size_t run_ = ~size_t{0};
  uint8_t expanded_[kPeriodMax];
};

// 2^16 * log2(x), rounded down. In whole numbers, so that every machine decides alike.
uint64_t Log2(uint64_t x) {
  const auto exponent = static_cast<int>(std::bit_width(x)) - 1;
  uint64_t mantissa = exponent <= 31 ? x << (31 - exponent) : x >> (exponent - 31);
  auto log = static_cast<uint64_t>(exponent);
  for (int bit = 0; bit < 16; ++bit) {
    mantissa = mantissa * mantissa >> 31;
    log <<= 1;
    if (mantissa >> 32 != 0) {
      mantissa >>= 1;
      ++log;
    }
  }
  return log;
}

// Of the symbols counted, in bytes.
uint64_t EntropyBytes(const uint64_t counts[256], size_t total) {
  uint64_t bits = 0;
  for (size_t s = 0; s < 256; ++s) {
    if (counts[s] > 0) bits += counts[s] * (Log2(total) - Log2(counts[s]));
  }
  return bits >> 19;
}

// How keys become symbols.
struct Keys {
  bool has_ceilings = false;
  size_t rest_at = 0;
  uint64_t counts[256] = {};
};

// Writes the ceilings of every run.
void FindCeilings(const Ceilings& ceilings, Bytes raw, uint8_t* stream) {
  uint8_t keys[kStride];
  uint8_t rest[kStride];
  const size_t run = ceilings.channels.run;
  for (size_t begin = 0; begin * kElementBytes < raw.size(); begin += run) {
    uint8_t maxima[kPeriodMax] = {};
    for (size_t at = 0; at < run; at += kStride) {
      const size_t count = std::min(kStride, run - at);
      SplitPlanes(At(raw, (begin + at) * kElementBytes), count, keys, rest);
      RaiseMaxima(keys, count, at, maxima, ceilings.period);
    }
    ceilings.Choose(maxima, stream + begin / run * ceilings.run_bytes());
  }
}

// Counts every `step`-th stride of the keys.
void CountSymbols(Mirrors* mirrors, Bytes raw, size_t step, uint64_t counts[256]) {
  const size_t n = raw.size() / kElementBytes;
  uint8_t keys[kStride];
  uint8_t rest[kStride];
  for (size_t at = 0; at < n; at += step * kStride) {
    const size_t count = std::min(kStride, n - at);
    SplitPlanes(At(raw, at * kElementBytes), count, keys, rest);
    if (mirrors != nullptr) mirrors->Apply(at, keys, count);
    CountBytes(keys, count, counts);
  }
}

Keys ChooseKeys(const Ceilings* ceilings, Bytes raw, uint8_t* stream) {
  const size_t n = raw.size() / kElementBytes;
  Keys keys;
  if (ceilings == nullptr) {
    CountSymbols(nullptr, raw, 1, keys.counts);
    return keys;
  }
  FindCeilings(*ceilings, raw, stream);
  Mirrors mirrors(*ceilings, stream);
  // A sample decides. Odd steps, to meet all channels of a plane.
  const size_t step = (n / kSampleMin / 2) | 1;
  uint64_t plain[256] = {};
  uint64_t mirrored[256] = {};
  CountSymbols(nullptr, raw, step, plain);
  CountSymbols(&mirrors, raw, step, mirrored);
  const uint64_t sampled = std::accumulate(plain, plain + 256, uint64_t{0});
  const size_t rest_at = Aligned(ceilings->BytesOf(n));
  const uint64_t cost = rest_at * sampled / n;
  if (cost + EntropyBytes(mirrored, sampled) < EntropyBytes(plain, sampled)) {
    keys.has_ceilings = true;
    keys.rest_at = rest_at;
  }
  CountSymbols(keys.has_ceilings ? &mirrors : nullptr, raw, 1, keys.counts);
  return keys;
}

// Zeros from `begin` to the next stream.
void Pad(MutableBytes out, size_t begin) {
  std::memset(out.data() + begin, 0, Aligned(begin) - begin);
}

}  // namespace

EntropyForm EncodeEntropy(Kind kind, const SplitChannels& channels, Bytes raw, MutableBytes out) {
  const size_t n = raw.size() / kElementBytes;
  if (n < kTailElements) return {};
  const Ceilings ceilings(kind, channels);
  const bool possible = Ceilings::Possible(channels, n) && ceilings.BytesOf(n) < n / 4;
  const Keys chosen = ChooseKeys(possible ? &ceilings : nullptr, raw, At(out, 0));
  const size_t rest_at = chosen.rest_at;
  const size_t rest_count = n - kTailElements;
  const size_t stream_at = rest_at + Aligned(rest_count);
  if (stream_at >= raw.size()) return {};
  if (chosen.has_ceilings) Pad(out, ceilings.BytesOf(n));
  Pad(out, rest_at + rest_count);

  uint8_t keys[kStride];
  uint8_t rest[kStride];
  SplitPlanes(At(raw, rest_count * kElementBytes), kTailElements, keys, rest);
  Rans32Tail tail;
  std::memcpy(&tail, rest, sizeof(tail));
  const Rans32Frequencies frequencies = Rans32Frequencies::OfCounts(chosen.counts);
  Rans32Writer writer(frequencies, n, out.subspan(stream_at, raw.size() - stream_at), tail);
  Mirrors mirrors(ceilings, At(out, 0));
  while (!writer.done()) {
    const size_t at = writer.next();
    const size_t count = std::min(kStride, n - at);
    const bool whole = at + count <= rest_count;
    SplitPlanes(At(raw, at * kElementBytes), count, keys, whole ? At(out, rest_at + at) : rest);
    if (!whole && at < rest_count) std::memcpy(At(out, rest_at + at), rest, rest_count - at);
    if (chosen.has_ceilings) mirrors.Apply(at, keys, count);
    if (!writer.Prepend(AsBytes(keys, count))) return {};
  }
  const size_t stream_bytes = writer.Finish();
  if (stream_bytes == 0) return {};
  return {stream_at + stream_bytes, chosen.has_ceilings};
}

absl::Status DecodeEntropy(Kind kind, const SplitChannels& channels, bool has_ceilings, Bytes in,
                           MutableBytes raw) {
  const size_t n = raw.size() / kElementBytes;
  if (n < kTailElements) return absl::DataLossError(absl::StrCat("an entropy split of ", n));
  if (has_ceilings && !Ceilings::Possible(channels, n)) {
    return absl::DataLossError("an entropy split by channels where there are none");
  }
  const Ceilings ceilings(kind, channels);
  const size_t rest_at = has_ceilings ? Aligned(ceilings.BytesOf(n)) : 0;
  const size_t rest_count = n - kTailElements;
  const size_t stream_at = rest_at + Aligned(rest_count);
  if (in.size() < stream_at) {
    return absl::DataLossError(
        absl::StrCat("an entropy split of ", in.size(), " bytes for ", n, " elements"));
  }
  Rans32Reader reader;
  FB_RETURN_IF_ERROR(reader.Open(in.subspan(stream_at), n));
  Mirrors mirrors(ceilings, At(in, 0));
  for (size_t at = 0; at < n; at += kKeysAtOnce) {
    const size_t count = std::min(kKeysAtOnce, n - at);
    // Keys wait in the upper half of the room of their elements, which fills from below.
    uint8_t* const to = At(raw, at * kElementBytes);
    uint8_t* const keys = to + count;
    FB_RETURN_IF_ERROR(reader.Next(AsMutableBytes(keys, count)));
    if (has_ceilings) mirrors.Apply(at, keys, count);
    const size_t rests_from = std::min(at, rest_count);
    const size_t rests = std::min(count, rest_count - rests_from);
    JoinPlanes(keys, At(in, rest_at + rests_from), rests, to);
    for (size_t i = rests; i < count; ++i) {
      const auto word = static_cast<uint16_t>(keys[i] << 7);
      std::memcpy(to + i * kElementBytes, &word, sizeof(word));
    }
  }
  // The last rests are known with the last symbol.
  uint8_t tail[kTailElements];
  std::memcpy(tail, &reader.tail(), sizeof(tail));
  for (size_t i = 0; i < kTailElements; ++i) {
    std::byte* const at = raw.data() + (rest_count + i) * kElementBytes;
    uint16_t word;
    std::memcpy(&word, at, sizeof(word));
    word = static_cast<uint16_t>(word | tail[i] >> 1 | tail[i] << 15);
    std::memcpy(at, &word, sizeof(word));
  }
  return absl::OkStatus();
}

}  // namespace forebay::exponent_split
