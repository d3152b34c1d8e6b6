#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/failpoint.h"
#include "base/testing/status_matchers.h"
#include "server/pool_node.h"
#include "server/testing/node_world.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::forebay::testing::Lookup;
using ::forebay::testing::NodeWorld;
using ::forebay::testing::NodeWorldOptions;
using ::forebay::testing::Put;
using ::forebay::testing::PutMessage;
using ::forebay::testing::Received;
using ::forebay::testing::ScriptedClient;
using ::forebay::testing::TestChain;
using ::testing::HasSubstr;

OpenSessionRequest Request(const std::string& model = "model") {
  OpenSessionRequest request;
  request.spec = NodeWorld::Spec(model);
  request.wire_version_min = kWireVersionMin;
  request.wire_version_max = kWireVersionMax;
  request.client_name = "test";
  return request;
}

TEST(SessionTest, OpensANamespaceOncePerSpec) {
  NodeWorld world;
  const auto first = world.node->OpenSession("default", Request());
  const auto second = world.node->OpenSession("default", Request());
  const auto other = world.node->OpenSession("default", Request("other"));
  FB_ASSERT_OK(first);
  FB_ASSERT_OK(second);
  FB_ASSERT_OK(other);
  EXPECT_EQ(first->namespace_id, second->namespace_id);
  EXPECT_EQ(first->root, second->root);
  EXPECT_NE(first->session, second->session);
  EXPECT_NE(first->namespace_id, other->namespace_id);
  EXPECT_NE(first->root, other->root);
  EXPECT_EQ(world.node->Namespaces().size(), 2u);
  EXPECT_EQ(world.node->Status().sessions, 3u);
}

TEST(SessionTest, TheTenantComesFromTheCallerAndNotFromTheSpec) {
  NodeWorldOptions options;
  options.node.tenants = {{"a", "secret of tenant a", {}}, {"b", "secret of tenant b", {}}};
  NodeWorld world(options);
  OpenSessionRequest request = Request();
  const auto a = world.node->OpenSession("a", request);
  request.spec.tenant = "a";  // As a client of b might try.
  const auto b = world.node->OpenSession("b", request);
  FB_ASSERT_OK(a);
  FB_ASSERT_OK(b);
  EXPECT_NE(a->namespace_id, b->namespace_id);
  EXPECT_NE(a->root, b->root);
  EXPECT_THAT(world.node->OpenSession("default", request),
              HasCode(absl::StatusCode::kUnauthenticated));
}

TEST(SessionTest, NamesBothVersionRangesWhenTheyDoNotMeet) {
  NodeWorld world;
  OpenSessionRequest request = Request();
  request.wire_version_min = request.wire_version_max = kWireVersionMax + 1;
  EXPECT_THAT(world.node->OpenSession("default", request),
              HasStatus(absl::StatusCode::kFailedPrecondition, HasSubstr("[2, 2]")));
  request.wire_version_min = 5;
  request.wire_version_max = 1;
  EXPECT_THAT(world.node->OpenSession("default", request),
              HasCode(absl::StatusCode::kFailedPrecondition));
}

TEST(SessionTest, RefusesWhatIsOverALimit) {
  NodeWorldOptions options;
  options.node.limits.sessions_max = 2;
  options.node.limits.namespaces_max = 1;
  NodeWorld world(options);
  FB_ASSERT_OK(world.node->OpenSession("default", Request()));
  EXPECT_THAT(world.node->OpenSession("default", Request("other")),
              HasStatus(absl::StatusCode::kResourceExhausted, HasSubstr("namespaces")));
  FB_ASSERT_OK(world.node->OpenSession("default", Request()));
  EXPECT_THAT(world.node->OpenSession("default", Request()),
              HasStatus(absl::StatusCode::kResourceExhausted, HasSubstr("sessions")));
}

// A world that may know four namespaces, and a way to leave one behind with a page in it.
class NamespacesTest : public ::testing::Test {
 protected:
  NamespacesTest() : world_(Options()) {}

  static NodeWorldOptions Options() {
    NodeWorldOptions options;
    options.node.limits.namespaces_max = 4;
    return options;
  }

  static TestChain ChainOf(const ScriptedClient& client) {
    return TestChain(NodeWorld::SmallLayout(), client.session().root, 2);
  }

  // Opens the namespace, puts `pages` pages there, and closes; its session ends a minute later.
  void Leave(const std::string& model, size_t pages) {
    ScriptedClient client(world_, "writer of " + model);
    client.Open(NodeWorld::Spec(model));
    const TestChain chain = ChainOf(client);
    for (size_t page = 0; page < pages; ++page) {
      PutMessage put;
      for (uint16_t part = 0; part < 2; ++part) {
        put.Add(chain.Item(page, part), chain.Payload(page, part));
      }
      EXPECT_THAT(Put(client, put), ::testing::Each(absl::StatusCode::kOk)) << model;
    }
    client.Close();
    world_.RunFor(kSecond);
  }

  uint32_t PagesOf(const std::string& model) {
    ScriptedClient client(world_, "reader of " + model);
    client.Open(NodeWorld::Spec(model));
    const uint32_t pages = Lookup(client, ChainOf(client).keys()).reply.page_count;
    client.Close();
    world_.RunFor(kSecond);
    return pages;
  }

  void EndIdleSessions() { world_.RunFor(2 * 60 * kSecond); }

  std::vector<std::string> Known() {
    std::vector<std::string> models;
    for (const NamespaceSnapshot& ns : world_.node->Namespaces()) models.push_back(ns.spec.model);
    return models;
  }

  NodeWorld world_;
};

TEST_F(NamespacesTest, TheLongestIdleGoesWithItsPagesWhenAnotherNeedsItsPlace) {
  for (const char* model : {"a", "b", "c", "d"}) Leave(model, 2);
  EndIdleSessions();
  EXPECT_EQ(PagesOf("a"), 2u);  // a is used again, so that b is the oldest
  EndIdleSessions();
  ASSERT_EQ(world_.node->Status().pages.pages, 8u);

  EXPECT_EQ(PagesOf("e"), 0u);
  EXPECT_THAT(Known(), ::testing::ElementsAre("a", "c", "d", "e"));
  EXPECT_EQ(world_.node->Status().pages.pages, 6u);
  EXPECT_THAT(world_.registry.Text(), HasSubstr("forebay_namespaces_forgotten_total 1\n"));
  EndIdleSessions();
  EXPECT_EQ(PagesOf("c"), 2u);
  EXPECT_EQ(PagesOf("a"), 2u);
  EndIdleSessions();
  EXPECT_EQ(PagesOf("b"), 0u) << "a namespace that comes back has no pages of its first life";
  Leave("b", 2);
  EXPECT_EQ(PagesOf("b"), 2u);
  EndIdleSessions();
  world_.ExpectQuiet();
}

TEST_F(NamespacesTest, ThoseWithoutPagesGoFirst) {
  Leave("a", 1);
  Leave("b", 0);
  Leave("c", 1);
  Leave("d", 0);
  EndIdleSessions();
  Leave("e", 1);
  EXPECT_THAT(Known(), ::testing::ElementsAre("a", "c", "e"));
  EXPECT_EQ(world_.node->Status().pages.pages, 3u);
}

TEST_F(NamespacesTest, OneInUseStays) {
  for (const char* model : {"a", "b", "c", "d"}) {
    FB_ASSERT_OK(world_.node->OpenSession("default", Request(model)));
  }
  EXPECT_THAT(world_.node->OpenSession("default", Request("e")),
              HasStatus(absl::StatusCode::kResourceExhausted, HasSubstr("4 namespaces in use")));
  EXPECT_THAT(Known(), ::testing::ElementsAre("a", "b", "c", "d"));
}

// Many users, each with a salt of their own, over a daemon that knows four: never refused, and
// nothing is left of those that went.
TEST_F(NamespacesTest, AnyNumberMayPassOneAfterAnother) {
  for (int i = 0; i < 200; ++i) {
    Leave("user " + std::to_string(i), 1 + i % 2);
    EndIdleSessions();
  }
  EXPECT_LE(Known().size(), 4u);
  EXPECT_LE(world_.node->Status().pages.pages, 8u);
  world_.ExpectQuiet();
}

TEST(SessionTest, RefusesAWrongSpecAndAPartThatNoSlabHolds) {
  NodeWorld world;
  OpenSessionRequest request = Request("");
  EXPECT_THAT(world.node->OpenSession("default", request),
              HasCode(absl::StatusCode::kInvalidArgument));
  request = Request();
  request.spec.layout = KvLayout::Uniform(4, 8, 128, DType::kFp32, 64, 4);
  EXPECT_THAT(world.node->OpenSession("default", request),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("part 0")));
  request = Request();
  request.client_name = std::string(257, 'x');
  EXPECT_THAT(world.node->OpenSession("default", request),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("client_name")));
}

TEST(SessionTest, AFailureAtTheOpeningIsReportedAndLeavesNothing) {
  NodeWorld world;
  failpoint::ScopedArm arm("server.session.open", absl::UnavailableError("armed by a test"));
  EXPECT_THAT(world.node->OpenSession("default", Request()),
              HasCode(absl::StatusCode::kUnavailable));
  EXPECT_EQ(world.node->Status().sessions, 0u);
}

TEST(SessionTest, HelloBindsAnEndpointAndOneSessionMayHaveSeveral) {
  NodeWorld world;
  ScriptedClient first(world, "c1");
  ScriptedClient second(world, "c2");
  first.Open(NodeWorld::Spec());
  second.Connect();
  EXPECT_EQ(second.Hello(first.session()), absl::StatusCode::kOk);
  EXPECT_EQ(world.node->Status().sessions, 1u);
  EXPECT_EQ(world.node->Status().endpoints, 2u);
}

TEST(SessionTest, HelloWithAnotherEpochIsRefusedAndTheEndpointCloses) {
  NodeWorld world;
  OpenSessionReply session = *world.node->OpenSession("default", Request());
  session.boot_epoch[3] ^= 1;
  ScriptedClient client(world, "c");
  client.Connect();
  EXPECT_EQ(client.Hello(session), absl::StatusCode::kFailedPrecondition);
  client.AwaitClosed();
}

TEST(SessionTest, HelloForAnUnknownSessionIsRefusedAndTheEndpointCloses) {
  NodeWorld world;
  OpenSessionReply session = *world.node->OpenSession("default", Request());
  session.session[0] ^= 1;
  ScriptedClient client(world, "c");
  client.Connect();
  EXPECT_EQ(client.Hello(session), absl::StatusCode::kUnauthenticated);
  client.AwaitClosed();
}

TEST(SessionTest, AnythingBeforeHelloClosesTheEndpoint) {
  NodeWorld world;
  ScriptedClient client(world, "c");
  client.Connect();
  wire::Lookup lookup;
  lookup.flags = wire::kProbe;
  wire::Writer writer(wire::Kind::kLookup, 7, lookup);
  client.Send(writer);
  const auto error = client.Await(7).As<wire::Error>(wire::Kind::kError);
  EXPECT_EQ(error.status, static_cast<uint32_t>(absl::StatusCode::kUnauthenticated));
  client.AwaitClosed();
}

TEST(SessionTest, AnEndpointThatNeverSaysHelloIsClosed) {
  NodeWorld world;
  ScriptedClient client(world, "c");
  client.Connect();
  client.AwaitClosed();
  EXPECT_EQ(world.node->Status().endpoints, 0u);
}

// Sends `header` on an open session and expects an Error, then the end of the endpoint.
void ExpectRefused(const std::string& what, wire::Writer& writer,
                   const std::vector<std::byte>& payload = {}) {
  NodeWorld world;
  ScriptedClient client(world, "c");
  client.Open(NodeWorld::Spec());
  client.Send(writer, payload);
  const Received received = client.Await(99);
  wire::Reader rest;
  const auto error = received.As<wire::Error>(wire::Kind::kError, &rest);
  EXPECT_EQ(error.status, static_cast<uint32_t>(absl::StatusCode::kInvalidArgument)) << what;
  std::vector<char> text;
  EXPECT_TRUE(rest.ReadArray(error.text_bytes, 4096, &text).ok());
  EXPECT_THAT(std::string(text.begin(), text.end()), HasSubstr(what));
  client.AwaitClosed();
  EXPECT_THAT(world.registry.Text(), HasSubstr("forebay_malformed_messages_total 1"));
  world.ExpectQuiet();
}

TEST(SessionTest, AMillionKeyLookupIsRefusedWithItsLimit) {
  wire::Lookup lookup;
  lookup.lease_ms = 1;
  lookup.key_count = 1'000'000;
  wire::Writer writer(wire::Kind::kLookup, 99, lookup);
  ExpectRefused("1000000 entries; the most is 1024", writer);
}

TEST(SessionTest, MessagesThatDoNotFitAreRefused) {
  {
    wire::Lookup lookup;
    lookup.lease_ms = wire::kLeaseMsMax + 1;
    wire::Writer writer(wire::Kind::kLookup, 99, lookup);
    ExpectRefused("lease of 30001 ms", writer);
  }
  {
    wire::Lookup lookup;
    lookup.lease_ms = 1;
    lookup.flags = 64;
    wire::Writer writer(wire::Kind::kLookup, 99, lookup);
    ExpectRefused("unknown lookup flags", writer);
  }
  {
    wire::Get get;
    get.item_count = 3;  // and none follows
    wire::Writer writer(wire::Kind::kGet, 99, get);
    ExpectRefused("ends before them", writer);
  }
  {
    wire::Subscribe subscribe;
    wire::Writer writer(wire::Kind::kSubscribe, 99, subscribe);
    ExpectRefused("subscription of 0 ms", writer);
  }
  {
    wire::Cancel cancel;
    wire::Writer writer(wire::Kind::kCancel, 99, cancel);
    writer.PadTo8();
    const uint64_t more = 0;
    writer.Array(absl::MakeConstSpan(&more, 1));
    ExpectRefused("8 bytes too many", writer);
  }
  {
    wire::HelloReply reply;  // a daemon's message
    wire::Writer writer(wire::Kind::kHelloReply, 99, reply);
    ExpectRefused("no message of kind", writer);
  }
  {
    wire::Offer offer;
    wire::Writer writer(wire::Kind::kOffer, 99, offer);
    ExpectRefused("only a Put has a payload", writer, std::vector<std::byte>(10));
  }
}

TEST(SessionTest, GarbageClosesTheEndpointAndNothingElse) {
  NodeWorld world;
  ScriptedClient bad(world, "bad");
  ScriptedClient good(world, "good");
  good.Open(NodeWorld::Spec());
  SeededRandom random(7);
  for (int round = 0; round < 50; ++round) {
    bad.Connect();
    std::vector<std::byte> garbage(1 + random.Below(200));
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random.Next());
    bad.Send(garbage);
    bad.AwaitClosed();
  }
  EXPECT_EQ(Lookup(good, {PageKey()}).reply.page_count, 0u);
}

TEST(SessionTest, AnotherNamespaceIsForbidden) {
  NodeWorld world;
  ScriptedClient client(world, "c");
  client.Open(NodeWorld::Spec());
  FB_ASSERT_OK(world.node->OpenSession("default", Request("other")));
  wire::Lookup lookup;
  lookup.namespace_id = client.ns() + 1;
  lookup.lease_ms = 100;
  wire::Writer writer(wire::Kind::kLookup, 50, lookup);
  client.Send(writer);
  const auto error = client.Await(50).As<wire::Error>(wire::Kind::kError);
  EXPECT_EQ(error.status, static_cast<uint32_t>(absl::StatusCode::kPermissionDenied));
  EXPECT_FALSE(client.closed());
  EXPECT_THAT(world.registry.Text(), HasSubstr("forebay_permission_denied_total 1"));
}

TEST(SessionTest, OneNamespaceNeverSeesThePagesOfAnother) {
  NodeWorld world;
  ScriptedClient writer(world, "w");
  ScriptedClient reader(world, "r");
  writer.Open(NodeWorld::Spec("a"));
  reader.Open(NodeWorld::Spec("b"));
  const TestChain chain(NodeWorld::SmallLayout(), writer.session().root, 2);
  Put(writer, PutMessage::Pages(chain, 0, 2));
  EXPECT_EQ(Lookup(writer, chain.keys(), 100, wire::kProbe).reply.page_count, 2u);
  EXPECT_EQ(Lookup(reader, chain.keys(), 100, wire::kProbe).reply.page_count, 0u);
}

TEST(SessionTest, PingIsAnsweredByAPongOfTheSameOperation) {
  NodeWorld world;
  ScriptedClient client(world, "c");
  client.Open(NodeWorld::Spec());
  wire::Head ping;
  ping.kind = static_cast<uint8_t>(wire::Kind::kPing);
  ping.op = 4711;
  client.Send(AsBytes(&ping, sizeof(ping)));
  EXPECT_EQ(client.Await(4711).kind, wire::Kind::kPong);
}

TEST(SessionTest, AnIdleSessionEndsWithItsLeases) {
  NodeWorldOptions options;
  options.node.limits.session_idle_ms = 1000;
  NodeWorld world(options);
  ScriptedClient client(world, "c");
  client.Open(NodeWorld::Spec());
  const TestChain chain(NodeWorld::SmallLayout(), client.session().root, 3);
  Put(client, PutMessage::Pages(chain, 0, 3));
  EXPECT_NE(Lookup(client, chain.keys(), 30'000, wire::kWantLocations).reply.lease, 0u);
  EXPECT_EQ(world.node->Status().leases, 1u);

  client.Close();
  world.RunFor(500 * kMillisecond);
  EXPECT_EQ(world.node->Status().leases, 1u);  // It may come back.
  world.RunFor(1000 * kMillisecond);
  EXPECT_EQ(world.node->Status().sessions, 0u);
  world.ExpectQuiet();
  client.Connect();
  EXPECT_EQ(client.Hello(client.session()), absl::StatusCode::kUnauthenticated);
}

TEST(SessionTest, AClientThatComesBackFindsItsSession) {
  NodeWorldOptions options;
  options.node.limits.session_idle_ms = 1000;
  NodeWorld world(options);
  ScriptedClient client(world, "c");
  client.Open(NodeWorld::Spec());
  for (int round = 0; round < 3; ++round) {
    client.Close();
    world.RunFor(700 * kMillisecond);
    client.Connect();
    EXPECT_EQ(client.Hello(client.session()), absl::StatusCode::kOk);
    world.RunFor(2 * kSecond);
  }
  EXPECT_EQ(world.node->Status().sessions, 1u);
}

TEST(SessionTest, AShutDownNodeTakesNothingNewAndClosesWhatIsIdle) {
  NodeWorld world;
  ScriptedClient client(world, "c");
  client.Open(NodeWorld::Spec());
  world.node->BeginShutdown(kSecond);
  EXPECT_THAT(world.node->OpenSession("default", Request()),
              HasCode(absl::StatusCode::kUnavailable));
  client.AwaitClosed();
  EXPECT_TRUE(world.node->drained());
  EXPECT_FALSE(world.node->Status().serving);
}

}  // namespace
}  // namespace forebay
