#include <utility>

#include "client/transport_factory.h"

#if defined(FOREBAY_HAVE_UCX)
#include "transport/ucx/ucx_transport.h"
#endif

namespace forebay {

#if defined(FOREBAY_HAVE_UCX)
absl::StatusOr<std::unique_ptr<Transport>> NewClientUcxTransport(const Clock& clock,
                                                                 TransportHandler& handler,
                                                                 const UcxChoice& ucx) {
  UcxTransportOptions options;
  if (!ucx.transports.empty()) options.transports = ucx.transports;
  if (!ucx.devices.empty()) options.devices = ucx.devices;
  options.gid_index = ucx.gid_index;
  return UcxTransport::Create(clock, handler, std::move(options));
}
#else
absl::StatusOr<std::unique_ptr<Transport>> NewClientUcxTransport(const Clock& /*clock*/,
                                                                 TransportHandler& /*handler*/,
                                                                 const UcxChoice& /*ucx*/) {
  return absl::UnimplementedError("this build has no UCX");
}
#endif

}  // namespace forebay
