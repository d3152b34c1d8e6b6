// A peer that went through the handshake and then writes what it likes into the shared memory.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "transport/local/handshake.h"
#include "transport/local/local_transport.h"
#include "transport/local/testing/local_node.h"

namespace forebay {
namespace {

using testing::FreshAddress;
using testing::IsPattern;
using testing::LocalNode;
using testing::Pattern;
using testing::Slab;

constexpr uint64_t kSlabBytes = 64 * 1024;
constexpr int kRounds = 4000;

// The hostile end of an endpoint: a connector, or an acceptor, without any transport of its own.
class HostilePeer {
 public:
  HostilePeer(std::unique_ptr<LocalHandshake> handshake, LocalSide side)
      : handshake_(std::move(handshake)), side_(side) {}

  // True once it may begin. `victim` takes its turns meanwhile.
  bool ShakeHands(LocalNode& victim) {
    const Nanos deadline = victim.Now() + 20 * kSecond;
    while (!handshake_->done() && victim.Now() < deadline) {
      if (!handshake_->Advance().ok()) return false;
      victim.Turn();
    }
    if (!handshake_->done()) return false;
    area_.emplace(handshake_->TakeArea());
    socket_ = handshake_->TakeSocket();
    return true;
  }

  // One act of malice.
  void Act(SeededRandom& random) {
    SideWords& own = area_->words(side_);
    SideWords& victim = area_->words(OtherSide(side_));
    switch (random.Below(8)) {
      case 0:
        own.tail.store(Plausible(random));
        break;
      case 1:
        own.head.store(Plausible(random));
        break;
      case 2:
        Scribble(random, area_->ring(LocalSide(random.Below(2))));
        break;
      case 3:
        Scribble(random, area_->staging(LocalSide(random.Below(2))));
        break;
      case 4:  // the victim's own words, which it must not believe
        victim.tail.store(random.Next());
        victim.head.store(random.Next());
        victim.sleeping.store(static_cast<uint32_t>(random.Next()));
        break;
      case 5: {
        const uint64_t junk = random.Next();
        send(socket_.get(), &junk, 1 + random.Below(8), MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
      }
      default:
        WriteRecords(random);
    }
  }

 private:
  static uint64_t Plausible(SeededRandom& random) {
    const uint64_t small = random.Below(2 * SharedArea::kRingBytesMin);
    switch (random.Below(4)) {
      case 0:
        return random.Next();
      case 1:
        return small;
      case 2:
        return 0 - small;
      default:
        return small & ~uint64_t{31};
    }
  }
  static void Scribble(SeededRandom& random, MutableBytes bytes) {
    const uint64_t begin = random.Below(bytes.size());
    const uint64_t count = random.Below(std::min<uint64_t>(bytes.size() - begin, 4096) + 1);
    for (uint64_t i = 0; i < count; ++i) bytes[begin + i] = static_cast<std::byte>(random.Next());
  }
  // Records as an honest writer puts them, but with fields that are often wrong.
  void WriteRecords(SeededRandom& random) {
    const MutableBytes ring = area_->ring(side_);
    for (uint64_t left = 1 + random.Below(6); left > 0; --left) {
      RecordHead head;
      head.kind =
          static_cast<RecordKind>(random.Chance(0.05) ? random.Next() : 1 + random.Below(4));
      head.header_bytes = static_cast<uint32_t>(
          random.Chance(0.1) ? random.Next() : 1 + random.Below(random.Chance(0.5) ? 64 : 70'000));
      head.payload_bytes = random.Chance(0.1) ? random.Next() : random.Below(100'000);
      head.offset = random.Chance(0.1) ? random.Next() : random.Below(kSlabBytes + 10);
      head.region = static_cast<uint32_t>(random.Chance(0.1) ? random.Next() : random.Below(2));
      std::memcpy(ring.data() + (tail_ & (ring.size() - 1)), &head, sizeof(head));
      tail_ += head.kind == RecordKind::kMessage ? RecordBytes(head.header_bytes & 0xffff) : 32;
    }
    area_->words(side_).tail.store(tail_);
  }

  std::unique_ptr<LocalHandshake> handshake_;
  const LocalSide side_;
  UniqueFd socket_;
  std::optional<SharedArea> area_;
  uint64_t tail_ = 0;
};

LocalTransportOptions Patient() {
  LocalTransportOptions options;
  options.staging_bytes = SharedArea::kStagingBytesMin;
  options.base.keepalive_interval = kMillisecond;
  options.base.peer_timeout = kSecond;
  return options;
}

// Acts `kRounds` times, with a new hostile peer as often as the victim closes one, while the victim
// sends to it too. Everything else is the sanitizers' to see.
void Torment(LocalNode& victim, uint64_t seed, const std::vector<std::byte>& payload,
             const std::function<std::unique_ptr<HostilePeer>()>& meet) {
  SeededRandom random(seed);
  std::unique_ptr<HostilePeer> peer;
  EndpointId endpoint = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (peer == nullptr) {
      const EndpointId before = victim.newest;
      peer = meet();
      ASSERT_TRUE(peer != nullptr && peer->ShakeHands(victim));
      for (int i = 0; i < 10000 && victim.newest == before; ++i) victim.Turn();
      endpoint = victim.newest;
      ASSERT_NE(endpoint, before);
    }
    peer->Act(random);
    if (random.Chance(0.2)) {
      victim.Send(endpoint, 'd', 0, {AsBytes(payload.data(), 1 + random.Below(payload.size()))});
    }
    victim.Turn();
    if (victim.closed.contains(endpoint)) peer.reset();
    if (victim.payloads.size() > 200 && victim.landed == victim.payloads.size()) {
      victim.payloads.clear();
      victim.landed = 0;
    }
  }
}

class LocalHostileTest : public ::testing::TestWithParam<uint64_t> {};

// Against a daemon that exports memory; an honest client is served before, after, and meanwhile
// keeps its endpoint.
TEST_P(LocalHostileTest, ADaemonSurvivesAScribblingClient) {
  const Slab slab(kSlabBytes);
  LocalTransportOptions options = Patient();
  options.exports.push_back(slab.exported());
  LocalNode daemon(options);
  const std::string address = FreshAddress();
  FB_ASSERT_OK(daemon.transport().Listen(address));
  LocalTransportOptions client_options = Patient();
  client_options.base.peer_timeout = 60 * kSecond;
  LocalNode client(client_options);
  FB_ASSERT_OK(client.transport().Connect(address, client.Now() + 20 * kSecond));
  for (int i = 0; i < 10000 && client.newest == 0; ++i) {
    client.Turn();
    daemon.Turn();
  }
  const EndpointId honest = client.newest;
  ASSERT_NE(honest, 0u);

  const std::vector<std::byte> payload = Pattern(/*seed=*/1, 200'000);
  Torment(daemon, GetParam(), payload, [&]() -> std::unique_ptr<HostilePeer> {
    client.Turn();
    return std::make_unique<HostilePeer>(
        std::make_unique<ConnectorHandshake>(*LocalAddress::Parse(address), geteuid(),
                                             std::vector<uint32_t>{}),
        LocalSide::kConnector);
  });
  EXPECT_GT(daemon.transport().counts().protocol_errors, 10u);

  daemon.payloads.clear();
  daemon.landed = 0;
  ASSERT_FALSE(client.closed.contains(honest)) << client.closed[honest];
  const uint64_t token = client.Send(honest, 'p', 0, {AsBytes(payload.data(), payload.size())});
  ASSERT_TRUE(client.RunUntil([&] {
    daemon.Turn();
    return client.sent.contains(token);
  }));
  FB_EXPECT_OK(client.sent[token]);
  EXPECT_TRUE(IsPattern(*daemon.payloads.back(), /*seed=*/1));
}

TEST_P(LocalHostileTest, AClientSurvivesAScribblingDaemon) {
  const Slab slab(kSlabBytes);
  const std::vector<HandshakeExport> exports = {{.fd = slab.exported().fd, .bytes = kSlabBytes}};
  const std::string address = FreshAddress();
  absl::StatusOr<LocalListener> listener =
      LocalListener::Open(*LocalAddress::Parse(address), /*mode=*/0600);
  FB_ASSERT_OK(listener);
  LocalNode client(Patient());
  const std::vector<std::byte> payload = Pattern(/*seed=*/1, 200'000);
  Torment(client, GetParam(), payload, [&]() -> std::unique_ptr<HostilePeer> {
    if (!client.transport().Connect(address, client.Now() + 20 * kSecond).ok()) return nullptr;
    UniqueFd socket(accept4(listener->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.ok()) return nullptr;
    return std::make_unique<HostilePeer>(
        std::make_unique<AcceptorHandshake>(
            std::move(socket), PeerCredentials{},
            SharedArea::Sizes{SharedArea::kRingBytesMin, SharedArea::kStagingBytesMin}, exports),
        LocalSide::kAcceptor);
  });
  EXPECT_GT(client.transport().counts().protocol_errors, 10u);
}

// Garbage instead of a handshake, whole or in part, costs the peer its socket and nobody else.
TEST_P(LocalHostileTest, GarbageInsteadOfAHandshakeIsClosed) {
  SeededRandom random(GetParam());
  LocalNode daemon(Patient());
  const std::string address = FreshAddress();
  FB_ASSERT_OK(daemon.transport().Listen(address));
  const LocalAddress parsed = *LocalAddress::Parse(address);
  for (int round = 0; round < 200; ++round) {
    const UniqueFd raw(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ASSERT_EQ(connect(raw.get(), reinterpret_cast<const sockaddr*>(&parsed.socket_address),
                      parsed.socket_address_bytes),
              0);
    std::byte junk[1024];
    for (std::byte& byte : junk) byte = static_cast<std::byte>(random.Next());
    if (random.Chance(0.5)) std::memcpy(junk, "FBLOCAL1", 8);
    const int fds[] = {raw.get(), raw.get()};
    if (random.Chance(0.5)) {
      static_cast<void>(SendHandshake(raw.get(), static_cast<HandshakeKind>(random.Below(7)),
                                      AsBytes(junk, random.Below(600)), fds));
    } else {
      send(raw.get(), junk, random.Below(sizeof(junk)), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    const Nanos deadline = daemon.Now() + 10 * kSecond;
    char byte = 0;
    ssize_t got = -1;
    while (daemon.Now() < deadline && (got = recv(raw.get(), &byte, 1, MSG_DONTWAIT)) < 0 &&
           errno == EAGAIN) {
      daemon.Turn();
    }
    EXPECT_LT(daemon.Now(), deadline);
  }
  EXPECT_TRUE(daemon.peers.empty());
  EXPECT_GT(daemon.transport().counts().protocol_errors, 100u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, LocalHostileTest, ::testing::Range<uint64_t>(1, 5));

}  // namespace
}  // namespace forebay
