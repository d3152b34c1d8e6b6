#include "transport/local/local_address.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

class LocalListenerTest : public ::testing::Test {
 protected:
  LocalListenerTest() {
    char name[] = "/tmp/forebay-local-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~LocalListenerTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(absl::string_view name) const { return absl::StrCat(folder_, "/", name); }
  static LocalAddress Address(absl::string_view path) {
    return *LocalAddress::Parse(absl::StrCat("local:", path));
  }
  static bool Connects(const LocalAddress& address) {
    const UniqueFd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address.socket_address),
                   address.socket_address_bytes) == 0;
  }
  // A socket as a daemon leaves it that dies: bound, and nobody there.
  static void LeaveStaleSocket(const LocalAddress& address) {
    const UniqueFd bound(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(bound.get(), reinterpret_cast<const sockaddr*>(&address.socket_address),
                   address.socket_address_bytes),
              0);
  }

  std::string folder_;
};

TEST(LocalAddressTest, RefusesWhatIsNoAddressAndSaysWhy) {
  EXPECT_THAT(LocalAddress::Parse("tcp:127.0.0.1:1"), HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(LocalAddress::Parse("local:"), HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(LocalAddress::Parse("local:@"), HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(LocalAddress::Parse("local:relative"),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("absolute")));
  EXPECT_THAT(LocalAddress::Parse(absl::string_view("local:/a\0b", 10)),
              HasCode(absl::StatusCode::kInvalidArgument));
}

TEST(LocalAddressTest, APathMayFillSunPathAndNoMore) {
  const std::string longest = "/" + std::string(106, 'x');
  FB_EXPECT_OK(LocalAddress::Parse("local:" + longest));
  EXPECT_THAT(LocalAddress::Parse("local:" + longest + "x"),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("at most 107 bytes")));
}

TEST(PeerIsAllowedTest, OwnUserRootAndWhoIsNamed) {
  EXPECT_TRUE(PeerIsAllowed(/*peer_uid=*/1000, /*own_uid=*/1000, {}));
  EXPECT_TRUE(PeerIsAllowed(/*peer_uid=*/0, /*own_uid=*/1000, {}));
  EXPECT_FALSE(PeerIsAllowed(/*peer_uid=*/1001, /*own_uid=*/1000, {}));
  EXPECT_FALSE(PeerIsAllowed(/*peer_uid=*/1000, /*own_uid=*/0, {}));
  EXPECT_TRUE(PeerIsAllowed(/*peer_uid=*/1001, /*own_uid=*/1000, {1001u}));
  EXPECT_FALSE(PeerIsAllowed(/*peer_uid=*/-1, /*own_uid=*/1000, {UINT32_MAX}));
}

TEST_F(LocalListenerTest, MakesTheFolderAndASocketForTheOwnerAlone) {
  const LocalAddress address = Address(Path("new/pool.sock"));
  const auto listener = LocalListener::Open(address, 0600);
  FB_ASSERT_OK(listener);
  struct stat found;
  ASSERT_EQ(stat(Path("new").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(address.path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  EXPECT_TRUE(Connects(address));
}

TEST_F(LocalListenerTest, LeavesNothingBehind) {
  {
    const auto listener = LocalListener::Open(Address(Path("pool.sock")), 0600);
    FB_ASSERT_OK(listener);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(LocalListenerTest, TheSecondListenerIsTold) {
  const LocalAddress address = Address(Path("pool.sock"));
  const auto first = LocalListener::Open(address, 0600);
  FB_ASSERT_OK(first);
  EXPECT_THAT(
      LocalListener::Open(address, 0600),
      HasStatus(absl::StatusCode::kAlreadyExists, HasSubstr("another daemon listens on /")));
  EXPECT_TRUE(Connects(address));
  const LocalAddress abstract = Address(absl::StrCat("@forebay-address-test-", getpid()));
  const auto abstract_first = LocalListener::Open(abstract, 0600);
  FB_ASSERT_OK(abstract_first);
  EXPECT_THAT(LocalListener::Open(abstract, 0600), HasCode(absl::StatusCode::kAlreadyExists));
}

TEST_F(LocalListenerTest, ReplacesASocketThatNobodyAnswers) {
  const LocalAddress address = Address(Path("pool.sock"));
  LeaveStaleSocket(address);
  ASSERT_FALSE(Connects(address));
  const auto listener = LocalListener::Open(address, 0600);
  FB_ASSERT_OK(listener);
  EXPECT_TRUE(Connects(address));
}

// Somebody who takes no lock still counts: the socket answers.
TEST_F(LocalListenerTest, LeavesASocketAloneThatAnswersWithoutALock) {
  const LocalAddress address = Address(Path("pool.sock"));
  const UniqueFd other(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(other.get(), reinterpret_cast<const sockaddr*>(&address.socket_address),
                 address.socket_address_bytes),
            0);
  ASSERT_EQ(listen(other.get(), 1), 0);
  EXPECT_THAT(LocalListener::Open(address, 0600), HasCode(absl::StatusCode::kAlreadyExists));
  EXPECT_TRUE(std::filesystem::exists(address.path));
  EXPECT_FALSE(std::filesystem::exists(address.path + ".lock"));
}

TEST_F(LocalListenerTest, LeavesAFileAloneThatIsNoSocket) {
  const LocalAddress address = Address(Path("pool.sock"));
  std::ofstream(address.path) << "somebody's notes";
  EXPECT_THAT(LocalListener::Open(address, 0600), HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(std::filesystem::file_size(address.path), 16u);
}

TEST_F(LocalListenerTest, UnlinksItsOwnSocketOnly) {
  const LocalAddress address = Address(Path("pool.sock"));
  {
    const auto listener = LocalListener::Open(address, 0600);
    FB_ASSERT_OK(listener);
    std::filesystem::remove(address.path);
    std::ofstream(address.path) << "another's";
  }
  EXPECT_TRUE(std::filesystem::exists(address.path));
}

TEST_F(LocalListenerTest, ReportsWhatTheKernelRefuses) {
  EXPECT_THAT(LocalListener::Open(Address(Path("no/such/folder/pool.sock")), 0600),
              HasStatus(absl::StatusCode::kUnavailable, HasSubstr("No such file")));
#if defined(FOREBAY_FAILPOINTS)
  failpoint::ScopedArm arm("transport.local.listen", absl::UnavailableError("armed by a test"));
  EXPECT_THAT(LocalListener::Open(Address(Path("pool.sock")), 0600),
              HasCode(absl::StatusCode::kUnavailable));
#endif
}

}  // namespace
}  // namespace forebay
