#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "client/codec_choice.h"
#include "codec/codec.h"
#include "codec/uniform/uniform_codec.h"

namespace forebay {

// The codecs that are chosen among where the choice is "auto", the most exact first. Others, which
// some reader may want for its own reasons, are taken only by name.
absl::Span<const absl::string_view> AutoCodecs();

// Measures the rates of each of AutoCodecs() on made-up keys and values, and of a copy, in some
// 50 ms: what a process knows of its codecs before it has used them. Rates are those of one thread
// of `threads` that are all at it: processors share execution units and memory.
struct MeasuredRates {
  std::vector<CodecRates> codecs;  // in the order of AutoCodecs()
  double copy_bytes_per_ns = 0;
};
MeasuredRates MeasureCodecRates(const Clock& clock, int threads);

// What one client knows of its codecs: moving averages of what they really did.
//
// Threads  one reactor.
class CodecBook {
 public:
  // `name`: "auto", or the codec that is forced. `rates`: of AutoCodecs(); empty: nominal ones, for
  // a simulation. `uniform`: with a dictionary, where there is one: forced by "uniform", a
  // candidate of "auto". Requires CheckCodecName(name).ok(), and a dictionary for "uniform".
  CodecBook(absl::string_view name, MeasuredRates rates,
            std::shared_ptr<const UniformCodec> uniform);

  bool automatic() const { return forced_ == nullptr; }
  // The forced one. Requires !automatic().
  const Codec& forced() const { return *forced_; }
  const std::vector<CodecCandidate>& candidates() const { return candidates_; }
  // Requires the name of a candidate.
  const Codec& CodecOf(absl::string_view name) const;
  // Of this build's registry. Requires its name.
  static const Codec& Find(absl::string_view name);
  double copy_bytes_per_ns() const { return copy_bytes_per_ns_; }

  // What `codec` did to `raw_bytes`. Those that are no candidates are not kept.
  void NoteEncode(const Codec& codec, uint64_t raw_bytes, uint64_t payload_bytes, Nanos took);
  void NoteDecode(const Codec& codec, uint64_t raw_bytes, Nanos took);

 private:
  CodecCandidate* CandidateOf(const Codec& codec);

  const std::shared_ptr<const UniformCodec> uniform_;
  const Codec* forced_ = nullptr;
  std::vector<CodecCandidate> candidates_;
  double copy_bytes_per_ns_ = 0;
};

// INVALID_ARGUMENT: `name` is neither "auto" nor a codec's; it says which there are.
absl::Status CheckCodecName(absl::string_view name);

}  // namespace forebay
