#include "server/rpc/control_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/sha256.h"
#include "base/testing/status_matchers.h"
#include "base/wire_version.h"
#include "proto/convert.h"
#include "proto/forebay/v1/admin.grpc.pb.h"
#include "proto/forebay/v1/pool.grpc.pb.h"
#include "proto/grpc_status.h"
#include "server/rpc/reactor_call.h"
#include "server/rpc/tenants.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::forebay::testing::HasStatus;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Sha256Digest Hash(absl::string_view token) { return Sha256({AsBytes(token.data(), token.size())}); }

// A node on a reactor that runs on a thread of its own, and its control server.
class ControlServerTest : public ::testing::Test {
 protected:
  void Start(PoolNodeOptions options = {}) {
    options.dram.capacity_bytes = 1 << 20;
    options.dram.slab_bytes = 64 << 10;
    options.dram.huge_pages = false;
    auto node = PoolNode::Create(options, clock_, registry_);
    FB_ASSERT_OK(node);
    node_ = *std::move(node);
    node_->SetDataAddresses({"tcp:127.0.0.1:1"});
    reactor_.Add(*node_);
    ControlServerOptions control;
    control.address = "127.0.0.1:0";
    control.version = "1.2.3";
    auto server = ControlServer::Start(control, *node_, reactor_, registry_);
    FB_ASSERT_OK(server);
    server_ = *std::move(server);
    server_->SetConfigText("node: \"n\"\n");
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
  }
  void RunReactor() {
    thread_ = std::thread([this] { reactor_.RunUntil([] { return false; }); });
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown(kSecond);
    reactor_.Stop();
    if (thread_.joinable()) thread_.join();
  }
  static v1::OpenSessionRequest Request() {
    OpenSessionRequest request;
    request.spec.model = "model";
    request.spec.layout = KvLayout::Uniform(2, 2, 8, DType::kFp16, 4, 1);
    request.wire_version_min = kWireVersionMin;
    request.wire_version_max = kWireVersionMax;
    return ToProto(request);
  }
  absl::Status Open(const v1::OpenSessionRequest& request, v1::OpenSessionReply* reply,
                    const std::string& token = "") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!token.empty()) context.AddMetadata("forebay-token", token);
    return FromGrpcStatus(v1::Pool::NewStub(channel_)->OpenSession(&context, request, reply));
  }

  SystemClock clock_;
  MetricRegistry registry_;
  Reactor reactor_{clock_, Reactor::Options()};
  std::unique_ptr<PoolNode> node_;
  std::unique_ptr<ControlServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::thread thread_;
};

TEST_F(ControlServerTest, OpensASessionOnTheReactor) {
  Start();
  RunReactor();
  v1::OpenSessionReply reply;
  FB_ASSERT_OK(Open(Request(), &reply));
  const absl::StatusOr<OpenSessionReply> opened = FromProto(reply);
  FB_ASSERT_OK(opened);
  EXPECT_EQ(opened->wire_version, kWireVersionMax);
  EXPECT_THAT(opened->data_addresses, ::testing::ElementsAre("tcp:127.0.0.1:1"));
}

TEST_F(ControlServerTest, RefusalsKeepTheirCodesAndTexts) {
  Start();
  RunReactor();
  v1::OpenSessionReply reply;
  v1::OpenSessionRequest request = Request();
  request.set_wire_version_min(9);
  request.set_wire_version_max(9);
  EXPECT_THAT(Open(request, &reply),
              HasStatus(absl::StatusCode::kFailedPrecondition, HasSubstr("[9, 9]")));
  request = Request();
  request.mutable_spec()->clear_model();
  EXPECT_THAT(Open(request, &reply), HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Open(v1::OpenSessionRequest(), &reply), HasCode(absl::StatusCode::kInvalidArgument));
}

TEST_F(ControlServerTest, ATokenNamesItsTenant) {
  PoolNodeOptions options;
  options.tenants = {{"a", "secret of tenant a", Hash("token-of-tenant-a")},
                     {"b", "secret of tenant b", Hash("token-of-tenant-b")}};
  Start(options);
  RunReactor();
  v1::OpenSessionReply a;
  v1::OpenSessionReply b;
  FB_ASSERT_OK(Open(Request(), &a, "token-of-tenant-a"));
  FB_ASSERT_OK(Open(Request(), &b, "token-of-tenant-b"));
  EXPECT_NE(a.root(), b.root());
  const absl::Status none = Open(Request(), &a);
  const absl::Status wrong = Open(Request(), &a, "token-of-tenant-c");
  EXPECT_THAT(none, HasCode(absl::StatusCode::kUnauthenticated));
  EXPECT_EQ(none, wrong);
}

TEST_F(ControlServerTest, AStuckReactorIsADeadlineAndNoHang) {
  Start();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  v1::StatusReply reply;
  const grpc::Status status =
      v1::Admin::NewStub(channel_)->Status(&context, v1::StatusRequest(), &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  RunReactor();  // The late task finds nobody, and does no harm.
}

TEST_F(ControlServerTest, AdminSaysWhatTheNodeSays) {
  Start();
  RunReactor();
  v1::OpenSessionReply opened;
  v1::OpenSessionRequest request = Request();
  request.mutable_spec()->set_salt("pepper");
  FB_ASSERT_OK(Open(request, &opened));
  auto admin = v1::Admin::NewStub(channel_);
  v1::StatusReply status;
  v1::ListNamespacesReply namespaces;
  v1::MetricsReply metrics;
  v1::ShowConfigReply config;
  const auto call = [&](auto method, const auto& ask, auto* reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    FB_EXPECT_OK(FromGrpcStatus(((*admin).*method)(&context, ask, reply)));
  };
  call(&v1::Admin::Stub::Status, v1::StatusRequest(), &status);
  call(&v1::Admin::Stub::ListNamespaces, v1::ListNamespacesRequest(), &namespaces);
  call(&v1::Admin::Stub::Metrics, v1::MetricsRequest(), &metrics);
  call(&v1::Admin::Stub::ShowConfig, v1::ShowConfigRequest(), &config);
  EXPECT_EQ(status.version(), "1.2.3");
  EXPECT_TRUE(status.serving());
  EXPECT_EQ(status.sessions(), 1u);
  EXPECT_EQ(status.boot_epoch_hex().size(), 32u);
  EXPECT_EQ(status.capacity_bytes(), 1u << 20);
  ASSERT_EQ(namespaces.namespaces_size(), 1);
  EXPECT_EQ(namespaces.namespaces(0).model(), "model");
  EXPECT_TRUE(namespaces.namespaces(0).salted());
  EXPECT_THAT(namespaces.DebugString(), Not(HasSubstr("pepper")));
  EXPECT_THAT(metrics.text(), AllOf(HasSubstr("forebay_sessions 1\n"),
                                    HasSubstr("forebay_dram_capacity_bytes 1048576\n")));
  EXPECT_EQ(config.textproto(), "node: \"n\"\n");
}

TEST_F(ControlServerTest, ASecondServerOnThePortIsToldWhoseItIs) {
  Start();
  ControlServerOptions same;
  same.address = server_->address();
  EXPECT_THAT(ControlServer::Start(same, *node_, reactor_, registry_),
              HasStatus(absl::StatusCode::kAlreadyExists, HasSubstr(server_->address())));
  ControlServerOptions nowhere;
  nowhere.address = "192.0.2.1:7400";
  EXPECT_THAT(ControlServer::Start(nowhere, *node_, reactor_, registry_),
              HasStatus(absl::StatusCode::kUnavailable, HasSubstr("192.0.2.1:7400")));
}

TEST_F(ControlServerTest, AMessageThatIsTooLargeIsRefused) {
  Start();
  RunReactor();
  v1::OpenSessionRequest request = Request();
  request.mutable_spec()->set_salt(std::string(5 << 20, 'x'));
  v1::OpenSessionReply reply;
  EXPECT_THAT(Open(request, &reply), HasCode(absl::StatusCode::kResourceExhausted));
}

TEST(TenantsTest, EverybodyIsTheDefaultWhereThereAreNone) {
  EXPECT_EQ(*TenantOf({}, ""), kDefaultTenant);
  EXPECT_EQ(*TenantOf({}, "anything"), kDefaultTenant);
}

TEST(ReactorCallTest, AFullMailboxIsRefused) {
  const SystemClock clock;
  Reactor::Options options;
  options.mailbox_capacity = 2;
  Reactor reactor(clock, options);
  while (reactor.Post([] {})) {
  }
  EXPECT_THAT(CallOnReactor<int>(reactor, absl::Now() + absl::Seconds(1), [] { return 1; }),
              HasCode(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace forebay
