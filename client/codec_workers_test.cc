#include "client/codec_workers.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(CodecWorkersTest, WithoutThreadsWorkIsDoneAtOnceAndItsEndIsToldLater) {
  CodecWorkers workers(0, nullptr);
  std::vector<int> order;
  workers.Run([&] { order.push_back(1); }, [&] { order.push_back(2); });
  EXPECT_EQ(order, std::vector<int>({1}));
  EXPECT_TRUE(workers.has_done());
  EXPECT_TRUE(workers.RunDone());
  EXPECT_EQ(order, std::vector<int>({1, 2}));
  EXPECT_FALSE(workers.has_done());
  EXPECT_FALSE(workers.RunDone());
}

TEST(CodecWorkersTest, WorkIsDoneElsewhereAndItsEndIsToldHere) {
  std::atomic<int> woken{0};
  CodecWorkers workers(2, [&] { ++woken; });
  const std::thread::id here = std::this_thread::get_id();
  constexpr int kJobs = 50;
  std::atomic<int> elsewhere{0};
  int ends = 0;
  for (int i = 0; i < kJobs; ++i) {
    workers.Run([&] { elsewhere += std::this_thread::get_id() != here ? 1 : 0; },
                [&] {
                  EXPECT_EQ(std::this_thread::get_id(), here);
                  ++ends;
                });
  }
  while (ends < kJobs) {
    workers.RunDone();
    std::this_thread::yield();
  }
  EXPECT_EQ(elsewhere, kJobs);
  EXPECT_GT(woken, 0);
}

TEST(CodecWorkersTest, TheReactorGoesOnWhileWorkIsUnderWay) {
  CodecWorkers workers(1, nullptr);
  absl::Notification go;
  bool ended = false;
  workers.Run([&] { go.WaitForNotification(); }, [&] { ended = true; });
  EXPECT_FALSE(workers.RunDone());
  go.Notify();
  while (!workers.RunDone()) std::this_thread::yield();
  EXPECT_TRUE(ended);
}

TEST(CodecWorkersTest, AnEndMayRunMore) {
  CodecWorkers workers(1, nullptr);
  int ends = 0;
  workers.Run([] {}, [&] { workers.Run([] {}, [&] { ++ends; }); });
  while (ends == 0) {
    workers.RunDone();
    std::this_thread::yield();
  }
  EXPECT_EQ(ends, 1);
}

}  // namespace
}  // namespace forebay
