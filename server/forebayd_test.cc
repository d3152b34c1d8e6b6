// The daemon as its supervisor sees it: a process with flags, signals, files and an exit code.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"

extern char** environ;

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Nanos kLimit = 40 * kSecond;

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A forebayd with its files in a folder of its own.
class Forebayd {
 public:
  explicit Forebayd(std::vector<std::string> arguments) {
    std::string folder = ::testing::TempDir() + "/forebayd.XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    arguments.insert(arguments.begin(), FOREBAY_BINARY_DIR "/bin/forebayd");
    arguments.push_back("--ready_file");
    arguments.push_back(ready_file());
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string log = folder_ + "/log";
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, words[0], &actions, nullptr, words.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Forebayd() {
    if (pid_ > 0 && !reaped_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // Until the ready file is there. False if the daemon ends first.
  bool AwaitReady() {
    const Nanos until = clock_.Now() + kLimit;
    while (clock_.Now() < until && !Ended()) {
      const std::string text = ReadAll(ready_file());
      if (!text.empty()) {
        for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
          const std::pair<std::string, std::string> pair =
              absl::StrSplit(line, absl::MaxSplits('=', 1));
          addresses_.insert(pair);
        }
        return true;
      }
      Pause();
    }
    return false;
  }
  // Its exit code; -1 for another end, -2 if it still runs at the limit.
  int Wait() {
    const Nanos until = clock_.Now() + kLimit;
    while (!Ended()) {
      if (clock_.Now() > until) return -2;
      Pause();
    }
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }
  void Signal(int signal) { kill(pid_, signal); }
  std::string Log() const { return ReadAll(folder_ + "/log"); }
  std::string control() const { return addresses_.find("control")->second; }
  // The data address that begins with `scheme`.
  std::string data(absl::string_view scheme) const {
    const auto [begin, end] = addresses_.equal_range("data");
    for (auto it = begin; it != end; ++it) {
      if (absl::StartsWith(it->second, scheme)) return it->second.substr(scheme.size());
    }
    return "";
  }

 private:
  std::string ready_file() const { return folder_ + "/ready"; }
  bool Ended() {
    if (!reaped_) reaped_ = waitpid(pid_, &status_, WNOHANG) == pid_;
    return reaped_;
  }
  static void Pause() { usleep(2'000); }

  SystemClock clock_;
  std::string folder_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  int status_ = 0;
  std::multimap<std::string, std::string> addresses_;
};

// A configuration file with free ports and little memory.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& control = "127.0.0.1:0",
                      const std::string& tcp = "127.0.0.1:0", const std::string& socket = "",
                      const std::string& more = "") {
    std::string folder = ::testing::TempDir() + "/config.XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    const std::string local = socket.empty() ? folder_ + "/pool.sock" : socket;
    std::ofstream(path()) << "control_address: \"" << control << "\"\ndata_plane { tcp_address: \""
                          << tcp << "\" local_socket: \"" << local
                          << "\" }\ndram { capacity_bytes: 67108864 }\n"
                          << more;
  }
  ~ConfigFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path() const { return folder_ + "/pool.textproto"; }

 private:
  std::string folder_;
};

TEST(ForebaydTest, StartsSaysWhereItIsAndEndsOnSigterm) {
  const ConfigFile config;
  Forebayd daemon({"--config", config.path(), "--node", "n1"});
  ASSERT_TRUE(daemon.AwaitReady()) << daemon.Log();
  EXPECT_THAT(daemon.control(), HasSubstr("127.0.0.1:"));
  EXPECT_NE(daemon.data("tcp:"), "");
  const std::string socket = daemon.data("local:");
  EXPECT_TRUE(std::filesystem::exists(socket)) << socket;
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.Log();
  EXPECT_FALSE(std::filesystem::exists(socket));
  EXPECT_THAT(daemon.Log(), AllOf(HasSubstr("daemon.ready"), HasSubstr("daemon.stopping node=n1"),
                                  HasSubstr("daemon.stopped node=n1 drained=1")));
}

TEST(ForebaydTest, EndsOnSigintToo) {
  const ConfigFile config;
  Forebayd daemon({"--config", config.path()});
  ASSERT_TRUE(daemon.AwaitReady()) << daemon.Log();
  daemon.Signal(SIGINT);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.Log();
}

TEST(ForebaydTest, ASecondDaemonOnAnAddressFailsAndNamesIt) {
  const ConfigFile config;
  Forebayd first({"--config", config.path()});
  ASSERT_TRUE(first.AwaitReady()) << first.Log();
  const std::string control = first.control();
  const std::string tcp = first.data("tcp:");
  const std::string socket = first.data("local:");

  const ConfigFile same_control(control);
  Forebayd second({"--config", same_control.path()});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.Log(), AllOf(HasSubstr("control_address"), HasSubstr(control)));

  const ConfigFile same_tcp("127.0.0.1:0", tcp);
  Forebayd third({"--config", same_tcp.path()});
  EXPECT_EQ(third.Wait(), 1);
  EXPECT_THAT(third.Log(), AllOf(HasSubstr("data_plane.tcp_address"), HasSubstr(tcp)));

  const ConfigFile same_socket("127.0.0.1:0", "127.0.0.1:0", socket);
  Forebayd fourth({"--config", same_socket.path()});
  EXPECT_EQ(fourth.Wait(), 1);
  EXPECT_THAT(fourth.Log(), AllOf(HasSubstr("data_plane.local_socket"), HasSubstr(socket)));

  first.Signal(SIGTERM);
  EXPECT_EQ(first.Wait(), 0) << first.Log();
}

TEST(ForebaydTest, WrongUseAndWrongConfigurationsHaveExitCodesAndReasons) {
  Forebayd flag({"--confg", "x"});
  EXPECT_EQ(flag.Wait(), 2);
  EXPECT_THAT(flag.Log(), HasSubstr("did you mean --config?"));

  const ConfigFile faults("0.0.0.0:1", "127.0.0.1:0", "", "nod: \"x\"\nspin_us: 2000000\n");
  Forebayd config({"--config", faults.path()});
  EXPECT_EQ(config.Wait(), 1);
  EXPECT_THAT(config.Log(),
              AllOf(HasSubstr("\"nod\""), HasSubstr("control_address"), HasSubstr("spin_us")));

  Forebayd missing({"--config", "/nonexistent.textproto"});
  EXPECT_EQ(missing.Wait(), 1);
  EXPECT_THAT(missing.Log(), HasSubstr("/nonexistent.textproto"));

  Forebayd node({"--node", "not a name", "--check"});
  EXPECT_EQ(node.Wait(), 1);
}

TEST(ForebaydTest, CheckPrintsWhatWouldRun) {
  const ConfigFile config;
  Forebayd daemon({"--config", config.path(), "--check"});
  EXPECT_EQ(daemon.Wait(), 0);
  EXPECT_THAT(daemon.Log(),
              AllOf(HasSubstr("capacity_bytes: 67108864"), HasSubstr("put_timeout_ms: 30000")));
}

TEST(ForebaydTest, TellsSystemdThatItIsReadyAndThatItStops) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/forebayd-notify.", getpid());
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const timeval limit{40, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setenv("NOTIFY_SOCKET", path.c_str(), 1);
  const ConfigFile config;
  Forebayd daemon({"--config", config.path()});
  unsetenv("NOTIFY_SOCKET");
  const auto next = [fd] {
    char buffer[64];
    const ssize_t bytes = recv(fd, buffer, sizeof(buffer), 0);
    return bytes < 0 ? std::string() : std::string(buffer, static_cast<size_t>(bytes));
  };
  EXPECT_EQ(next(), "READY=1") << daemon.Log();
  daemon.Signal(SIGTERM);
  EXPECT_EQ(next(), "STOPPING=1") << daemon.Log();
  EXPECT_EQ(daemon.Wait(), 0);
  close(fd);
  std::filesystem::remove(path);
}

TEST(ForebaydTest, GarbageOnEachPortEndsNothing) {
  const ConfigFile config;
  Forebayd daemon({"--config", config.path()});
  ASSERT_TRUE(daemon.AwaitReady()) << daemon.Log();
  const auto send_garbage = [](int fd, const sockaddr* address, socklen_t bytes) {
    ASSERT_EQ(connect(fd, address, bytes), 0);
    std::string garbage(4096, '\0');
    for (size_t i = 0; i < garbage.size(); ++i) garbage[i] = static_cast<char>(i * 37 + 11);
    static_cast<void>(send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL));
    // The peer closes: read until it has.
    const timeval limit{40, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    char buffer[256];
    ssize_t got;
    while ((got = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
    }
    EXPECT_TRUE(got == 0 || errno == ECONNRESET) << std::strerror(errno);
    close(fd);
  };
  for (const std::string& port : {daemon.control(), daemon.data("tcp:")}) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    uint32_t number = 0;
    ASSERT_TRUE(absl::SimpleAtoi(port.substr(port.rfind(':') + 1), &number));
    address.sin_port = htons(static_cast<uint16_t>(number));
    send_garbage(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                 reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  sockaddr_un local = {};
  local.sun_family = AF_UNIX;
  const std::string path = daemon.data("local:");
  std::memcpy(local.sun_path, path.data(), path.size());
  send_garbage(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0),
               reinterpret_cast<sockaddr*>(&local), sizeof(local));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.Log();
}

}  // namespace
}  // namespace forebay
