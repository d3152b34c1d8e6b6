// UCX against a real second process (testing/ucx_peer_main.cc) that dies, stands still, or is no
// peer at all.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "transport/ucx/testing/ucx_test_options.h"
#include "transport/ucx/ucx_transport.h"

namespace forebay {
namespace {

using testing::HasCode;

constexpr size_t kBulkBytes = 128 << 20;

// This process's side: one transport, and what happened to it. Landings are in `memory`.
class Side final : public TransportHandler {
 public:
  explicit Side(size_t memory_bytes = 0) : memory(memory_bytes) {
    UcxTransportOptions options;
    options.base.peer_timeout = kSecond;
    options.base.keepalive_interval = 200 * kMillisecond;
    auto created = UcxTransport::Create(clock, *this,
                                        testing::UcxTestSettingFromEnvironment().Apply(options, 0));
    EXPECT_THAT(created, testing::IsOk());
    if (created.ok()) transport = *std::move(created);
  }

  void OnConnected(EndpointId id, const PeerDescription&) override {
    endpoint = id;
    ++connected;
  }
  Landing OnMessage(EndpointId, Bytes, uint64_t payload_bytes) override {
    ++messages;
    if (payload_bytes == 0 || payload_bytes != memory.size()) return Landing::Drop();
    Landing landing;
    landing.segments.push_back({AsMutableBytes(memory.data(), memory.size()), nullptr});
    landing.token = 1;
    ++landings_out;
    return landing;
  }
  void OnLanded(EndpointId, uint64_t, const absl::Status& status) override {
    --landings_out;
    landed += status.ok() ? 1 : 0;
  }
  void OnSent(EndpointId, uint64_t, const absl::Status& status) override {
    --sends_out;
    sent += status.ok() ? 1 : 0;
  }
  void OnClosed(EndpointId, const absl::Status& status) override {
    EXPECT_EQ(landings_out, 0);
    EXPECT_EQ(sends_out, 0);
    ++closed;
    why = status;
  }

  std::string Listen() {
    const absl::StatusOr<std::string> address = transport->Listen("ucx:127.0.0.1:0");
    EXPECT_THAT(address, testing::IsOk());
    return address.value_or("");
  }
  void Connect(const std::string& address) {
    EXPECT_THAT(transport->Connect(address, clock.Now() + 10 * kSecond), testing::IsOk());
  }
  void SendBulk() {
    OutgoingMessage message;
    message.header = AsBytes("checksum", 8);
    message.payload.push_back(AsBytes(memory.data(), memory.size()));
    message.token = 1;
    ++sends_out;
    transport->Send(endpoint, std::move(message));
  }
  // Polls, and sleeps as a reactor does, until `done`. False after `limit`.
  bool Run(const std::function<bool()>& done, Nanos limit = 20 * kSecond) {
    const Nanos until = clock.Now() + limit;
    while (!done()) {
      const Nanos now = clock.Now();
      if (now > until) return false;
      if (transport->Poll(now)) continue;
      std::vector<int> fds;
      if (!transport->PrepareToSleep(fds)) continue;
      std::vector<pollfd> polled;
      for (const int fd : fds) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      poll(polled.data(), polled.size(), /*timeout=*/20);
    }
    return true;
  }

  const SystemClock clock;
  std::vector<std::byte> memory;
  std::unique_ptr<UcxTransport> transport;
  EndpointId endpoint = 0;
  int connected = 0, closed = 0, messages = 0, landed = 0, sent = 0;
  int landings_out = 0, sends_out = 0;
  absl::Status why;
};

// One ucx_peer. Killed at the end of its scope.
class Child {
 public:
  explicit Child(std::vector<std::string> arguments) {
    const std::string program = FOREBAY_BINARY_DIR "/bin/ucx_peer";
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int to_child[2], from_child[2];
    EXPECT_EQ(pipe2(to_child, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from_child, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ), 0)
        << program;
    posix_spawn_file_actions_destroy(&actions);
    close(to_child[0]);
    close(from_child[1]);
    stdin_ = to_child[1];
    stdout_ = from_child[0];
  }
  ~Child() {
    Signal(SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    close(stdin_);
    close(stdout_);
  }

  void Signal(int signal) {
    if (pid_ > 0) kill(pid_, signal);
  }
  // The address that "serve" prints.
  std::string Address() {
    std::string line;
    char c = 0;
    while (read(stdout_, &c, 1) == 1 && c != '\n') line += c;
    const std::string front = "address ";
    EXPECT_EQ(line.substr(0, front.size()), front);
    return line.size() > front.size() ? line.substr(front.size()) : "";
  }

 private:
  pid_t pid_ = -1;
  int stdin_ = -1;
  int stdout_ = -1;
};

uint16_t PortOf(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  return static_cast<uint16_t>(port);
}

// A plain socket that connected to 127.0.0.1:`port`.
int PlainSocket(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Ports on which this process listens, UCX's own among them.
std::vector<uint16_t> ListeningPorts() {
  std::vector<uint16_t> ports;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
    sockaddr_in address{};
    bytes = sizeof(address);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 &&
        address.sin_family == AF_INET) {
      ports.push_back(ntohs(address.sin_port));
    }
  }
  return ports;
}

TEST(UcxProcessTest, PayloadsBetweenTwoProcesses) {
  Side side(8 << 20);
  Child child({"send", side.Listen(), "20", absl::StrCat(side.memory.size())});
  ASSERT_TRUE(side.Run([&] { return side.landed == 8; }));
  EXPECT_EQ(side.connected, 1);
}

// The sender is killed in the middle of a payload: its receiver hears of it at once, has its
// landing back, and nothing writes there afterwards.
TEST(UcxProcessTest, ASenderKilledInTheMiddleOfAPayload) {
  for (const int polls : {0, 3, 30}) {
    Side side(kBulkBytes);
    Child child({"send", side.Listen(), "100", absl::StrCat(kBulkBytes)});
    ASSERT_TRUE(side.Run([&] { return side.messages > 0; }));
    for (int i = 0; i < polls; ++i) side.transport->Poll(side.clock.Now());
    child.Signal(SIGKILL);
    const Nanos killed = side.clock.Now();
    ASSERT_TRUE(side.Run([&] { return side.closed == 1; }));
    EXPECT_LT(side.clock.Now() - killed, kSecond);
    EXPECT_THAT(side.why, HasCode(absl::StatusCode::kUnavailable));
    std::fill(side.memory.begin(), side.memory.end(), std::byte{0x5a});
    side.Run([] { return false; }, 50 * kMillisecond);
    EXPECT_TRUE(std::all_of(side.memory.begin(), side.memory.end(), [](std::byte byte) {
      return byte == std::byte{0x5a};
    })) << "bytes landed after OnClosed";
  }
}

TEST(UcxProcessTest, AReceiverKilledInTheMiddleOfAPayload) {
  Side side(kBulkBytes);
  Child child({"serve"});
  side.Connect(child.Address());
  ASSERT_TRUE(side.Run([&] { return side.connected == 1; }));
  side.SendBulk();
  for (int i = 0; i < 20; ++i) side.transport->Poll(side.clock.Now());
  child.Signal(SIGKILL);
  const Nanos killed = side.clock.Now();
  ASSERT_TRUE(side.Run([&] { return side.closed == 1; }));
  EXPECT_LT(side.clock.Now() - killed, kSecond);
  EXPECT_THAT(side.why, HasCode(absl::StatusCode::kUnavailable));
}

// Its socket stays open, and the kernel takes what we send: only pings tell.
TEST(UcxProcessTest, AStoppedPeerIsGivenUpAfterItsTimeout) {
  Side side(kBulkBytes);
  Child child({"serve"});
  side.Connect(child.Address());
  ASSERT_TRUE(side.Run([&] { return side.connected == 1; }));
  child.Signal(SIGSTOP);
  const Nanos stopped = side.clock.Now();
  side.SendBulk();
  ASSERT_TRUE(side.Run([&] { return side.closed == 1; }));
  EXPECT_GT(side.clock.Now() - stopped, kSecond / 2);
  EXPECT_LT(side.clock.Now() - stopped, 5 * kSecond);
  EXPECT_THAT(side.why, HasCode(absl::StatusCode::kUnavailable));
  EXPECT_EQ(side.transport->counts().peers_silent, 1u);
}

// Garbage at our own port, and at those that UCX opened: turned away, and true peers still come.
TEST(UcxProcessTest, GarbageOnEachPort) {
  Side side(1 << 20);
  const std::string address = side.Listen();
  const std::vector<uint16_t> ports = ListeningPorts();
  EXPECT_GE(ports.size(), 2u) << "ours, and one of UCX";
  SeededRandom random(3);
  std::vector<int> sockets;
  for (const uint16_t port : ports) {
    for (int i = 0; i < 20; ++i) {
      std::string garbage(1 + random.Below(20'000), '\0');
      for (char& c : garbage) c = static_cast<char>(random.Next());
      const int fd = PlainSocket(port);
      send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      sockets.push_back(fd);
      side.Run([] { return false; }, kMillisecond);
    }
  }
  EXPECT_GE(side.transport->counts().base.protocol_errors, 20u);
  for (const int fd : sockets) close(fd);
  Child child({"send", address, "2", absl::StrCat(side.memory.size())});
  EXPECT_TRUE(side.Run([&] { return side.landed == 2; }));
  EXPECT_EQ(side.transport->counts().base.endpoints_open, 1u);
}

// Whoever connects and says nothing holds no endpoint, and is dropped when too many do.
TEST(UcxProcessTest, ManyWhoSayNothing) {
  Side side(1 << 20);
  const std::string address = side.Listen();
  std::vector<int> sockets;
  for (int i = 0; i < 300; ++i) {
    sockets.push_back(PlainSocket(PortOf(address)));
    side.transport->Poll(side.clock.Now());
  }
  EXPECT_TRUE(side.Run([&] { return side.transport->counts().handshakes_dropped > 0; }));
  for (const int fd : sockets) close(fd);
  Child child({"send", address, "1", absl::StrCat(side.memory.size())});
  EXPECT_TRUE(side.Run([&] { return side.landed == 1; }));
  EXPECT_EQ(side.connected, 1);
}

// Two that connect to each other at the same moment, over and over: the ends of UCX are paired by
// number, and numbers cross.
TEST(UcxProcessTest, ConnectionsThatCross) {
  Side one, two;
  const std::string address_one = one.Listen();
  const std::string address_two = two.Listen();
  constexpr int kRounds = 10;
  for (int round = 1; round <= kRounds; ++round) {
    for (int i = 0; i < 3; ++i) {
      one.Connect(address_two);
      two.Connect(address_one);
    }
    const int open = 6 * round;
    ASSERT_TRUE(one.Run([&] {
      two.transport->Poll(two.clock.Now());
      return one.connected == open && two.connected == open;
    })) << round
        << ": " << one.connected << " and " << two.connected << ", closed " << one.closed << " "
        << one.why << " and " << two.closed << " " << two.why;
  }
  EXPECT_EQ(one.closed + two.closed, 0);
}

}  // namespace
}  // namespace forebay
