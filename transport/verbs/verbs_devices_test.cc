#include "transport/verbs/verbs_devices.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

// A host without RDMA has an empty list. FOREBAY_TEST_VERBS_PORTS says how many there must be
// (tests/rdma_vm).
TEST(VerbsDevicesTest, ListsThePortsOfThisHost) {
  const absl::StatusOr<std::vector<VerbsPort>> ports = VerbsPorts();
  FB_ASSERT_OK(ports);
  if (const char* expected = std::getenv("FOREBAY_TEST_VERBS_PORTS")) {
    EXPECT_EQ(absl::StrCat(ports->size()), expected);
  }
  for (const VerbsPort& port : *ports) {
    EXPECT_FALSE(port.device.empty());
    EXPECT_GE(port.port, 1);
    EXPECT_GE(port.numa_node, -1);
    if (port.state != "active") continue;
    EXPECT_GT(port.rate_gbps, 0) << port.device;
    EXPECT_GE(port.active_mtu_bytes, 256) << port.device;
    EXPECT_FALSE(port.gids.empty()) << port.device;
  }
}

TEST(VerbsDevicesTest, RateIsLaneSpeedTimesWidth) {
  EXPECT_EQ(VerbsRateGbps(/*active_speed=*/1, /*active_width=*/1), 2.5);  // SDR x1: rxe
  EXPECT_EQ(VerbsRateGbps(32, 2), 100);                                   // EDR x4
  EXPECT_EQ(VerbsRateGbps(64, 2), 200);                                   // HDR x4
  EXPECT_EQ(VerbsRateGbps(128, 2), 400);                                  // NDR x4
  EXPECT_EQ(VerbsRateGbps(128, 16), 200);                                 // NDR x2
  EXPECT_EQ(VerbsRateGbps(3, 2), 0);
  EXPECT_EQ(VerbsRateGbps(32, 3), 0);
}

TEST(VerbsDevicesTest, TextAndJsonNameEachPort) {
  VerbsPort port;
  port.device = "mlx5_0";
  port.port = 1;
  port.state = "active";
  port.link_layer = "ethernet";
  port.rate_gbps = 400;
  port.numa_node = 1;
  port.active_mtu_bytes = 4096;
  port.gids = {{3, "::ffff:10.0.0.1", "roce-v2"}};
  EXPECT_EQ(VerbsPortsJson({port}),
            "{\"device\": \"mlx5_0\", \"port\": 1, \"state\": \"active\", \"link_layer\": "
            "\"ethernet\", \"rate_gbps\": 400, \"numa_node\": 1, \"active_mtu_bytes\": 4096, "
            "\"gids\": [{\"index\": 3, \"address\": \"::ffff:10.0.0.1\", \"type\": "
            "\"roce-v2\"}]}\n");
  EXPECT_TRUE(absl::StrContains(VerbsPortsText({port}), "mlx5_0:1"));
  EXPECT_EQ(VerbsPortsText({}), "no RDMA devices\n");
  EXPECT_EQ(VerbsPortsJson({}), "");
}

}  // namespace
}  // namespace forebay
