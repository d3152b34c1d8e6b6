#include "server/lookup_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/checksum.h"
#include "base/testing/status_matchers.h"
#include "server/testing/node_world.h"

namespace forebay {
namespace {

using ::forebay::testing::Get;
using ::forebay::testing::GotPart;
using ::forebay::testing::ItemsOf;
using ::forebay::testing::Lookup;
using ::forebay::testing::LookupAnswer;
using ::forebay::testing::NodeWorld;
using ::forebay::testing::NodeWorldOptions;
using ::forebay::testing::Put;
using ::forebay::testing::PutMessage;
using ::forebay::testing::Release;
using ::forebay::testing::ScriptedClient;
using ::forebay::testing::TestChain;
using ::testing::Each;
using ::testing::HasSubstr;

uint32_t Code(absl::StatusCode code) { return static_cast<uint32_t>(code); }

class LookupOpTest : public ::testing::Test {
 protected:
  explicit LookupOpTest(NodeWorldOptions options = {})
      : world_(options), client_(world_, "client") {
    client_.Open(NodeWorld::Spec());
  }
  TestChain Stored(size_t pages, uint32_t first_token = 0) {
    TestChain chain(NodeWorld::SmallLayout(), client_.session().root, pages, first_token);
    Put(client_, PutMessage::Pages(chain, 0, pages));
    return chain;
  }
  wire::RenewReply Renew(uint64_t lease, uint32_t lease_ms) {
    wire::Renew renew;
    renew.lease = lease;
    renew.lease_ms = lease_ms;
    const uint64_t op = client_.NextOp();
    wire::Writer writer(wire::Kind::kRenew, op, renew);
    client_.Send(writer);
    return client_.Await(op).As<wire::RenewReply>(wire::Kind::kRenewReply);
  }
  uint64_t SendOffer(const TestChain& chain) {
    wire::Offer offer;
    offer.namespace_id = client_.ns();
    offer.key_count = static_cast<uint32_t>(chain.keys().size());
    const uint64_t op = client_.NextOp();
    wire::Writer writer(wire::Kind::kOffer, op, offer);
    writer.Array(absl::MakeConstSpan(chain.keys()));
    client_.Send(writer);
    return op;
  }
  // Pushes out every page that may go.
  void Flood() {
    for (uint32_t i = 1; i < 20; ++i) Stored(100, 100'000 * i);
  }

  NodeWorld world_;
  ScriptedClient client_;
};

TEST_F(LookupOpTest, FindsTheLeadingPagesAndLeasesThem) {
  const TestChain chain = Stored(4);
  std::vector<PageKey> keys = chain.keys();
  keys.push_back(PageKey());
  const LookupAnswer answer = Lookup(client_, keys, 1234);
  EXPECT_EQ(answer.reply.page_count, 4u);
  EXPECT_EQ(answer.reply.lease_ms, 1234u);
  EXPECT_NE(answer.reply.lease, 0u);
  EXPECT_EQ(answer.reply.parts, 2u);
  EXPECT_THAT(answer.classes, Each(ClassBit(LayerClass::kFull)));
  EXPECT_EQ(world_.node->Status().leases, 1u);
  EXPECT_EQ(Release(client_, answer.reply.lease).valid, 1u);
  world_.ExpectQuiet();
}

TEST_F(LookupOpTest, AMissIsAnAnswerWithoutALease) {
  const LookupAnswer answer = Lookup(client_, {PageKey()});
  EXPECT_EQ(answer.reply.status, 0u);
  EXPECT_EQ(answer.reply.page_count, 0u);
  EXPECT_EQ(answer.reply.lease, 0u);
  EXPECT_EQ(Lookup(client_, {}).reply.page_count, 0u);
}

TEST_F(LookupOpTest, AProbeLeasesNothing) {
  const TestChain chain = Stored(4);
  const LookupAnswer answer = Lookup(client_, chain.keys(), 0, wire::kProbe);
  EXPECT_EQ(answer.reply.page_count, 4u);
  EXPECT_EQ(answer.reply.lease, 0u);
  world_.ExpectQuiet();
}

TEST_F(LookupOpTest, AProbeDoesNotTouchThePolicyAndALookupDoes) {
  // LRU: of two chains, the one that was looked at stays longer.
  const TestChain touched = Stored(2, 1);
  const TestChain probed = Stored(2, 1001);
  Release(client_, Lookup(client_, touched.keys()).reply.lease);
  Lookup(client_, probed.keys(), 0, wire::kProbe);
  uint32_t i = 1;
  while (Lookup(client_, probed.keys(), 0, wire::kProbe).reply.page_count == 2) {
    Stored(1, 50'000 * i++);
    ASSERT_LT(i, 5000u);
  }
  EXPECT_EQ(Lookup(client_, touched.keys(), 0, wire::kProbe).reply.page_count, 2u);
}

TEST_F(LookupOpTest, ALeasedPageStaysUntilTheLeaseEnds) {
  const TestChain chain = Stored(4);
  const LookupAnswer answer = Lookup(client_, chain.keys(), 20'000);
  Flood();
  EXPECT_EQ(Lookup(client_, chain.keys(), 0, wire::kProbe).reply.page_count, 4u);
  EXPECT_EQ(Release(client_, answer.reply.lease).valid, 1u);
  Flood();
  EXPECT_EQ(Lookup(client_, chain.keys(), 0, wire::kProbe).reply.page_count, 0u);
  world_.ExpectQuiet();
}

TEST_F(LookupOpTest, AnExpiredLeaseIsNeverValid) {
  const TestChain chain = Stored(4);
  const LookupAnswer answer = Lookup(client_, chain.keys(), 50);
  world_.RunFor(60 * kMillisecond);
  world_.ExpectQuiet();
  const wire::ReleaseReply released = Release(client_, answer.reply.lease);
  EXPECT_EQ(released.valid, 0u);
  EXPECT_EQ(released.status, Code(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_leases_expired_total 1"));
}

TEST_F(LookupOpTest, ARenewedLeaseLivesOn) {
  const TestChain chain = Stored(2);
  const LookupAnswer answer = Lookup(client_, chain.keys(), 100);
  world_.RunFor(80 * kMillisecond);
  EXPECT_EQ(Renew(answer.reply.lease, 500).valid, 1u);
  world_.RunFor(300 * kMillisecond);
  EXPECT_EQ(Release(client_, answer.reply.lease).valid, 1u);
  EXPECT_EQ(Renew(answer.reply.lease, 500).valid, 0u);
  world_.ExpectQuiet();
}

TEST_F(LookupOpTest, ReleaseKeepsTheLeadingPagesThatAreAskedFor) {
  const TestChain chain = Stored(4);
  const uint64_t lease = Lookup(client_, chain.keys(), 20'000).reply.lease;
  EXPECT_EQ(Release(client_, lease, 2).valid, 1u);
  Flood();
  EXPECT_EQ(Lookup(client_, chain.keys(), 0, wire::kProbe).reply.page_count, 2u);
  EXPECT_EQ(Release(client_, lease).valid, 1u);
  EXPECT_EQ(Release(client_, lease).valid, 0u);
  world_.ExpectQuiet();
}

TEST_F(LookupOpTest, ALeaseOfAnotherSessionIsUnknown) {
  const TestChain chain = Stored(2);
  const uint64_t lease = Lookup(client_, chain.keys(), 20'000).reply.lease;
  ScriptedClient other(world_, "other");
  other.Open(NodeWorld::Spec());
  const wire::ReleaseReply stolen = Release(other, lease);
  EXPECT_EQ(stolen.valid, 0u);
  EXPECT_EQ(stolen.status, Code(absl::StatusCode::kNotFound));
  EXPECT_EQ(Release(client_, lease).valid, 1u);
}

TEST_F(LookupOpTest, LeasesHoldNoMoreBytesThanTheyMayAndSharePages) {
  NodeWorldOptions options;
  options.node.limits.pinned_percent_max = 1;  // 10 KiB: 9 pages of 1152 bytes
  NodeWorld world(options);
  ScriptedClient client(world, "c");
  client.Open(NodeWorld::Spec());
  const TestChain chain(NodeWorld::SmallLayout(), client.session().root, 20);
  Put(client, PutMessage::Pages(chain, 0, 20));
  const LookupAnswer first = Lookup(client, chain.keys(), 20'000);
  EXPECT_EQ(first.reply.page_count, 9u);
  EXPECT_EQ(first.classes.size(), 9u);
  // The same pages again cost nothing.
  const LookupAnswer second = Lookup(client, chain.keys(), 20'000);
  EXPECT_EQ(second.reply.page_count, 9u);
  const TestChain other(NodeWorld::SmallLayout(), client.session().root, 2, 5000);
  Put(client, PutMessage::Pages(other, 0, 2));
  const LookupAnswer full = Lookup(client, other.keys(), 20'000);
  EXPECT_EQ(full.reply.status, Code(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(full.reply.page_count, 0u);
  EXPECT_EQ(full.reply.lease, 0u);
  Release(client, first.reply.lease);
  EXPECT_EQ(Lookup(client, other.keys()).reply.lease, 0u);
  Release(client, second.reply.lease);
  EXPECT_NE(Lookup(client, other.keys(), 1).reply.lease, 0u);
  world.RunFor(kSecond);
  world.ExpectQuiet();
}

TEST_F(LookupOpTest, ASessionHasNoMoreLeasesThanItMay) {
  NodeWorldOptions options;
  options.node.limits.leases_per_session_max = 3;
  NodeWorld world(options);
  ScriptedClient client(world, "c");
  client.Open(NodeWorld::Spec());
  const TestChain chain(NodeWorld::SmallLayout(), client.session().root, 1);
  Put(client, PutMessage::Pages(chain, 0, 1));
  for (int i = 0; i < 3; ++i) EXPECT_NE(Lookup(client, chain.keys(), 500).reply.lease, 0u);
  EXPECT_EQ(Lookup(client, chain.keys(), 500).reply.status,
            Code(absl::StatusCode::kResourceExhausted));
  world.RunFor(kSecond);
  world.ExpectQuiet();
}

TEST_F(LookupOpTest, APageLacksNothingElseInAReply) {
  // Loopback endpoints are not of the same host: no location ever leaves for them.
  const TestChain chain = Stored(2);
  const LookupAnswer answer = Lookup(client_, chain.keys(), 100, wire::kWantLocations);
  EXPECT_EQ(answer.reply.page_count, 2u);
  EXPECT_EQ(answer.reply.location_count, 0u);
}

TEST_F(LookupOpTest, AnOfferNamesThePartsThatAreMissing) {
  const TestChain chain(NodeWorld::SmallLayout(), client_.session().root, 3);
  Put(client_, PutMessage::Pages(chain, 0, 1));
  PutMessage one_part;
  one_part.Add(chain.Item(1, 1), chain.Payload(1, 1));
  Put(client_, one_part);

  const testing::Received received = client_.Await(SendOffer(chain));
  wire::Reader rest;
  const auto reply = received.As<wire::OfferReply>(wire::Kind::kOfferReply, &rest);
  EXPECT_EQ(reply.parts, 2u);
  std::vector<uint8_t> wanted;
  FB_ASSERT_OK(rest.ReadArray(reply.key_count, wire::kKeysMax, &wanted));
  EXPECT_THAT(wanted, ::testing::ElementsAre(0, 0b01, 0b11));
}

// A publisher that was told that pages are here goes on to put others: the ones that it counts on
// must not be the first to go.
TEST_F(LookupOpTest, AnOfferedPageCountsAsUsed) {
  const TestChain offered = Stored(2);
  const TestChain forgotten = Stored(2, 50'000);
  for (uint32_t i = 1; i < 100; ++i) {
    static_cast<void>(client_.Await(SendOffer(offered)));
    Stored(20, 100'000 * i);
  }
  EXPECT_EQ(Lookup(client_, offered.keys(), 0, wire::kProbe).reply.page_count, 2u);
  EXPECT_EQ(Lookup(client_, forgotten.keys(), 0, wire::kProbe).reply.page_count, 0u);
}

// A transport that keeps what is sent, and whose peers are on the same host.
class CapturingTransport final : public Transport {
 public:
  absl::StatusOr<std::string> Listen(absl::string_view address) override {
    return std::string(address);
  }
  absl::StatusOr<EndpointId> Connect(absl::string_view, Nanos) override { return 1; }
  void Send(EndpointId, OutgoingMessage message) override {
    sent.emplace_back(message.header.begin(), message.header.end());
  }
  void Close(EndpointId) override {}
  bool Poll(Nanos) override { return false; }
  bool PrepareToSleep(std::vector<int>&) override { return true; }
  Nanos NextDeadline() const override { return kForever; }

  std::vector<std::vector<std::byte>> sent;
};

TEST_F(LookupOpTest, APeerOnTheSameHostLearnsWhereEachFrameRests) {
  const TestChain chain = Stored(3);
  CapturingTransport transport;
  TransportHandler& handler = world_.node->NewHandler();
  world_.node->Attach(handler, transport);
  PeerDescription peer;
  peer.same_host = true;
  handler.OnConnected(1, peer);
  wire::Hello hello;
  hello.session = client_.session().session;
  hello.boot_epoch = client_.session().boot_epoch;
  handler.OnMessage(1, wire::Writer(wire::Kind::kHello, 1, hello).Take(), 0);
  wire::Lookup lookup;
  lookup.namespace_id = client_.ns();
  lookup.flags = wire::kWantLocations;
  lookup.lease_ms = 1000;
  lookup.key_count = 3;
  wire::Writer asked(wire::Kind::kLookup, 2, lookup);
  handler.OnMessage(1, asked.Array(absl::MakeConstSpan(chain.keys())).Take(), 0);

  ASSERT_EQ(transport.sent.size(), 2u);
  absl::StatusOr<wire::Reader> reader = wire::Reader::Of(transport.sent[1]);
  FB_ASSERT_OK(reader);
  wire::LookupReply reply;
  std::vector<uint8_t> classes;
  std::vector<wire::SlotLocation> locations;
  FB_ASSERT_OK(reader->Read(&reply));
  FB_ASSERT_OK(reader->ReadArray(reply.page_count, wire::kKeysMax, &classes));
  FB_ASSERT_OK(reader->SkipPadTo8());
  FB_ASSERT_OK(reader->ReadArray(reply.location_count, wire::kLocationsMax, &locations));
  ASSERT_EQ(locations.size(), 6u);
  EXPECT_EQ(world_.node->Status().slots.pins, 6u);
  for (size_t i = 0; i < locations.size(); ++i) {
    const MutableBytes slab = world_.node->dram().slabs()[locations[i].region].memory;
    const Bytes frame = slab.subspan(locations[i].offset, locations[i].frame_bytes);
    const Bytes payload = frame.subspan(kFrameHeaderBytes);
    EXPECT_EQ(std::vector<std::byte>(payload.begin(), payload.end()), chain.Payload(i / 2, i % 2));
    EXPECT_GT(locations[i].generation, 0u);
  }
  handler.OnClosed(1, absl::OkStatus());
  world_.RunFor(2 * kSecond);
  world_.ExpectQuiet();
}

class ReportTest : public LookupOpTest {
 protected:
  void Report(const PageKey& key, uint16_t part, uint64_t generation = 0) {
    wire::ReportBad report;
    report.namespace_id = client_.ns();
    report.key = key;
    report.part = part;
    report.generation = generation;
    wire::Writer writer(wire::Kind::kReportBad, client_.NextOp(), report);
    client_.Send(writer);
    world_.RunFor(kMillisecond);
  }
  // Flips a bit of the stored frame, as bad memory would.
  void Corrupt(const PageKey& key, uint16_t part, size_t byte) {
    const PageIndex& index = world_.node->index();
    const SlotRef slot = index.Part(index.Find(client_.ns(), key), part);
    const Bytes frame = *world_.node->dram().Read(slot);
    const_cast<std::byte*>(frame.data())[byte] ^= std::byte{4};
  }
};

TEST_F(ReportTest, ABadFrameIsDroppedAndASoundOneIsTheReadersOwnFault) {
  const TestChain chain = Stored(3);
  Report(chain.keys()[1], 0);
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_bad_reports_unfounded_total 1"));
  EXPECT_EQ(Lookup(client_, chain.keys(), 0, wire::kProbe).reply.page_count, 3u);

  Corrupt(chain.keys()[1], 0, kFrameHeaderBytes + 100);
  Report(chain.keys()[1], 0);
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_bad_frames_total 1"));
  EXPECT_EQ(Lookup(client_, chain.keys(), 0, wire::kProbe).reply.page_count, 1u);
  const std::vector<GotPart> got = Get(client_, ItemsOf(chain, 1, 2));
  EXPECT_EQ(got[0].code, absl::StatusCode::kNotFound);
  EXPECT_EQ(got[1].code, absl::StatusCode::kOk);
  // The place can be filled again.
  EXPECT_THAT(Put(client_, PutMessage::Pages(chain, 1, 2)),
              ::testing::ElementsAre(absl::StatusCode::kOk, absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(Lookup(client_, chain.keys(), 0, wire::kProbe).reply.page_count, 3u);
  world_.ExpectQuiet();
}

TEST_F(ReportTest, ABadHeaderIsFoundToo) {
  const TestChain chain = Stored(1);
  Corrupt(chain.keys()[0], 1, 20);
  Report(chain.keys()[0], 1);
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_bad_frames_total 1"));
}

TEST_F(ReportTest, AReportAboutAnotherGenerationOrNothingIsIgnored) {
  const TestChain chain = Stored(1);
  Corrupt(chain.keys()[0], 0, kFrameHeaderBytes);
  Report(chain.keys()[0], 0, /*generation=*/1 << 30);
  Report(PageKey(), 0);
  Report(chain.keys()[0], 77);
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_bad_frames_total 0"));
}

TEST_F(ReportTest, ALeasedFrameThatIsDroppedMakesTheReleaseInvalidOnlyForItsHolder) {
  const TestChain chain = Stored(2);
  const uint64_t lease = Lookup(client_, chain.keys(), 20'000).reply.lease;
  Corrupt(chain.keys()[0], 0, kFrameHeaderBytes);
  Report(chain.keys()[0], 0);
  Release(client_, lease);
  world_.ExpectQuiet();
}

}  // namespace
}  // namespace forebay
