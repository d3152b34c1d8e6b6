#include "server/make_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(const Clock& clock,
                                                            TransportHandler& handler,
                                                            const TransportOptions& options) {
  TcpTransportOptions tcp;
  tcp.base = options;
  return TcpTransport::Create(clock, handler, std::move(tcp));
}

}  // namespace forebay
