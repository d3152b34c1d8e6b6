#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/client_options.h"
#include "client/transport_ports.h"
#include "transport/transport.h"

namespace forebay {

// The transports of a real process: local, tcp, and ucx where this build has it.
// The clock must outlive what it makes.
TransportFactory SystemTransports(const Clock& clock, const UcxChoice& ucx = {});

// Each is made in a file of its own, so that what a back end brings in stays there.
absl::StatusOr<std::unique_ptr<Transport>> NewClientLocalTransport(const Clock& clock,
                                                                   TransportHandler& handler);
absl::StatusOr<std::unique_ptr<Transport>> NewClientTcpTransport(const Clock& clock,
                                                                 TransportHandler& handler);
// UNIMPLEMENTED where this build has no UCX.
absl::StatusOr<std::unique_ptr<Transport>> NewClientUcxTransport(const Clock& clock,
                                                                 TransportHandler& handler,
                                                                 const UcxChoice& ucx);

}  // namespace forebay
