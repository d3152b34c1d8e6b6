#include "codec/uniform/calibrator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "codec/steps/uniform_quant.h"

namespace forebay {
namespace {

using Samples = UniformCalibrator::Samples;
using LayerSamples = UniformCalibrator::LayerSamples;
using ClassFrequencies = Dictionary::ClassFrequencies;
using Plane = Dictionary::Plane;

// What is looked at to find a step, of all planes together: enough for a hundredth of a bit.
constexpr size_t kSearchedMax = 1 << 19;
// A code and the element itself.
constexpr double kEscapeBits = 16;
// Steps of channels differ by 2^8 at most, either way.
constexpr int kWeightMax = 64;

struct Calibrated {
  const Samples* samples = nullptr;
  Plane* plane = nullptr;
  double rms = 0;  // of x less its channel's mean
};

double SigmaOf(const Samples& samples, const Plane& plane, size_t channel) {
  const double count = static_cast<double>(samples.tokens);
  const double mean = Bf16ToFp32(plane.means[channel]);
  const double first = samples.sums[channel] / count;
  return std::sqrt(
      std::max(0.0, samples.squares[channel] / count - 2 * mean * first + mean * mean));
}

Plane PlaneOf(const Samples& samples) {
  Plane plane;
  for (size_t c = 0; c < samples.channels; ++c) {
    const double mean = samples.sums[c] / static_cast<double>(samples.tokens);
    plane.means.push_back(Fp32ToBf16(static_cast<float>(mean)));
  }
  for (size_t c = 0; c < samples.channels; ++c) {
    const double sigma = std::clamp(SigmaOf(samples, plane, c), 0x1p-100, 0x1p100);
    plane.sigmas.push_back(static_cast<int16_t>(Log2Eighths(static_cast<float>(sigma))));
  }
  plane.weights.assign(samples.channels, 0);
  return plane;
}

void Weigh(const LayerSamples& layer, double share, Plane& plane) {
  if (layer.query_count == 0 || share == 0) return;
  std::vector<double> logs;
  double mean = 0;
  for (const double squares : layer.query_squares) {
    const double rms = std::sqrt(squares / static_cast<double>(layer.query_count));
    logs.push_back(std::log2(std::max(rms, 0x1p-60)));
    mean += logs.back() / static_cast<double>(layer.query_squares.size());
  }
  for (size_t c = 0; c < logs.size(); ++c) {
    const long weight = std::lround(8 * share * (mean - logs[c]));
    plane.weights[c] = static_cast<int8_t>(std::clamp<long>(weight, -kWeightMax, kWeightMax));
  }
}

// Counts what the codes of each class are, when every channel in turn is of that class.
using ClassCounts = std::array<std::array<uint64_t, 256>, kUniformClasses>;
void Count(const Calibrated& from, ClassCounts& counts) {
  const Samples& samples = *from.samples;
  for (size_t c = 0; c < samples.channels; ++c) {
    const double mean = Bf16ToFp32(from.plane->means[c]);
    const double sigma = SigmaOf(samples, *from.plane, c);
    if (sigma < 0x1p-100) continue;
    size_t turn = c;
    for (size_t i = c; i < samples.kept.size(); i += samples.channels) {
      const double unit = (samples.kept[i] - mean) / sigma;
      // Steps between one class and the next, each as often.
      const double within = (static_cast<double>(turn++ % 4) - 1.5) / 8;
      for (int place = 0; place < kUniformClasses; ++place) {
        const double steps = std::exp2((place + kUniformClassMin) / 2.0 + within);
        const long code = std::lround(std::clamp(unit * steps, -200.0, 200.0));
        const bool escape = std::labs(code) > kUniformCodeMax;
        // Channels are as often turned over as not.
        const auto symbol = static_cast<uint8_t>(escape ? kUniformEscape : code);
        const auto other = static_cast<uint8_t>(escape ? kUniformEscape : -code);
        ++counts[static_cast<size_t>(place)][symbol];
        ++counts[static_cast<size_t>(place)][other];
      }
    }
  }
}

// Codes that are rare may come all the same, and half as far again: an escape costs as much as many
// of them. What is farther escapes.
Rans32Frequencies TableOf(const std::array<uint64_t, 256>& counts) {
  const auto of = [&](int code) { return counts[static_cast<uint8_t>(code)]; };
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  uint64_t beyond = total;
  int reach = -1;
  while (reach < kUniformCodeMax && beyond * 8192 > total) {
    ++reach;
    beyond -= of(reach) + (reach > 0 ? of(-reach) : 0);
  }
  reach = std::min<int>(std::max(reach, 1) * 3 / 2 + 1, kUniformCodeMax);
  std::array<uint64_t, 256> kept{};
  uint64_t escapes = total;
  for (int code = -reach; code <= reach; ++code) {
    kept[static_cast<uint8_t>(code)] = std::max<uint64_t>(of(code), 1);
    escapes -= of(code);
  }
  kept[static_cast<uint8_t>(kUniformEscape)] = std::max<uint64_t>(escapes, 1);
  return Rans32Frequencies::OfCounts(kept);
}

ClassFrequencies TablesOf(const std::vector<Calibrated>& planes) {
  ClassCounts counts{};
  for (const Calibrated& plane : planes) Count(plane, counts);
  ClassFrequencies tables;
  for (size_t place = 0; place < kUniformClasses; ++place) tables[place] = TableOf(counts[place]);
  return tables;
}

// What the planes take at a step, of which each plane's share is its rms.
double BitsAt(const std::vector<Calibrated>& planes, const ClassFrequencies& tables, double step,
              size_t stride) {
  double bits = 0;
  double count = 0;
  for (const Calibrated& of : planes) {
    const Samples& samples = *of.samples;
    const int32_t step_eighths = Log2Eighths(static_cast<float>(step * of.rms));
    for (size_t i = 0; i < samples.kept.size(); i += stride) {
      const size_t c = i % samples.channels;
      const int weight = of.plane->weights[c];
      const double width = step * of.rms * std::exp2(weight / 8.0);
      const int place = UniformClass(of.plane->sigmas[c], step_eighths + weight);
      const Rans32Frequencies& table = tables[static_cast<size_t>(place)];
      const double mean = Bf16ToFp32(of.plane->means[c]);
      const long code = std::lround(std::clamp((samples.kept[i] - mean) / width, -200.0, 200.0));
      const bool near = std::labs(code) <= kUniformCodeMax;
      const uint16_t frequency = near ? table.of[static_cast<uint8_t>(code)] : 0;
      const uint16_t escape = table.of[static_cast<uint8_t>(kUniformEscape)];
      bits += frequency > 0 ? rans32::kProbabilityBits - std::log2(frequency)
                            : rans32::kProbabilityBits - std::log2(escape) + kEscapeBits;
      count += 1;
    }
  }
  return bits / std::max(1.0, count);
}

// Sets the steps so that the planes take `bits`, all with the same error in proportion to what they
// hold.
void SetSteps(std::vector<Calibrated>& planes, const ClassFrequencies& tables, double bits) {
  size_t kept = 0;
  for (const Calibrated& plane : planes) kept += plane.samples->kept.size();
  const size_t stride = (kept / kSearchedMax) | 1;  // odd, to meet every channel
  double low = 0x1p-14;
  double high = 0x1p4;
  for (int i = 0; i < 30; ++i) {
    const double middle = std::sqrt(low * high);
    (BitsAt(planes, tables, middle, stride) > bits ? low : high) = middle;
  }
  for (Calibrated& plane : planes) plane.plane->step = static_cast<float>(high * plane.rms);
}

// Fills the planes of a stream.
ClassFrequencies Calibrate(std::vector<Calibrated>& planes, double bits) {
  for (Calibrated& plane : planes) {
    double squares = 0;
    for (size_t c = 0; c < plane.samples->channels; ++c) {
      squares += std::pow(SigmaOf(*plane.samples, *plane.plane, c), 2);
    }
    const double rms = std::sqrt(squares / static_cast<double>(plane.samples->channels));
    plane.rms = std::clamp(rms, 0x1p-40, 0x1p40);
  }
  const ClassFrequencies tables = TablesOf(planes);
  SetSteps(planes, tables, bits);
  return tables;
}

bool HasPlanes(const LayerSpec& spec) {
  return spec.layer_class != LayerClass::kState && spec.attention != AttentionKind::kMla &&
         (spec.dtype == DType::kBf16 || spec.dtype == DType::kFp16);
}

}  // namespace

UniformCalibrator::UniformCalibrator(const KvLayout& layout) : specs_(layout.layers) {
  for (const LayerSpec& spec : specs_) {
    LayerSamples& layer = layers_.emplace_back();
    if (!HasPlanes(spec)) continue;
    for (const auto& [samples, dim] : {std::pair(&layer.k, spec.k_dim), {&layer.v, spec.v_dim}}) {
      samples->channels = size_t{spec.kv_heads} * dim;
      samples->sums.resize(samples->channels);
      samples->squares.resize(samples->channels);
    }
    layer.query_squares.resize(layer.k.channels);
  }
}

absl::Status UniformCalibrator::AddPlane(uint32_t layer, Stream stream, const PlaneShape& shape,
                                         Bytes raw) {
  const bool is_key = stream == Stream::kKey;
  if (layer >= specs_.size() || !HasPlanes(specs_[layer]) ||
      (!is_key && stream != Stream::kValue)) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " has no such planes"));
  }
  const LayerSpec& spec = specs_[layer];
  if (shape.heads != spec.kv_heads || shape.dim != (is_key ? spec.k_dim : spec.v_dim) ||
      shape.dtype != spec.dtype || raw.size() != shape.raw_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plane of another shape than layer ", layer, " has"));
  }
  std::vector<float> values(shape.heads * size_t{shape.dim});
  Samples& samples = is_key ? layers_[layer].k : layers_[layer].v;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    bool finite = true;
    for (uint32_t head = 0; head < shape.heads; ++head) {
      for (uint32_t c = 0; c < shape.dim; ++c) {
        uint16_t word;
        std::memcpy(&word, raw.data() + 2 * (shape.RowAt(token, head) + c), sizeof(word));
        const float x = shape.dtype == DType::kBf16 ? Bf16ToFp32(word) : Fp16ToFp32(word);
        values[head * size_t{shape.dim} + c] = x;
        finite &= IsFiniteFp32(x);
      }
    }
    if (!finite)
      return absl::InvalidArgumentError(absl::StrCat("token ", token, " has Inf or NaN"));
    for (size_t c = 0; c < values.size(); ++c) {
      samples.sums[c] += values[c];
      samples.squares[c] += double{values[c]} * values[c];
    }
    if (samples.tokens < kKeptTokensMax) {
      samples.kept.insert(samples.kept.end(), values.begin(), values.end());
    }
    ++samples.tokens;
  }
  return absl::OkStatus();
}

absl::Status UniformCalibrator::AddQueries(uint32_t layer, absl::Span<const double> squares,
                                           uint64_t count) {
  if (layer >= layers_.size() || squares.empty() ||
      squares.size() != layers_[layer].query_squares.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(squares.size(), " channels of queries for layer ", layer));
  }
  for (size_t c = 0; c < squares.size(); ++c) layers_[layer].query_squares[c] += squares[c];
  layers_[layer].query_count += count;
  return absl::OkStatus();
}

absl::StatusOr<Dictionary> UniformCalibrator::Finish(const Options& options) const {
  std::vector<Dictionary::Layer> layers(specs_.size());
  std::vector<Calibrated> k;
  std::vector<Calibrated> v;
  for (size_t i = 0; i < specs_.size(); ++i) {
    Dictionary::Layer& layer = layers[i];
    if (!HasPlanes(specs_[i])) continue;
    layer.kv_heads = specs_[i].kv_heads;
    layer.k_dim = specs_[i].k_dim;
    layer.v_dim = specs_[i].v_dim;
    layer.dtype = specs_[i].dtype;
    for (const Samples* samples : {&layers_[i].k, &layers_[i].v}) {
      if (samples->channels > 0 && samples->tokens == 0) {
        return absl::FailedPreconditionError(absl::StrCat("layer ", i, " without samples"));
      }
    }
    if (layer.k_dim > 0) {
      layer.k = PlaneOf(layers_[i].k);
      Weigh(layers_[i], options.query_share, layer.k);
      k.push_back({&layers_[i].k, &layer.k});
    }
    if (layer.v_dim > 0) {
      layer.v = PlaneOf(layers_[i].v);
      v.push_back({&layers_[i].v, &layer.v});
    }
  }
  const ClassFrequencies k_tables = Calibrate(k, options.k_bits);
  const ClassFrequencies v_tables = Calibrate(v, options.v_bits);
  return Dictionary::Create(k_tables, v_tables, std::move(layers));
}

}  // namespace forebay
