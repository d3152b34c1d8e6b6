// The client as an engine sees it, against nodes on threads of their own, over the same host and
// TCP.

#include "client/pool_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "base/testing/status_matchers.h"
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
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kPageTokens = 16;

KvLayout Layout() { return KvLayout::Uniform(4, 8, 64, DType::kBf16, kPageTokens, 1); }

std::vector<PageKey> Chain(const PageKey& root, uint32_t pages) {
  return PageKeysOf(root, Tokens(pages * kPageTokens), kPageTokens);
}

struct Param {
  PathChoice path;
  Progress progress;
};

class PoolClientTest : public ::testing::TestWithParam<Param> {
 public:
  ClientOptions Options(std::vector<DaemonAddress> daemons) const {
    ClientOptions options;
    options.daemons = std::move(daemons);
    options.path = GetParam().path;
    options.progress = GetParam().progress;
    return options;
  }
};

TEST_P(PoolClientTest, PublishesLooksUpFetchesAndReleases) {
  RealNode first;
  RealNode second;
  auto client = PoolClient::Connect(Options({{first.control()}, {second.control()}}));
  FB_ASSERT_OK(client);
  auto ns = (*client)->OpenNamespace(SpecOf(Layout()), 5 * kSecond).Wait();
  FB_ASSERT_OK(ns);
  const uint32_t pages = 100;
  const std::vector<PageKey> keys = Chain((*ns)->root(), pages);
  EngineMemory source(Layout(), pages);
  source.Fill(1);
  const auto published = (*ns)->Publish(keys, source.view, {}).Wait();
  FB_ASSERT_OK(published);
  EXPECT_EQ(published->pages_stored, pages) << published->first_error;

  auto hit = (*ns)->Lookup(keys, {}).Wait();
  FB_ASSERT_OK(hit);
  ASSERT_EQ(hit->page_count(), pages);
  EXPECT_GT(hit->fetch_estimate(), 0);
  EngineMemory target(Layout(), pages);
  const FetchHandle fetch = (*ns)->Fetch(*hit, target.view, {});
  for (uint32_t layer = 0; layer < 4; ++layer) EXPECT_TRUE(fetch.WaitLayer(layer));
  EXPECT_FALSE(fetch.WaitLayer(4));
  const auto fetched = fetch.Wait();
  FB_ASSERT_OK(fetched);
  EXPECT_EQ(fetched->page_count, pages);
  EXPECT_EQ(target.bytes, source.bytes);
  const bool local = GetParam().path != PathChoice::kTcp;
  EXPECT_EQ(fetched->bytes_local, local ? source.bytes.size() : 0u);
  EXPECT_EQ(fetched->bytes_tcp, local ? 0u : source.bytes.size());

  if (local) {
    const auto in_place = hit->View(3, 2);
    FB_ASSERT_OK(in_place);
    std::vector<MutableBytes> runs;
    source.view.PartRuns(Layout(), Layout().Parts()[2], 3, &runs);
    EXPECT_EQ(memcmp(in_place->data(), runs[0].data(), in_place->size()), 0);
  } else {
    EXPECT_THAT(hit->View(3, 2), HasCode(absl::StatusCode::kUnavailable));
  }
  const auto released = hit->Release().Wait();
  FB_ASSERT_OK(released);
  EXPECT_TRUE(*released);
  EXPECT_THAT(hit->View(3, 2), HasCode(absl::StatusCode::kUnavailable));
  for (const DaemonStatus& daemon : (*client)->daemons()) {
    EXPECT_TRUE(daemon.connected) << daemon.last_error;
    EXPECT_EQ(daemon.path, local ? "local" : "tcp");
  }
  EXPECT_THAT((*client)->MetricsText(), HasSubstr("forebay_client_pages_hit_total 100"));
}

TEST_P(PoolClientTest, ThreadsShareAClient) {
  RealNode node;
  auto client = PoolClient::Connect(Options({{node.control()}}));
  FB_ASSERT_OK(client);
  auto ns = (*client)->OpenNamespace(SpecOf(Layout()), 5 * kSecond).Wait();
  FB_ASSERT_OK(ns);
  const std::vector<PageKey> keys = Chain((*ns)->root(), 16);
  EngineMemory source(Layout(), 16);
  source.Fill(2);
  FB_ASSERT_OK((*ns)->Publish(keys, source.view, {}).Wait());
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      EngineMemory target(Layout(), 16);
      for (int round = 0; round < 20; ++round) {
        std::fill(target.bytes.begin(), target.bytes.end(), std::byte{0});
        const auto hit = (*ns)->Lookup(keys, {}).Wait();
        if (!hit.ok() || hit->page_count() != 16) continue;
        const auto fetched = (*ns)->Fetch(*hit, target.view, {}).Wait();
        if (fetched.ok() && fetched->page_count == 16 && target.bytes == source.bytes) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good.load(), 60);
}

TEST_P(PoolClientTest, MayBeDroppedInAnyOrder) {
  RealNode node;
  auto client = PoolClient::Connect(Options({{node.control()}}));
  FB_ASSERT_OK(client);
  auto ns = (*client)->OpenNamespace(SpecOf(Layout()), 5 * kSecond).Wait();
  FB_ASSERT_OK(ns);
  const std::vector<PageKey> keys = Chain((*ns)->root(), 64);
  EngineMemory source(Layout(), 64);
  FB_ASSERT_OK((*ns)->Publish(keys, source.view, {}).Wait());
  auto hit = (*ns)->Lookup(keys, {}).Wait();
  FB_ASSERT_OK(hit);
  auto target = std::make_unique<EngineMemory>(Layout(), 64);
  const FetchHandle fetch = (*ns)->Fetch(*hit, target->view, {});
  client->reset();
  // The client is gone, so nothing touches the memory any more.
  target.reset();
  EXPECT_TRUE(fetch.IsReady());
  const auto late = (*ns)->Lookup(keys, {}).Wait();
  EXPECT_THAT(late, HasCode(absl::StatusCode::kCancelled));
  ns->reset();
  *hit = PrefixHit();
}

TEST_P(PoolClientTest, NobodyThereIsUnavailableByTheDeadline) {
  auto client = PoolClient::Connect(Options({{"127.0.0.1:1"}, {"127.0.0.1:2"}}));
  FB_ASSERT_OK(client);
  const Nanos begin = SystemClock().Now();
  EXPECT_THAT((*client)->OpenNamespace(SpecOf(Layout()), 300 * kMillisecond).Wait(),
              HasStatus(absl::StatusCode::kUnavailable,
                        AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("127.0.0.1:2"))));
  EXPECT_LT(SystemClock().Now() - begin, 2 * kSecond);
}

TEST_P(PoolClientTest, ADaemonThatDiesIsAMiss) {
  auto node = std::make_unique<RealNode>();
  auto client = PoolClient::Connect(Options({{node->control()}}));
  FB_ASSERT_OK(client);
  auto ns = (*client)->OpenNamespace(SpecOf(Layout()), 5 * kSecond).Wait();
  FB_ASSERT_OK(ns);
  const std::vector<PageKey> keys = Chain((*ns)->root(), 8);
  EngineMemory source(Layout(), 8);
  source.Fill(5);
  FB_ASSERT_OK((*ns)->Publish(keys, source.view, {}).Wait());
  auto hit = (*ns)->Lookup(keys, {}).Wait();
  FB_ASSERT_OK(hit);
  const absl::StatusOr<Bytes> view = hit->View(0, 0);
  node.reset();
  EngineMemory target(Layout(), 8);
  const auto fetched = (*ns)->Fetch(*hit, target.view, {.deadline = kSecond}).Wait();
  FB_ASSERT_OK(fetched);
  for (uint32_t page = 0; page < 8; ++page) {
    if (!fetched->pages[page]) continue;
    EXPECT_EQ(memcmp(target.bytes.data() + page * Layout().PageBytes(),
                     source.bytes.data() + page * Layout().PageBytes(), Layout().PageBytes()),
              0);
  }
  const auto missed = (*ns)->Lookup(keys, {.deadline = 500 * kMillisecond}).Wait();
  FB_ASSERT_OK(missed);
  EXPECT_EQ(missed->page_count(), 0u);
  // What was mapped stays readable, though nobody may believe it.
  if (view.ok()) {
    volatile std::byte last = (*view)[view->size() - 1];
    static_cast<void>(last);
    const auto released = hit->Release().Wait();
    FB_ASSERT_OK(released);
    EXPECT_FALSE(*released);
  }
}

// A callback that waits would wait for the thread that it runs on.
TEST_P(PoolClientTest, WaitingInsideACallbackIsRefusedAndOnReadyIsNot) {
  RealNode node;
  auto client = PoolClient::Connect(Options({{node.control()}}));
  FB_ASSERT_OK(client);
  auto ns = (*client)->OpenNamespace(SpecOf(Layout()), 5 * kSecond).Wait();
  FB_ASSERT_OK(ns);
  const std::vector<PageKey> keys = Chain((*ns)->root(), 2);

  absl::Status waited;
  bool chained_is_ok = false;
  std::atomic<bool> done{false};
  const auto first = (*ns)->Lookup(keys, {});
  first.OnReady([&](const absl::StatusOr<PrefixHit>& result) {
    FB_EXPECT_OK(result);
    FB_EXPECT_OK(first.Wait()) << "its own result is there";
    const auto second = (*ns)->Lookup(keys, {});
    waited = second.Wait().status();
    second.OnReady([&](const absl::StatusOr<PrefixHit>& chained) {
      chained_is_ok = chained.ok();
      done = true;
    });
  });
  FB_ASSERT_OK(first.Wait());
  for (int i = 0; i < 1000 && !done; ++i) FB_EXPECT_OK((*ns)->Lookup(keys, {}).Wait());
  ASSERT_TRUE(done);
  EXPECT_TRUE(chained_is_ok);
  EXPECT_THAT(waited, HasStatus(absl::StatusCode::kFailedPrecondition, HasSubstr("OnReady()")));
}

INSTANTIATE_TEST_SUITE_P(Paths, PoolClientTest,
                         ::testing::Values(Param{PathChoice::kLocal, Progress::kThread},
                                           Param{PathChoice::kLocal, Progress::kCaller},
                                           Param{PathChoice::kTcp, Progress::kThread},
                                           Param{PathChoice::kTcp, Progress::kCaller}),
                         [](const ::testing::TestParamInfo<Param>& tested) {
                           return std::string(PathName(tested.param.path)) +
                                  (tested.param.progress == Progress::kThread ? "Thread"
                                                                              : "Caller");
                         });

// One daemon behind TCP with more to send than a window holds, another in shared memory: neither
// waits for the other, and nothing waits for the deadline.
TEST(PoolClientMixedPathsTest, ARemoteDaemonAndALocalOneAreFetchedTogether) {
  RealNode remote(RealNode::SmallNode(), RealNode::Paths::kTcp);
  RealNode local;
  for (const bool remote_first : {true, false}) {
    for (const Progress progress : {Progress::kThread, Progress::kCaller}) {
      ClientOptions options;
      options.daemons = {{remote.control()}, {local.control()}};
      if (!remote_first) std::swap(options.daemons[0], options.daemons[1]);
      options.progress = progress;
      options.fetch_window_bytes = 256 << 10;
      auto client = PoolClient::Connect(std::move(options));
      FB_ASSERT_OK(client);
      auto ns = (*client)->OpenNamespace(SpecOf(Layout()), 5 * kSecond).Wait();
      FB_ASSERT_OK(ns);
      constexpr uint32_t kPages = 512;
      const std::vector<PageKey> keys = Chain((*ns)->root(), kPages);
      EngineMemory source(Layout(), kPages), target(Layout(), kPages);
      source.Fill(3);
      FB_ASSERT_OK((*ns)->Publish(keys, source.view, {}).Wait());
      auto hit = (*ns)->Lookup(keys, {.lease_ms = 30'000}).Wait();
      FB_ASSERT_OK(hit);
      ASSERT_EQ(hit->page_count(), kPages);
      const SystemClock clock;
      const Nanos start = clock.Now();
      auto fetched = (*ns)->Fetch(*hit, target.view, {.deadline = 20 * kSecond}).Wait();
      FB_ASSERT_OK(fetched);
      EXPECT_EQ(fetched->page_count, kPages) << fetched->first_error;
      EXPECT_GT(fetched->bytes_tcp, 0u);
      EXPECT_GT(fetched->bytes_local, 0u);
      EXPECT_EQ(target.bytes, source.bytes);
      EXPECT_LT(clock.Now() - start, 15 * kSecond) << "it waited for its deadline";
    }
  }
}

TEST(PoolClientOptionsTest, ConnectNamesABadAddressOrWeight) {
  const auto fails = [](ClientOptions options, const std::string& text) {
    EXPECT_THAT(PoolClient::Connect(std::move(options)),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  fails({}, "no daemon");
  fails({.daemons = {{"nowhere"}}}, "nowhere");
  fails({.daemons = {{"host:70000"}}}, "host:70000");
  fails({.daemons = {{"host:1"}, {"host:1"}}}, "twice");
  fails({.daemons = {{"host:1", -2.0}}}, "weight");
  fails({.daemons = {{"host:1"}}, .default_deadline = -1}, "default_deadline");
}

TEST(PoolClientDeathTest, DroppedInsideItsOwnCallbackAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        // Nobody is there, so that the call is still under way when all is prepared.
        std::shared_ptr<PoolClient> client =
            *PoolClient::Connect({.daemons = {{"127.0.0.1:1"}}, .progress = Progress::kThread});
        const auto opened = client->OpenNamespace(SpecOf(Layout()), 2 * kSecond);
        opened.OnReady([client](const auto&) mutable { client.reset(); });
        client.reset();
        opened.Wait().IgnoreError();
        sleep(20);  // The callback runs after Wait() has its result.
        _exit(0);
      },
      "OnReactor");
}

TEST(PoolClientOptionsTest, AForkedChildIsTold) {
  RealNode node;
  auto client = PoolClient::Connect({.daemons = {{node.control()}}});
  FB_ASSERT_OK(client);
  auto ns = (*client)->OpenNamespace(SpecOf(Layout()), 5 * kSecond).Wait();
  FB_ASSERT_OK(ns);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto lookup = (*ns)->Lookup(std::vector<PageKey>(1), {}).Wait();
    client->reset();
    _exit(lookup.status().code() == absl::StatusCode::kFailedPrecondition ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  FB_EXPECT_OK((*ns)->Lookup(std::vector<PageKey>(1), {}).Wait());
}

}  // namespace
}  // namespace forebay
