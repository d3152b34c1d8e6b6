#include "client/transport_factory.h"
#include "transport/local/local_transport.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<Transport>> NewClientLocalTransport(const Clock& clock,
                                                                   TransportHandler& handler) {
  return LocalTransport::Create(clock, handler, LocalTransportOptions());
}

}  // namespace forebay
