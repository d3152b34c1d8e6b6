#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/testing/status_matchers.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/testing/transport_contract.h"
#include "transport/testing/transport_side.h"

namespace forebay::testing {

// The world of the contract suite, in one setting of TcpTransport.
class TcpWorld final : public SystemTransportWorld {
 public:
  explicit TcpWorld(TcpTransportOptions options = {}) : options_(std::move(options)) {}

  std::unique_ptr<Transport> Make(TransportHandler& handler,
                                  const TransportOptions& options) override {
    TcpTransportOptions tcp_options = options_;
    tcp_options.base = options;
    auto transport = TcpTransport::Create(clock_, handler, tcp_options);
    EXPECT_THAT(transport, IsOk());
    return transport.ok() ? *std::move(transport) : nullptr;
  }
  std::string ListenAddress() override { return "tcp:127.0.0.1:0"; }
  // Port 1 is nobody's, and below the range that the kernel hands out.
  std::string NobodyAddress() override { return "tcp:127.0.0.1:1"; }
  const TransportCounts* CountsOf(const Transport& transport) const override {
    return &static_cast<const TcpTransport&>(transport).counts().base;
  }

  // For sides made after it.
  void set_options(TcpTransportOptions options) { options_ = std::move(options); }

 private:
  const SystemClock clock_;
  TcpTransportOptions options_;
};

inline const TcpCounts& CountsOf(TransportSide& side) {
  return static_cast<TcpTransport&>(side.transport()).counts();
}

}  // namespace forebay::testing
