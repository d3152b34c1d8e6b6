#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tests/bench/quality/evaluate.h"
#include "tests/bench/quality/needle.h"

namespace forebay::bench {

// One line of the report: a codec, or a policy of retention, on one model.
struct QualityRow {
  std::string model;
  std::string name;            // of the codec or the policy
  std::optional<double> kept;  // share of the tokens that a policy keeps; a codec keeps all
  uint64_t texts = 0;
  uint64_t text_tokens = 0;

  CodedBytes bytes;  // nothing for a policy
  LayerQuality all_layers;
  std::vector<LayerQuality> layers;

  struct Steps {
    uint64_t count = 0;
    double kl = 0;
    double top1 = 0;
    // To the exact cache's: the better the nearer to 1. On texts that the model drew itself the
    // mean of its logarithm is the mean KL; what it shows beyond is the texts' noise.
    double ppl_ratio = 0;
  };
  Steps steps;
  std::array<Steps, 10> deciles;  // by position in the text
  double kl_p99 = 0;
  Interval kl_interval;
  Interval ppl_interval;
  double ppl = 0;  // of the exact cache
  double same_greedy_tokens = 0;

  // For comparisons of rows by pairs. By page, since a few texts say little of what chance does:
  // the tokens that happened to be drawn are most of it, and those of one page know nothing of
  // another's.
  struct Samples {
    std::vector<double> kl;        // mean of each page of steps
    std::vector<double> nll_more;  // than with the exact cache: the log of the perplexity ratio
    std::vector<double> top1;
    std::vector<double> same_greedy;  // of each text
  };
  Samples samples;

  std::optional<NeedleShares> needles;        // dropped or coded before the question
  std::optional<NeedleShares> needles_asked;  // dropped after it
};

// Means over texts, each column over those that have it, of `text_tokens`, whose steps end with the
// last but one token.
QualityRow Summarize(absl::Span<const SequenceQuality> texts, uint64_t text_tokens);

std::string CodecTableHead();
std::string CodecTableLine(const QualityRow& row);
std::string RetentionTableHead();
std::string RetentionTableLine(const QualityRow& row);
// One JSON object, without a line feed.
std::string ToJson(const QualityRow& row);

}  // namespace forebay::bench
