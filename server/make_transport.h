#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "transport/transport.h"

// The transports of the daemon, each made in a file of its own, so that what a back end brings in
// stays there.
namespace forebay {

// A slab of the DRAM tier as a same-host peer may map it.
struct ExportedSlab {
  int fd = -1;
  Bytes memory;
};

absl::StatusOr<std::unique_ptr<Transport>> MakeLocalTransport(
    const Clock& clock, TransportHandler& handler, const TransportOptions& options,
    const std::vector<ExportedSlab>& slabs);

absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(const Clock& clock,
                                                            TransportHandler& handler,
                                                            const TransportOptions& options);

// UNIMPLEMENTED where this build has no UCX.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(
    const Clock& clock, TransportHandler& handler, const TransportOptions& options,
    const std::string& devices, const std::string& transports, int gid_index);

}  // namespace forebay
