#include "client/transport_factory.h"
#if defined(FOREBAY_HAVE_UCX)
#include "transport/ucx/ucx_transport.h"
#endif

namespace forebay {

#if defined(FOREBAY_HAVE_UCX)
absl::StatusOr<std::unique_ptr<Transport>> NewClientUcxTransport(const Clock& clock,
                                                                 TransportHandler& handler) {
  return UcxTransport::Create(clock, handler, UcxTransportOptions());
}
#else
absl::StatusOr<std::unique_ptr<Transport>> NewClientUcxTransport(const Clock& /*clock*/,
                                                                 TransportHandler& /*handler*/) {
  return absl::UnimplementedError("this build has no UCX");
}
#endif

}  // namespace forebay
