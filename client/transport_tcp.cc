#include "client/transport_factory.h"
#include "transport/tcp/tcp_transport.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<Transport>> NewClientTcpTransport(const Clock& clock,
                                                                 TransportHandler& handler) {
  return TcpTransport::Create(clock, handler, TcpTransportOptions());
}

}  // namespace forebay
