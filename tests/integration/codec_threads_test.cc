// Pages that are encoded and decoded by threads of the client's, against a node on a thread of its
// own, over the same host and TCP.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "client/pool_client.h"
#include "tests/integration/client_world.h"
#include "tests/integration/real_node.h"

namespace forebay {
namespace {

using ::forebay::testing::EngineMemory;
using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::forebay::testing::RealNode;
using ::forebay::testing::SpecOf;
using ::forebay::testing::Tokens;
using ::testing::HasSubstr;

constexpr uint32_t kPageTokens = 32;
constexpr uint32_t kPages = 64;

KvLayout Layout() { return KvLayout::Uniform(4, 4, 64, DType::kBf16, kPageTokens, 1); }

// Numbers between 1 and 2, so that no codec gives up on them.
void FillNumbers(EngineMemory& memory) {
  SeededRandom random(1);
  for (size_t i = 0; i + 1 < memory.bytes.size(); i += 2) {
    const auto bf16 = static_cast<uint16_t>(0x3f80 | random.Below(128));
    std::memcpy(memory.bytes.data() + i, &bf16, sizeof(bf16));
  }
}

// Threads, path, who drives.
class CodecThreadsTest : public ::testing::TestWithParam<std::tuple<int, PathChoice, Progress>> {
 protected:
  void SetUp() override {
    ClientOptions options;
    options.daemons = {{node_.control()}};
    options.codec = "lossless_fast";
    std::tie(options.codec_threads, options.path, options.progress) = GetParam();
    auto client = PoolClient::Connect(std::move(options));
    FB_ASSERT_OK(client);
    client_ = *std::move(client);
    auto ns = client_->OpenNamespace(SpecOf(Layout()), 5 * kSecond).Wait();
    FB_ASSERT_OK(ns);
    ns_ = *ns;
    keys_ = PageKeysOf(ns_->root(), Tokens(kPages * kPageTokens), kPageTokens);
    FillNumbers(source_);
  }
  void PublishAll() {
    const auto published = ns_->Publish(keys_, source_.view, {}).Wait();
    FB_ASSERT_OK(published);
    ASSERT_EQ(published->pages_stored, kPages) << published->first_error;
    ASSERT_LT(published->bytes, source_.bytes.size() * 4 / 5);
  }

  RealNode node_;
  std::unique_ptr<PoolClient> client_;
  std::shared_ptr<PoolNamespace> ns_;
  std::vector<PageKey> keys_;
  EngineMemory source_{Layout(), kPages};
  EngineMemory target_{Layout(), kPages};
};

TEST_P(CodecThreadsTest, EveryPageComesBackBitByBit) {
  PublishAll();
  auto hit = ns_->Lookup(keys_, {}).Wait();
  FB_ASSERT_OK(hit);
  ASSERT_EQ(hit->page_count(), kPages);
  const FetchHandle fetch = ns_->Fetch(*hit, target_.view, {});
  for (uint32_t layer = 0; layer < 4; ++layer) EXPECT_TRUE(fetch.WaitLayer(layer));
  const auto fetched = fetch.Wait();
  FB_ASSERT_OK(fetched);
  EXPECT_EQ(fetched->page_count, kPages);
  EXPECT_EQ(target_.bytes, source_.bytes);
  EXPECT_LT(fetched->bytes, source_.bytes.size() * 4 / 5);
  EXPECT_EQ(fetched->bytes, fetched->bytes_local + fetched->bytes_tcp);
}

// At whatever point of its work a fetch is told to end: then nobody writes the memory any more, and
// the client is as good as before.
TEST_P(CodecThreadsTest, AFetchThatIsCancelledLeavesTheMemoryAlone) {
  PublishAll();
  for (int delay_us = 0; delay_us < 3000; delay_us += 200) {
    auto hit = ns_->Lookup(keys_, {}).Wait();
    FB_ASSERT_OK(hit);
    const FetchHandle fetch = ns_->Fetch(*hit, target_.view, {});
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    fetch.Cancel();
    const auto ended = fetch.Wait();
    if (!ended.ok()) {
      EXPECT_THAT(ended, HasCode(absl::StatusCode::kCancelled));
    }
    std::memset(target_.bytes.data(), 0x5a, target_.bytes.size());
    const std::vector<std::byte> left = target_.bytes;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(target_.bytes, left);
  }
  auto hit = ns_->Lookup(keys_, {}).Wait();
  FB_ASSERT_OK(hit);
  const auto fetched = ns_->Fetch(*hit, target_.view, {}).Wait();
  FB_ASSERT_OK(fetched);
  EXPECT_EQ(target_.bytes, source_.bytes);
}

// The memory may be written again as soon as the publish has ended; what was stored by then is
// right, and a later publish stores the rest.
TEST_P(CodecThreadsTest, APublishThatIsCancelledStoresNothingWrong) {
  const std::vector<std::byte> good = source_.bytes;
  for (int delay_us = 0; delay_us < 2000; delay_us += 200) {
    source_.bytes = good;
    auto publish = ns_->Publish(keys_, source_.view, {});
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    publish.Cancel();
    const auto ended = publish.Wait();
    if (!ended.ok()) {
      EXPECT_THAT(ended, HasCode(absl::StatusCode::kCancelled));
    }
    std::memset(source_.bytes.data(), 0x5a, source_.bytes.size());
    auto hit = ns_->Lookup(keys_, {}).Wait();
    FB_ASSERT_OK(hit);
    const auto fetched = ns_->Fetch(*hit, target_.view, {}).Wait();
    FB_ASSERT_OK(fetched);
    ASSERT_EQ(fetched->page_count, hit->page_count());
    EngineMemory expected(Layout(), kPages);
    std::vector<MutableBytes> runs, wanted;
    expected.bytes = good;
    for (uint32_t page = 0; page < fetched->page_count; ++page) {
      for (const PartSpec& part : Layout().Parts()) {
        target_.view.PartRuns(Layout(), part, page, &runs);
        expected.view.PartRuns(Layout(), part, page, &wanted);
        for (size_t i = 0; i < runs.size(); ++i) {
          ASSERT_EQ(std::memcmp(runs[i].data(), wanted[i].data(), runs[i].size()), 0);
        }
      }
    }
  }
  source_.bytes = good;
  const auto published = ns_->Publish(keys_, source_.view, {}).Wait();
  FB_ASSERT_OK(published);
  EXPECT_EQ(published->pages_stored, kPages) << published->first_error;
}

TEST_P(CodecThreadsTest, ACallWithoutTimeEndsAndTheClientMayGo) {
  PublishOptions hurried;
  hurried.deadline = 1;
  const auto published = ns_->Publish(keys_, source_.view, hurried).Wait();
  EXPECT_FALSE(published.ok() && published->pages_stored == kPages);
  // Dropped with work under way.
  auto dropped = ns_->Publish(keys_, source_.view, {});
  client_.reset();
  EXPECT_TRUE(dropped.IsReady());
}

TEST(CodecThreadsOptionsTest, AWrongNumberIsNamed) {
  ClientOptions options;
  options.daemons = {{"127.0.0.1:1"}};
  for (int threads : {-2, 257}) {
    options.codec_threads = threads;
    EXPECT_THAT(PoolClient::Connect(options),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("codec_threads")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CodecThreadsTest,
    ::testing::Combine(::testing::Values(0, 1, 3),
                       ::testing::Values(PathChoice::kLocal, PathChoice::kTcp),
                       ::testing::Values(Progress::kThread, Progress::kCaller)),
    [](const auto& param) {
      return absl::StrCat(std::get<0>(param.param), "_", PathName(std::get<1>(param.param)),
                          std::get<2>(param.param) == Progress::kCaller ? "_caller" : "_thread");
    });

}  // namespace
}  // namespace forebay
