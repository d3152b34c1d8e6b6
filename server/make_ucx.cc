#include "server/make_transport.h"
#if defined(FOREBAY_HAVE_UCX)
#include "transport/ucx/ucx_transport.h"
#endif

namespace forebay {

absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(
    const Clock& clock, TransportHandler& handler, const TransportOptions& options,
    const std::string& devices, const std::string& transports, int gid_index) {
#if defined(FOREBAY_HAVE_UCX)
  UcxTransportOptions ucx;
  ucx.base = options;
  if (!devices.empty()) ucx.devices = devices;
  if (!transports.empty()) ucx.transports = transports;
  ucx.gid_index = gid_index;
  return UcxTransport::Create(clock, handler, std::move(ucx));
#else
  static_cast<void>(clock);
  static_cast<void>(handler);
  static_cast<void>(options);
  static_cast<void>(devices);
  static_cast<void>(transports);
  static_cast<void>(gid_index);
  return absl::UnimplementedError("this build has no UCX");
#endif
}

}  // namespace forebay
