#pragma once

#include <string>
#include <vector>

#include "transport/ucx/ucx_worker.h"

// Which devices the tests of this folder run on. Nothing set: TCP on loopback.
//
//   FOREBAY_TEST_UCX_TLS         "rc_v"
//   FOREBAY_TEST_UCX_DEVICES     "rxe0:1"; more after commas: the transports of a test take turns
//   FOREBAY_TEST_UCX_GID         an index
//   FOREBAY_TEST_UCX_TIME_SCALE  how many times slower than a real machine this one is; timeouts
//                                grow by it
namespace forebay::testing {

struct UcxTestSetting {
  std::string transports = "tcp";
  std::vector<std::string> devices = {"lo"};
  int gid_index = -1;
  int time_scale = 1;

  // `options` with the transports, the `turn`-th device, the GID and scaled timeouts.
  UcxTransportOptions Apply(UcxTransportOptions options, size_t turn) const;
};

// Aborts on a value that cannot be read: a test of something else would be worse.
UcxTestSetting UcxTestSettingFromEnvironment();

}  // namespace forebay::testing
