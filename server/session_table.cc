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

// One in so many namespaces is forgotten at once.
constexpr size_t kForgottenShare = 16;

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
  auto ns = std::make_unique<NamespaceEntry>();
  ns->parts = spec.layout.Parts();
  FB_RETURN_IF_ERROR(CheckParts(ns->parts));
  if (namespaces_.size() >= core_.options.limits.namespaces_max) {
    FB_RETURN_IF_ERROR(ForgetIdleNamespaces());
  }
  ns->root = spec.RootKey(AsBytes(secret.data(), secret.size()));
  ns->page_frame_bytes = spec.layout.PageBytes() + ns->parts.size() * kFrameHeaderBytes;
  ns->id = core_.index().AddNamespace(PageShape::Of(spec.layout));
  ns->spec = std::move(spec);
  NamespaceEntry* const entry = ns.get();
  by_encoding_.emplace(std::move(encoding), entry);
  namespaces_.push_back(std::move(ns));
  return entry;
}

// Those without a page cost nothing to forget. Else the longest idle go, with their pages, and
// several at once: the index has to be walked for it.
absl::Status SessionTable::ForgetIdleNamespaces() {
  std::vector<const NamespaceEntry*> idle;
  absl::flat_hash_set<uint32_t> chosen;
  for (const auto& ns : namespaces_) {
    if (ns->sessions > 0) continue;
    idle.push_back(ns.get());
    if (core_.index().CountsOf(ns->id).pages == 0) chosen.insert(ns->id);
  }
  if (chosen.empty()) {
    const size_t count = std::min(idle.size(), 1 + namespaces_.size() / kForgottenShare);
    std::partial_sort(idle.begin(), idle.begin() + count, idle.end(),
                      [](const NamespaceEntry* a, const NamespaceEntry* b) {
                        return std::pair(a->idle_since, a->id) < std::pair(b->idle_since, b->id);
                      });
    for (size_t i = 0; i < count; ++i) chosen.insert(idle[i]->id);
  }
  const uint64_t pages_before = core_.index().counts().pages;
  const absl::flat_hash_set<uint32_t> forgotten = core_.store.ForgetNamespaces(chosen);
  if (forgotten.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat("this daemon has ", namespaces_.size(),
                                                     " namespaces in use, as many as it may"));
  }
  const auto gone = [&](const auto& ns) { return forgotten.contains(ns->id); };
  for (const auto& ns : namespaces_) {
    if (gone(ns)) by_encoding_.erase(ns->spec.CanonicalEncoding());
  }
  namespaces_.erase(std::remove_if(namespaces_.begin(), namespaces_.end(), gone),
                    namespaces_.end());
  core_.metrics.namespaces_forgotten.Add(forgotten.size());
  if (core_.log_limiter.Allow(core_.clock.Now())) {
    LogInfo("namespaces.forgotten",
            {{"count", absl::StrCat(forgotten.size())},
             {"pages", absl::StrCat(pages_before - core_.index().counts().pages)}});
  }
  return absl::OkStatus();
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
    if (--session.ns->sessions == 0) session.ns->idle_since = now;
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
