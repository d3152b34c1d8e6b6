#include "tests/bench/quality/claims.h"

#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace forebay::bench {
namespace {

// In bits an element, of payloads.
constexpr double kRawBits = 16;

const QualityRow* Find(absl::Span<const QualityRow> rows, absl::string_view name) {
  for (const QualityRow& row : rows) {
    if (row.name == name && !row.kept.has_value()) return &row;
  }
  return nullptr;
}

double Identity(double x) { return x; }
// From nats that a damaged cache loses a token to the distance of its perplexity ratio from 1.
double FromOne(double nats) { return std::abs(std::expm1(nats)); }

class Claims {
 public:
  explicit Claims(absl::Span<const QualityRow> rows) : rows_(rows) {}

  void AtMost(absl::string_view name, const char* column, double (*of)(const QualityRow&),
              double bound) {
    if (const QualityRow* row = Find(rows_, name)) {
      claims_.push_back({row->model, absl::StrCat(name, ": ", column), of(*row), bound});
    }
  }
  void AtLeast(absl::string_view name, const char* column, double (*of)(const QualityRow&),
               double bound) {
    if (const QualityRow* row = Find(rows_, name)) {
      claims_.push_back({row->model, absl::StrCat(name, ": ", column), of(*row), bound, true});
    }
  }
  void NoWorse(absl::string_view ours, absl::string_view theirs);

  std::vector<Claim> Take() && { return std::move(claims_); }

 private:
  absl::Span<const QualityRow> rows_;
  std::vector<Claim> claims_;
};

void Claims::NoWorse(absl::string_view ours, absl::string_view theirs) {
  const QualityRow* const a = Find(rows_, ours);
  const QualityRow* b = Find(rows_, absl::StrCat(theirs, "_across"));
  if (b == nullptr) b = Find(rows_, theirs);
  if (a == nullptr || b == nullptr) return;
  const auto add = [&](const char* column, double mine, double its, bool more_is_better = false) {
    claims_.push_back({a->model, absl::StrCat(ours, " beside ", b->name, ": ", column), mine, its,
                       more_is_better});
  };
  const auto pair = [&](const std::vector<double>& mine, const std::vector<double>& its,
                        double (*f)(double)) {
    claims_.back().difference = BootstrapDifference(mine, its, f);
  };
  add("bits", a->bytes.all.bits(), b->bytes.all.bits());
  add("K err", a->all_layers.key.value(), b->all_layers.key.value());
  add("V err", a->all_layers.value.value(), b->all_layers.value.value());
  add("attn1", a->all_layers.attention_exact.value(), b->all_layers.attention_exact.value());
  add("attn", a->all_layers.attention.value(), b->all_layers.attention.value());
  add("KL", a->steps.kl, b->steps.kl);
  pair(a->samples.kl, b->samples.kl, Identity);
  add("KL p99", a->kl_p99, b->kl_p99);
  add("top-1", a->steps.top1, b->steps.top1, true);
  pair(a->samples.top1, b->samples.top1, Identity);
  add("|PPL x - 1|", std::abs(a->steps.ppl_ratio - 1), std::abs(b->steps.ppl_ratio - 1));
  pair(a->samples.nll_more, b->samples.nll_more, FromOne);
  add("same64", a->same_greedy_tokens, b->same_greedy_tokens, true);
  pair(a->samples.same_greedy, b->samples.same_greedy, Identity);
  if (a->needles.has_value() && b->needles.has_value()) {
    add("needles", Mean(*a->needles), Mean(*b->needles), true);
  }
}

double Kl(const QualityRow& row) { return row.steps.kl; }
double Bits(const QualityRow& row) { return row.bytes.all.bits(); }
double Ratio(const QualityRow& row) { return kRawBits / row.bytes.all.bits(); }

}  // namespace

std::vector<Claim> CheckClaims(absl::Span<const QualityRow> rows) {
  Claims claims(rows);
  claims.AtMost("lossless", "KL", Kl, 0);
  claims.AtLeast("lossless", "ratio", Ratio, 1.45);
  claims.AtMost("lossless_fast", "KL", Kl, 0);
  claims.AtLeast("lossless_fast", "ratio", Ratio, 1.3);
  claims.AtMost("int8", "KL", Kl, 3e-3);
  claims.AtMost("k8v4", "KL", Kl, 6e-3);
  claims.AtMost("int4", "KL", Kl, 4e-2);
  claims.AtMost("uniform_4.5b", "bits", Bits, 4.5);
  claims.NoWorse("uniform_4.5b", "kivi4");
  claims.AtMost("uniform_2.2b", "bits", Bits, 2.2);
  claims.NoWorse("uniform_2.2b", "kivi2");
  return std::move(claims).Take();
}

std::string ClaimLine(const Claim& claim) {
  std::string line =
      absl::StrFormat("  %-5s  %-46s %9.4g %s %-9.4g", claim.holds() ? "holds" : "FAILS",
                      claim.what, claim.ours, claim.more_is_better ? ">=" : "<=", claim.bound);
  if (claim.holds() && claim.ours == claim.bound && claim.bound != 0) {
    absl::StrAppend(&line, " equal");
  }
  if (claim.difference.has_value()) {
    absl::StrAppendFormat(&line, " difference [%.2g, %.2g]", claim.difference->low,
                          claim.difference->high);
  }
  if (claim.in_doubt()) absl::StrAppend(&line, " in doubt");
  return line;
}

std::string ToJson(const Claim& claim) {
  const std::string difference =
      claim.difference.has_value()
          ? absl::StrFormat("[%.6g, %.6g]", claim.difference->low, claim.difference->high)
          : "null";
  return absl::StrFormat(
      "{\"name\": \"quality_claim\", \"model\": \"%s\", \"claim\": \"%s\", \"ours\": %.6g, "
      "\"bound\": %.6g, \"more_is_better\": %s, \"holds\": %s, \"difference_interval\": %s, "
      "\"evidence\": \"measured\"}",
      absl::CEscape(claim.model), claim.what, claim.ours, claim.bound,
      claim.more_is_better ? "true" : "false", claim.holds() ? "true" : "false", difference);
}

}  // namespace forebay::bench
