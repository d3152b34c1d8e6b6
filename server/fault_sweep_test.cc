// Fails the n-th step of puts and gets, for every n, at every failpoint on their way: whatever
// breaks, no half page is ever visible, no bytes are wrong, and every slot is accounted for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"
#include "server/testing/node_world.h"

namespace forebay {
namespace {

using ::forebay::testing::GetRequest;
using ::forebay::testing::GotPart;
using ::forebay::testing::ItemsOf;
using ::forebay::testing::NodeWorld;
using ::forebay::testing::NodeWorldOptions;
using ::forebay::testing::PutMessage;
using ::forebay::testing::ScriptedClient;
using ::forebay::testing::TestChain;

constexpr size_t kPages = 3;

// A world with a chain, and a second one that the workload puts.
class Workload {
 public:
  explicit Workload(uint64_t seed) : world_(Options(seed)), client_(world_, "client") {
    client_.Open(NodeWorld::Spec());
  }

  // One put, one lookup with a lease, one get; none of them has to succeed.
  void Run() {
    const TestChain chain = Chain();
    SendPut(chain);
    world_.RunFor(10 * kMillisecond);
    wire::Lookup lookup;
    lookup.namespace_id = client_.ns();
    lookup.lease_ms = 100;
    lookup.key_count = kPages;
    wire::Writer asked(wire::Kind::kLookup, client_.NextOp(), lookup);
    asked.Array(absl::MakeConstSpan(chain.keys()));
    client_.Send(asked);
    world_.RunFor(10 * kMillisecond);
    wire::Writer get = GetRequest(client_.NextOp(), client_.ns(), ItemsOf(chain, 0, kPages), 50);
    client_.Send(get);
    world_.RunFor(kSecond);
  }

  // Whatever is visible is whole and right; nothing is held; and the same put works now.
  void CheckAfterwards(const std::string& where) {
    SCOPED_TRACE(where);
    const TestChain chain = Chain();
    ScriptedClient reader(world_, "reader");
    reader.Open(NodeWorld::Spec());
    const std::vector<GotPart> got = testing::Get(reader, ItemsOf(chain, 0, kPages));
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i].code != absl::StatusCode::kOk) continue;
      EXPECT_EQ(got[i].payload, chain.Payload(i / 2, i % 2)) << i;
    }
    const uint32_t pages = testing::Lookup(reader, chain.keys(), 0, wire::kProbe).reply.page_count;
    for (size_t i = 0; i < pages * 2; ++i) EXPECT_EQ(got[i].code, absl::StatusCode::kOk) << i;
    world_.ExpectQuiet();

    for (const absl::StatusCode code : testing::Put(reader, PutMessage::Pages(chain, 0, kPages))) {
      EXPECT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kAlreadyExists);
    }
    EXPECT_EQ(testing::Lookup(reader, chain.keys(), 0, wire::kProbe).reply.page_count, kPages);
    world_.ExpectQuiet();
  }

 private:
  static NodeWorldOptions Options(uint64_t seed) {
    NodeWorldOptions options;
    options.seed = seed;
    options.node.limits.get_message_items = 2;
    return options;
  }
  TestChain Chain() { return TestChain(NodeWorld::SmallLayout(), client_.session().root, kPages); }
  void SendPut(const TestChain& chain) {
    for (size_t page = 0; page < kPages; ++page) {
      const PutMessage put = PutMessage::Pages(chain, page, page + 1);
      wire::Writer writer = put.Message(client_.NextOp(), client_.ns());
      client_.Send(writer, put.payload);
    }
  }

  NodeWorld world_;
  ScriptedClient client_;
};

class FaultSweepTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FaultSweepTest, EveryStepMayFailAndNothingIsLost) {
  bool acted = true;
  uint64_t n = 0;
  for (; acted && n < 100; ++n) {
    Workload workload(/*seed=*/n + 1);
    {
      failpoint::Action action;
      action.status = absl::UnavailableError("armed by a test");
      action.skip_count = n;
      action.act_count = 1;
      failpoint::ScopedArm arm(GetParam(), action);
      workload.Run();
      acted = failpoint::HitCount(GetParam()) > n;
    }
    workload.CheckAfterwards(absl::StrCat(GetParam(), " failed at hit ", n));
  }
  EXPECT_GT(n, 1u) << "the workload never comes to " << GetParam();
  EXPECT_LT(n, 100u);
}

TEST_P(FaultSweepTest, NothingIsLostWhereEveryHitFails) {
  Workload workload(/*seed=*/99);
  {
    failpoint::ScopedArm arm(GetParam(), absl::ResourceExhaustedError("armed by a test"));
    workload.Run();
  }
  workload.CheckAfterwards(absl::StrCat(GetParam(), " failed always"));
}

INSTANTIATE_TEST_SUITE_P(Steps, FaultSweepTest,
                         ::testing::Values("server.put.admit", "server.store.allocate",
                                           "tiers.dram.allocate", "server.put.landed",
                                           "server.put.before_seal", "tiers.dram.seal",
                                           "server.get.admit", "server.get.before_send",
                                           "server.lookup.answer", "server.lease.grant"));

}  // namespace
}  // namespace forebay
