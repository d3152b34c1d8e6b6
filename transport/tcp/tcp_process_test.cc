// What a real second process can do to us: die, and stop, in the middle of a payload.

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "transport/tcp/testing/tcp_world.h"

namespace forebay {
namespace {

using testing::HasCode;
using testing::HasStatus;
using ::testing::HasSubstr;
using testing::TransportSide;

// More than the kernel's buffers of both sides hold, so that it is still on its way when we look.
constexpr size_t kPayloadBytes = 128 << 20;
constexpr char kAnswerHeader[] = "answer";

// Answers each message with a payload that takes its reader a while, and drops what it is sent.
class PayloadHandler final : public TransportHandler {
 public:
  void OnConnected(EndpointId, const PeerDescription&) override {}
  Landing OnMessage(EndpointId endpoint, Bytes, uint64_t payload_bytes) override {
    if (payload_bytes == 0) {
      OutgoingMessage answer;
      answer.header = AsBytes(kAnswerHeader, sizeof(kAnswerHeader));
      answer.payload.push_back(AsBytes(memory_.data(), memory_.size()));
      answer.token = 1;
      transport->Send(endpoint, std::move(answer));
    }
    return Landing::Drop();
  }
  void OnLanded(EndpointId, uint64_t, const absl::Status&) override {}
  void OnSent(EndpointId, uint64_t, const absl::Status&) override {}
  void OnClosed(EndpointId, const absl::Status&) override {}

  Transport* transport = nullptr;

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(kPayloadBytes);
};

// A process with a listening TcpTransport.
class ChildProcess {
 public:
  ChildProcess() {
    int ends[2];
    FB_CHECK(pipe(ends) == 0);
    pid_ = fork();
    FB_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      close(ends[0]);
      Run(ends[1]);
    }
    close(ends[1]);
    char text[64] = {};
    FB_CHECK(read(ends[0], text, sizeof(text)) == sizeof(text));
    close(ends[0]);
    address_ = text;
  }
  ~ChildProcess() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void Signal(int signal) const { kill(pid_, signal); }
  const std::string& address() const { return address_; }

 private:
  [[noreturn]] static void Run(int out) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const SystemClock clock;
    PayloadHandler handler;
    auto transport = TcpTransport::Create(clock, handler, TcpTransportOptions());
    if (!transport.ok()) _exit(1);
    handler.transport = transport->get();
    const auto address = (*transport)->Listen("tcp:127.0.0.1:0");
    char text[64] = {};
    if (!address.ok() || address->size() >= sizeof(text)) _exit(1);
    std::memcpy(text, address->data(), address->size());
    if (write(out, text, sizeof(text)) != sizeof(text)) _exit(1);
    for (;;) {
      if ((*transport)->Poll(clock.Now())) continue;
      std::vector<int> fds;
      if (!(*transport)->PrepareToSleep(fds)) continue;
      pollfd polled{.fd = fds[0], .events = POLLIN, .revents = 0};
      poll(&polled, 1, /*timeout=*/20);
    }
  }

  pid_t pid_ = -1;
  std::string address_;
};

// A side of this process and a second process, with a payload on its way in and one on its way out.
class TcpProcessTest : public ::testing::TestWithParam<int> {
 protected:
  void Begin() {
    TcpTransportOptions tcp_options;
    tcp_options.streams_per_peer = GetParam();
    world_.set_options(tcp_options);
    TransportOptions options;
    options.peer_timeout = 500 * kMillisecond;
    options.keepalive_interval = 100 * kMillisecond;
    side_ = std::make_unique<TransportSide>(world_, "survivor", options);
    end_ = side_->Connect(child_.address());
    memory_.resize(kPayloadBytes);
    side_->handler().choose_landing = [this](testing::RecordingHandler::Received& received) {
      Landing landing;
      landing.segments.push_back({AsMutableBytes(memory_.data(), memory_.size()), &checksum_});
      landing.token = 77;
      // One segment without canaries: the handler's own landing would take longer to make.
      received.landing_token = landing.token;
      return landing;
    };
    ASSERT_TRUE(Until("OnConnected", [&] { return side_->handler().connected(end_); }));
    side_->SendPayload(end_, {});
    ASSERT_TRUE(
        Until("the begin of the payload", [&] { return side_->handler().messages_count() == 1; }));
    ASSERT_TRUE(Until("some of the payload", [&] { return checksum_.bytes() > (1 << 20); }));
    outgoing_ = side_->SendPayload(end_, {64 << 20});
    for (int i = 0; i < 3; ++i) side_->Poll();
    ASSERT_EQ(side_->handler().landed_count(), 0u) << "too fast to be caught in the middle";
  }

  ::testing::AssertionResult Until(const char* awaited, const std::function<bool()>& done) {
    return testing::RunUntil(world_, {side_.get()}, awaited, done);
  }

  void ExpectEverythingBack() {
    EXPECT_EQ(side_->handler().landed_count(), 1u);
    EXPECT_THAT(side_->handler().received()[0]->status, HasCode(absl::StatusCode::kUnavailable));
    EXPECT_NE(side_->handler().sent(outgoing_), nullptr);
    EXPECT_EQ(side_->handler().sends_out(), 0u);
    // Nothing lands once it was handed back.
    const uint64_t landed_bytes = checksum_.bytes();
    std::memset(memory_.data(), 0x5a, 1 << 20);
    testing::RunFor(world_, {side_.get()}, 20 * kMillisecond);
    EXPECT_EQ(checksum_.bytes(), landed_bytes);
    for (size_t i = 0; i < (1 << 20); i += 509) ASSERT_EQ(memory_[i], std::byte{0x5a});
  }

  ChildProcess child_;  // first: forked before this process holds much
  testing::TcpWorld world_;
  std::vector<std::byte> memory_;
  RunningChecksum checksum_;
  std::unique_ptr<TransportSide> side_;
  EndpointId end_ = 0;
  uint64_t outgoing_ = 0;
};

TEST_P(TcpProcessTest, APeerKilledInAPayloadIsNoticedAtOnce) {
  Begin();
  if (HasFatalFailure()) return;
  child_.Signal(SIGKILL);
  const Nanos killed = world_.Now();
  ASSERT_TRUE(Until("OnClosed", [&] { return side_->handler().closed(end_); }));
  EXPECT_LT(world_.Now() - killed, 2 * kSecond);
  EXPECT_THAT(side_->handler().endpoint(end_)->why, HasCode(absl::StatusCode::kUnavailable));
  ExpectEverythingBack();
}

// The kernel of a stopped process still acknowledges: only the silence of its program tells.
TEST_P(TcpProcessTest, APeerStoppedInAPayloadIsNoticedAfterThePeerTimeout) {
  Begin();
  if (HasFatalFailure()) return;
  child_.Signal(SIGSTOP);
  const Nanos stopped = world_.Now();
  ASSERT_TRUE(Until("OnClosed", [&] { return side_->handler().closed(end_); }));
  const Nanos took = world_.Now() - stopped;
  EXPECT_GE(took, 500 * kMillisecond);
  EXPECT_LT(took, 3 * kSecond);
  EXPECT_THAT(side_->handler().endpoint(end_)->why,
              HasStatus(absl::StatusCode::kUnavailable, HasSubstr("silent for")));
  EXPECT_EQ(CountsOf(*side_).peers_silent, 1u);
  ExpectEverythingBack();

  // When it wakes, it serves others.
  child_.Signal(SIGCONT);
  const EndpointId again = side_->Connect(child_.address());
  EXPECT_TRUE(
      Until("OnConnected after SIGCONT", [&] { return side_->handler().connected(again); }));
}

INSTANTIATE_TEST_SUITE_P(Streams, TcpProcessTest, ::testing::Values(1, 3));

}  // namespace
}  // namespace forebay
