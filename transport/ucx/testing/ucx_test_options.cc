#include "transport/ucx/testing/ucx_test_options.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace forebay::testing {
namespace {

int Number(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  if (value == nullptr) return otherwise;
  int number = 0;
  FB_CHECK(absl::SimpleAtoi(value, &number));
  return number;
}

}  // namespace

UcxTestSetting UcxTestSettingFromEnvironment() {
  UcxTestSetting setting;
  if (const char* transports = std::getenv("FOREBAY_TEST_UCX_TLS")) setting.transports = transports;
  if (const char* devices = std::getenv("FOREBAY_TEST_UCX_DEVICES")) {
    setting.devices = absl::StrSplit(devices, ',');
  }
  setting.gid_index = Number("FOREBAY_TEST_UCX_GID", -1);
  setting.time_scale = Number("FOREBAY_TEST_UCX_TIME_SCALE", 1);
  FB_CHECK(setting.time_scale >= 1);
  return setting;
}

UcxTransportOptions UcxTestSetting::Apply(UcxTransportOptions options, size_t turn) const {
  options.transports = transports;
  options.devices = devices[turn % devices.size()];
  options.gid_index = gid_index;
  options.base.peer_timeout *= time_scale;
  options.base.keepalive_interval *= time_scale;
  options.handshake_timeout *= time_scale;
  return options;
}

}  // namespace forebay::testing

// Read by the leak sanitizer. UCX 1.13.1 keeps a record of 56 bytes for some workers that it has
// met, and one of our own workers is left alone where its ends did not all meet (~UcxTransport).
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:ucs_calloc\n"; }
