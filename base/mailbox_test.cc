#include "base/mailbox.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace forebay {
namespace {

TEST(MailboxTest, KeepsOrder) {
  Mailbox<int> mailbox(4);
  EXPECT_TRUE(mailbox.empty());
  for (int i = 0; i < 100; ++i) {
    int message = i;
    ASSERT_TRUE(mailbox.TryPut(message));
    EXPECT_FALSE(mailbox.empty());
    EXPECT_EQ(mailbox.TryTake(), i);
  }
  EXPECT_EQ(mailbox.TryTake(), std::nullopt);
  EXPECT_TRUE(mailbox.empty());
}

TEST(MailboxTest, RefusesWhenFullAndLeavesTheMessageWithItsSender) {
  Mailbox<std::unique_ptr<int>> mailbox(3);  // rounded up to 4
  for (int i = 0; i < 4; ++i) {
    auto message = std::make_unique<int>(i);
    ASSERT_TRUE(mailbox.TryPut(message));
    EXPECT_EQ(message, nullptr);
  }
  auto extra = std::make_unique<int>(4);
  EXPECT_FALSE(mailbox.TryPut(extra));
  ASSERT_NE(extra, nullptr);
  EXPECT_EQ(**mailbox.TryTake(), 0);
  EXPECT_TRUE(mailbox.TryPut(extra));
  for (int i = 1; i <= 4; ++i) EXPECT_EQ(**mailbox.TryTake(), i);
}

TEST(MailboxTest, ATakenMessageIsDestroyedWithItsTaker) {
  auto shared = std::make_shared<int>(1);
  Mailbox<std::shared_ptr<int>> mailbox(2);
  std::shared_ptr<int> copy = shared;
  ASSERT_TRUE(mailbox.TryPut(copy));
  EXPECT_EQ(shared.use_count(), 2);
  mailbox.TryTake();
  EXPECT_EQ(shared.use_count(), 1);
}

// Each message arrives once, and each sender's in its own order.
TEST(MailboxTest, ManySendersOneReceiver) {
  constexpr int kSenders = 3;
  constexpr int kMessages = 5000;
  Mailbox<int> mailbox(64);
  std::vector<std::thread> senders;
  for (int sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([&mailbox, sender] {
      for (int i = 0; i < kMessages; ++i) {
        int message = sender * kMessages + i;
        while (!mailbox.TryPut(message)) std::this_thread::yield();
      }
    });
  }
  int next[kSenders] = {};
  for (int taken = 0; taken < kSenders * kMessages;) {
    const std::optional<int> message = mailbox.TryTake();
    if (!message.has_value()) {
      std::this_thread::yield();
      continue;
    }
    const int sender = *message / kMessages;
    EXPECT_EQ(*message % kMessages, next[sender]++);
    ++taken;
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_TRUE(mailbox.empty());
}

}  // namespace
}  // namespace forebay
