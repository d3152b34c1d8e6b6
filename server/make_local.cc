#include <utility>

#include "server/make_transport.h"
#include "transport/local/local_transport.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<Transport>> MakeLocalTransport(
    const Clock& clock, TransportHandler& handler, const TransportOptions& options,
    const std::vector<ExportedSlab>& slabs) {
  LocalTransportOptions local;
  local.base = options;
  for (const ExportedSlab& slab : slabs) {
    local.exports.push_back({slab.fd, slab.memory.size(), slab.memory.data()});
  }
  return LocalTransport::Create(clock, handler, std::move(local));
}

}  // namespace forebay
