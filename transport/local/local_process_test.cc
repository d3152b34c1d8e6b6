// Two real processes: their deaths, their sleep, and who may connect.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/testing/status_matchers.h"
#include "transport/local/local_transport.h"
#include "transport/local/testing/local_node.h"
#include "transport/local/unique_fd.h"

namespace forebay {
namespace {

using testing::FreshAddress;
using testing::HasCode;
using testing::IsPattern;
using testing::LocalNode;
using testing::Pattern;

// Long enough that no test passes because of it.
constexpr Nanos kPatience = 20 * kSecond;

// A forked child that runs `body` once it is told to go, and exits with 0 if that returns true. It
// is made before this process makes a transport, and goes when there is a listener.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) {
    int ends[2];
    FB_CHECK(pipe(ends) == 0);
    go_ = UniqueFd(ends[1]);
    const UniqueFd may_go(ends[0]);
    pid_ = fork();
    if (pid_ != 0) return;
    char byte = 0;
    go_.Reset();
    const bool told = read(may_go.get(), &byte, 1) == 1;
    _exit(told && body() ? 0 : 1);
  }
  ~Child() {
    if (pid_ > 0) {
      Signal(SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void Go() const { FB_CHECK(write(go_.get(), "", 1) == 1); }
  void Signal(int number) const { kill(pid_, number); }
  bool HasExited() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
    return pid_ < 0;
  }
  bool ExitedWell() {
    if (!HasExited()) waitpid(std::exchange(pid_, -1), &status_, 0);
    return WIFEXITED(status_) && WEXITSTATUS(status_) == 0;
  }

 private:
  UniqueFd go_;
  pid_t pid_ = -1;
  int status_ = -1;
};

LocalTransportOptions WithTimeouts(Nanos peer_timeout, Nanos keepalive_interval) {
  LocalTransportOptions options;
  options.base.peer_timeout = peer_timeout;
  options.base.keepalive_interval = keepalive_interval;
  return options;
}

// A reactor that sleeps at once, and only wakes when it is woken.
Reactor::Options Sleeper() { return {.spin_ns = 0, .sleep_ns_max = 60 * kSecond}; }

TEST(LocalProcessTest, PayloadsCrossBothWays) {
  const std::string address = FreshAddress();
  Child child([&] {
    LocalNode node;
    const EndpointId parent = node.Connect(address);
    const std::vector<std::byte> out = Pattern(/*seed=*/1, 3'333'333);
    const uint64_t token = node.Send(parent, 'a', 0, {AsBytes(out.data(), out.size())});
    return node.RunUntil([&] { return node.landed == 1 && node.sent.contains(token); }) &&
           IsPattern(*node.payloads[0], /*seed=*/2) && node.sent[token].ok();
  });
  LocalNode node;
  FB_ASSERT_OK(node.transport().Listen(address));
  child.Go();
  ASSERT_TRUE(node.RunUntil([&] { return node.landed == 1; }, kPatience));
  EXPECT_TRUE(IsPattern(*node.payloads[0], /*seed=*/1));
  EXPECT_NE(node.peers[node.newest].pid, getpid());
  EXPECT_EQ(node.peers[node.newest].uid, getuid());
  EXPECT_TRUE(node.peers[node.newest].same_host);
  const std::vector<std::byte> out = Pattern(/*seed=*/2, 2'222'222);
  node.Send(node.newest, 'b', 0, {AsBytes(out.data(), out.size())});
  ASSERT_TRUE(node.RunUntil([&] { return !node.closed.empty(); }, kPatience));
  EXPECT_TRUE(child.ExitedWell());
}

// Both sides sleep between any two messages, with nothing but the wake-up to end it: one lost
// wake-up and this takes a minute.
TEST(LocalProcessTest, NoWakeUpIsLostInThousandsOfPingPongs) {
  constexpr uint64_t kRounds = 5000;
  const std::string address = FreshAddress();
  const LocalTransportOptions options = WithTimeouts(60 * kSecond, /*keepalive_interval=*/0);
  Child child([&] {
    LocalNode node(options, Sleeper());
    node.on_message = [&](EndpointId from, char, uint64_t number) { node.Send(from, 'e', number); };
    return node.Connect(address) != 0 &&
           node.RunUntil([&] { return !node.closed.empty(); }, 2 * kPatience);
  });
  LocalNode node(options, Sleeper());
  FB_ASSERT_OK(node.transport().Listen(address));
  child.Go();
  uint64_t echoed = 0;
  node.on_message = [&](EndpointId from, char, uint64_t number) {
    EXPECT_EQ(number, echoed);
    if (++echoed < kRounds) node.Send(from, 'p', echoed);
  };
  ASSERT_TRUE(node.RunUntil([&] { return node.newest != 0; }, kPatience));
  node.Send(node.newest, 'p', 0);
  EXPECT_TRUE(node.RunUntil([&] { return echoed == kRounds; }, kPatience));
  node.transport().Close(node.newest);
  ASSERT_TRUE(node.RunUntil([&] { return !node.closed.empty(); }, kPatience));
  EXPECT_TRUE(child.ExitedWell());
}

// The same for payloads, whose sender sleeps until its staging is free.
TEST(LocalProcessTest, NoWakeUpIsLostWhileASenderWaitsForRoom) {
  constexpr uint64_t kPayloads = 50;
  const std::string address = FreshAddress();
  LocalTransportOptions options = WithTimeouts(60 * kSecond, /*keepalive_interval=*/0);
  options.staging_bytes = SharedArea::kStagingBytesMin;
  Child child([&] {
    LocalNode node(options, Sleeper());
    return node.Connect(address) != 0 &&
           node.RunUntil([&] { return !node.closed.empty(); }, 2 * kPatience) &&
           node.landed == kPayloads && IsPattern(*node.payloads.back(), kPayloads - 1);
  });
  LocalNode node(options, Sleeper());
  FB_ASSERT_OK(node.transport().Listen(address));
  child.Go();
  ASSERT_TRUE(node.RunUntil([&] { return node.newest != 0; }, kPatience));
  std::vector<std::vector<std::byte>> payloads;
  for (uint64_t i = 0; i < kPayloads; ++i) {
    payloads.push_back(Pattern(i, 200'000 + i));
    node.Send(node.newest, 'd', i, {AsBytes(payloads[i].data(), payloads[i].size())});
  }
  EXPECT_TRUE(node.RunUntil([&] { return node.sent.size() == kPayloads; }, kPatience));
  node.transport().Close(node.newest);
  ASSERT_TRUE(node.RunUntil([&] { return !node.closed.empty(); }, kPatience));
  EXPECT_TRUE(child.ExitedWell());
}

// Long before any timeout, and though both sleep: the kernel closes the socket.
TEST(LocalProcessTest, AKilledPeerIsNoticedAtOnce) {
  const std::string address = FreshAddress();
  const LocalTransportOptions options = WithTimeouts(60 * kSecond, 60 * kSecond);
  Child child([&] {
    LocalNode node(options, Sleeper());
    node.Connect(address);
    return node.RunUntil([] { return false; }, 2 * kPatience);
  });
  LocalNode node(options, Sleeper());
  FB_ASSERT_OK(node.transport().Listen(address));
  child.Go();
  ASSERT_TRUE(node.RunUntil([&] { return node.newest != 0; }, kPatience));
  child.Signal(SIGSTOP);
  const std::vector<std::byte> out = Pattern(/*seed=*/1, 8 << 20);
  const uint64_t token = node.Send(node.newest, 'd', 0, {AsBytes(out.data(), out.size())});
  child.Signal(SIGKILL);
  ASSERT_TRUE(node.RunUntil([&] { return !node.closed.empty(); }, kPatience));
  EXPECT_THAT(node.closed[node.newest], HasCode(absl::StatusCode::kUnavailable));
  EXPECT_THAT(node.sent[token], HasCode(absl::StatusCode::kUnavailable));
}

TEST(LocalProcessTest, AStoppedPeerThatWasAskedIsGivenUpAfterThePeerTimeout) {
  const std::string address = FreshAddress();
  constexpr Nanos kPeerTimeout = 300 * kMillisecond;
  Child child([&] {
    LocalNode node(WithTimeouts(kPatience, /*keepalive_interval=*/0));
    node.Connect(address);
    return node.RunUntil([] { return false; }, 2 * kPatience);
  });
  LocalNode node(WithTimeouts(kPeerTimeout, /*keepalive_interval=*/0));
  FB_ASSERT_OK(node.transport().Listen(address));
  child.Go();
  ASSERT_TRUE(node.RunUntil([&] { return node.newest != 0; }, kPatience));
  child.Signal(SIGSTOP);
  // Nothing was asked: it may be silent as long as it likes.
  EXPECT_FALSE(node.RunUntil([&] { return !node.closed.empty(); }, 2 * kPeerTimeout));
  const Nanos asked_at = node.Now();
  node.Send(node.newest, 'q');
  ASSERT_TRUE(node.RunUntil([&] { return !node.closed.empty(); }, kPatience));
  EXPECT_GE(node.Now() - asked_at, kPeerTimeout);
  EXPECT_THAT(node.closed[node.newest], HasCode(absl::StatusCode::kUnavailable));
}

// The keepalive asks in our stead.
TEST(LocalProcessTest, AStoppedIdlePeerIsFoundByTheKeepalive) {
  const std::string address = FreshAddress();
  const auto options = WithTimeouts(300 * kMillisecond, 100 * kMillisecond);
  Child child([&] {
    LocalNode node(WithTimeouts(kPatience, /*keepalive_interval=*/0));
    node.Connect(address);
    return node.RunUntil([] { return false; }, 2 * kPatience);
  });
  LocalNode node(options);
  FB_ASSERT_OK(node.transport().Listen(address));
  child.Go();
  ASSERT_TRUE(node.RunUntil([&] { return node.newest != 0; }, kPatience));
  EXPECT_FALSE(node.RunUntil([&] { return !node.closed.empty(); }, 600 * kMillisecond))
      << node.closed.begin()->second;
  child.Signal(SIGSTOP);
  EXPECT_TRUE(node.RunUntil([&] { return !node.closed.empty(); }, kPatience));
}

TEST(LocalProcessTest, APeerOfAnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string address = FreshAddress();
  constexpr uid_t kOther = 65534;
  for (const bool allowed : {false, true}) {
    Child child([&] {
      if (setresuid(kOther, kOther, kOther) != 0) return false;
      LocalNode node;
      const EndpointId id = node.Connect(address);
      // Stays until it is sent away, so that the daemon has certainly met it.
      if (allowed) return id != 0 && node.RunUntil([&] { return !node.closed.empty(); }, kPatience);
      return id == 0 && !node.closed.empty() &&
             absl::IsPermissionDenied(node.closed.begin()->second);
    });
    LocalTransportOptions options;
    if (allowed) options.allowed_uids = {kOther};
    LocalNode node(options);
    FB_ASSERT_OK(node.transport().Listen(address));
    child.Go();
    if (allowed) {
      ASSERT_TRUE(node.RunUntil([&] { return node.newest != 0; }, kPatience));
      node.transport().Close(node.newest);
    }
    EXPECT_TRUE(node.RunUntil([&] { return child.HasExited(); }, kPatience));
    EXPECT_TRUE(child.ExitedWell()) << "allowed: " << allowed;
    EXPECT_EQ(node.newest != 0, allowed);
  }
}

}  // namespace
}  // namespace forebay
