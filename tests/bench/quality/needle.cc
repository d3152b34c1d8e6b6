#include "tests/bench/quality/needle.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace forebay::bench {
namespace {

using examples::Checkpoint;
using examples::ForwardHooks;
using examples::Inference;
using examples::PagedCache;

constexpr uint32_t kContextTokens = 768;
constexpr uint32_t kPagedTokens = kContextTokens - kPageTokens;  // in pages, before the question
constexpr uint32_t kAnswerTokens = 4;
constexpr int kOtherNeedles = 2;

std::vector<uint32_t> BytesOf(const std::string& text) {
  std::vector<uint32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

std::string Draw(SeededRandom* random, char first, uint64_t letters) {
  std::string text;
  for (int i = 0; i < 4; ++i) text += static_cast<char>(first + random->Below(letters));
  return text;
}

// A text of kContextTokens bytes that ends in the question, and its answer.
std::string NeedleText(SeededRandom* random, const std::string& filler, double depth) {
  const std::string key = Draw(random, 'A', 26), value = Draw(random, '0', 10);
  const std::string line = absl::StrCat(" [key ", key, value, "]");
  const std::string question = absl::StrCat(" [ask ", key);
  const size_t room = kContextTokens - question.size() - line.size() * (1 + kOtherNeedles);
  std::vector<std::pair<size_t, std::string>> places;
  places.emplace_back(static_cast<size_t>(depth * static_cast<double>(room)), line);
  for (int i = 0; i < kOtherNeedles; ++i) {
    const std::string other_key = Draw(random, 'A', 26);
    places.emplace_back(random->Below(room + 1),
                        absl::StrCat(" [key ", other_key, Draw(random, '0', 10), "]"));
  }
  std::sort(places.begin(), places.end());
  std::string text;
  size_t at = 0;
  for (const auto& [place, needle] : places) {
    absl::StrAppend(&text, filler.substr(at, place - at), needle);
    at = place;
  }
  return absl::StrCat(text, filler.substr(at, room - at), question, value);
}

}  // namespace

bool NeedleTest::Suits(const Checkpoint& model) {
  if (model.vocabulary != 256 || model.context_tokens < kContextTokens + kAnswerTokens) {
    return false;
  }
  // The worked example of examples/tiny_model/README.md.
  const std::vector<uint32_t> text = BytesOf(
      "The waters were upon the earth. [key NOAH0150] And God remembered every living "
      "thing. [ask NOAH0150");
  PagedCache cache = MakeCache(model, static_cast<uint32_t>(text.size()));
  Inference inference(model, cache);
  auto at = static_cast<uint32_t>(text.size()) - kAnswerTokens;
  uint32_t token = Inference::Greedy(inference.Forward(absl::MakeSpan(text).first(at), 0));
  while (at < text.size() && token == text[at]) {
    token = Inference::Greedy(inference.Forward({&token, 1}, at++));
  }
  return at == text.size();
}

NeedleTest::NeedleTest(const Checkpoint& model, uint32_t cases_a_depth) : model_(model) {
  SeededRandom random(1);
  for (uint32_t i = 0; i < cases_a_depth; ++i) {
    std::string filler;
    const uint32_t brackets[] = {'[', ']'};
    for (const uint32_t token : SampleText(model, kContextTokens, 1000 + i, brackets)) {
      filler += static_cast<char>(token);
    }
    for (size_t depth = 0; depth < kNeedleDepths.size(); ++depth) {
      std::vector<uint32_t> tokens = BytesOf(NeedleText(&random, filler, kNeedleDepths[depth]));
      Prefix prefix = ComputePrefix(model, tokens, {kPagedTokens, kContextTokens});
      Case c{depth, std::move(tokens), std::move(prefix)};
      if (Answers(c, c.prefix.cache, kContextTokens - 1, {})) cases_.push_back(std::move(c));
    }
  }
}

// One pass will do: greedy decoding gives the answer exactly when each of its tokens is the
// likeliest after those before it.
bool NeedleTest::Answers(const Case& c, PagedCache cache, uint32_t begin,
                         absl::Span<const RetentionMask> masks) const {
  bool right = true;
  ForwardHooks hooks = Bf16Hooks(model_, cache);
  hooks.masks = masks;
  hooks.logits = [&](uint32_t position, absl::Span<const float> logits) {
    for (size_t t = 0; t < logits.size() / model_.vocabulary; ++t) {
      if (position + t + 1 < kContextTokens) continue;
      const auto row = logits.subspan(t * model_.vocabulary, model_.vocabulary);
      const auto top = std::max_element(row.begin(), row.end()) - row.begin();
      right = right && static_cast<uint32_t>(top) == c.tokens[position + t + 1];
    }
  };
  const auto tail = absl::MakeSpan(c.tokens).subspan(begin, c.tokens.size() - 1 - begin);
  Inference(model_, cache).Forward(tail, begin, hooks);
  return right;
}

template <typename Answer>
absl::StatusOr<NeedleShares> NeedleTest::Count(Answer answer) const {
  NeedleShares right{}, all{};
  for (const Case& c : cases_) {
    FB_ASSIGN_OR_RETURN(const bool is_right, answer(c));
    right[c.depth] += is_right ? 1 : 0;
    all[c.depth] += 1;
  }
  for (size_t i = 0; i < right.size(); ++i) right[i] = all[i] > 0 ? right[i] / all[i] : 0;
  return right;
}

absl::StatusOr<NeedleShares> NeedleTest::Through(const Codec& codec) const {
  const PageCoder coder(model_, codec);
  return Count([&](const Case& c) -> absl::StatusOr<bool> {
    PagedCache cache = c.prefix.cache;
    for (uint32_t page = 0; page < kPagedTokens / kPageTokens; ++page) {
      FB_RETURN_IF_ERROR(coder.Code(cache, page, nullptr));
    }
    return Answers(c, std::move(cache), kPagedTokens, {});
  });
}

absl::StatusOr<NeedleShares> NeedleTest::Under(const RetentionPolicy& policy, double fraction,
                                               Moment moment) const {
  return Count([&](const Case& c) -> absl::StatusOr<bool> {
    const MassRecorder& mass = c.prefix.masses[static_cast<size_t>(moment)];
    FB_ASSIGN_OR_RETURN(const std::vector<RetentionMask> masks, policy.plan(mass, fraction));
    return Answers(c, c.prefix.cache, mass.tokens(), masks);
  });
}

}  // namespace forebay::bench
