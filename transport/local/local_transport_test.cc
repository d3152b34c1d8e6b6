#include "transport/local/local_transport.h"

#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/testing/transport_contract.h"

namespace forebay {
namespace {

// Both ends in this process and thread, over real sockets and shared memory.
class LocalWorld final : public testing::SystemTransportWorld {
 public:
  explicit LocalWorld(uint64_t staging_bytes) : staging_bytes_(staging_bytes) {}

  std::unique_ptr<Transport> Make(TransportHandler& handler,
                                  const TransportOptions& options) override {
    absl::StatusOr<std::unique_ptr<LocalTransport>> transport =
        LocalTransport::Create(clock_, handler, LocalOptions(options));
    FB_CHECK(transport.ok());
    return *std::move(transport);
  }
  std::string ListenAddress() override { return absl::StrCat(NobodyAddress(), "-", ++listeners_); }
  std::string NobodyAddress() override {
    return absl::StrCat("local:@forebay-test-", getpid(), "-", reinterpret_cast<uintptr_t>(this));
  }
  const TransportCounts* CountsOf(const Transport& transport) const override {
    return &static_cast<const LocalTransport&>(transport).counts();
  }

 private:
  LocalTransportOptions LocalOptions(const TransportOptions& base) const {
    LocalTransportOptions options;
    options.base = base;
    options.staging_bytes = staging_bytes_;
    return options;
  }

  const uint64_t staging_bytes_;
  SystemClock clock_;
  int listeners_ = 0;
};

}  // namespace
}  // namespace forebay

FB_INSTANTIATE_TRANSPORT_CONTRACT(
    Local,
    ::testing::Values(
        forebay::testing::TransportContractParam{
            "plain", [] { return std::make_unique<forebay::LocalWorld>(2 << 20); }},
        // So small that every payload waits for room.
        forebay::testing::TransportContractParam{"cramped", [] {
                                                   return std::make_unique<forebay::LocalWorld>(
                                                       forebay::SharedArea::kStagingBytesMin);
                                                 }}));
