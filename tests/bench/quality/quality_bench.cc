// What each codec and each policy of retention costs in quality, on small real models.

#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tests/bench/pool_bench.h"
#include "tests/bench/quality/claims.h"
#include "tests/bench/quality/codec_rows.h"
#include "tests/bench/quality/row.h"

namespace forebay::bench {
namespace {

using examples::Checkpoint;

constexpr double kKeptFractions[] = {0.75, 0.5, 0.25};

// The model that every checkout has, and those that a folder beside it may hold.
std::vector<std::string> DefaultModels() {
  const std::string root = FOREBAY_SOURCE_DIR;
  const std::string shared = absl::StrCat(root, "/../shared/data/models/");
  return {absl::StrCat(root, "/examples/models/forebay_tiny.bin"),
          absl::StrCat(shared, "stories260K.bin"), absl::StrCat(shared, "babyllama_tok105.bin")};
}

// Prints rows as they come, and keeps them as JSON where a file is asked for. Knows which are
// wanted.
class QualityReport {
 public:
  QualityReport(const BenchOptions& options, Report* report)
      : report_(report), only_(options.only.begin(), options.only.end()), unseen_(only_) {
    if (!options.data_file.empty()) file_.open(options.data_file);
  }
  bool Wants(absl::string_view name) {
    unseen_.erase(std::string(name));
    return only_.empty() || only_.contains(std::string(name));
  }
  void Text(const std::string& line) { report_->Text(line); }
  void Row(const QualityRow& row, const std::string& line) {
    const std::string json = ToJson(row);
    report_->Json(json);
    report_->Text(line);
    if (file_.is_open()) file_ << json << std::endl;
    if (!row.kept.has_value()) codecs_.push_back(row);
  }
  // Checks what the rows since the last call have to show.
  void Claims(const Checkpoint& model) {
    const std::vector<Claim> claims = CheckClaims(codecs_);
    codecs_.clear();
    if (!claims.empty()) claims_.push_back(absl::StrCat("\n", model.name, ", what has to hold:"));
    for (const Claim& claim : claims) {
      claims_.push_back(ClaimLine(claim));
      failed_claims_ += claim.holds() ? 0 : 1;
      const std::string json = ToJson(claim);
      report_->Json(json);
      if (file_.is_open()) file_ << json << std::endl;
    }
  }
  void Finish() {
    for (const std::string& line : claims_) report_->Text(line);
  }
  bool failed() const { return !file_.good(); }
  int failed_claims() const { return failed_claims_; }
  const std::set<std::string>& unseen() const { return unseen_; }

 private:
  Report* report_;
  const std::set<std::string> only_;
  std::set<std::string> unseen_;  // of only_
  std::ofstream file_;
  std::vector<QualityRow> codecs_;
  std::vector<std::string> claims_;  // lines
  int failed_claims_ = 0;
};

absl::Status BenchCodecs(const Checkpoint& model, absl::Span<const Reference> texts,
                         const NeedleTest* needles, uint32_t calibration_tokens,
                         QualityReport* report) {
  report->Text(CodecTableHead());
  const auto text_tokens = static_cast<uint32_t>(texts[0].tokens.size());
  FB_ASSIGN_OR_RETURN(const CodecRows rows,
                      CodecRows::Create(
                          model, [&](absl::string_view name) { return report->Wants(name); },
                          text_tokens, calibration_tokens));
  for (const auto& codec : rows.codecs) {
    std::vector<SequenceQuality> qualities;
    for (const Reference& text : texts) {
      FB_ASSIGN_OR_RETURN(SequenceQuality quality, text.greedy.empty()
                                                       ? EvaluateSteps(model, text, *codec)
                                                       : Evaluate(model, text, *codec));
      qualities.push_back(std::move(quality));
    }
    QualityRow row = Summarize(qualities, texts[0].tokens.size());
    row.model = model.name;
    row.name = std::string(codec->name());
    if (needles != nullptr) {
      FB_ASSIGN_OR_RETURN(row.needles, needles->Through(*codec));
    }
    report->Row(row, CodecTableLine(row));
  }
  report->Claims(model);
  return absl::OkStatus();
}

absl::Status BenchPolicies(const Checkpoint& model, absl::Span<const Reference> texts,
                           const NeedleTest* needles, QualityReport* report) {
  std::vector<RetentionPolicy> policies;
  for (const RetentionPolicy& policy : RetentionPolicies()) {
    if (report->Wants(policy.name)) policies.push_back(policy);
  }
  if (policies.empty()) return absl::OkStatus();
  report->Text(RetentionTableHead());
  const auto half = static_cast<uint32_t>(texts[0].tokens.size() / 2 / kPageTokens * kPageTokens);
  std::vector<Prefix> prefixes;
  for (const Reference& text : texts) {
    prefixes.push_back(ComputePrefix(model, text.tokens, {half}));
  }
  for (const RetentionPolicy& policy : policies) {
    for (const double kept : kKeptFractions) {
      std::vector<SequenceQuality> qualities;
      for (size_t i = 0; i < texts.size(); ++i) {
        FB_ASSIGN_OR_RETURN(const std::vector<RetentionMask> masks,
                            policy.plan(prefixes[i].masses[0], kept));
        qualities.push_back(EvaluateMasks(model, texts[i], prefixes[i], masks));
      }
      QualityRow row = Summarize(qualities, texts[0].tokens.size());
      row.model = model.name;
      row.name = policy.name;
      row.kept = kept;
      if (needles != nullptr) {
        using Moment = NeedleTest::Moment;
        FB_ASSIGN_OR_RETURN(row.needles, needles->Under(policy, kept, Moment::kBeforeQuestion));
        FB_ASSIGN_OR_RETURN(row.needles_asked,
                            needles->Under(policy, kept, Moment::kAfterQuestion));
      }
      report->Row(row, RetentionTableLine(row));
    }
  }
  return absl::OkStatus();
}

absl::Status BenchModel(const BenchOptions& options, const Checkpoint& model,
                        QualityReport* report) {
  const uint32_t text_count = options.ByEffort(1u, 3u, 8u);
  const uint32_t more_texts = options.more_texts.value_or(options.ByEffort(0u, 0u, 24u));
  const uint32_t tokens = std::min(model.context_tokens / kPageTokens * kPageTokens,
                                   options.ByEffort(192u, 512u, 1024u));
  if (tokens < 3 * kPageTokens) {
    report->Text(absl::StrCat("\n", model.name, ": skipped, its context is too short"));
    return absl::OkStatus();
  }
  std::vector<Reference> texts;
  for (uint32_t i = 0; i < text_count + more_texts; ++i) {
    texts.push_back(
        ComputeReference(model, SampleText(model, tokens, i, {}), /*greedy=*/i < text_count));
  }
  std::unique_ptr<NeedleTest> needles;
  if (NeedleTest::Suits(model)) {
    needles = std::make_unique<NeedleTest>(model, options.ByEffort(1u, 4u, 10u));
  }
  report->Text(absl::StrFormat(
      "\n%s: %d layers, %d x %d, %d texts of its own of %d tokens%s, pages of %d, bf16; %s",
      model.name, model.layer_count, model.kv_head_count, model.head_dim(), text_count, tokens,
      more_texts == 0 ? "" : absl::StrCat(" and ", more_texts, " for steps alone"), kPageTokens,
      needles == nullptr ? "answers no needles"
                         : absl::StrCat(needles->case_count(), " needles answered")));
  FB_RETURN_IF_ERROR(
      BenchCodecs(model, texts, needles.get(), options.ByEffort(192u, 1024u, 2048u), report));
  return BenchPolicies(model, absl::MakeSpan(texts).first(text_count), needles.get(), report);
}

}  // namespace

absl::Status BenchQuality(const BenchOptions& options, Report* report) {
  QualityReport quality(options, report);
  quality.Text(
      "quality against the exact bf16 cache, teacher-forced. bits: of payloads, an element (the "
      "frames' headers and, once for all pages, the dictionary of\nuniform steps come on top); "
      "attn1: attention's output with all upstream exact; same64: greedy tokens after coded "
      "prefixes; needles: answers by depth 0 to 0.9.");
  const std::vector<std::string> models = options.models.empty() ? DefaultModels() : options.models;
  for (const std::string& path : models) {
    if (options.models.empty() && !std::filesystem::exists(path)) {
      quality.Text(absl::StrCat("\n", std::filesystem::path(path).stem().string(),
                                ": skipped, no such file"));
      continue;
    }
    FB_ASSIGN_OR_RETURN(const Checkpoint model, Checkpoint::Load(path));
    FB_RETURN_IF_ERROR(BenchModel(options, model, &quality));
    if (options.effort == Effort::kSmoke) break;
  }
  quality.Finish();
  if (quality.failed()) {
    return absl::UnavailableError(absl::StrCat("cannot write ", options.data_file));
  }
  if (!quality.unseen().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no row is named ", *quality.unseen().begin()));
  }
  if (options.check && quality.failed_claims() > 0) {
    return absl::FailedPreconditionError(absl::StrCat(quality.failed_claims(), " claims fail"));
  }
  return absl::OkStatus();
}

}  // namespace forebay::bench
