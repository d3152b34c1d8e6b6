// The transport contract over UCX: TCP on loopback, or what FOREBAY_TEST_UCX_* names (in the RDMA
// machine, tests/rdma_vm).
//
//   FOREBAY_TEST_UCX_TLS             "rc_v,self"; default "tcp,self"
//   FOREBAY_TEST_UCX_DEVICES         "rxe0:1", and after a comma a second one for every other
//                                    transport of a test: "rxe0:1,rxe1:1"; default "lo"
//   FOREBAY_TEST_UCX_GID             an index; default: UCX chooses
//   FOREBAY_TEST_UCX_TIME_SCALE      how many times slower than a real machine this one is

#include "transport/ucx/ucx_transport.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/testing/status_matchers.h"
#include "transport/testing/transport_contract.h"

namespace forebay {
namespace {

std::string Variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

int Number(const char* name, int otherwise) {
  int number = otherwise;
  const char* value = std::getenv(name);
  if (value != nullptr && !absl::SimpleAtoi(value, &number)) {
    ADD_FAILURE() << name << " is no number: " << value;
  }
  return number;
}

class UcxWorld final : public testing::SystemTransportWorld {
 public:
  explicit UcxWorld(UcxTransportOptions options)
      : options_(std::move(options)),
        devices_(absl::StrSplit(Variable("FOREBAY_TEST_UCX_DEVICES", "lo"), ',')),
        time_scale_(Number("FOREBAY_TEST_UCX_TIME_SCALE", 1)) {}

  std::unique_ptr<Transport> Make(TransportHandler& handler,
                                  const TransportOptions& options) override {
    UcxTransportOptions ucx_options = options_;
    ucx_options.base = options;
    ucx_options.base.peer_timeout *= time_scale_;
    ucx_options.base.keepalive_interval *= time_scale_;
    ucx_options.transports = Variable("FOREBAY_TEST_UCX_TLS", "tcp,self");
    ucx_options.devices = devices_[made_++ % devices_.size()];
    ucx_options.gid_index = Number("FOREBAY_TEST_UCX_GID", -1);
    auto transport = UcxTransport::Create(clock_, handler, ucx_options);
    EXPECT_THAT(transport, testing::IsOk());
    return transport.ok() ? *std::move(transport) : nullptr;
  }
  std::string ListenAddress() override { return "ucx:127.0.0.1:0"; }
  // Port 1 is nobody's and below the range that the kernel hands out.
  std::string NobodyAddress() override { return "ucx:127.0.0.1:1"; }
  testing::TransportTraits traits() const override {
    testing::TransportTraits traits;
    // An emulated machine has slower clocks of every kind: its timeouts are longer by as much.
    traits.slack *= 2 * time_scale_;
    traits.patience *= time_scale_;
    return traits;
  }
  const TransportCounts* CountsOf(const Transport& transport) const override {
    return &static_cast<const UcxTransport&>(transport).counts().base;
  }

 private:
  const SystemClock clock_;
  const UcxTransportOptions options_;
  const std::vector<std::string> devices_;
  const int time_scale_;
  size_t made_ = 0;
};

testing::TransportContractParam Param(std::string name, UcxTransportOptions options) {
  return {std::move(name), [options] { return std::make_unique<UcxWorld>(options); }};
}

// Everything but the smallest goes by rendezvous, in many small pieces.
UcxTransportOptions SmallPieces() {
  UcxTransportOptions options;
  options.rendezvous_bytes = 4096;
  options.piece_bytes = 20'000;
  return options;
}

}  // namespace
}  // namespace forebay

FB_INSTANTIATE_TRANSPORT_CONTRACT(Ucx, ::testing::Values(Param("plain", {}),
                                                         Param("pieces", SmallPieces())));
