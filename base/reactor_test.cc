#include "base/reactor.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/testing/manual_clock.h"

namespace forebay {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);

// Says what it is told to say, and counts how often it was asked.
class FakePollable final : public Pollable {
 public:
  bool Poll(Nanos now) override {
    last_now = now;
    ++polls;
    if (on_poll) on_poll();
    return work-- > 0;
  }
  bool PrepareToSleep(std::vector<int>& fds) override {
    ++prepares;
    if (fd >= 0) fds.push_back(fd);
    return may_sleep;
  }
  Nanos NextDeadline() const override { return deadline; }

  int work = 0;
  int fd = -1;
  bool may_sleep = true;
  Nanos deadline = kForever;
  std::function<void()> on_poll;
  int polls = 0;
  int prepares = 0;
  Nanos last_now = 0;
};

// Never spins, and sleeps as long as it may: a wake-up that is lost shows as a hang.
Reactor::Options Sleepy() {
  return {.spin_ns = 0, .sleep_ns_max = 3600 * kSecond, .mailbox_capacity = 64};
}

TEST(ReactorTest, ATurnRunsMailThenPolls) {
  testing::ManualClock clock;
  Reactor reactor(clock, {});
  std::string order;
  FakePollable pollable;
  pollable.on_poll = [&] { order += "p"; };
  reactor.Add(pollable);
  ASSERT_TRUE(reactor.Post([&] { order += "a"; }));
  ASSERT_TRUE(reactor.Post([&] { order += "b"; }));
  EXPECT_TRUE(reactor.TurnOnce());
  EXPECT_EQ(order, "abp");
  EXPECT_EQ(pollable.last_now, clock.Now());
  EXPECT_FALSE(reactor.TurnOnce());
  EXPECT_EQ(reactor.turns(), 2u);
  reactor.Remove(pollable);
  reactor.TurnOnce();
  EXPECT_EQ(pollable.polls, 2);
}

TEST(ReactorTest, APollableMayRemoveItself) {
  testing::ManualClock clock;
  Reactor reactor(clock, {});
  FakePollable first;
  FakePollable second;
  first.on_poll = [&] { reactor.Remove(first); };
  reactor.Add(first);
  reactor.Add(second);
  reactor.TurnOnce();
  reactor.TurnOnce();
  EXPECT_EQ(first.polls, 1);
  EXPECT_GE(second.polls, 1);
}

TEST(ReactorTest, AFullMailboxRefuses) {
  testing::ManualClock clock;
  Reactor reactor(clock, {.mailbox_capacity = 2});
  EXPECT_TRUE(reactor.Post([] {}));
  EXPECT_TRUE(reactor.Post([] {}));
  EXPECT_FALSE(reactor.Post([] {}));
  reactor.TurnOnce();
  EXPECT_TRUE(reactor.Post([] {}));
}

// A task that posts itself again must leave the pollables their turn.
TEST(ReactorTest, TasksThatPostTasksDoNotHoldUpATurn) {
  testing::ManualClock clock;
  Reactor reactor(clock, {.mailbox_capacity = 8});
  int runs = 0;
  std::function<void()> again = [&] {
    ++runs;
    ASSERT_TRUE(reactor.Post(again));
  };
  ASSERT_TRUE(reactor.Post(again));
  reactor.TurnOnce();
  EXPECT_EQ(runs, 8);
}

TEST(SpinWindowTest, GrowsForGapsWorthIt) {
  SpinWindow window(20, 200);
  EXPECT_EQ(window.current(), 20);
  window.NoteGap(70);
  EXPECT_EQ(window.current(), 140);
  window.NoteGap(150);
  EXPECT_EQ(window.current(), 200);
  window.NoteGap(201);  // the first that is too long
  EXPECT_EQ(window.current(), 100);
  for (int i = 0; i < 10; ++i) window.NoteGap(kSecond);
  EXPECT_EQ(window.current(), 20);
}

TEST(SpinWindowTest, NeverSpinsWhereItMayNot) {
  SpinWindow never(0, 0);
  never.NoteGap(0);
  never.NoteGap(50);
  EXPECT_EQ(never.current(), 0);
  SpinWindow fixed(300, 0);
  fixed.NoteGap(301);
  fixed.NoteGap(kSecond);
  EXPECT_EQ(fixed.current(), 300);
}

TEST(ReactorTest, LongTurnsAreCounted) {
  testing::ManualClock clock;
  Reactor reactor(clock, {});
  FakePollable pollable;
  reactor.Add(pollable);
  pollable.on_poll = [&] { clock.Advance(kMillisecond); };
  reactor.TurnOnce();
  EXPECT_EQ(reactor.long_turns(), 0u);
  pollable.on_poll = [&] { clock.Advance(kMillisecond + 1); };
  reactor.TurnOnce();
  EXPECT_EQ(reactor.long_turns(), 1u);
}

TEST(ReactorTest, RunsUntilTheConditionHolds) {
  testing::ManualClock clock;
  Reactor reactor(clock, Sleepy());
  FakePollable pollable;
  pollable.work = 10;
  reactor.Add(pollable);
  reactor.RunUntil([&] { return pollable.polls >= 5; });
  EXPECT_EQ(pollable.polls, 5);
  EXPECT_EQ(pollable.prepares, 0);
}

TEST(ReactorTest, RunsNoLongerThanItsDeadline) {
  const SystemClock clock;
  Reactor reactor(clock, Sleepy());
  const Nanos deadline = clock.Now() + 2 * kMillisecond;
  reactor.RunUntil([] { return false; }, deadline);
  EXPECT_GE(clock.Now(), deadline);
}

TEST(ReactorTest, APollableThatHasWorkKeepsItAwake) {
  const SystemClock clock;
  Reactor reactor(clock, Sleepy());
  FakePollable pollable;
  pollable.may_sleep = false;
  reactor.Add(pollable);
  reactor.RunUntil([&] { return pollable.prepares >= 3; });
  EXPECT_GE(pollable.polls, 3);
}

TEST(ReactorTest, WakesForTheDeadlineOfAPollable) {
  const SystemClock clock;
  Reactor reactor(clock, Sleepy());
  FakePollable pollable;
  pollable.deadline = clock.Now() + 2 * kMillisecond;
  reactor.Add(pollable);
  reactor.RunUntil([&] { return clock.Now() >= pollable.deadline; });
  EXPECT_GT(pollable.prepares, 0);
}

TEST(ReactorTest, WakesForADescriptorOfAPollable) {
  const SystemClock clock;
  Reactor reactor(clock, Sleepy());
  FakePollable pollable;
  pollable.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ASSERT_GE(pollable.fd, 0);
  reactor.Add(pollable);
  std::thread writer([&] {
    const uint64_t one = 1;
    ASSERT_EQ(write(pollable.fd, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  });
  uint64_t count = 0;
  reactor.RunUntil([&] { return read(pollable.fd, &count, sizeof(count)) > 0; });
  EXPECT_EQ(count, 1u);
  writer.join();
  close(pollable.fd);
}

TEST(ReactorTest, StopEndsTheLoopNowAndLater) {
  const SystemClock clock;
  Reactor reactor(clock, Sleepy());
  std::thread loop([&] { reactor.RunUntil([] { return false; }); });
  reactor.Stop();
  loop.join();
  EXPECT_TRUE(reactor.stopped());
  reactor.RunUntil([] { return false; });
}

// Thousands of posts to a reactor that falls asleep after each: none may be lost.
TEST(ReactorTest, NoPostIsLostToAReactorThatFallsAsleep) {
  const SystemClock clock;
  Reactor reactor(clock, Sleepy());
  std::thread loop([&] { reactor.RunUntil([] { return false; }); });
  for (int i = 0; i < 3000; ++i) {
    std::promise<int> ran;
    std::future<int> answer = ran.get_future();
    ASSERT_TRUE(reactor.Post([&ran, i] { ran.set_value(i); }));
    ASSERT_EQ(answer.wait_for(kPatience), std::future_status::ready) << "post " << i << " was lost";
    ASSERT_EQ(answer.get(), i);
  }
  reactor.Stop();
  loop.join();
}

// Wake() after a change that only `stop` sees: the loop must look at it again.
TEST(ReactorTest, NoWakeIsLostBetweenTheConditionAndTheSleep) {
  const SystemClock clock;
  Reactor reactor(clock, Sleepy());
  std::atomic<int> wanted{0};
  std::atomic<int> reached{0};
  constexpr int kRounds = 3000;
  std::thread loop([&] {
    for (int round = 1; round <= kRounds; ++round) {
      reactor.RunUntil([&] { return wanted.load(std::memory_order_relaxed) >= round; });
      reached.store(round);
      reached.notify_one();
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    wanted.store(round, std::memory_order_relaxed);
    reactor.Wake();
    reached.wait(round - 1);
  }
  loop.join();
  EXPECT_EQ(reached.load(), kRounds);
}

TEST(ReactorTest, ManySendersAreAllServed) {
  const SystemClock clock;
  Reactor reactor(clock, Sleepy());
  std::atomic<int> ran{0};
  std::vector<std::thread> senders;
  for (int t = 0; t < 3; ++t) {
    senders.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        while (!reactor.Post([&] { ran.fetch_add(1); })) std::this_thread::yield();
      }
    });
  }
  reactor.RunUntil([&] { return ran.load() == 3000; });
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(ran.load(), 3000);
}

}  // namespace
}  // namespace forebay
