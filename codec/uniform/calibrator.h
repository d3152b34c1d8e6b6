#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/kv_layout.h"
#include "codec/plane.h"
#include "codec/uniform/dictionary.h"

namespace forebay {

// Makes a dictionary out of planes of a model: text like that which will be served, a few thousand
// tokens of it. More text makes the means, the sigmas and the tables better, and nothing is lost
// but bits where they are not good.
//
// Keys need more bits than values: an error in a key moves a token's whole weight. At equal error
// of the attention's logits a channel's step is in proportion to 1 / rms(q); of half of that, in
// logarithms, more comes out, as the error of what is large counts too.
//
// Owns     up to kKeptTokensMax tokens of each plane.
// Threads  one.
class UniformCalibrator {
 public:
  static constexpr size_t kKeptTokensMax = 2048;

  struct Options {
    // Bits an element that the steps at a dial of 1 should take, by the calibration's own text,
    // without the payload's states and steps.
    float k_bits = 5.0f;
    float v_bits = 4.0f;
    // How far steps follow 1 / rms(q) where AddQueries told of it: 0 not at all, 1 entirely.
    float query_share = 0.5f;
  };

  // Requires layout.Validate(). State and MLA layers, and dtypes that have no codes, have no planes
  // in the dictionary.
  explicit UniformCalibrator(const KvLayout& layout);

  // A plane of all heads of a layer, kKey or kValue.
  //   INVALID_ARGUMENT  of another shape than the layout's, of a layer without planes, or with Inf
  //                     or NaN
  absl::Status AddPlane(uint32_t layer, Stream stream, const PlaneShape& shape, Bytes raw);
  // Queries as they meet the keys of a layer: the sum of squares of all of a KV head's, and how
  // many: [kv_heads * k_dim], of `count` tokens and query heads.
  //   INVALID_ARGUMENT  another number of channels, of a layer without planes
  absl::Status AddQueries(uint32_t layer, absl::Span<const double> squares, uint64_t count);

  // FAILED_PRECONDITION: a plane of the layout was never added.
  absl::StatusOr<Dictionary> Finish(const Options& options) const;

  // Of one plane, and of one layer: public for the functions behind Finish.
  struct Samples {
    size_t channels = 0;
    uint64_t tokens = 0;
    std::vector<double> sums;
    std::vector<double> squares;
    std::vector<float> kept;  // [token][channel]
  };
  struct LayerSamples {
    Samples k;
    Samples v;
    std::vector<double> query_squares;
    uint64_t query_count = 0;
  };

 private:
  std::vector<LayerSpec> specs_;
  std::vector<LayerSamples> layers_;
};

}  // namespace forebay
