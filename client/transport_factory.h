#pragma once

#include "base/clock.h"
#include "client/transport_ports.h"

namespace forebay {

// The transports of a real process: local, tcp, and ucx where this build has it.
// The clock must outlive what it makes.
TransportFactory SystemTransports(const Clock& clock);

}  // namespace forebay
