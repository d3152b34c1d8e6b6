#include "client/codec_book.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "absl/synchronization/barrier.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/random.h"

namespace forebay {
namespace {

constexpr absl::string_view kAuto[] = {"raw", "lossless", "lossless_fast", "int8",
                                       "fp8", "k8v4",     "int4",          "int2"};

// Share of the newest part in a moving average: parts are many.
constexpr double kGain = 0.05;
constexpr int kRounds = 3;
constexpr int kPartsARound = 6;

const KvLayout& SampleLayout() {
  static const auto* const layout =
      new KvLayout(KvLayout::Uniform(/*layer_count=*/1, /*kv_heads=*/4, /*head_dim=*/128,
                                     DType::kBf16, /*page_tokens=*/64, /*layers_per_part=*/1));
  return *layout;
}

// Near a normal distribution, with a scale for each channel, as keys and values are.
std::vector<std::byte> SampleCache(const PartSpec& part) {
  SeededRandom random(1);
  std::vector<std::byte> raw(part.raw_bytes);
  for (size_t i = 0; i < raw.size() / 2; ++i) {
    double sum = 0;
    for (int k = 0; k < 4; ++k) sum += static_cast<double>(random.Below(1 << 16));
    const double normal = (sum / (1 << 16) - 2) * 1.7;
    const auto value = static_cast<float>(normal * (1 + static_cast<double>(i % 128 % 7)));
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const auto bf16 = static_cast<uint16_t>(bits >> 16);
    std::memcpy(raw.data() + 2 * i, &bf16, sizeof(bf16));
  }
  return raw;
}

// Memory that is far larger than caches are, gone through part by part: so the rates are those of
// bytes that nobody has touched lately, as in a fetch or a publish.
class Rotation {
 public:
  explicit Rotation(const std::vector<std::byte>& part)
      : part_bytes_(part.size()), memory_(kRotationParts * part.size()) {
    for (size_t i = 0; i < kRotationParts; ++i) {
      std::memcpy(memory_.data() + i * part_bytes_, part.data(), part_bytes_);
    }
  }
  // From any thread.
  MutableBytes Next() {
    const size_t at = next_.fetch_add(1, std::memory_order_relaxed) % kRotationParts;
    return {memory_.data() + at * part_bytes_, part_bytes_};
  }

 private:
  static constexpr size_t kRotationParts = 192;
  const size_t part_bytes_;
  std::vector<std::byte> memory_;
  std::atomic<size_t> next_{0};
};

// The best of some rounds: others on this machine only ever make it slower.
// `work(thread)` handles `bytes`.
double BytesPerNano(const Clock& clock, int threads, uint64_t bytes,
                    const std::function<void(int)>& work) {
  const auto all_parts = [&](int thread) {
    const Nanos start = clock.Now();
    for (int part = 0; part < kPartsARound; ++part) work(thread);
    return clock.Now() - start;
  };
  Nanos best = kForever;
  for (int i = 0; i < kRounds; ++i) {
    std::vector<Nanos> took(static_cast<size_t>(threads));
    absl::Barrier* const together = new absl::Barrier(threads);
    const auto run = [&](int thread) {
      if (together->Block()) delete together;
      took[static_cast<size_t>(thread)] = all_parts(thread);
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
    for (std::thread& other : others) other.join();
    best = std::min(best, *std::max_element(took.begin(), took.end()));
  }
  return static_cast<double>(bytes * kPartsARound) / static_cast<double>(std::max<Nanos>(best, 1));
}

CodecRates MeasureOne(const Clock& clock, int threads, const Codec& codec, const PartSpec& part,
                      Rotation& raw) {
  CodecRates rates;
  if (codec.identity()) return rates;
  struct Coded {
    std::vector<std::byte> payload;
    EncodedPart part;
  };
  std::vector<Coded> coded(static_cast<size_t>(threads));
  for (Coded& one : coded) one.payload.resize(codec.PayloadBytesMax(SampleLayout(), part));
  rates.encode_bytes_per_ns = BytesPerNano(clock, threads, part.raw_bytes, [&](int thread) {
    Coded& one = coded[static_cast<size_t>(thread)];
    one.part = codec.Encode(SampleLayout(), part, raw.Next(), absl::MakeSpan(one.payload)).value();
  });
  // Into memory of which the next codec's input is a part: numbers all the same.
  rates.decode_bytes_per_ns = BytesPerNano(clock, threads, part.raw_bytes, [&](int thread) {
    const Coded& one = coded[static_cast<size_t>(thread)];
    FrameHeader header;
    header.flags = one.part.flags;
    header.codec_param = PackQuality(one.part.quality);
    const Bytes bytes = Bytes(one.payload).first(one.part.payload_bytes);
    FB_CHECK(codec.Decode(SampleLayout(), part, header, bytes, raw.Next()).ok());
  });
  rates.ratio =
      static_cast<double>(part.raw_bytes) / static_cast<double>(coded[0].part.payload_bytes);
  return rates;
}

void Average(double value, double* average) {
  *average = *average <= 0 ? value : *average + kGain * (value - *average);
}

}  // namespace

absl::Span<const absl::string_view> AutoCodecs() { return kAuto; }

MeasuredRates MeasureCodecRates(const Clock& clock, int threads) {
  const PartSpec part = SampleLayout().Parts().front();
  Rotation raw(SampleCache(part));
  MeasuredRates rates;
  rates.copy_bytes_per_ns = BytesPerNano(clock, 1, part.raw_bytes, [&](int) {
    const MutableBytes from = raw.Next();
    std::memcpy(raw.Next().data(), from.data(), from.size());
  });
  for (absl::string_view name : kAuto) {
    rates.codecs.push_back(MeasureOne(clock, threads, CodecBook::Find(name), part, raw));
  }
  return rates;
}

absl::Status CheckCodecName(absl::string_view name) {
  if (name == "auto" || name == "uniform") return absl::OkStatus();
  return CodecRegistry::Default().FindByName(name).status();
}

const Codec& CodecBook::Find(absl::string_view name) {
  return **CodecRegistry::Default().FindByName(name);
}

const Codec& CodecBook::CodecOf(absl::string_view name) const {
  return uniform_ != nullptr && name == uniform_->name() ? *uniform_ : Find(name);
}

CodecBook::CodecBook(absl::string_view name, MeasuredRates rates,
                     std::shared_ptr<const UniformCodec> uniform)
    : uniform_(std::move(uniform)), copy_bytes_per_ns_(rates.copy_bytes_per_ns) {
  if (name != "auto") {
    forced_ = &CodecOf(name);
    return;
  }
  FB_CHECK(rates.codecs.empty() || rates.codecs.size() == std::size(kAuto));
  for (size_t i = 0; i < std::size(kAuto); ++i) {
    const Codec& codec = Find(kAuto[i]);
    CodecCandidate& candidate = candidates_.emplace_back();
    candidate.name = std::string(kAuto[i]);
    candidate.quality = codec.quality();
    if (!rates.codecs.empty()) {
      candidate.rates = rates.codecs[i];
    } else if (!codec.identity()) {
      candidate.rates = {codec.quality().exact() ? 1.3 : 2, 1, 1};
    }
  }
  if (uniform_ == nullptr) return;
  // Before the first that is not better. What it is worth shows when it is used.
  const auto place =
      std::find_if(candidates_.begin(), candidates_.end(), [this](const auto& other) {
        return !uniform_->quality().Allows(other.quality) || other.quality == uniform_->quality();
      });
  candidates_.insert(place, {std::string(uniform_->name()), uniform_->quality(), {3.5, 0.4, 0.6}});
}

CodecCandidate* CodecBook::CandidateOf(const Codec& codec) {
  for (CodecCandidate& candidate : candidates_) {
    if (candidate.name == codec.name()) return &candidate;
  }
  return nullptr;
}

void CodecBook::NoteEncode(const Codec& codec, uint64_t raw_bytes, uint64_t payload_bytes,
                           Nanos took) {
  CodecCandidate* const candidate = CandidateOf(codec);
  if (candidate == nullptr || payload_bytes == 0) return;
  const auto bytes = static_cast<double>(raw_bytes);
  Average(bytes / static_cast<double>(payload_bytes), &candidate->rates.ratio);
  // A clock that stands still says nothing.
  if (took > 0) Average(bytes / static_cast<double>(took), &candidate->rates.encode_bytes_per_ns);
}

void CodecBook::NoteDecode(const Codec& codec, uint64_t raw_bytes, Nanos took) {
  CodecCandidate* const candidate = CandidateOf(codec);
  if (candidate == nullptr || took <= 0) return;
  Average(static_cast<double>(raw_bytes) / static_cast<double>(took),
          &candidate->rates.decode_bytes_per_ns);
}

}  // namespace forebay
