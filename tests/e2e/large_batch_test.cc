// More than 2 GiB in one call: where a length of 32 bits would show.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "tests/e2e/pool_user.h"

namespace forebay::testing {
namespace {

constexpr uint32_t kPages = 264;  // of 8 MiB, two parts of 4 MiB: 2.06 GiB
constexpr uint32_t kBlocks = 3;   // of the writer's memory; page i is block i % 3
constexpr Nanos kDeadline = 50 * kSecond;

KvLayout LargeLayout() {
  return KvLayout::Uniform(/*layer_count=*/2, /*kv_heads=*/8, /*head_dim=*/512, DType::kBf16,
                           /*page_tokens=*/256, /*layers_per_part=*/1);
}

class LargeBatchTest : public ::testing::TestWithParam<PathChoice> {};

TEST_P(LargeBatchTest, ComesBackWhole) {
  const KvLayout layout = LargeLayout();
  const size_t page_bytes = layout.PageBytes();
  ASSERT_EQ(page_bytes, size_t{8} << 20);
  ASSERT_GT(page_bytes * kPages, uint64_t{1} << 31);
  const TemporaryFolder folder;
  DaemonProcess::Options large;
  large.capacity_bytes = uint64_t{3} << 30;
  auto daemon = DaemonProcess::Start(folder, large);
  FB_ASSERT_OK(daemon);
  PoolUser::Options options;
  options.daemons = {(*daemon)->control()};
  options.path = GetParam();
  options.spec = SpecNamed("large", layout);
  auto user = PoolUser::Open(options);
  FB_ASSERT_OK(user);

  PageMemory source(layout, kBlocks);
  SeededRandom random(11);
  for (size_t i = 0; i < source.bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random.Next();
    std::memcpy(source.bytes.data() + i, &word, sizeof(word));
  }
  KvView view = source.view;
  ASSERT_EQ(view.block_tokens, layout.page_tokens);
  view.block_table.resize(kPages);
  for (uint32_t page = 0; page < kPages; ++page) view.block_table[page] = page % kBlocks;
  const auto keys = user->Chain(kPages);
  PublishOptions publish;
  publish.deadline = kDeadline;
  const auto published = user->ns().Publish(keys, view, publish).Wait();
  FB_ASSERT_OK(published);
  ASSERT_EQ(published->pages_stored, kPages) << published->first_error;
  EXPECT_EQ(published->bytes, page_bytes * kPages);

  LookupOptions lookup;
  lookup.deadline = kDeadline;
  lookup.lease_ms = 30'000;
  auto hit = user->ns().Lookup(keys, lookup).Wait();
  FB_ASSERT_OK(hit);
  ASSERT_EQ(hit->page_count(), kPages);
  PageMemory target(layout, kPages);
  FetchOptions fetch;
  fetch.deadline = kDeadline;
  const auto fetched = user->ns().Fetch(*hit, target.view, fetch).Wait();
  FB_ASSERT_OK(fetched);
  EXPECT_EQ(fetched->page_count, kPages);
  EXPECT_EQ(fetched->bytes, page_bytes * kPages);
  for (uint32_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(std::memcmp(target.bytes.data() + page * page_bytes,
                          source.bytes.data() + (page % kBlocks) * page_bytes, page_bytes),
              0)
        << "page " << page;
  }
  const auto released = hit->Release().Wait();
  FB_ASSERT_OK(released);
  EXPECT_TRUE(*released);
  FB_EXPECT_OK(AwaitQuiet((*daemon)->control(), 10 * kSecond));
}

INSTANTIATE_TEST_SUITE_P(Paths, LargeBatchTest,
                         ::testing::Values(PathChoice::kLocal, PathChoice::kTcp),
                         [](const auto& p) { return std::string(PathName(p.param)); });

}  // namespace
}  // namespace forebay::testing
