#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "codec/codec.h"
#include "codec/uniform/calibrator.h"
#include "codec/uniform/dictionary.h"
#include "examples/llama/checkpoint.h"
#include "tests/bench/quality/reference.h"
#include "tests/bench/quality/row.h"

// The uniform-step codec as rows of the report: it alone wants a dictionary.
namespace forebay::bench {

// What a model's planes and queries are like, on texts that the model wrote for this alone: no row
// is measured on them. Options are chosen on some more texts of that kind.
//
// Owns     the dictionaries of the codecs that it makes, which it must outlive.
// Borrows  the model.
class Calibration {
 public:
  // On `tokens`, and as many to choose on; rounded up to whole texts of text_tokens, a multiple of
  // kPageTokens. These should be as long as those that are measured: channels that turn slowly with
  // the position are elsewhere in longer ones, which costs bits.
  Calibration(const examples::Checkpoint& model, uint32_t text_tokens, uint32_t tokens);

  // FAILED_PRECONDITION as UniformCalibrator::Finish.
  absl::StatusOr<std::unique_ptr<Codec>> Make(const std::string& name,
                                              const UniformCalibrator::Options& options);

  // The options of the least mean KL whose payloads take no more than `bits` an element: how many
  // of them keys get more than values, and how far steps follow the queries.
  absl::StatusOr<UniformCalibrator::Options> Choose(double bits);

 private:
  absl::StatusOr<QualityRow> Measure(const UniformCalibrator::Options& options);

  const examples::Checkpoint& model_;
  UniformCalibrator calibrator_;
  DictionaryStore store_;
  std::vector<Reference> chosen_on_;
};

}  // namespace forebay::bench
