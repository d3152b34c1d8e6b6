#include "codec/uniform/uniform_planes.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "codec/steps/uniform_quant.h"
#include "codec/uniform/uniform_kernel.h"

namespace forebay {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kElementBytes = 2;
constexpr size_t kStride = rans32::kSymbolsMax;
constexpr size_t kBlockSymbolsMin = 32768;
constexpr size_t kLengthBytes = sizeof(uint32_t);
constexpr int32_t kClassEighths = 4;  // from one class to the next

struct Header {
  uint8_t version = kVersion;
  uint8_t zeros[3] = {};
  uint32_t escape_count = 0;
};
static_assert(sizeof(Header) == 8);

uint8_t* At(MutableBytes bytes, size_t at) { return reinterpret_cast<uint8_t*>(bytes.data()) + at; }
const uint8_t* At(Bytes bytes, size_t at) {
  return reinterpret_cast<const uint8_t*>(bytes.data()) + at;
}

const Dictionary::Plane& EntryOf(const Dictionary& dictionary, const UniformPlane& plane) {
  FB_CHECK(plane.layer < dictionary.layers().size());
  FB_CHECK(plane.stream == Stream::kKey || plane.stream == Stream::kValue);
  const Dictionary::Layer& layer = dictionary.layers()[plane.layer];
  const bool is_key = plane.stream == Stream::kKey;
  FB_CHECK(plane.shape.dtype == layer.dtype);
  FB_CHECK(plane.shape.dim == (is_key ? layer.k_dim : layer.v_dim));
  FB_CHECK(plane.head_begin + uint64_t{plane.shape.heads} <= layer.kv_heads);
  return is_key ? layer.k : layer.v;
}

// What the kernels know of one run's channels.
class RunChannels {
 public:
  // Channels [begin, begin + count) of the entry. False if a step is not sound.
  bool Set(const Dictionary::Plane& entry, const Dictionary::Tables& tables, float step, int shift,
           size_t begin, size_t count) {
    constexpr size_t kAlign = uniform_kernel::kAlign;
    period_ = count * (kAlign / std::gcd(count, kAlign));
    means_.resize(period_);
    steps_.resize(period_);
    inverses_.resize(period_);
    reaches_.resize(period_);
    bases_.resize(period_);
    if (!UniformStepIsSound(step)) return false;
    const int32_t step_eighths = Log2Eighths(step) - kClassEighths * shift;
    for (size_t c = 0; c < count; ++c) {
      const int32_t weight = entry.weights[begin + c];
      const float channel_step = MultiplyFp32(step, Exp2Eighths(weight));
      if (!UniformStepIsSound(channel_step)) return false;
      const int place = UniformClass(entry.sigmas[begin + c], step_eighths + weight);
      means_[c] = Bf16ToFp32(entry.means[begin + c]);
      steps_[c] = channel_step;
      inverses_[c] = DivideFp32(1.0f, channel_step);
      reaches_[c] = static_cast<float>(tables.reach(place));
      bases_[c] = static_cast<uint16_t>(place * 256);
    }
    for (size_t c = count; c < period_; ++c) {
      means_[c] = means_[c - count];
      steps_[c] = steps_[c - count];
      inverses_[c] = inverses_[c - count];
      reaches_[c] = reaches_[c - count];
      bases_[c] = bases_[c - count];
    }
    return true;
  }

  uniform_kernel::Channels channels() const {
    return {means_.data(), steps_.data(), inverses_.data(), reaches_.data(), period_};
  }
  rans32::Classes classes() const { return {bases_.data(), period_}; }

 private:
  size_t period_ = 0;
  std::vector<float> means_;
  std::vector<float> steps_;
  std::vector<float> inverses_;
  std::vector<float> reaches_;
  std::vector<uint16_t> bases_;
};

// A plane's runs.
struct Runs {
  explicit Runs(const PlaneShape& shape)
      : channels(shape.row_channels()),
        elements(channels * shape.tokens),
        count(elements == 0 ? 0 : shape.element_count() / elements) {}
  size_t channels;
  size_t elements;
  size_t count;
};

size_t EndOfBlock(absl::Span<const UniformPlane> planes, size_t begin) {
  size_t symbols = 0;
  while (begin < planes.size() && symbols < kBlockSymbolsMin) {
    symbols += planes[begin++].shape.element_count();
  }
  return begin;
}

size_t ShiftsAt(size_t planes) { return sizeof(Header) + planes * sizeof(float); }
// Where the blocks begin, at a multiple of four.
size_t BlocksAt(size_t planes) { return (ShiftsAt(planes) + planes + 3) & ~size_t{3}; }

// How many classes louder the plane is than the calibration, by a sample of it. A few elements that
// are far out do not move it.
int8_t ShiftOf(const Dictionary::Plane& entry, const UniformPlane& plane, Bytes raw) {
  constexpr size_t kSample = 1024;
  constexpr float kFarthest = 64.0f;
  constexpr float kMeanMagnitude = 0.8f;  // of a normal distribution of sigma 1, nearly
  const PlaneShape& shape = plane.shape;
  const size_t stride = shape.element_count() / kSample | 1;  // odd, to meet every channel
  const Runs runs(shape);
  float sum = 0;
  size_t count = 0;
  for (size_t i = 0; i < shape.element_count(); i += stride, ++count) {
    const size_t channel = plane.head_begin * size_t{shape.dim} +
                           i / runs.elements * runs.channels + i % runs.channels;
    uint16_t word;
    std::memcpy(&word, raw.data() + i * kElementBytes, sizeof(word));
    const float x = shape.dtype == DType::kBf16 ? Bf16ToFp32(word) : Fp16ToFp32(word);
    const float off = AddFp32(x, -Bf16ToFp32(entry.means[channel]));
    const float sigmas = MultiplyFp32(off, Exp2Eighths(-entry.sigmas[channel]));
    sum = AddFp32(sum, Fp32OfBits(MagnitudeBits(Clamp(sigmas, -kFarthest, kFarthest))));
  }
  const float mean = DivideFp32(sum, static_cast<float>(std::max<size_t>(count, 1)));
  const int32_t eighths = Log2Eighths(std::max(DivideFp32(mean, kMeanMagnitude), 0x1p-16f));
  return static_cast<int8_t>((eighths + kClassEighths / 2) >> 2);
}

// From the last plane to the first.
class Encoder {
 public:
  Encoder(const Dictionary& dictionary, MutableBytes room) : dictionary_(dictionary), room_(room) {}

  bool Block(absl::Span<const UniformPlane> planes, int8_t* shifts, Bytes raw) {
    const bool last = begin_of_blocks() == room_.size();
    Rans32BlockWriter block(room_.first(begin_of_blocks()));
    for (size_t i = planes.size(); i-- > 0;) {
      const size_t bytes = planes[i].shape.raw_bytes();
      shifts[i] = ShiftOf(EntryOf(dictionary_, planes[i]), planes[i], raw.last(bytes));
      if (!Plane(planes[i], shifts[i], raw.last(bytes), block)) return false;
      raw.remove_suffix(bytes);
    }
    const size_t bytes = block.Finish();
    if (bytes == 0) return false;
    block_bytes_ += bytes;
    if (last) return true;
    if (begin_of_blocks() < kLengthBytes) return false;
    block_bytes_ += kLengthBytes;
    const auto length = static_cast<uint32_t>(bytes);
    std::memcpy(room_.data() + begin_of_blocks(), &length, sizeof(length));
    return true;
  }

  // Puts everything after the steps in order. The bytes in all; 0 if they do not fit.
  size_t Finish(size_t at) {
    const size_t end = at + block_bytes_ + escapes_.size() * kElementBytes;
    if (at > begin_of_blocks() || end >= room_.size()) return 0;
    std::memmove(room_.data() + at, room_.data() + begin_of_blocks(), block_bytes_);
    std::reverse(escapes_.begin(), escapes_.end());
    if (!escapes_.empty()) {
      std::memcpy(room_.data() + at + block_bytes_, escapes_.data(),
                  escapes_.size() * kElementBytes);
    }
    return end;
  }

  size_t escape_count() const { return escapes_.size(); }

 private:
  size_t begin_of_blocks() const { return room_.size() - block_bytes_; }

  bool Plane(const UniformPlane& plane, int shift, Bytes raw, Rans32BlockWriter& block) {
    const Dictionary::Plane& entry = EntryOf(dictionary_, plane);
    const Dictionary::Tables& tables =
        plane.stream == Stream::kKey ? dictionary_.k_tables() : dictionary_.v_tables();
    const Runs runs(plane.shape);
    for (size_t run = runs.count; run-- > 0;) {
      const size_t first = plane.head_begin * size_t{plane.shape.dim} + run * runs.channels;
      if (!channels_.Set(entry, tables, plane.step, shift, first, runs.channels)) return false;
      const uint8_t* const from = At(raw, run * runs.elements * kElementBytes);
      for (size_t left = runs.elements; left > 0;) {
        const size_t at = (left - 1) / kStride * kStride;
        uint8_t codes[kStride];
        const uniform_kernel::Found found =
            uniform_kernel::Quantize(plane.shape.dtype, channels_.channels(), at,
                                     from + at * kElementBytes, left - at, codes);
        if (!found.finite) return false;
        if (found.escapes) AddEscapes(codes, from + at * kElementBytes, left - at);
        if (!block.Prepend(tables.encode(), channels_.classes(), at, AsBytes(codes, left - at))) {
          return false;
        }
        left = at;
      }
    }
    return true;
  }

  void AddEscapes(const uint8_t* codes, const uint8_t* raw, size_t count) {
    for (size_t i = count; i-- > 0;) {
      if (static_cast<int8_t>(codes[i]) != kUniformEscape) continue;
      uint16_t word;
      std::memcpy(&word, raw + i * kElementBytes, sizeof(word));
      escapes_.push_back(word);
    }
  }

  const Dictionary& dictionary_;
  MutableBytes room_;
  size_t block_bytes_ = 0;
  std::vector<uint16_t> escapes_;  // the last first
  RunChannels channels_;
};

class Decoder {
 public:
  Decoder(const Dictionary& dictionary, Bytes escapes)
      : dictionary_(dictionary), escapes_(escapes) {}

  absl::Status Block(absl::Span<const UniformPlane> planes, const float* steps,
                     const int8_t* shifts, Bytes block, MutableBytes raw) {
    Rans32BlockReader reader;
    FB_RETURN_IF_ERROR(reader.Open(block));
    for (size_t i = 0; i < planes.size(); ++i) {
      const size_t bytes = planes[i].shape.raw_bytes();
      FB_RETURN_IF_ERROR(Plane(planes[i], steps[i], shifts[i], reader, raw.first(bytes)));
      raw.remove_prefix(bytes);
    }
    return reader.Finish();
  }

  size_t escapes_left() const { return escapes_.size() / kElementBytes; }

 private:
  absl::Status Plane(const UniformPlane& plane, float step, int shift, Rans32BlockReader& block,
                     MutableBytes raw) {
    const Dictionary::Plane& entry = EntryOf(dictionary_, plane);
    const Dictionary::Tables& tables =
        plane.stream == Stream::kKey ? dictionary_.k_tables() : dictionary_.v_tables();
    const Runs runs(plane.shape);
    for (size_t run = 0; run < runs.count; ++run) {
      const size_t first = plane.head_begin * size_t{plane.shape.dim} + run * runs.channels;
      if (!channels_.Set(entry, tables, step, shift, first, runs.channels)) {
        return absl::DataLossError(absl::StrCat("a step of ", step));
      }
      uint8_t* const to = At(raw, run * runs.elements * kElementBytes);
      for (size_t at = 0; at < runs.elements; at += kStride) {
        const size_t count = std::min(kStride, runs.elements - at);
        uint8_t codes[kStride];
        FB_RETURN_IF_ERROR(
            block.Next(tables.decode(), channels_.classes(), at, AsMutableBytes(codes, count)));
        if (uniform_kernel::Dequantize(plane.shape.dtype, channels_.channels(), at, codes, count,
                                       to + at * kElementBytes)) {
          FB_RETURN_IF_ERROR(PutEscapes(codes, count, to + at * kElementBytes));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status PutEscapes(const uint8_t* codes, size_t count, uint8_t* raw) {
    for (size_t i = 0; i < count; ++i) {
      if (static_cast<int8_t>(codes[i]) != kUniformEscape) continue;
      if (escapes_.empty()) return absl::DataLossError("more escapes than there are elements");
      std::memcpy(raw + i * kElementBytes, escapes_.data(), kElementBytes);
      escapes_.remove_prefix(kElementBytes);
    }
    return absl::OkStatus();
  }

  const Dictionary& dictionary_;
  Bytes escapes_;
  RunChannels channels_;
};

size_t RawBytesOf(absl::Span<const UniformPlane> planes) {
  size_t bytes = 0;
  for (const UniformPlane& plane : planes) bytes += plane.shape.raw_bytes();
  return bytes;
}

}  // namespace

std::vector<UniformPlane> UniformPlanesOf(const Dictionary& dictionary, const KvLayout& layout,
                                          const PartSpec& part, float k_dial, float v_dial) {
  const bool has_keys = part.stream == Stream::kKeyValue || part.stream == Stream::kKey;
  const bool has_values = part.stream == Stream::kKeyValue || part.stream == Stream::kValue;
  std::vector<UniformPlane> planes;
  for (uint32_t i = 0; i < part.layer_count; ++i) {
    const uint32_t layer = part.layer_begin + i;
    const LayerSpec& spec = layout.layers[layer];
    const Dictionary::Layer& mine = dictionary.layers()[layer];
    UniformPlane plane;
    plane.layer = layer;
    plane.head_begin = part.head_begin;
    plane.shape = {layout.page_tokens, part.head_count, 0, layout.plane_order, part.dtype};
    if (has_keys) {
      if (mine.k_dim == 0) return {};
      plane.stream = Stream::kKey;
      plane.shape.dim = spec.k_dim;
      plane.step = MultiplyFp32(mine.k.step, k_dial);
      planes.push_back(plane);
    }
    if (has_values && spec.v_dim > 0) {
      if (mine.v_dim == 0) return {};
      plane.stream = Stream::kValue;
      plane.shape.dim = spec.v_dim;
      plane.step = MultiplyFp32(mine.v.step, v_dial);
      planes.push_back(plane);
    }
  }
  return planes;
}

std::optional<size_t> EncodeUniform(const Dictionary& dictionary,
                                    absl::Span<const UniformPlane> planes, Bytes raw,
                                    MutableBytes payload) {
  FB_CHECK(raw.size() == RawBytesOf(planes));
  FB_CHECK(payload.size() >= raw.size());
  const size_t blocks_at = BlocksAt(planes.size());
  if (blocks_at >= raw.size()) return std::nullopt;
  std::vector<int8_t> shifts(planes.size());
  std::vector<size_t> ends;
  for (size_t at = 0; at < planes.size(); at = ends.back()) {
    ends.push_back(EndOfBlock(planes, at));
  }
  Encoder encoder(dictionary, payload.first(raw.size()));
  Bytes left = raw;
  for (size_t block = ends.size(); block-- > 0;) {
    const size_t begin = block == 0 ? 0 : ends[block - 1];
    const absl::Span<const UniformPlane> now = planes.subspan(begin, ends[block] - begin);
    const size_t bytes = RawBytesOf(now);
    if (!encoder.Block(now, shifts.data() + begin, left.last(bytes))) return std::nullopt;
    left.remove_suffix(bytes);
  }
  const size_t bytes = encoder.Finish(blocks_at);
  if (bytes == 0) return std::nullopt;
  Header header;
  header.escape_count = static_cast<uint32_t>(encoder.escape_count());
  std::memcpy(payload.data(), &header, sizeof(header));
  for (size_t i = 0; i < planes.size(); ++i) {
    std::memcpy(payload.data() + ShiftsAt(i), &planes[i].step, sizeof(float));
  }
  const size_t shifts_at = ShiftsAt(planes.size());
  std::memset(payload.data() + shifts_at, 0, blocks_at - shifts_at);
  if (!shifts.empty()) std::memcpy(payload.data() + shifts_at, shifts.data(), shifts.size());
  return bytes;
}

absl::Status DecodeUniform(const Dictionary& dictionary, absl::Span<const UniformPlane> planes,
                           Bytes payload, MutableBytes raw) {
  FB_CHECK(raw.size() == RawBytesOf(planes));
  const size_t blocks_at = BlocksAt(planes.size());
  if (payload.size() < blocks_at) {
    return absl::DataLossError(absl::StrCat("uniform planes of ", payload.size(), " bytes"));
  }
  Header header;
  std::memcpy(&header, payload.data(), sizeof(header));
  if (header.version != kVersion || header.zeros[0] != 0 || header.zeros[1] != 0 ||
      header.zeros[2] != 0) {
    return absl::DataLossError(absl::StrCat("uniform planes of version ", header.version));
  }
  std::vector<float> steps(planes.size());
  std::vector<int8_t> shifts(planes.size());
  if (!planes.empty()) {
    std::memcpy(steps.data(), payload.data() + sizeof(header), steps.size() * sizeof(float));
    std::memcpy(shifts.data(), payload.data() + ShiftsAt(planes.size()), shifts.size());
  }
  for (size_t at = ShiftsAt(planes.size()) + planes.size(); at < blocks_at; ++at) {
    if (payload[at] != std::byte{0}) return absl::DataLossError("uniform planes without zeros");
  }
  payload.remove_prefix(blocks_at);
  const uint64_t escape_bytes = uint64_t{header.escape_count} * kElementBytes;
  if (payload.size() < escape_bytes) {
    return absl::DataLossError(
        absl::StrCat(header.escape_count, " escapes in a payload of ", payload.size(), " bytes"));
  }
  Decoder decoder(dictionary, payload.last(escape_bytes));
  payload.remove_suffix(escape_bytes);
  for (size_t begin = 0; begin < planes.size();) {
    const size_t end = EndOfBlock(planes, begin);
    Bytes block = payload;
    if (end < planes.size()) {
      uint32_t length;
      if (payload.size() < sizeof(length)) return absl::DataLossError("a payload that ends early");
      std::memcpy(&length, payload.data(), sizeof(length));
      payload.remove_prefix(sizeof(length));
      if (payload.size() < length) {
        return absl::DataLossError(
            absl::StrCat("a block of ", length, " bytes where ", payload.size(), " are left"));
      }
      block = payload.first(length);
    }
    payload.remove_prefix(block.size());
    const absl::Span<const UniformPlane> now = planes.subspan(begin, end - begin);
    const size_t bytes = RawBytesOf(now);
    FB_RETURN_IF_ERROR(
        decoder.Block(now, steps.data() + begin, shifts.data() + begin, block, raw.first(bytes)));
    raw.remove_prefix(bytes);
    begin = end;
  }
  if (decoder.escapes_left() == 0 && payload.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(decoder.escapes_left(), " escapes left over"));
}

}  // namespace forebay
