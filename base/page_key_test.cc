#include "base/page_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "absl/hash/hash_testing.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;

PageKey KeyOfHex(absl::string_view hex) { return PageKey::FromHex(hex).value(); }

std::vector<uint32_t> CountingTokens(size_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// Values from Python's hashlib and struct.
TEST(PageKeyTest, GoldenKeys) {
  EXPECT_EQ(NextPageKey(PageKey{}, {1, 2, 3, 4}).ToHex(),
            "d8faa8ec8c0500567ca87b56e4bb666d69cb512e638103891defea24e88cbc92");
  EXPECT_EQ(NextPageKey(PageKey{}, {1, 2}, {"img"}).ToHex(),
            "38059d364f2bae9fda38c4e1542e4fee06a83d3ec78cebd9fb9f6e225427df01");
  std::array<uint8_t, 32> engine_hash;
  std::iota(engine_hash.begin(), engine_hash.end(), uint8_t{0});
  EXPECT_EQ(BindEngineHash(PageKey{}, engine_hash).ToHex(),
            "c057a52971e435de9d905f2d9ebd02437d9f570f9810de01175cef72201210d2");

  const PageKey root = KeyOfHex("20c2028353838912c7e0d39f610ce876b6afda6b40094f712d098889a5820145");
  const std::vector<PageKey> keys = PageKeysOf(root, CountingTokens(8), /*page_tokens=*/4);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].ToHex(), "cb1763fb478b65e26f319491aad9b7fb8b21c3c369974d1dead984645ab93b44");
  EXPECT_EQ(keys[1].ToHex(), "aa37d2226f98289d391d56f3043abdf3f44e4c316d8479e6f82df141eb40e7c5");
}

TEST(PageKeyTest, ATrailingPartOfAPageHasNoKey) {
  EXPECT_EQ(PageKeysOf(PageKey{}, CountingTokens(7), 4).size(), 1u);
  EXPECT_TRUE(PageKeysOf(PageKey{}, CountingTokens(3), 4).empty());
  EXPECT_TRUE(PageKeysOf(PageKey{}, {}, 4).empty());
}

// A key stands for all tokens before it: a change in page 1 changes every later key, and no
// earlier.
TEST(PageKeyTest, AKeyDependsOnEveryTokenBeforeIt) {
  std::vector<uint32_t> tokens = CountingTokens(16);
  const std::vector<PageKey> before = PageKeysOf(PageKey{}, tokens, 4);
  tokens[5] ^= 0x80000000;
  const std::vector<PageKey> after = PageKeysOf(PageKey{}, tokens, 4);
  EXPECT_EQ(before[0], after[0]);
  for (size_t i = 1; i < before.size(); ++i) EXPECT_NE(before[i], after[i]) << i;
}

// Every way to cut the same bytes into tokens and extras is another page.
TEST(PageKeyTest, TokensAndExtrasAreNeverTakenForEachOther) {
  const std::string one_token("\x01\x00\x00\x00", 4);
  const std::string two_tokens("\x01\x00\x00\x00\x02\x00\x00\x00", 8);
  const PageKey parent;
  std::set<PageKey> keys;
  const auto add = [&](absl::Span<const uint32_t> tokens,
                       absl::Span<const absl::string_view> extras) {
    EXPECT_TRUE(keys.insert(NextPageKey(parent, tokens, extras)).second)
        << tokens.size() << " tokens, " << extras.size() << " extras";
  };
  add({}, {});
  add({1}, {});
  add({1, 2}, {});
  add({}, {one_token});
  add({}, {two_tokens});
  add({1}, {"\x02"});
  add({1}, {one_token});
  add({}, {one_token, one_token});
  add({}, {""});
  add({}, {"", ""});
  add({1}, {""});
  add({}, {"ab", "c"});
  add({}, {"a", "bc"});
  add({}, {"abc"});
  add({}, {"abc", ""});
  add({}, {"", "abc"});
  EXPECT_TRUE(keys.insert(BindEngineHash(parent, parent.bytes)).second);
}

// The bytes of an engine's hash are not a page's tokens, and the other way round.
TEST(PageKeyTest, EngineHashesAreADomainOfTheirOwn) {
  std::array<uint8_t, 32> engine_hash{};
  const PageKey bound = BindEngineHash(PageKey{}, engine_hash);
  EXPECT_NE(bound, NextPageKey(PageKey{}, std::vector<uint32_t>(8, 0)));
  EXPECT_NE(bound.bytes, engine_hash);
  engine_hash[31] = 1;
  EXPECT_NE(BindEngineHash(PageKey{}, engine_hash), bound);
  PageKey other_root;
  other_root.bytes[0] = 1;
  EXPECT_NE(BindEngineHash(other_root, {}), bound);
}

TEST(PageKeyTest, HexGoesThereAndBack) {
  const PageKey key = NextPageKey(PageKey{}, {1});
  const absl::StatusOr<PageKey> parsed = PageKey::FromHex(key.ToHex());
  FB_ASSERT_OK(parsed);
  EXPECT_EQ(*parsed, key);
  for (const std::string& bad : {std::string(), std::string(63, '0'), std::string(65, '0'),
                                 std::string(63, '0') + "g", std::string(63, '0') + " "}) {
    EXPECT_THAT(PageKey::FromHex(bad), HasCode(absl::StatusCode::kInvalidArgument)) << bad;
  }
}

TEST(PageKeyTest, HashesLikeItCompares) {
  const PageKey a = NextPageKey(PageKey{}, {1});
  const PageKey b = NextPageKey(PageKey{}, {2});
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly({PageKey{}, a, b}));
  EXPECT_NE(a.Prefix64(), b.Prefix64());
}

}  // namespace
}  // namespace forebay
