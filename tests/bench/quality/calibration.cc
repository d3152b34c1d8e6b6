#include "tests/bench/quality/calibration.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "codec/steps/float_formats.h"
#include "codec/uniform/uniform_codec.h"
#include "tests/bench/quality/evaluate.h"
#include "tests/bench/quality/page_coder.h"

namespace forebay::bench {
namespace {

using examples::Checkpoint;

// Far from those of the texts that are measured.
constexpr uint64_t kFirstSeed = 1'000'000;

// What Choose chooses among. With more, values alone would come out worse than at equal bits of
// other codecs, whatever attention makes of them.
constexpr float kFewer[] = {0.9f, 0.7f, 0.5f, 0.3f};
constexpr float kQueryShares[] = {0.5f, 0.25f, 0.75f, 0.0f};
// Left for texts that take more bits than those that it chooses on.
constexpr double kMarginBits = 0.02;

void AddPlanes(const Checkpoint& model, Reference& text, UniformCalibrator* calibrator) {
  PlaneShape shape{static_cast<uint32_t>(text.tokens.size()), model.kv_head_count, model.head_dim(),
                   PlaneOrder::kTokenMajor, DType::kBf16};
  std::vector<std::byte> raw(shape.raw_bytes());
  for (uint32_t layer = 0; layer < model.layer_count; ++layer) {
    for (const bool is_key : {true, false}) {
      for (uint32_t t = 0; t < shape.tokens; ++t) {
        const float* row = is_key ? text.cache.Key(layer, t) : text.cache.Value(layer, t);
        for (size_t i = 0; i < model.kv_dim(); ++i) {
          const uint16_t word = Fp32ToBf16(row[i]);
          std::memcpy(raw.data() + 2 * (t * size_t{model.kv_dim()} + i), &word, sizeof(word));
        }
      }
      FB_CHECK(
          calibrator->AddPlane(layer, is_key ? Stream::kKey : Stream::kValue, shape, raw).ok());
    }
  }
}

// Query heads that share a KV head stand side by side.
void AddQueries(const Checkpoint& model, const Reference& text, UniformCalibrator* calibrator) {
  const size_t dim = model.head_dim();
  const size_t share = model.head_count / model.kv_head_count;
  for (uint32_t layer = 0; layer < model.layer_count; ++layer) {
    const std::vector<float>& queries = text.queries[layer];
    std::vector<double> squares(model.kv_dim());
    for (size_t i = 0; i < queries.size(); ++i) {
      const size_t at = i % model.dim;
      squares[at / dim / share * dim + at % dim] += double{queries[i]} * queries[i];
    }
    FB_CHECK(calibrator->AddQueries(layer, squares, text.tokens.size() * share).ok());
  }
}

}  // namespace

Calibration::Calibration(const Checkpoint& model, uint32_t text_tokens, uint32_t tokens)
    : model_(model), calibrator_(PageLayout(model, false)) {
  const auto write = [&](uint64_t seed) {
    return ComputeReference(model, SampleText(model, text_tokens, seed, {}), /*greedy=*/false);
  };
  uint64_t seed = kFirstSeed;
  for (uint32_t at = 0; at < tokens; at += text_tokens) {
    Reference text = write(seed++);
    AddPlanes(model, text, &calibrator_);
    AddQueries(model, text, &calibrator_);
  }
  for (uint32_t at = 0; at < tokens; at += text_tokens) {
    chosen_on_.push_back(write(seed++));
  }
}

absl::StatusOr<std::unique_ptr<Codec>> Calibration::Make(
    const std::string& name, const UniformCalibrator::Options& options) {
  FB_ASSIGN_OR_RETURN(Dictionary made, calibrator_.Finish(options));
  const auto dictionary = std::make_shared<const Dictionary>(std::move(made));
  store_.Add(dictionary);
  return std::make_unique<UniformCodec>(name, &store_, dictionary, 1.0f, 1.0f);
}

absl::StatusOr<QualityRow> Calibration::Measure(const UniformCalibrator::Options& options) {
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec, Make("", options));
  std::vector<SequenceQuality> qualities;
  for (const Reference& text : chosen_on_) {
    FB_ASSIGN_OR_RETURN(SequenceQuality quality, EvaluateSteps(model_, text, *codec));
    qualities.push_back(std::move(quality));
  }
  return Summarize(qualities, chosen_on_[0].tokens.size());
}

absl::StatusOr<UniformCalibrator::Options> Calibration::Choose(double bits) {
  const double payload_bits = bits - kMarginBits;
  // What the codes may take: the rest is steps, states, and what other texts take more.
  double code_bits = payload_bits;
  const auto options_of = [&](float fewer, float query_share) {
    const auto codes = static_cast<float>(code_bits);
    return UniformCalibrator::Options{codes + fewer / 2, codes - fewer / 2, query_share};
  };
  FB_ASSIGN_OR_RETURN(QualityRow row, Measure(options_of(kFewer[0], kQueryShares[0])));
  code_bits += payload_bits - row.bytes.all.bits();

  double least_kl = std::numeric_limits<double>::infinity();
  float fewer = kFewer[0];
  float query_share = kQueryShares[0];
  double fits = code_bits;
  const auto look_at = [&](float its_fewer, float its_share) -> absl::Status {
    FB_ASSIGN_OR_RETURN(row, Measure(options_of(its_fewer, its_share)));
    if (row.steps.kl >= least_kl) return absl::OkStatus();
    least_kl = row.steps.kl;
    fewer = its_fewer;
    query_share = its_share;
    fits = code_bits + payload_bits - row.bytes.all.bits();
    return absl::OkStatus();
  };
  for (const float its : kFewer) FB_RETURN_IF_ERROR(look_at(its, query_share));
  for (const float its : absl::MakeSpan(kQueryShares).subspan(1)) {
    FB_RETURN_IF_ERROR(look_at(fewer, its));
  }
  code_bits = fits;
  return options_of(fewer, query_share);
}

}  // namespace forebay::bench
