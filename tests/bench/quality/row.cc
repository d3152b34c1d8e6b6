#include "tests/bench/quality/row.h"

#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/bench/report.h"

namespace forebay::bench {
namespace {

// Sums while steps come, means at the end.
class StepMeans {
 public:
  void Add(const StepQuality& step) {
    ++count_;
    kl_ += step.kl;
    same_top_ += step.same_top ? 1 : 0;
    nll_more_ += step.nll - step.nll_reference;
  }
  QualityRow::Steps Means() const {
    if (count_ == 0) return {};
    const auto n = static_cast<double>(count_);
    return {count_, kl_ / n, same_top_ / n, std::exp(nll_more_ / n)};
  }

 private:
  uint64_t count_ = 0;
  double kl_ = 0, same_top_ = 0, nll_more_ = 0;
};

std::string Needles(const std::optional<NeedleShares>& shares) {
  if (!shares.has_value()) return "-";
  return absl::StrJoin(*shares, " ", [](std::string* out, double share) {
    absl::StrAppendFormat(out, "%3.0f", 100 * share);
  });
}

std::string JsonNeedles(const std::optional<NeedleShares>& shares) {
  if (!shares.has_value()) return "null";
  return absl::StrCat("[", absl::StrJoin(*shares, ", "), "]");
}

std::string JsonSteps(const QualityRow::Steps& steps) {
  return absl::StrFormat("{\"steps\": %d, \"kl\": %.6g, \"top1\": %.6g, \"ppl_ratio\": %.6g}",
                         steps.count, steps.kl, steps.top1, steps.ppl_ratio);
}

std::string JsonLayer(const LayerQuality& layer) {
  return absl::StrFormat(
      "{\"key_error\": %.6g, \"value_error\": %.6g, \"attention_error_exact_upstream\": %.6g, "
      "\"attention_error\": %.6g}",
      layer.key.value(), layer.value.value(), layer.attention_exact.value(),
      layer.attention.value());
}

std::string JsonInterval(const Interval& interval) {
  return absl::StrFormat("[%.6g, %.6g]", interval.low, interval.high);
}

}  // namespace

QualityRow Summarize(absl::Span<const SequenceQuality> texts, uint64_t text_tokens) {
  QualityRow row;
  row.texts = texts.size();
  row.text_tokens = text_tokens;
  StepMeans all;
  std::array<StepMeans, 10> deciles;
  std::vector<double> kls, nlls, kl_of_text, nll_more_of_text;
  for (const SequenceQuality& text : texts) {
    std::vector<double> kl, nll_more, top1;
    const uint64_t first = text_tokens - 1 - text.steps.size();
    for (size_t i = 0; i < text.steps.size(); ++i) {
      const StepQuality& step = text.steps[i];
      all.Add(step);
      deciles[(first + i) * 10 / text_tokens].Add(step);
      kl.push_back(step.kl);
      nll_more.push_back(step.nll - step.nll_reference);
      top1.push_back(step.same_top ? 1 : 0);
      nlls.push_back(step.nll_reference);
    }
    kls.insert(kls.end(), kl.begin(), kl.end());
    kl_of_text.push_back(Mean(kl));
    nll_more_of_text.push_back(Mean(nll_more));
    for (size_t at = 0; at < kl.size(); at += kPageTokens) {
      row.samples.kl.push_back(Mean(absl::MakeSpan(kl).subspan(at, kPageTokens)));
      row.samples.nll_more.push_back(Mean(absl::MakeSpan(nll_more).subspan(at, kPageTokens)));
      row.samples.top1.push_back(Mean(absl::MakeSpan(top1).subspan(at, kPageTokens)));
    }
    if (text.same_greedy_tokens.has_value()) {
      row.samples.same_greedy.push_back(*text.same_greedy_tokens);
    }
    row.bytes.Add(text.bytes);
    row.layers.resize(text.layers.size());
    for (size_t layer = 0; layer < text.layers.size(); ++layer) {
      for (LayerQuality* to : {&row.layers[layer], &row.all_layers}) {
        to->key.Add(text.layers[layer].key);
        to->value.Add(text.layers[layer].value);
        to->attention_exact.Add(text.layers[layer].attention_exact);
        to->attention.Add(text.layers[layer].attention);
      }
    }
  }
  row.steps = all.Means();
  for (size_t i = 0; i < deciles.size(); ++i) row.deciles[i] = deciles[i].Means();
  row.kl_p99 = Quantile(kls, 0.99);
  row.kl_interval = BootstrapMean(kl_of_text);
  const Interval nll_more = BootstrapMean(nll_more_of_text);
  row.ppl_interval = {std::exp(nll_more.low), std::exp(nll_more.high)};
  row.ppl = std::exp(Mean(nlls));
  row.same_greedy_tokens = Mean(row.samples.same_greedy);
  return row;
}

std::string CodecTableHead() {
  return absl::StrFormat(
      "  %-14s %6s %6s %6s %6s %6s %6s %6s %6s %9s %-19s %9s %6s %7s %-15s %6s  %s", "codec",
      "bits", "K", "V", "ratio", "K err", "V err", "attn1", "attn", "KL", "[95%]", "KL p99",
      "top-1", "PPL x", "[95%]", "same64", "needles %");
}

std::string CodecTableLine(const QualityRow& row) {
  const double bits = row.bytes.all.bits();
  return absl::StrFormat(
      "  %-14s %6.3f %6.3f %6.3f %6.3f %6.4f %6.4f %6.4f %6.4f %9.3g [%8.2g, %8.2g] %9.3g %5.1f%% "
      "%7.4f [%6.4f,%7.4f] %6.1f  %s",
      row.name, bits, row.bytes.keys.bits(), row.bytes.values.bits(), bits > 0 ? 16 / bits : 0,
      row.all_layers.key.value(), row.all_layers.value.value(),
      row.all_layers.attention_exact.value(), row.all_layers.attention.value(), row.steps.kl,
      row.kl_interval.low, row.kl_interval.high, row.kl_p99, 100 * row.steps.top1,
      row.steps.ppl_ratio, row.ppl_interval.low, row.ppl_interval.high, row.same_greedy_tokens,
      Needles(row.needles));
}

std::string RetentionTableHead() {
  return absl::StrFormat("  %-14s %6s %9s %-19s %9s %6s %7s %-15s  %-20s  %s", "policy", "kept",
                         "KL", "[95%]", "KL p99", "top-1", "PPL x", "[95%]", "needles %",
                         "question seen %");
}

std::string RetentionTableLine(const QualityRow& row) {
  return absl::StrFormat(
      "  %-14s %5.1f%% %9.3g [%8.2g, %8.2g] %9.3g %5.1f%% %7.4f [%6.4f,%7.4f]  %-20s  %s", row.name,
      100 * row.kept.value_or(1), row.steps.kl, row.kl_interval.low, row.kl_interval.high,
      row.kl_p99, 100 * row.steps.top1, row.steps.ppl_ratio, row.ppl_interval.low,
      row.ppl_interval.high, Needles(row.needles), Needles(row.needles_asked));
}

std::string ToJson(const QualityRow& row) {
  const auto each = [](const auto& items, auto to_json) {
    return absl::StrCat("[",
                        absl::StrJoin(items, ", ",
                                      [&](std::string* out, const auto& item) {
                                        absl::StrAppend(out, to_json(item));
                                      }),
                        "]");
  };
  return absl::StrCat(
      absl::StrFormat("{\"name\": \"quality\", \"model\": \"%s\", \"%s\": \"%s\", \"kept\": %.6g, "
                      "\"texts\": %d, \"text_tokens\": %d, \"page_tokens\": %d, ",
                      absl::CEscape(row.model), row.kept.has_value() ? "policy" : "codec", row.name,
                      row.kept.value_or(1), row.texts, row.text_tokens, kPageTokens),
      absl::StrFormat("\"bits\": %.6g, \"bits_keys\": %.6g, \"bits_values\": %.6g, "
                      "\"bits_headers\": %.6g, ",
                      row.bytes.all.bits(), row.bytes.keys.bits(), row.bytes.values.bits(),
                      row.bytes.headers.bits()),
      absl::StrFormat("\"kl\": %.6g, \"kl_interval\": %s, \"kl_p99\": %.6g, \"top1\": %.6g, "
                      "\"ppl\": %.6g, \"ppl_ratio\": %.6g, \"ppl_ratio_interval\": %s, "
                      "\"same_greedy_tokens\": %s, ",
                      row.steps.kl, JsonInterval(row.kl_interval), row.kl_p99, row.steps.top1,
                      row.ppl, row.steps.ppl_ratio, JsonInterval(row.ppl_interval),
                      row.kept.has_value() ? "null" : absl::StrCat(row.same_greedy_tokens)),
      "\"needle_depths\": [", absl::StrJoin(kNeedleDepths, ", "),
      "], \"needles\": ", JsonNeedles(row.needles),
      ", \"needles_question_seen\": ", JsonNeedles(row.needles_asked),
      ", \"error\": ", JsonLayer(row.all_layers), ", \"layers\": ", each(row.layers, JsonLayer),
      ", \"deciles\": ", each(row.deciles, JsonSteps), ", \"evidence\": \"measured\"}");
}

}  // namespace forebay::bench
