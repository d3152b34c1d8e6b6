// What a broken or hostile client may say to a daemon: each gets a clear refusal, nothing of it is
// ever stored, and the daemon serves everybody else as before.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "client/rpc/admin_client.h"
#include "tests/e2e/pool_user.h"
#include "tests/e2e/raw_peer.h"
#include "transport/tcp/testing/raw_socket.h"

namespace forebay::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// A page of one part of 1,024 bytes: stored or not, nothing in between.
KvLayout OnePartLayout() { return KvLayout::Uniform(1, 1, 16, DType::kBf16, 16, 1); }

PageKey KeyOf(uint64_t seed) {
  PageKey key;
  SeededRandom random(seed);
  for (uint8_t& byte : key.bytes) byte = static_cast<uint8_t>(random.Next());
  return key;
}

// One daemon for a whole suite of a test program.
class BadWireTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    auto daemon = DaemonProcess::Start(*folder_, {});
    FB_ASSERT_OK(daemon);
    daemon_ = daemon->release();
  }
  static void TearDownTestSuite() {
    delete daemon_;
    delete folder_;
  }

  void SetUp() override {
    ASSERT_NE(daemon_, nullptr);
    spec_ =
        SpecNamed(::testing::UnitTest::GetInstance()->current_test_info()->name(), OnePartLayout());
    auto session = OpenSessionAt(control(), RequestFor(spec_));
    FB_ASSERT_OK(session);
    session_ = *session;
  }
  // Whatever a test did: the daemon runs, serves others over each path, and lost no slot.
  void TearDown() override {
    peer_.reset();
    ASSERT_TRUE(daemon_->process().Running()) << daemon_->Log();
    FB_EXPECT_OK(RoundTrip(control(), PathChoice::kLocal));
    FB_EXPECT_OK(RoundTrip(control(), PathChoice::kTcp));
    FB_EXPECT_OK(AwaitQuiet(control(), 10 * kSecond));
  }

  static const std::string& control() { return daemon_->control(); }
  static std::string tcp() { return DataAddress(*daemon_, "tcp"); }

  // A greeted endpoint; the one of before where the daemon has not closed it.
  RawPeer* Peer() {
    if (peer_ == nullptr || peer_->closed()) {
      auto peer = RawPeer::Greet(tcp(), session_);
      EXPECT_TRUE(peer.ok()) << peer.status();
      peer_ = peer.ok() ? *std::move(peer) : nullptr;
    }
    return peer_.get();
  }
  // Sends what must be refused: an answer with an error, or the end of the endpoint.
  void ExpectRefused(Bytes header, absl::string_view payload, const std::string& what) {
    RawPeer* const peer = Peer();
    ASSERT_NE(peer, nullptr);
    const auto answer = peer->Ask(header, payload);
    ASSERT_TRUE(answer.ok()) << what << ": " << answer.status();
    if (answer->closed) return;
    if (answer->kind == wire::Kind::kPutReply) {
      EXPECT_THAT(answer->put_item(),
                  AnyOf(absl::StatusCode::kDataLoss, absl::StatusCode::kInvalidArgument,
                        absl::StatusCode::kUnimplemented))
          << what;
      return;
    }
    EXPECT_EQ(answer->kind, wire::Kind::kError) << what;
    EXPECT_FALSE(answer->status().ok()) << what;
    peer_.reset();  // it is being closed
  }
  void ExpectNothingStored() { EXPECT_EQ(StoredFrames(), 0u); }
  // Frames of this test's namespace.
  uint64_t StoredFrames() {
    const auto list = AdminClient(control(), "", 20 * kSecond).ListNamespaces();
    EXPECT_TRUE(list.ok()) << list.status();
    if (!list.ok()) return UINT64_MAX;
    for (const v1::NamespaceStatus& ns : list->namespaces()) {
      if (ns.namespace_id() == session_.namespace_id) return ns.frames();
    }
    return 0;
  }
  // The positive control: the same put, unharmed, is stored and found.
  void ExpectStores(const OnePut& put) {
    RawPeer* const peer = Peer();
    ASSERT_NE(peer, nullptr);
    const auto answer = peer->Ask(put.Header(), put.payload);
    FB_ASSERT_OK(answer);
    EXPECT_EQ(answer->put_item(), absl::StatusCode::kOk);
    const auto pages = ProbePages(*peer, session_.namespace_id, {put.item.key});
    FB_ASSERT_OK(pages);
    EXPECT_EQ(*pages, 1u);
  }

  static TemporaryFolder* folder_;
  static DaemonProcess* daemon_;
  NamespaceSpec spec_;
  OpenSessionReply session_;
  std::unique_ptr<RawPeer> peer_;
};

TemporaryFolder* BadWireTest::folder_ = nullptr;
DaemonProcess* BadWireTest::daemon_ = nullptr;

TEST_F(BadWireTest, OtherWireVersionsAreRefusedWithBothRangesNamed) {
  OpenSessionRequest request = RequestFor(spec_);
  request.wire_version_min = 90;
  request.wire_version_max = 99;
  EXPECT_THAT(
      OpenSessionAt(control(), request),
      HasStatus(absl::StatusCode::kFailedPrecondition,
                AllOf(HasSubstr("90"), HasSubstr("99"), HasSubstr(absl::StrCat(kWireVersionMax)))));

  wire::Hello hello;
  hello.session = session_.session;
  hello.boot_epoch = session_.boot_epoch;
  for (const int version : {0, 2, 9, 255}) {
    std::vector<std::byte> message = MessageOf(wire::Kind::kHello, hello);
    message[offsetof(wire::Head, version)] = static_cast<std::byte>(version);
    auto peer = RawPeer::Connect(tcp());
    FB_ASSERT_OK(peer);
    const auto answer = (*peer)->Ask(message);
    FB_ASSERT_OK(answer);
    ASSERT_FALSE(answer->closed) << "closed without a word";
    EXPECT_THAT(answer->status(),
                HasStatus(absl::StatusCode::kFailedPrecondition, HasSubstr(absl::StrCat(version))));
    const auto end = (*peer)->Await();
    FB_ASSERT_OK(end);
    EXPECT_TRUE(end->closed);
  }
}

TEST_F(BadWireTest, AHelloOfAnotherEpochOrSessionIsRefused) {
  OpenSessionReply other = session_;
  other.boot_epoch[3] ^= 1;
  EXPECT_THAT(RawPeer::Greet(tcp(), other), HasCode(absl::StatusCode::kFailedPrecondition));
  other = session_;
  other.session[3] ^= 1;
  EXPECT_THAT(RawPeer::Greet(tcp(), other), HasCode(absl::StatusCode::kUnauthenticated));
}

TEST_F(BadWireTest, WrongLayoutsAreRefusedWithEveryFaultNamed) {
  NamespaceSpec bad = spec_;
  bad.layout.page_tokens = 0;
  bad.layout.layers[0].kv_heads = 0;
  bad.model = "";
  EXPECT_THAT(
      OpenSessionAt(control(), RequestFor(bad)),
      HasStatus(absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("page_tokens"), HasSubstr("kv_heads"), HasSubstr("model"))));
  PoolUser::Options options;
  options.daemons = {control()};
  options.spec = bad;
  EXPECT_THAT(PoolUser::Open(options).status(), HasCode(absl::StatusCode::kInvalidArgument));
}

// A frame cut for another layout is sound in itself and wrong here.
TEST_F(BadWireTest, FramesOfAnotherLayoutOrDtypeAreRefused) {
  KvLayout dtype = OnePartLayout();
  dtype.layers[0].dtype = DType::kFp16;
  KvLayout wide = OnePartLayout();
  wide.layers[0].k_dim = 8;
  wide.layers[0].v_dim = 24;  // as many bytes
  wide.page_tokens = 32;
  for (const KvLayout& layout : {dtype, wide}) {
    const OnePut put(session_, layout, KeyOf(1));
    ExpectRefused(put.Header(), put.payload, layout.ToString());
  }
  ExpectNothingStored();
  ExpectStores(OnePut(session_, OnePartLayout(), KeyOf(1)));
}

TEST_F(BadWireTest, PartsOfWrongLengthAreRefused) {
  const OnePut good(session_, OnePartLayout(), KeyOf(2));
  const auto part_bytes = static_cast<uint32_t>(good.payload.size());
  for (const uint32_t bytes : {1u, part_bytes - 1, part_bytes + 1, 2 * part_bytes, 1u << 20}) {
    // The whole message agrees on the wrong length.
    OnePut put = good;
    put.payload.resize(bytes, 'x');
    put.item.header.payload_bytes = bytes;
    put.item.header.payload_checksum = ChecksumOf(AsBytes(put.payload.data(), bytes));
    put.item.header.Seal();
    ExpectRefused(put.Header(), put.payload, absl::StrCat("payload of ", bytes));
    put.item.header.raw_bytes = bytes;
    put.item.header.Seal();
    ExpectRefused(put.Header(), put.payload, absl::StrCat("raw and payload of ", bytes));
    // The header is right, and the payload is not as long as it says.
    ExpectRefused(good.Header(), put.payload, absl::StrCat("payload of ", bytes, " unannounced"));
  }
  ExpectRefused(good.Header(), "", "no payload");
  OnePut part = good;
  part.item.part = 1;
  ExpectRefused(part.Header(), part.payload, "a part that a page does not have");
  ExpectNothingStored();
  ExpectStores(good);
}

// Each truncation of the header, with the length in its head as it was and made to agree.
TEST_F(BadWireTest, EveryTruncationOfAPutIsRefused) {
  const OnePut put(session_, OnePartLayout(), KeyOf(3));
  const std::vector<std::byte> whole = put.Header();
  for (size_t bytes = 1; bytes < whole.size(); ++bytes) {
    std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(bytes));
    ExpectRefused(cut, put.payload, absl::StrCat("cut at ", bytes));
    if (bytes >= sizeof(wire::Head)) {
      const auto body_bytes = static_cast<uint32_t>(bytes - sizeof(wire::Head));
      std::memcpy(cut.data() + offsetof(wire::Head, body_bytes), &body_bytes, sizeof(body_bytes));
      ExpectRefused(cut, put.payload, absl::StrCat("cut at ", bytes, " and made to agree"));
    }
    if (HasFatalFailure()) return;
  }
  ExpectNothingStored();
  ExpectStores(put);
}

// Damage before the transport's own checksums: in the sender's memory. Every bit of the frame's
// header and of the key that it is bound to, and a seeded set of the payload's.
TEST_F(BadWireTest, EveryBitOfAFrameHeaderAndManyOfThePayloadAreWatched) {
  const OnePut put(session_, OnePartLayout(), KeyOf(4));
  for (size_t bit = 0; bit < sizeof(FrameHeader) * 8; ++bit) {
    OnePut flipped = put;
    reinterpret_cast<uint8_t*>(&flipped.item.header)[bit / 8] ^=
        static_cast<uint8_t>(1u << (bit % 8));
    ExpectRefused(flipped.Header(), flipped.payload, absl::StrCat("header bit ", bit));
    if (HasFatalFailure()) return;
  }
  for (size_t bit = 0; bit < sizeof(FrameHeader::identity) * 8; ++bit) {
    OnePut flipped = put;
    flipped.item.key.bytes[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    ExpectRefused(flipped.Header(), flipped.payload, absl::StrCat("key bit ", bit));
  }
  SeededRandom random(4);
  for (int i = 0; i < 500; ++i) {
    OnePut flipped = put;
    const uint64_t bit = random.Below(flipped.payload.size() * 8);
    flipped.payload[bit / 8] = static_cast<char>(flipped.payload[bit / 8] ^ (1 << (bit % 8)));
    ExpectRefused(flipped.Header(), flipped.payload, absl::StrCat("payload bit ", bit));
    if (HasFatalFailure()) return;
  }
  ExpectNothingStored();
  ExpectStores(put);
}

// Damage on the way: bits of the TCP stream itself, whatever they mean.
TEST_F(BadWireTest, FlippedBitsOfTheTcpStreamStoreNothing) {
  const OnePut put(session_, OnePartLayout(), KeyOf(5));
  const auto frame_of = [](const std::vector<std::byte>& header, absl::string_view payload,
                           uint32_t sequence) {
    TcpFrameHead head;
    head.type = static_cast<uint8_t>(FrameType::kWhole);
    head.sequence = sequence;
    head.header_bytes = static_cast<uint32_t>(header.size());
    head.header_checksum = Checksum32Of(header);
    head.chunk_bytes = static_cast<uint32_t>(payload.size());
    head.payload_bytes = static_cast<uint32_t>(payload.size());
    head.Seal();
    return absl::StrCat(
        absl::string_view(reinterpret_cast<const char*>(&head), sizeof(head)),
        absl::string_view(reinterpret_cast<const char*>(header.data()), header.size()), payload);
  };
  wire::Hello hello;
  hello.session = session_.session;
  hello.boot_epoch = session_.boot_epoch;
  const std::string greeting = frame_of(MessageOf(wire::Kind::kHello, hello), "", 0);
  const std::string message = frame_of(put.Header(), put.payload, 1);
  const auto say = [&](const std::string& bytes, Nanos patience) {
    const RawSocket socket = RawSocket::ConnectTo(tcp());
    TcpHello opening;
    opening.wire_version_min = kWireVersionMin;
    opening.wire_version_max = kWireVersionMax;
    opening.group = RandomId();
    opening.Seal();
    socket.Write(
        absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&opening), sizeof(opening)),
                     greeting, bytes));
    // Until the daemon has read it all: it closes, or it has answered hello and put.
    const SystemClock clock;
    const Nanos until = clock.Now() + patience;
    size_t heard = 0;
    const size_t all = 64 + 32 + 16 + sizeof(wire::HelloReply) + 32 + 16 + 8 + 4;
    while (!socket.AtEnd() && heard < all && clock.Now() < until) heard += socket.Read(4096).size();
  };
  SeededRandom random(5);
  for (int i = 0; i < 300; ++i) {
    std::string flipped = message;
    // Half of them in front of the payload.
    const size_t front = message.size() - put.payload.size();
    const uint64_t bit = random.Below((i % 2 == 0 ? front : message.size()) * 8);
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    say(flipped, 200 * kMillisecond);
  }
  for (int i = 0; i < 100; ++i) {
    say(message.substr(0, random.Below(message.size())), 5 * kMillisecond);
  }
  EXPECT_EQ(StoredFrames(), 0u);
  say(message, kSecond);  // The positive control: the same bytes unharmed.
  const SystemClock clock;
  const Nanos until = clock.Now() + 10 * kSecond;
  while (StoredFrames() != 1 && clock.Now() < until) {
  }
  EXPECT_EQ(StoredFrames(), 1u);
}

TEST_F(BadWireTest, LookupsOfTooManyKeysAreRefused) {
  wire::Lookup lookup;
  lookup.namespace_id = session_.namespace_id;
  lookup.flags = wire::kProbe;
  // As many as fit a message and more than a lookup takes.
  const std::vector<PageKey> keys(wire::kKeysMax + 1, KeyOf(6));
  lookup.key_count = static_cast<uint32_t>(keys.size());
  wire::Writer many(wire::Kind::kLookup, 7, lookup);
  many.Array(absl::MakeConstSpan(keys));
  ExpectRefused(many.Take(), "", "1,025 keys");
  // A million claimed, and none there.
  lookup.key_count = 1'000'000;
  ExpectRefused(MessageOf(wire::Kind::kLookup, lookup), "", "a million keys claimed");
  lookup.key_count = UINT32_MAX;
  ExpectRefused(MessageOf(wire::Kind::kLookup, lookup), "", "all keys claimed");

  PoolUser::Options options;
  options.daemons = {control()};
  auto user = PoolUser::Open(options);
  FB_ASSERT_OK(user);
  EXPECT_THAT(user->HitPages(std::vector<PageKey>(1'000'000, KeyOf(6)), 5 * kSecond).status(),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("65536")));
  // At the limit it is an answer.
  const auto none = user->HitPages(user->Chain(PoolNamespace::kChainPagesMax), 20 * kSecond);
  FB_ASSERT_OK(none);
  EXPECT_EQ(*none, 0u);
}

// One right message of each kind that a client may send, with its arrays.
std::vector<std::vector<std::byte>> RightMessages(const OpenSessionReply& session,
                                                  const OnePut& put) {
  const uint32_t ns = session.namespace_id;
  const std::vector<PageKey> keys = {put.item.key, KeyOf(1000), KeyOf(1001)};
  std::vector<std::vector<std::byte>> messages = {put.Header()};
  const auto add = [&](wire::Writer writer) {
    const Bytes bytes = writer.Take();
    messages.emplace_back(bytes.begin(), bytes.end());
  };
  const auto add_with_keys = [&](wire::Kind kind, const auto& body) {
    wire::Writer writer(kind, /*op=*/7, body);
    add(std::move(writer.Array(absl::MakeConstSpan(keys))));
  };
  add_with_keys(wire::Kind::kLookup, wire::Lookup{ns, wire::kWantLocations, 50, 3});
  add_with_keys(wire::Kind::kLookup, wire::Lookup{ns, wire::kProbe, 0, 3});
  add_with_keys(wire::Kind::kOffer, wire::Offer{ns, 3});
  add_with_keys(wire::Kind::kSubscribe, wire::Subscribe{ns, 3, 20, 0});
  wire::Writer get(wire::Kind::kGet, /*op=*/7, wire::Get{ns, 2, 100, 0});
  const wire::GetItem items[] = {{keys[0], 0, 0, 4096}, {keys[1], 0, 0, 4096}};
  add(std::move(get.Array(absl::MakeConstSpan(items))));
  add({wire::Kind::kRelease, 7, wire::Release{1, 0, 0}});
  add({wire::Kind::kRenew, 7, wire::Renew{1, 50, 0}});
  add({wire::Kind::kCancel, 7, wire::Cancel{7}});
  add({wire::Kind::kReportBad, 7, wire::ReportBad{ns, 0, 0, keys[0], 0}});
  return messages;
}

// Random bytes, or a right message with a few bits flipped.
std::vector<std::byte> RandomMessage(const std::vector<std::vector<std::byte>>& right,
                                     SeededRandom& random) {
  if (random.Chance(0.2)) {
    std::vector<std::byte> message(1 + random.Below(400));
    for (std::byte& byte : message) byte = static_cast<std::byte>(random.Next());
    return message;
  }
  std::vector<std::byte> message = right[random.Below(right.size())];
  for (uint64_t flips = random.Below(3); flips > 0; --flips) {
    const uint64_t bit = random.Below(message.size() * 8);
    message[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
  return message;
}

TEST_F(BadWireTest, ThousandsOfRandomMessagesEndNothing) {
  SeededRandom random(7);
  const OnePut put(session_, OnePartLayout(), KeyOf(7));
  const auto right = RightMessages(session_, put);
  int heard = 0;
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    RawPeer* const peer = Peer();
    ASSERT_NE(peer, nullptr);
    const std::vector<std::byte> message = RandomMessage(right, random);
    const bool is_put = message.size() == right[0].size();
    peer->Send(message, is_put != random.Chance(0.05) ? put.payload : "");
    // What it says does not matter; a ping shows whether it still listens.
    wire::Head ping;
    ping.kind = static_cast<uint8_t>(wire::Kind::kPing);
    ping.op = 1'000'000 + static_cast<uint64_t>(i);
    peer->Send(AsBytes(&ping, sizeof(ping)));
    for (;;) {
      const auto answer = peer->Await();
      ASSERT_TRUE(answer.ok()) << "message " << i << ": " << answer.status();
      if (answer->closed || answer->kind == wire::Kind::kError) {
        ++refused;
        peer_.reset();
        break;
      }
      if (answer->kind == wire::Kind::kPong && answer->op == ping.op) {
        ++heard;
        break;
      }
    }
  }
  // The mix was neither all noise nor all sense.
  EXPECT_GT(refused, 500);
  EXPECT_GT(heard, 500);
  // Puts that came through unharmed, under the right key or, where a flip hit the half of the key
  // that a frame does not repeat, under a key that nobody will ever ask for.
  EXPECT_GE(StoredFrames(), 1u);
  EXPECT_LE(StoredFrames(), 1u + 128u);
}

}  // namespace
}  // namespace forebay::testing
