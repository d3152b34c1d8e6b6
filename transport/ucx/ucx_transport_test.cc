// The transport contract over UCX: TCP on loopback, or what the environment names (see
// testing/ucx_test_options.h), as tests/rdma_vm does.

#include "transport/ucx/ucx_transport.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/testing/status_matchers.h"
#include "transport/testing/transport_contract.h"
#include "transport/ucx/testing/ucx_test_options.h"

namespace forebay {
namespace {

class UcxWorld final : public testing::SystemTransportWorld {
 public:
  explicit UcxWorld(UcxTransportOptions options)
      : options_(std::move(options)), setting_(testing::UcxTestSettingFromEnvironment()) {}

  std::unique_ptr<Transport> Make(TransportHandler& handler,
                                  const TransportOptions& options) override {
    UcxTransportOptions ucx_options = options_;
    ucx_options.base = options;
    auto transport = UcxTransport::Create(clock_, handler, setting_.Apply(ucx_options, made_++));
    EXPECT_THAT(transport, testing::IsOk());
    return transport.ok() ? *std::move(transport) : nullptr;
  }
  std::string ListenAddress() override { return "ucx:127.0.0.1:0"; }
  // Port 1 is nobody's and below the range that the kernel hands out.
  std::string NobodyAddress() override { return "ucx:127.0.0.1:1"; }
  testing::TransportTraits traits() const override {
    testing::TransportTraits traits;
    // An emulated machine has slower clocks of every kind: its timeouts are longer by as much.
    traits.slack *= 2 * setting_.time_scale;
    traits.patience *= setting_.time_scale;
    return traits;
  }
  const TransportCounts* CountsOf(const Transport& transport) const override {
    return &static_cast<const UcxTransport&>(transport).counts().base;
  }

 private:
  const SystemClock clock_;
  const UcxTransportOptions options_;
  const testing::UcxTestSetting setting_;
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
