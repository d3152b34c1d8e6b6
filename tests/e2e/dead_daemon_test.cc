// What an engine lives through when a daemon of three dies, hangs or comes back: misses within its
// deadline, and the pages of the others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "tests/e2e/pool_user.h"
#include "tests/e2e/raw_peer.h"

namespace forebay::testing {
namespace {

using ::testing::IsEmpty;

constexpr uint32_t kChains = 24;
constexpr uint32_t kChainPages = 16;  // one page group: each chain rests with one daemon
constexpr Nanos kDeadline = kSecond;

void PauseFor(Nanos ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

// Three daemons, one engine, and chains that are spread over them.
class DeadDaemonTest : public ::testing::TestWithParam<PathChoice> {
 protected:
  void SetUp() override {
    PoolUser::Options options;
    options.path = GetParam();
    for (int i = 0; i < 3; ++i) {
      StartDaemon(i, "127.0.0.1:0", "127.0.0.1:0");
      ASSERT_NE(daemons_[i], nullptr);
      options.daemons.push_back(daemons_[i]->control());
    }
    auto user = PoolUser::Open(options);
    FB_ASSERT_OK(user);
    user_.emplace(*std::move(user));
    for (uint32_t i = 0; i < kChains; ++i) {
      chains_.push_back(user_->Chain(kChainPages));
      const auto published = user_->Publish(chains_.back(), 20 * kSecond);
      FB_ASSERT_OK(published);
      ASSERT_EQ(published->pages_stored, kChainPages) << published->first_error;
    }
  }
  // Whatever happened: the daemons that live lost nothing.
  void TearDown() override {
    user_.reset();
    for (int i = 0; i < 3; ++i) {
      if (daemons_[i] == nullptr || !daemons_[i]->process().Running()) continue;
      FB_EXPECT_OK(AwaitQuiet(daemons_[i]->control(), 10 * kSecond));
      FB_EXPECT_OK(RoundTrip(daemons_[i]->control(), GetParam()));
    }
  }

  void StartDaemon(int i, const std::string& control, const std::string& tcp) {
    DaemonProcess::Options options;
    options.name = absl::StrCat("daemon", i);
    options.control_address = control;
    options.tcp_address = tcp;
    auto daemon = DaemonProcess::Start(folder_, options);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemons_[i] = *std::move(daemon);
  }

  // Fetches every chain. Adds up pages; no call outlasts its deadline, no page is wrong.
  struct Tally {
    uint32_t whole_chains = 0;
    uint32_t pages = 0;
  };
  Tally FetchAll() {
    const SystemClock clock;
    Tally tally;
    for (const std::vector<PageKey>& keys : chains_) {
      const Nanos begin = clock.Now();
      const auto read = user_->Fetch(keys, kDeadline);
      // A lookup, a fetch and a release, which have deadlines of their own.
      EXPECT_LT(clock.Now() - begin, 2 * kDeadline + kTurnOfTheMachine);
      EXPECT_TRUE(read.ok()) << read.status();
      if (!read.ok()) continue;
      EXPECT_THAT(read->wrong, IsEmpty());
      tally.pages += read->fetch.page_count;
      if (read->fetch.page_count == kChainPages) ++tally.whole_chains;
    }
    return tally;
  }
  // Chains that rest with daemon `i` alone, by its own count of complete pages.
  uint32_t ChainsOf(int i) {
    const auto status = StatusOf(daemons_[i]->control());
    EXPECT_TRUE(status.ok()) << status.status();
    return status.ok() ? static_cast<uint32_t>(status->complete_pages() / kChainPages) : 0;
  }

  TemporaryFolder folder_;
  std::unique_ptr<DaemonProcess> daemons_[3];
  std::optional<PoolUser> user_;
  std::vector<std::vector<PageKey>> chains_;
};

TEST_P(DeadDaemonTest, AKilledDaemonIsMissesAndTheOthersServeOn) {
  ASSERT_EQ(FetchAll().whole_chains, kChains);
  const uint32_t lost = ChainsOf(1);
  ASSERT_GT(lost, 0u);
  ASSERT_LT(lost, kChains);
  daemons_[1]->process().Signal(SIGKILL);
  const Tally tally = FetchAll();
  EXPECT_EQ(tally.whole_chains, kChains - lost);
  EXPECT_EQ(tally.pages, (kChains - lost) * kChainPages);

  // What is published now: the dead daemon's pages are refused, in time, the others' stored.
  const SystemClock clock;
  uint32_t stored = 0;
  for (int i = 0; i < 12; ++i) {
    const Nanos begin = clock.Now();
    const auto published = user_->Publish(user_->Chain(kChainPages), kDeadline);
    EXPECT_LT(clock.Now() - begin, kDeadline + kTurnOfTheMachine);
    FB_ASSERT_OK(published);
    EXPECT_EQ(published->pages_stored + published->pages_refused, kChainPages);
    if (published->pages_refused > 0) {
      EXPECT_FALSE(published->first_error.ok());
    }
    stored += published->pages_stored;
  }
  EXPECT_GT(stored, 0u);

  // Back at the same addresses, empty: misses, then pages again, by the same client.
  const std::string control = daemons_[1]->control();
  const std::string tcp = DataAddress(*daemons_[1], "tcp").substr(4);
  daemons_[1].reset();
  StartDaemon(1, control, tcp);
  const Nanos until = clock.Now() + 20 * kSecond;
  uint32_t again = 0;
  while (again < kChains && clock.Now() < until) {
    for (const auto& keys : chains_) FB_ASSERT_OK(user_->Publish(keys, kDeadline));
    again = FetchAll().whole_chains;
  }
  EXPECT_EQ(again, kChains);
}

// A daemon that hangs says nothing at all: only deadlines help.
TEST_P(DeadDaemonTest, AStoppedDaemonIsMissesUntilItGoesOn) {
  const uint32_t lost = ChainsOf(2);
  ASSERT_GT(lost, 0u);
  daemons_[2]->process().Signal(SIGSTOP);
  const Tally tally = FetchAll();
  EXPECT_EQ(tally.whole_chains, kChains - lost);
  daemons_[2]->process().Signal(SIGCONT);
  const SystemClock clock;
  const Nanos until = clock.Now() + 20 * kSecond;
  uint32_t again = 0;
  while (again < kChains && clock.Now() < until) again = FetchAll().whole_chains;
  EXPECT_EQ(again, kChains);
}

// Killed and stopped while fetches are under way, at seeded moments.
TEST_P(DeadDaemonTest, ADaemonThatDiesDuringFetchesGivesNoWrongPage) {
  SeededRandom random(static_cast<uint64_t>(GetParam()));
  for (int round = 0; round < 4; ++round) {
    const Nanos delay = static_cast<Nanos>(random.Below(20)) * kMillisecond;
    const bool kill = round % 2 == 1;
    const int victim = static_cast<int>(random.Below(3));
    std::thread assassin([&] {
      PauseFor(delay);
      daemons_[victim]->process().Signal(kill ? SIGKILL : SIGSTOP);
      if (kill) return;
      PauseFor(200 * kMillisecond);
      daemons_[victim]->process().Signal(SIGCONT);
    });
    FetchAll();
    assassin.join();
    if (!kill) continue;
    const std::string control = daemons_[victim]->control();
    const std::string tcp = DataAddress(*daemons_[victim], "tcp").substr(4);
    daemons_[victim].reset();
    StartDaemon(victim, control, tcp);
    ASSERT_FALSE(HasFatalFailure());
    const SystemClock clock;
    const Nanos until = clock.Now() + 20 * kSecond;
    uint32_t whole = 0;
    while (whole < kChains && clock.Now() < until) {
      for (const auto& keys : chains_) FB_ASSERT_OK(user_->Publish(keys, kDeadline));
      whole = FetchAll().whole_chains;
    }
    ASSERT_EQ(whole, kChains);
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, DeadDaemonTest,
                         ::testing::Values(PathChoice::kLocal, PathChoice::kTcp),
                         [](const auto& parameter) {
                           return std::string(PathName(parameter.param));
                         });

// A control plane that is slow to greet is not away: the first call is answered when it goes on.
TEST(SlowDaemonTest, AConnectionThatTakesLongIsNotGivenUp) {
  const TemporaryFolder folder;
  auto daemon = DaemonProcess::Start(folder, {});
  FB_ASSERT_OK(daemon);
  (*daemon)->process().Signal(SIGSTOP);
  std::thread waker([&] {
    PauseFor(600 * kMillisecond);
    (*daemon)->process().Signal(SIGCONT);
  });
  FB_EXPECT_OK(
      OpenSessionAt((*daemon)->control(), RequestFor(SpecNamed("slow", SmallLayout()))).status());
  waker.join();
}

// Clients that end while gRPC's thread still returns from their last answer.
TEST(ShortLivedClientTest, ManyComeAndGo) {
  const TemporaryFolder folder;
  auto daemon = DaemonProcess::Start(folder, {});
  FB_ASSERT_OK(daemon);
  const OpenSessionRequest request = RequestFor(SpecNamed("short", SmallLayout()));
  for (int i = 0; i < 400; ++i) FB_ASSERT_OK(OpenSessionAt((*daemon)->control(), request));
}

}  // namespace
}  // namespace forebay::testing
