#include "transport/ucx/ucx_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "base/testing/status_matchers.h"
#include "transport/ucx/ucx_status.h"

namespace forebay {
namespace {

using testing::HasCode;

std::map<std::string, std::string> SettingsOf(const UcxTransportOptions& options) {
  std::map<std::string, std::string> settings;
  for (const auto& [name, value] : UcxSettings(options)) settings[name] = value;
  return settings;
}

TEST(UcxWorkerTest, SettingsOfTcp) {
  const auto settings = SettingsOf({});
  EXPECT_EQ(settings.at("TLS"), "tcp");
  EXPECT_EQ(settings.at("NET_DEVICES"), "lo");
  EXPECT_EQ(settings.at("KEEPALIVE_INTERVAL"), "inf");
  EXPECT_EQ(settings.at("TCP_CONN_NB"), "y");
  EXPECT_EQ(settings.count("RC_TIMEOUT"), 0u);
}

// A cut link must show before the peer's timeout: six tries of at most twice RC_TIMEOUT.
TEST(UcxWorkerTest, RetriesOfRdmaFitIntoThePeersTimeout) {
  UcxTransportOptions options;
  options.transports = "rc_v,self";
  options.devices = "mlx5_0:1";
  options.gid_index = 3;
  options.base.peer_timeout = 10 * kSecond;
  const auto settings = SettingsOf(options);
  EXPECT_EQ(settings.at("RC_TIMEOUT"), "200000us");
  EXPECT_EQ(settings.at("RC_RETRY_COUNT"), "5");
  EXPECT_EQ(settings.at("UD_TIMEOUT"), "10000000us");
  EXPECT_EQ(settings.at("IB_GID_INDEX"), "3");
}

TEST(UcxWorkerTest, SettingsOfTheOperatorWin) {
  UcxTransportOptions options;
  options.settings = {{"KEEPALIVE_INTERVAL", "7s"}, {"TCP_PORT_RANGE", "20000-20100"}};
  const auto settings = SettingsOf(options);
  EXPECT_EQ(settings.at("KEEPALIVE_INTERVAL"), "7s");
  EXPECT_EQ(settings.at("TCP_PORT_RANGE"), "20000-20100");
}

TEST(UcxWorkerTest, RefusesWhatUcxRefuses) {
  UcxTransportOptions options;
  options.devices = "nosuchdevice0";
  EXPECT_THAT(UcxWorker::Create(options), HasCode(absl::StatusCode::kNotFound));
  options.transports = "tcp,self";
  EXPECT_THAT(UcxWorker::Create(options), HasCode(absl::StatusCode::kNotFound));
  options.devices = "lo";
  options.transports = "nosuchtransport";
  EXPECT_FALSE(UcxWorker::Create(options).ok());
  options.transports = "tcp";
  options.settings = {{"RNDV_SCHEME", "nosuchscheme"}};
  EXPECT_FALSE(UcxWorker::Create(options).ok());
}

// What the environment says about a setting of ours does not count.
TEST(UcxWorkerTest, TheEnvironmentDoesNotSteer) {
  ASSERT_EQ(setenv("UCX_NET_DEVICES", "nosuchdevice0", /*overwrite=*/1), 0);
  ASSERT_EQ(setenv("UCX_TLS", "nosuchtransport", 1), 0);
  ASSERT_EQ(setenv("FOREBAY_UCX_TLS", "nosuchtransport", 1), 0);
  const auto worker = UcxWorker::Create({});
  unsetenv("UCX_NET_DEVICES");
  unsetenv("UCX_TLS");
  unsetenv("FOREBAY_UCX_TLS");
  FB_ASSERT_OK(worker);
  EXPECT_GT((*worker)->header_bytes_max(), 1024u);
  EXPECT_GE((*worker)->event_fd(), 0);
  EXPECT_FALSE((*worker)->address().empty());
}

TEST(UcxStatusTest, Translates) {
  FB_EXPECT_OK(UcxStatus(UCS_OK, "nothing"));
  const std::map<ucs_status_t, absl::StatusCode> codes = {
      {UCS_ERR_CANCELED, absl::StatusCode::kCancelled},
      {UCS_ERR_CONNECTION_RESET, absl::StatusCode::kUnavailable},
      {UCS_ERR_ENDPOINT_TIMEOUT, absl::StatusCode::kUnavailable},
      {UCS_ERR_UNREACHABLE, absl::StatusCode::kUnavailable},
      {UCS_ERR_NO_MEMORY, absl::StatusCode::kResourceExhausted},
      {UCS_ERR_NO_DEVICE, absl::StatusCode::kNotFound},
      {UCS_ERR_INVALID_PARAM, absl::StatusCode::kInvalidArgument},
      {UCS_ERR_UNSUPPORTED, absl::StatusCode::kUnimplemented},
      {UCS_ERR_MESSAGE_TRUNCATED, absl::StatusCode::kDataLoss},
      {UCS_ERR_LAST, absl::StatusCode::kInternal},
  };
  for (const auto& [status, code] : codes) {
    EXPECT_THAT(UcxStatus(status, "a test"), HasCode(code)) << status;
  }
  EXPECT_THAT(UcxStatus(UCS_ERR_NO_DEVICE, "open mlx5_9").message(),
              ::testing::HasSubstr("open mlx5_9"));
}

}  // namespace
}  // namespace forebay
