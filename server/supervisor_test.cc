#include "server/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;

// A socket as systemd's, and $NOTIFY_SOCKET that names it.
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (path[0] == '@') address.sun_path[0] = '\0';
    fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~NotifySocket() {
    close(fd_);
    unsetenv("NOTIFY_SOCKET");
  }
  std::string Take() {
    char buffer[64];
    const ssize_t bytes = recv(fd_, buffer, sizeof(buffer), 0);
    return bytes < 0 ? "" : std::string(buffer, static_cast<size_t>(bytes));
  }

 private:
  int fd_ = -1;
};

TEST(SupervisorTest, TellsSystemdOverAFileAndOverAnAbstractName) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/notify.", getpid());
  {
    NotifySocket file(path);
    FB_EXPECT_OK(NotifySupervisor("READY=1"));
    EXPECT_EQ(file.Take(), "READY=1");
    std::filesystem::remove(path);
    EXPECT_THAT(NotifySupervisor("READY=1"), HasCode(absl::StatusCode::kUnavailable));
  }
  NotifySocket abstract(absl::StrCat("@forebay-notify.", getpid()));
  FB_EXPECT_OK(NotifySupervisor("STOPPING=1"));
  EXPECT_EQ(abstract.Take(), "STOPPING=1");
}

TEST(SupervisorTest, SaysNothingWhereNobodyAsked) {
  unsetenv("NOTIFY_SOCKET");
  FB_EXPECT_OK(NotifySupervisor("READY=1"));
  setenv("NOTIFY_SOCKET", "relative", 1);
  EXPECT_THAT(NotifySupervisor("READY=1"), HasCode(absl::StatusCode::kInvalidArgument));
  unsetenv("NOTIFY_SOCKET");
}

TEST(SupervisorTest, WritesAFileWholeOrNotAtAll) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/whole.", getpid());
  FB_ASSERT_OK(WriteWhole(path, "control=a\n"));
  FB_ASSERT_OK(WriteWhole(path, "control=b\n"));
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "control=b\n");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_THAT(WriteWhole("/nonexistent/x", ""), HasCode(absl::StatusCode::kNotFound));
}

TEST(SupervisorTest, SignalsAreCountedAndEndNothing) {
  StopSignals stop;
  std::vector<int> fds;
  EXPECT_TRUE(stop.PrepareToSleep(fds));
  ASSERT_EQ(fds.size(), 1u);
  raise(SIGTERM);
  EXPECT_FALSE(stop.PrepareToSleep(fds));
  EXPECT_EQ(stop.count(), 1);
  raise(SIGINT);
  EXPECT_TRUE(stop.Poll(kSecond));
  EXPECT_EQ(stop.count(), 2);
}

}  // namespace
}  // namespace forebay
