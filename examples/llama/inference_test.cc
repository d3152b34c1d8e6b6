#include "examples/llama/inference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/testing/status_matchers.h"

namespace forebay::examples {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

constexpr uint32_t kBlockTokens = 16;

std::string TinyModel() {
  return std::string(FOREBAY_SOURCE_DIR) + "/examples/models/forebay_tiny.bin";
}

std::vector<uint32_t> BytesOf(const std::string& text) {
  std::vector<uint32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

std::string Continue(const Checkpoint& model, const std::vector<uint32_t>& prompt, uint32_t count) {
  PagedCache cache(model, kBlockTokens, 64);
  EXPECT_TRUE(cache.Reserve(static_cast<uint32_t>(prompt.size()) + count));
  Inference inference(model, cache);
  uint32_t token = Inference::Greedy(inference.Forward(prompt, 0));
  std::string text(1, static_cast<char>(token));
  for (uint32_t i = 1; i < count; ++i) {
    token = Inference::Greedy(
        inference.Forward({&token, 1}, static_cast<uint32_t>(prompt.size()) + i - 1));
    text += static_cast<char>(token);
  }
  return text;
}

// The worked example of examples/tiny_model/README.md.
TEST(InferenceTest, TheTinyModelCopiesAValueFromItsContext) {
  const absl::StatusOr<Checkpoint> model = Checkpoint::Load(TinyModel());
  FB_ASSERT_OK(model);
  EXPECT_EQ(Continue(*model,
                     BytesOf("The waters were upon the earth. [key NOAH0150] And God remembered "
                             "every living thing. [ask NOAH"),
                     4),
            "0150");
}

// What the pool relies on: a token's logits do not depend on how the prompt was cut.
TEST(InferenceTest, LogitsAreEqualBitForBitHoweverThePromptIsCut) {
  const absl::StatusOr<Checkpoint> model = Checkpoint::Load(TinyModel());
  FB_ASSERT_OK(model);
  const std::vector<uint32_t> prompt = BytesOf(
      "In the beginning God created the heaven and the earth. And the earth was without "
      "form, and void; and darkness was upon the face of the deep.");
  std::vector<float> whole;
  {
    PagedCache cache(*model, kBlockTokens, 32);
    ASSERT_TRUE(cache.Reserve(static_cast<uint32_t>(prompt.size())));
    whole = Inference(*model, cache).Forward(prompt, 0);
  }
  for (const size_t cut : {1ul, 16ul, 33ul, prompt.size() - 1}) {
    PagedCache cache(*model, kBlockTokens, 40);
    ASSERT_TRUE(cache.Reserve(static_cast<uint32_t>(prompt.size())));
    Inference inference(*model, cache);
    inference.Forward(absl::MakeSpan(prompt).subspan(0, cut), 0);
    const std::vector<float>& pieces =
        inference.Forward(absl::MakeSpan(prompt).subspan(cut), static_cast<uint32_t>(cut));
    EXPECT_EQ(std::memcmp(pieces.data(), whole.data(), whole.size() * sizeof(float)), 0) << cut;
  }
}

// A page that nobody filled must show: the cache starts as not-a-number.
TEST(InferenceTest, AMissingPageShowsInTheLogits) {
  const absl::StatusOr<Checkpoint> model = Checkpoint::Load(TinyModel());
  FB_ASSERT_OK(model);
  const std::vector<uint32_t> tail = BytesOf("and void");
  PagedCache cache(*model, kBlockTokens, 32);
  ASSERT_TRUE(cache.Reserve(kBlockTokens + static_cast<uint32_t>(tail.size())));
  EXPECT_TRUE(std::isnan(Inference(*model, cache).Forward(tail, kBlockTokens)[0]));
}

TEST(InferenceTest, EachTokensLogitsAreThoseOfItsOwnPrefix) {
  const absl::StatusOr<Checkpoint> model = Checkpoint::Load(TinyModel());
  FB_ASSERT_OK(model);
  const std::vector<uint32_t> prompt = BytesOf("In the beginning God created the heaven and");
  PagedCache cache(*model, kBlockTokens, 4);
  ASSERT_TRUE(cache.Reserve(64));
  Inference inference(*model, cache);
  std::vector<float> all;
  ForwardHooks hooks;
  hooks.logits = [&](uint32_t position, absl::Span<const float> logits) {
    EXPECT_EQ(position * model->vocabulary, all.size());
    all.insert(all.end(), logits.begin(), logits.end());
  };
  inference.Forward(prompt, 0, hooks);
  ASSERT_EQ(all.size(), prompt.size() * model->vocabulary);
  for (size_t t = 0; t < prompt.size(); ++t) {
    const auto& logits = inference.Forward({&prompt[t], 1}, static_cast<uint32_t>(t));
    EXPECT_EQ(std::memcmp(logits.data(), &all[t * logits.size()], logits.size() * sizeof(float)), 0)
        << t;
  }
}

// A dropped token is as if it were not there, whatever its memory holds.
TEST(InferenceTest, ADroppedTokenIsNotRead) {
  const absl::StatusOr<Checkpoint> model = Checkpoint::Load(TinyModel());
  FB_ASSERT_OK(model);
  const std::vector<uint32_t> prompt = BytesOf("In the beginning God created the heaven");
  PagedCache cache(*model, kBlockTokens, 4);
  ASSERT_TRUE(cache.Reserve(64));
  Inference inference(*model, cache);
  const uint32_t last = static_cast<uint32_t>(prompt.size()) - 1;
  const std::vector<float> with_all = inference.Forward(prompt, 0);
  RetentionMask mask = RetentionMask::DropAll(20, model->kv_head_count);
  for (uint32_t head = 0; head < mask.scopes; ++head) {
    for (uint32_t token = 0; token < 20; ++token) {
      if (token != 5) mask.Keep(head, token);
    }
  }
  const std::vector<RetentionMask> masks(model->layer_count, mask);
  ForwardHooks hooks;
  hooks.masks = masks;
  float sum = 0;
  hooks.probabilities = [&](uint32_t layer, uint32_t position, uint32_t head,
                            absl::Span<const float> probabilities) {
    EXPECT_EQ(position, last);
    ASSERT_EQ(probabilities.size(), prompt.size());
    EXPECT_EQ(probabilities[5], 0) << layer << " " << head;
    for (const float p : probabilities) sum += p;
  };
  const std::vector<float> dropped = inference.Forward({&prompt[last], 1}, last, hooks);
  EXPECT_NE(dropped, with_all);
  EXPECT_NEAR(sum, static_cast<float>(model->layer_count * model->head_count), 1e-3);
  for (uint32_t layer = 0; layer < model->layer_count; ++layer) {
    for (float* row : {cache.Key(layer, 5), cache.Value(layer, 5)}) {
      std::fill(row, row + model->kv_dim(), std::nanf(""));
    }
  }
  EXPECT_EQ(inference.Forward({&prompt[last], 1}, last, hooks), dropped);
  EXPECT_TRUE(std::isnan(inference.Forward({&prompt[last], 1}, last)[0]));
}

// Nothing is kept of one head alone: the others go on.
TEST(InferenceTest, AMaskIsOfItsOwnHead) {
  const absl::StatusOr<Checkpoint> model = Checkpoint::Load(TinyModel());
  FB_ASSERT_OK(model);
  PagedCache cache(*model, kBlockTokens, 4);
  ASSERT_TRUE(cache.Reserve(64));
  Inference inference(*model, cache);
  std::vector<RetentionMask> masks(model->layer_count,
                                   RetentionMask::KeepAll(4, model->kv_head_count));
  masks[1] = RetentionMask::DropAll(4, model->kv_head_count);
  for (uint32_t token = 0; token < 4; ++token) masks[1].Keep(0, token);
  ForwardHooks hooks;
  hooks.masks = masks;
  const uint32_t share = model->head_count / model->kv_head_count;
  // What the four tokens got, of all queries.
  std::vector<std::vector<float>> got(model->layer_count, std::vector<float>(model->head_count));
  hooks.probabilities = [&](uint32_t layer, uint32_t, uint32_t head,
                            absl::Span<const float> probabilities) {
    for (uint32_t token = 0; token < 4; ++token) got[layer][head] += probabilities[token];
  };
  inference.Forward(BytesOf("In t"), 0);
  inference.Forward(BytesOf("he beginning"), 4, hooks);
  for (uint32_t layer = 0; layer < model->layer_count; ++layer) {
    for (uint32_t head = 0; head < model->head_count; ++head) {
      EXPECT_EQ(got[layer][head] == 0, layer == 1 && head >= share) << layer << " " << head;
    }
  }
}

TEST(CheckpointTest, AMissingFileIsNamed) {
  EXPECT_THAT(Checkpoint::Load("no/such.bin"),
              HasStatus(absl::StatusCode::kNotFound, HasSubstr("no/such.bin")));
}

TEST(CheckpointTest, ACutOrForeignFileIsRefused) {
  const std::string path = ::testing::TempDir() + "/cut.bin";
  for (const auto& [resize_to, why] :
       {std::pair<uint64_t, const char*>{10, "too short"}, {100'000, "ends early"}}) {
    std::filesystem::copy_file(TinyModel(), path,
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(path, resize_to);
    EXPECT_THAT(Checkpoint::Load(path),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  }
  std::ofstream(path, std::ios::binary) << std::string(1000, '\xff');
  EXPECT_THAT(Checkpoint::Load(path), HasCode(absl::StatusCode::kInvalidArgument));
}

TEST(CheckpointTest, TheRevisionFollowsTheWeights) {
  const std::string path = ::testing::TempDir() + "/forebay_tiny.bin";
  std::filesystem::copy_file(TinyModel(), path, std::filesystem::copy_options::overwrite_existing);
  const absl::StatusOr<Checkpoint> same = Checkpoint::Load(path);
  FB_ASSERT_OK(same);
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(4096);
    file.put('\x55');
  }
  const absl::StatusOr<Checkpoint> other = Checkpoint::Load(path);
  FB_ASSERT_OK(other);
  EXPECT_EQ(same->name, other->name);
  EXPECT_NE(same->revision, other->revision);
}

}  // namespace
}  // namespace forebay::examples
