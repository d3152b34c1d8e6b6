#include "client/transport_factory.h"

#include "absl/strings/str_cat.h"

namespace forebay {

TransportFactory SystemTransports(const Clock& clock, const UcxChoice& ucx) {
  return [&clock, ucx](absl::string_view scheme,
                       TransportHandler& handler) -> absl::StatusOr<std::unique_ptr<Transport>> {
    if (scheme == "local") return NewClientLocalTransport(clock, handler);
    if (scheme == "tcp") return NewClientTcpTransport(clock, handler);
    if (scheme == "ucx") return NewClientUcxTransport(clock, handler, ucx);
    return absl::UnimplementedError(absl::StrCat("this build has no ", scheme, " transport"));
  };
}

}  // namespace forebay
