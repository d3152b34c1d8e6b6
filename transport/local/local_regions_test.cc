// Exported memory: what peers see of it, and payloads that go straight out of it.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <memory>
#include <vector>

#include "base/failpoint.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "transport/local/local_transport.h"
#include "transport/local/testing/local_node.h"

namespace forebay {
namespace {

using testing::FreshAddress;
using testing::HasCode;
using testing::IsPattern;
using testing::LocalNode;
using testing::Pattern;
using testing::PatternByte;
using testing::Slab;

constexpr uint64_t kSlabBytes = 1 << 20;

// A daemon that exports slabs, and a client of it, in one thread.
class LocalRegionsTest : public ::testing::Test {
 protected:
  void Start(size_t slab_count, uint64_t staging_bytes = 2 << 20) {
    LocalTransportOptions options;
    options.staging_bytes = staging_bytes;
    for (size_t i = 0; i < slab_count; ++i) {
      slabs_.push_back(std::make_unique<Slab>(kSlabBytes));
      options.exports.push_back(slabs_.back()->exported());
    }
    daemon_ = std::make_unique<LocalNode>(std::move(options));
    client_ = std::make_unique<LocalNode>();
    const std::string address = FreshAddress();
    FB_ASSERT_OK(daemon_->transport().Listen(address));
    FB_ASSERT_OK(client_->transport().Connect(address, client_->Now() + 10 * kSecond));
    ASSERT_TRUE(RunBoth([&] { return daemon_->newest != 0 && client_->newest != 0; }));
  }
  bool RunBoth(const std::function<bool()>& done) {
    return client_->RunUntil([&] {
      daemon_->Turn();
      return done();
    });
  }

  std::vector<std::unique_ptr<Slab>> slabs_;
  std::unique_ptr<LocalNode> daemon_;
  std::unique_ptr<LocalNode> client_;
};

TEST_F(LocalRegionsTest, PeersSeeLiveMemoryInTheOrderOfTheExportAndCannotWriteIt) {
  Start(/*slab_count=*/3);
  const std::vector<Bytes>& regions = client_->peers[client_->newest].shared_regions;
  ASSERT_EQ(regions.size(), 3u);
  for (size_t i = 0; i < regions.size(); ++i) {
    ASSERT_EQ(regions[i].size(), kSlabBytes);
    slabs_[i]->data()[i * 100] = static_cast<std::byte>(i + 1);
    EXPECT_EQ(regions[i][i * 100], static_cast<std::byte>(i + 1));
    auto* address = const_cast<std::byte*>(regions[i].data());
    EXPECT_EQ(mprotect(address, kSlabBytes, PROT_READ | PROT_WRITE), -1);
    EXPECT_EQ(errno, EACCES);
  }
  EXPECT_TRUE(daemon_->peers[daemon_->newest].shared_regions.empty());
}

// More than one packet's worth of descriptors.
TEST_F(LocalRegionsTest, ManyRegionsArriveInOrder) {
  constexpr size_t kSlabs = 2 * kRegionsPerPacket + 1;
  Start(kSlabs);
  const std::vector<Bytes>& regions = client_->peers[client_->newest].shared_regions;
  ASSERT_EQ(regions.size(), kSlabs);
  for (size_t i = 0; i < kSlabs; ++i) {
    slabs_[i]->data()[0] = static_cast<std::byte>(i);
    EXPECT_EQ(regions[i][0], static_cast<std::byte>(i));
  }
}

// Ranges in exported slabs and outside of them, mixed, small and large, land as one payload.
TEST_F(LocalRegionsTest, PayloadsMixExportedAndPrivateMemory) {
  Start(/*slab_count=*/2);
  const std::vector<std::byte> all = Pattern(/*seed=*/5, 3'000'000);
  std::vector<std::vector<std::byte>> copies;
  PayloadRanges ranges;
  size_t at = 0;
  uint64_t slab_at[2] = {0, 0};
  for (size_t i = 0; at < all.size(); ++i) {
    const size_t bytes = std::min(all.size() - at, size_t{1} + i * i * 977 % 300'000);
    const size_t slab = i % 3;
    if (slab < 2 && slab_at[slab] + bytes <= kSlabBytes) {
      std::byte* to = slabs_[slab]->data() + slab_at[slab];
      std::copy_n(all.data() + at, bytes, to);
      ranges.push_back(AsBytes(to, bytes));
      slab_at[slab] += bytes;
    } else {
      copies.emplace_back(all.begin() + static_cast<ptrdiff_t>(at),
                          all.begin() + static_cast<ptrdiff_t>(at + bytes));
      ranges.push_back(AsBytes(copies.back().data(), bytes));
    }
    at += bytes;
  }
  const uint64_t token = daemon_->Send(daemon_->newest, 'd', 0, ranges);
  ASSERT_TRUE(RunBoth([&] { return client_->landed == 1 && daemon_->sent.contains(token); }));
  EXPECT_TRUE(IsPattern(*client_->payloads[0], /*seed=*/5));
  FB_EXPECT_OK(daemon_->sent[token]);
}

// The sender makes no copy: what the slab holds when the receiver comes is what arrives.
TEST_F(LocalRegionsTest, ExportedPayloadsAreReadWhereTheyLie) {
  Start(/*slab_count=*/1);
  daemon_->Send(daemon_->newest, 'd', 0, {AsBytes(slabs_[0]->data(), 100'000)});
  for (size_t i = 0; i < 100'000; ++i) slabs_[0]->data()[i] = PatternByte(/*seed=*/9, i);
  ASSERT_TRUE(RunBoth([&] { return client_->landed == 1; }));
  EXPECT_TRUE(IsPattern(*client_->payloads[0], /*seed=*/9));
}

// What was taken back may have been written over: the receiver must not call it landed.
TEST_F(LocalRegionsTest, APayloadThatTheSenderTookBackDoesNotLand) {
  Start(/*slab_count=*/1);
  const uint64_t token =
      daemon_->Send(daemon_->newest, 'd', 0, {AsBytes(slabs_[0]->data(), 100'000)});
  daemon_->transport().Close(daemon_->newest);
  while (!daemon_->sent.contains(token)) daemon_->Turn();
  EXPECT_THAT(daemon_->sent[token], HasCode(absl::StatusCode::kCancelled));
  ASSERT_TRUE(RunBoth([&] { return !client_->closed.empty(); }));
  for (const auto& payload : client_->payloads) EXPECT_FALSE(payload->status.ok());
}

TEST_F(LocalRegionsTest, TheConnectorsOwnExportsTravelByCopy) {
  const Slab slab(kSlabBytes);
  LocalTransportOptions options;
  options.exports.push_back(slab.exported());
  client_ = std::make_unique<LocalNode>(options);
  daemon_ = std::make_unique<LocalNode>();
  const std::string address = FreshAddress();
  FB_ASSERT_OK(daemon_->transport().Listen(address));
  FB_ASSERT_OK(client_->transport().Connect(address, client_->Now() + 10 * kSecond));
  ASSERT_TRUE(RunBoth([&] { return daemon_->newest != 0 && client_->newest != 0; }));
  for (size_t i = 0; i < kSlabBytes; ++i) slab.data()[i] = PatternByte(/*seed=*/3, i);
  client_->Send(client_->newest, 'p', 0, {slab.bytes()});
  ASSERT_TRUE(RunBoth([&] { return daemon_->landed == 1; }));
  EXPECT_TRUE(IsPattern(*daemon_->payloads[0], /*seed=*/3));
}

// Memory that is lent for payloads to be put together in.
class LocalLoanTest : public LocalRegionsTest {
 protected:
  static constexpr size_t kStagingBytes = 1 << 20;

  void SetUp() override { Start(0, kStagingBytes); }
  MutableBytes Lend(size_t bytes) {
    return client_->transport().LendSendBuffer(client_->newest, 9, bytes);
  }
};

// Until the area is full, and again and again as the peer reads: no two that are out overlap,
// whatever their sizes, and each arrives.
TEST_F(LocalLoanTest, LoansGoRoundTheAreaAndNeverOverlap) {
  SeededRandom random(4);
  uint64_t sent = 0, refused = 0;
  std::map<uint64_t, Bytes> out;  // by token
  while (sent < 300) {
    for (auto it = out.begin(); it != out.end();) {
      it = client_->sent.contains(it->first) ? out.erase(it) : std::next(it);
    }
    const size_t bytes = 1 + random.Below(kStagingBytes / 3);
    const MutableBytes lent = Lend(bytes);
    if (lent.empty()) {
      ASSERT_LT(++refused, 10'000u);
      daemon_->Turn();
      client_->Turn();
      continue;
    }
    ASSERT_EQ(lent.size(), bytes);
    for (const auto& [token, other] : out) {
      EXPECT_TRUE(lent.data() + bytes <= other.data() || other.data() + other.size() <= lent.data())
          << "loan " << sent << " overlaps that of token " << token;
    }
    for (size_t i = 0; i < bytes; ++i) lent[i] = PatternByte(sent, i);
    out[client_->Send(client_->newest, 'l', sent, {lent})] = lent;
    ++sent;
  }
  EXPECT_GT(refused, 10u);
  ASSERT_TRUE(RunBoth([&] { return daemon_->landed == sent; }));
  for (uint64_t i = 0; i < sent; ++i) EXPECT_TRUE(IsPattern(*daemon_->payloads[i], i)) << i;
}

TEST_F(LocalLoanTest, WhatIsNotFreeOrTooLargeIsNotLent) {
  EXPECT_TRUE(client_->transport().LendSendBuffer(client_->newest + 1, 9, 64).empty());
  EXPECT_TRUE(Lend(0).empty());
  EXPECT_TRUE(Lend(kStagingBytes / 2 + 1).empty());
  EXPECT_FALSE(Lend(kStagingBytes / 2).empty());
  // A payload that waits for room is staged before any loan.
  const std::vector<std::byte> large = Pattern(1, 3 << 20);
  client_->Send(client_->newest, 'w', 1, {Bytes(large)});
  EXPECT_TRUE(Lend(64).empty());
  ASSERT_TRUE(RunBoth([&] { return client_->sent.size() == 1; }));
  EXPECT_FALSE(Lend(64).empty());
}

// The memory of a loan that is over would be overwritten before it is sent.
TEST_F(LocalLoanTest, ALoanEndsWithThePoll) {
  const MutableBytes lent = Lend(4096);
  ASSERT_FALSE(lent.empty());
  client_->Turn();
  EXPECT_DEATH(client_->Send(client_->newest, 'l', 0, {lent}), "");
}

TEST(LocalConnectTest, AnEndpointThatCannotConnectCloses) {
#if defined(FOREBAY_FAILPOINTS)
  failpoint::ScopedArm arm("transport.local.connect", absl::UnavailableError("armed by a test"));
  LocalNode node;
  const absl::StatusOr<EndpointId> id =
      node.transport().Connect(FreshAddress(), node.Now() + 10 * kSecond);
  FB_ASSERT_OK(id);
  ASSERT_TRUE(node.RunUntil([&] { return node.closed.contains(*id); }));
  EXPECT_THAT(node.closed[*id], HasCode(absl::StatusCode::kUnavailable));
#else
  GTEST_SKIP() << "built without failpoints";
#endif
}

TEST(LocalExportTest, MemoryThatAPeerCouldWriteIsNotExported) {
  SystemClock clock;
  LocalNode handler;
  const UniqueFd fd(memfd_create("forebay-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), 4096), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  LocalTransportOptions options;
  options.exports.push_back({.fd = fd.get(), .bytes = 4096});
  EXPECT_THAT(LocalTransport::Create(clock, handler, options),
              HasCode(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace forebay
