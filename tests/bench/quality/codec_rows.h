#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "codec/codec.h"
#include "examples/llama/checkpoint.h"
#include "tests/bench/quality/calibration.h"

namespace forebay::bench {

// Heads that are narrower than this are too narrow for the groups of KIVI's values.
inline constexpr uint32_t kKiviGroup = 32;

// A codec for planes whose heads are taken as one wide head: groups then reach across heads, as
// they have to where a head is narrower than a group, and scales would take more than the codes.
// Token-major planes only; a plan is refused. Borrows `codec`.
std::unique_ptr<Codec> AcrossHeads(std::string name, const Codec& codec);

// The codecs that the report has a row for: those of this build; KIVI's across heads, where heads
// are narrow; and the uniform-step codec, calibrated for the model.
struct CodecRows {
  // Those whose names are wanted; only they take time.
  static absl::StatusOr<CodecRows> Create(const examples::Checkpoint& model,
                                          const std::function<bool(absl::string_view)>& wants,
                                          uint32_t text_tokens, uint32_t calibration_tokens);

  std::unique_ptr<Calibration> calibration;  // of some of the codecs, which borrow from it
  std::vector<std::shared_ptr<const Codec>> codecs;
};

}  // namespace forebay::bench
