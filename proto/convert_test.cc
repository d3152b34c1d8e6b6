#include "proto/convert.h"

#include <gtest/gtest.h>

#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

NamespaceSpec FullSpec() {
  NamespaceSpec spec;
  spec.model = "llama-70b";
  spec.model_revision = "sha256:0123";
  spec.layout = KvLayout::Uniform(/*layer_count=*/3, /*kv_heads=*/8, /*head_dim=*/128, DType::kBf16,
                                  /*page_tokens=*/32, /*layers_per_part=*/2);
  spec.layout.plane_order = PlaneOrder::kHeadMajor;
  spec.layout.heads_per_part = 4;
  spec.layout.split_key_value = true;
  LayerSpec window = spec.layout.layers[0];
  window.layer_class = LayerClass::kSlidingWindow;
  window.attention = AttentionKind::kMqa;
  window.window_tokens = 64;
  window.v_dim = 96;
  LayerSpec state;
  state.layer_class = LayerClass::kState;
  state.attention = AttentionKind::kNone;
  state.dtype = DType::kFp32;
  state.state_bytes = 4096;
  spec.layout.layers.push_back(window);
  spec.layout.layers.push_back(state);
  spec.position_encoding = "rope:theta=10000";
  spec.adapter = "lora-a";
  spec.salt = "salt-b";
  spec.quality.bound = {QualityClass::kNear, QualityClass::kFair};
  spec.quality.layers = {{0, 1, {QualityClass::kExact, QualityClass::kNear}}};
  spec.quality.retention = true;
  return spec;
}

TEST(ConvertTest, ANamespaceSpecComesBackWhole) {
  const NamespaceSpec spec = FullSpec();
  const absl::StatusOr<NamespaceSpec> back = FromProto(ToProto(spec));
  FB_ASSERT_OK(back);
  EXPECT_EQ(*back, spec);
}

TEST(ConvertTest, EqualLayersTravelAsOneRun) {
  EXPECT_EQ(ToProto(FullSpec()).layout().layers_size(), 3);
}

// The tenant is the daemon's to say, so it never leaves the client.
TEST(ConvertTest, TheTenantIsNotSent) {
  NamespaceSpec spec = FullSpec();
  spec.tenant = "acme";
  EXPECT_EQ(ToProto(spec).SerializeAsString().find("acme"), std::string::npos);
}

TEST(ConvertTest, AnUnknownEnumIsRefusedByName) {
  v1::NamespaceSpec message = ToProto(FullSpec());
  message.mutable_layout()->mutable_layers(1)->set_dtype(static_cast<v1::DType>(99));
  EXPECT_THAT(FromProto(message),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("layout.layers[1].dtype")));
}

TEST(ConvertTest, AHostileRepeatIsRefusedBeforeItIsBuilt) {
  v1::NamespaceSpec message = ToProto(FullSpec());
  message.mutable_layout()->mutable_layers(0)->set_repeat(4'000'000'000u);
  EXPECT_THAT(FromProto(message),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("layers[0].repeat")));
}

TEST(ConvertTest, ASessionReplyComesBackWhole) {
  OpenSessionReply reply;
  reply.session = RandomId();
  reply.boot_epoch = RandomId();
  reply.root.bytes.fill(7);
  reply.namespace_id = 3;
  reply.wire_version = 1;
  reply.data_addresses = {"local:/run/x.sock", "tcp:127.0.0.1:7470"};
  reply.host_id = "host";
  reply.weight = 2.5;
  const absl::StatusOr<OpenSessionReply> back = FromProto(ToProto(reply));
  FB_ASSERT_OK(back);
  EXPECT_EQ(back->session, reply.session);
  EXPECT_EQ(back->boot_epoch, reply.boot_epoch);
  EXPECT_EQ(back->root, reply.root);
  EXPECT_EQ(back->namespace_id, 3u);
  EXPECT_EQ(back->data_addresses, reply.data_addresses);
  EXPECT_EQ(back->host_id, "host");
  EXPECT_EQ(back->weight, 2.5);
}

TEST(ConvertTest, AShortSessionIdIsRefusedByName) {
  v1::OpenSessionReply message = ToProto(OpenSessionReply{});
  message.set_session("short");
  EXPECT_THAT(FromProto(message),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("session has 5 bytes")));
}

}  // namespace
}  // namespace forebay
