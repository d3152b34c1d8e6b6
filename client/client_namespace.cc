#include "client/client_namespace.h"

#include <algorithm>
#include <utility>

namespace forebay {
namespace {

Placement PlacementOf(const ClientCoreOptions& options) {
  std::vector<Placement::Node> nodes;
  for (const DaemonAddress& daemon : options.daemons) {
    nodes.push_back({daemon.control, daemon.weight});
  }
  return Placement(std::move(nodes));
}

}  // namespace

ClientNamespace::ClientNamespace(uint64_t the_id, NamespaceSpec the_spec,
                                 const ClientCoreOptions& options)
    : id(the_id),
      spec(std::move(the_spec)),
      parts(spec.layout.Parts()),
      rule(spec.layout),
      placement(PlacementOf(options)),
      connect_timeout(options.connect_timeout) {}

}  // namespace forebay
