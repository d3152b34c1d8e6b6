#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/namespace_spec.h"
#include "base/page_key.h"
#include "client/client_op.h"
#include "client/daemon_link.h"
#include "client/placement.h"
#include "client/read_rule.h"

namespace forebay {

// A namespace as one client core has it open: its shape, its daemons, who holds what.
//
// Threads  the core's reactor.
struct ClientNamespace {
  uint64_t id = 0;
  NamespaceSpec spec;
  std::vector<PartSpec> parts;
  ReadRule rule;
  Placement placement;
  std::vector<std::unique_ptr<DaemonLink>> links;  // in the order of the client's daemons
  std::optional<PageKey> root;                     // as the first daemon that answered gave it
  Nanos connect_timeout = 0;
  std::vector<ClientOp*> watchers;  // ops that want a turn when a link changes

  ClientNamespace(uint64_t the_id, NamespaceSpec the_spec, const ClientCoreOptions& options);

  // Whether a reader who goes on after `page_count` pages needs this part of page `page`.
  bool Needs(const PartSpec& part, uint32_t page, uint32_t page_count) const {
    return rule.Needs(part.layer_class, page, page_count);
  }
  void Watch(ClientOp& op) { watchers.push_back(&op); }
  void Unwatch(ClientOp& op) { std::erase(watchers, &op); }
  void NoteLinkChange() {
    for (ClientOp* op : watchers) op->WakeUp();
  }
};

}  // namespace forebay
