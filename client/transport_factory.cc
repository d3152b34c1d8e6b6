#include "client/transport_factory.h"

#include "absl/strings/str_cat.h"
#include "transport/local/local_transport.h"
#include "transport/tcp/tcp_transport.h"
#if defined(FOREBAY_HAVE_UCX)
#include "transport/ucx/ucx_transport.h"
#endif

namespace forebay {

TransportFactory SystemTransports(const Clock& clock) {
  return [&clock](absl::string_view scheme,
                  TransportHandler& handler) -> absl::StatusOr<std::unique_ptr<Transport>> {
    if (scheme == "local") return LocalTransport::Create(clock, handler, LocalTransportOptions());
    if (scheme == "tcp") return TcpTransport::Create(clock, handler, TcpTransportOptions());
#if defined(FOREBAY_HAVE_UCX)
    if (scheme == "ucx") return UcxTransport::Create(clock, handler, UcxTransportOptions());
#endif
    return absl::UnimplementedError(absl::StrCat("this build has no ", scheme, " transport"));
  };
}

}  // namespace forebay
