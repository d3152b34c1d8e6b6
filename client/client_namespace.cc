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
      placement(PlacementOf(options)),
      connect_timeout(options.connect_timeout) {
  for (const LayerSpec& layer : spec.layout.layers) {
    if (layer.layer_class != LayerClass::kSlidingWindow) continue;
    const uint32_t pages =
        (layer.window_tokens + spec.layout.page_tokens - 1) / spec.layout.page_tokens;
    window_pages = std::max(window_pages, pages);
  }
}

}  // namespace forebay
