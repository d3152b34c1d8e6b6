#include "server/session_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"
#include "base/status_macros.h"
#include "base/wire_version.h"

namespace forebay {
namespace {

constexpr size_t kClientNameBytesMax = 256;

const TenantOptions& DefaultTenant() {
  static const TenantOptions* tenant = new TenantOptions{
      std::string(kDefaultTenant), std::string(kDefaultTenantSecret), Sha256Digest{}};
  return *tenant;
}

absl::StatusOr<uint32_t> CommonVersion(uint32_t min, uint32_t max) {
  const uint32_t version = std::min(max, kWireVersionMax);
  if (min <= max && version >= min && version >= kWireVersionMin) return version;
  return absl::FailedPreconditionError(absl::StrCat("no common wire version: the client speaks [",
                                                    min, ", ", max, "], this daemon [",
                                                    kWireVersionMin, ", ", kWireVersionMax, "]"));
}

}  // namespace

absl::StatusOr<const TenantOptions*> SessionTable::FindTenant(absl::string_view tenant) const {
  const std::vector<TenantOptions>& tenants = core_.options.tenants;
  if (tenants.empty() && tenant == kDefaultTenant) return &DefaultTenant();
  for (const TenantOptions& known : tenants) {
    if (tenant == known.name) return &known;
  }
  return absl::UnauthenticatedError("no such tenant");
}

absl::StatusOr<OpenSessionReply> SessionTable::Open(absl::string_view tenant,
                                                    const OpenSessionRequest& request) {
  FB_FAILPOINT("server.session.open");
  FB_ASSIGN_OR_RETURN(const TenantOptions* const known, FindTenant(tenant));
  FB_ASSIGN_OR_RETURN(const uint32_t version,
                      CommonVersion(request.wire_version_min, request.wire_version_max));
  if (request.client_name.size() > kClientNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("client_name has ", request.client_name.size(),
                                                   " bytes; the most is ", kClientNameBytesMax));
  }
  if (sessions_.size() >= core_.options.limits.sessions_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this daemon has ", sessions_.size(), " sessions, as many as it may"));
  }
  NamespaceSpec spec = request.spec;
  spec.tenant = known->name;
  FB_ASSIGN_OR_RETURN(NamespaceEntry* const ns, OpenNamespace(std::move(spec), known->secret));

  auto session = std::make_unique<Session>();
  session->id = RandomId();
  session->owner = ++last_owner_;
  session->ns = ns;
  session->client_name = request.client_name;
  session->idle_since = core_.clock.Now();
  ++ns->sessions;
  core_.WakeBy(session->idle_since + core_.options.limits.session_idle_ms * kMillisecond);
  core_.metrics.sessions_opened.Add();

  OpenSessionReply reply;
  reply.session = session->id;
  reply.boot_epoch = core_.tier->boot_epoch();
  reply.root = ns->root;
  reply.namespace_id = ns->id;
  reply.wire_version = version;
  reply.host_id = core_.options.host_id;
  reply.weight = core_.options.weight;
  sessions_.emplace(session->id, std::move(session));
  return reply;
}

absl::Status SessionTable::CheckParts(const std::vector<PartSpec>& parts) const {
  const uint64_t frame_bytes_max = core_.options.dram.slab_bytes;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (kFrameHeaderBytes + parts[i].raw_bytes <= frame_bytes_max) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("part ", i, " of a page has ", parts[i].raw_bytes,
                     " bytes; this daemon holds frames of at most ", frame_bytes_max,
                     " bytes: take fewer layers or heads a part, or larger slabs"));
  }
  return absl::OkStatus();
}

absl::StatusOr<NamespaceEntry*> SessionTable::OpenNamespace(NamespaceSpec spec,
                                                            absl::string_view secret) {
  FB_RETURN_IF_ERROR(spec.Validate());
  // The tenant's own field is part of the encoding, so no two tenants share an entry.
  std::string encoding = spec.CanonicalEncoding();
  if (const auto found = by_encoding_.find(encoding); found != by_encoding_.end()) {
    return found->second;
  }
  if (namespaces_.size() >= core_.options.limits.namespaces_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this daemon has ", namespaces_.size(), " namespaces, as many as it may"));
  }
  auto ns = std::make_unique<NamespaceEntry>();
  ns->parts = spec.layout.Parts();
  FB_RETURN_IF_ERROR(CheckParts(ns->parts));
  ns->root = spec.RootKey(AsBytes(secret.data(), secret.size()));
  ns->page_frame_bytes = spec.layout.PageBytes() + ns->parts.size() * kFrameHeaderBytes;
  ns->id = core_.index().AddNamespace(PageShape::Of(spec.layout));
  ns->spec = std::move(spec);
  NamespaceEntry* const entry = ns.get();
  by_encoding_.emplace(std::move(encoding), entry);
  namespaces_.push_back(std::move(ns));
  return entry;
}

Session* SessionTable::Find(const Uint128Bytes& id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void SessionTable::Bind(Session& session, Endpoint& endpoint) {
  session.endpoints.insert(&endpoint);
  endpoint.session = &session;
}

void SessionTable::Unbind(Endpoint& endpoint, Nanos now) {
  Session* const session = std::exchange(endpoint.session, nullptr);
  if (session == nullptr) return;
  session->endpoints.erase(&endpoint);
  if (!session->endpoints.empty()) return;
  session->idle_since = now;
  core_.WakeBy(now + core_.options.limits.session_idle_ms * kMillisecond);
}

bool SessionTable::ExpireIdle(Nanos now) {
  const Nanos idle_max = core_.options.limits.session_idle_ms * kMillisecond;
  bool any = false;
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    Session& session = *it->second;
    if (!session.endpoints.empty() || now - session.idle_since < idle_max) {
      ++it;
      continue;
    }
    core_.leases.DropSession(session.owner);
    --session.ns->sessions;
    it = sessions_.erase(it);
    any = true;
  }
  return any;
}

Nanos SessionTable::NextDeadline() const {
  Nanos next = kForever;
  for (const auto& [id, session] : sessions_) {
    if (!session->endpoints.empty()) continue;
    next =
        std::min(next, session->idle_since + core_.options.limits.session_idle_ms * kMillisecond);
  }
  return next;
}

}  // namespace forebay
