#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/control.h"
#include "server/node_core.h"
#include "server/session.h"

namespace forebay {

// The namespaces and the sessions of one node.
//
// Threads  one reactor.
class SessionTable {
 public:
  explicit SessionTable(NodeCore& core) : core_(core) {}

  // As PoolNode::OpenSession; data addresses are the caller's to fill in.
  absl::StatusOr<OpenSessionReply> Open(absl::string_view tenant,
                                        const OpenSessionRequest& request);

  // The session that an endpoint says Hello for; null where there is none.
  Session* Find(const Uint128Bytes& id);
  void Bind(Session& session, Endpoint& endpoint);
  void Unbind(Endpoint& endpoint, Nanos now);

  // Ends sessions that had no endpoint for too long, and their leases. True if there were any.
  bool ExpireIdle(Nanos now);
  Nanos NextDeadline() const;

  size_t session_count() const { return sessions_.size(); }
  const std::vector<std::unique_ptr<NamespaceEntry>>& namespaces() const { return namespaces_; }

 private:
  absl::StatusOr<const TenantOptions*> FindTenant(absl::string_view tenant) const;
  absl::StatusOr<NamespaceEntry*> OpenNamespace(NamespaceSpec spec, absl::string_view secret);
  // Makes room for one more.
  absl::Status ForgetIdleNamespaces();
  absl::Status CheckParts(const std::vector<PartSpec>& parts) const;

  NodeCore& core_;
  absl::btree_map<Uint128Bytes, std::unique_ptr<Session>> sessions_;  // walked in order
  std::vector<std::unique_ptr<NamespaceEntry>> namespaces_;
  absl::flat_hash_map<std::string, NamespaceEntry*> by_encoding_;  // canonical, with the tenant
  uint64_t last_owner_ = 0;
};

}  // namespace forebay
