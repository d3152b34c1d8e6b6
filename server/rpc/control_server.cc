#include "server/rpc/control_server.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/wire_version.h"
#include "proto/convert.h"
#include "proto/forebay/v1/admin.grpc.pb.h"
#include "proto/forebay/v1/pool.grpc.pb.h"
#include "proto/grpc_status.h"
#include "proto/pool_config.h"
#include "server/rpc/reactor_call.h"
#include "server/rpc/tenants.h"

namespace forebay {
namespace {

constexpr int kMessageBytesMax = 4 << 20;
constexpr int kMetadataBytesMax = 8 << 10;
constexpr int kThreadsMax = 16;
constexpr char kTokenKey[] = "forebay-token";

// What the services share; it outlives the server.
struct Daemon {
  ControlServerOptions options;
  PoolNode& node;
  Reactor& reactor;
  MetricRegistry& registry;
  absl::Mutex mutex;
  std::string config_text ABSL_GUARDED_BY(mutex);
};

absl::Time DeadlineOf(const grpc::ServerContext& context, const Daemon& daemon) {
  const absl::Time latest = absl::Now() + absl::Nanoseconds(daemon.options.call_timeout);
  return std::min(latest, absl::FromChrono(context.deadline()));
}

absl::string_view TokenOf(const grpc::ServerContext& context) {
  const auto found = context.client_metadata().find(kTokenKey);
  if (found == context.client_metadata().end()) return "";
  return absl::string_view(found->second.data(), found->second.size());
}

std::string Hex(const Uint128Bytes& bytes) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

class PoolService final : public v1::Pool::Service {
 public:
  explicit PoolService(Daemon& daemon) : daemon_(daemon) {}

  grpc::Status OpenSession(grpc::ServerContext* context, const v1::OpenSessionRequest* request,
                           v1::OpenSessionReply* reply) override {
    const absl::StatusOr<OpenSessionReply> opened = Open(*context, *request);
    if (!opened.ok()) return ToGrpcStatus(opened.status());
    *reply = ToProto(*opened);
    return grpc::Status::OK;
  }

 private:
  absl::StatusOr<OpenSessionReply> Open(const grpc::ServerContext& context,
                                        const v1::OpenSessionRequest& message) {
    FB_ASSIGN_OR_RETURN(std::string tenant,
                        TenantOf(daemon_.node.options().tenants, TokenOf(context)));
    FB_ASSIGN_OR_RETURN(OpenSessionRequest request, FromProto(message));
    PoolNode& node = daemon_.node;
    return CallOnReactor<OpenSessionReply>(
        daemon_.reactor, DeadlineOf(context, daemon_),
        [&node, tenant = std::move(tenant), request = std::move(request)] {
          return node.OpenSession(tenant, request);
        });
  }

  Daemon& daemon_;
};

void FillStatus(const NodeStatus& from, v1::StatusReply* to) {
  to->set_boot_epoch_hex(Hex(from.boot_epoch));
  to->set_uptime_seconds(static_cast<double>(from.uptime) / kSecond);
  to->set_node(from.node);
  to->set_serving(from.serving);
  for (const std::string& address : from.data_addresses) to->add_data_addresses(address);
  to->set_capacity_bytes(from.capacity_bytes);
  to->set_used_bytes(from.used_bytes);
  to->set_pages(from.pages.pages);
  to->set_complete_pages(from.pages.complete_pages);
  to->set_frames(from.pages.frames);
  to->set_frame_bytes(from.pages.frame_bytes);
  to->set_sessions(from.sessions);
  to->set_leases(from.leases);
  v1::SlotCounts* slots = to->mutable_slots();
  slots->set_free(from.slots.free);
  slots->set_filling(from.slots.filling);
  slots->set_sealed(from.slots.sealed);
  slots->set_draining(from.slots.draining);
  slots->set_quarantine(from.slots.quarantine);
  slots->set_pins(from.slots.pins);
  to->set_huge_pages(from.huge_pages);
  to->set_eviction_policy(from.eviction_policy);
  to->set_wire_version_min(kWireVersionMin);
  to->set_wire_version_max(kWireVersionMax);
  to->set_slot_count(from.slot_count);
}

void FillNamespace(const NamespaceSnapshot& from, v1::NamespaceStatus* to) {
  to->set_namespace_id(from.namespace_id);
  to->set_tenant(from.spec.tenant);
  to->set_model(from.spec.model);
  to->set_model_revision(from.spec.model_revision);
  to->set_adapter(from.spec.adapter);
  to->set_salted(!from.spec.salt.empty());
  to->set_layout(from.spec.layout.ToString());
  to->set_pages(from.pages.pages);
  to->set_complete_pages(from.pages.complete_pages);
  to->set_frames(from.pages.frames);
  to->set_frame_bytes(from.pages.frame_bytes);
  to->set_sessions(from.sessions);
  to->set_lookups(from.lookups);
  to->set_lookup_pages(from.lookup_pages);
  to->set_hit_pages(from.hit_pages);
  *to->mutable_spec() = ToProto(from.spec);
  // Whoever knows the salt can name the pages that it keeps apart.
  to->mutable_spec()->clear_salt();
}

class AdminService final : public v1::Admin::Service {
 public:
  explicit AdminService(Daemon& daemon) : daemon_(daemon) {}

  grpc::Status Status(grpc::ServerContext* context, const v1::StatusRequest*,
                      v1::StatusReply* reply) override {
    PoolNode& node = daemon_.node;
    const absl::StatusOr<NodeStatus> status =
        Call<NodeStatus>(*context, [&node] { return node.Status(); });
    if (!status.ok()) return ToGrpcStatus(status.status());
    FillStatus(*status, reply);
    reply->set_version(daemon_.options.version);
    return grpc::Status::OK;
  }

  grpc::Status ListNamespaces(grpc::ServerContext* context, const v1::ListNamespacesRequest*,
                              v1::ListNamespacesReply* reply) override {
    using Snapshots = std::vector<NamespaceSnapshot>;
    PoolNode& node = daemon_.node;
    const absl::StatusOr<Snapshots> namespaces =
        Call<Snapshots>(*context, [&node] { return node.Namespaces(); });
    if (!namespaces.ok()) return ToGrpcStatus(namespaces.status());
    for (const NamespaceSnapshot& ns : *namespaces) FillNamespace(ns, reply->add_namespaces());
    return grpc::Status::OK;
  }

  grpc::Status Metrics(grpc::ServerContext* context, const v1::MetricsRequest*,
                       v1::MetricsReply* reply) override {
    PoolNode& node = daemon_.node;
    const absl::StatusOr<bool> fresh = Call<bool>(*context, [&node] {
      node.RefreshGauges();
      return true;
    });
    if (!fresh.ok()) return ToGrpcStatus(fresh.status());
    reply->set_text(daemon_.registry.Text());
    return grpc::Status::OK;
  }

  grpc::Status ShowConfig(grpc::ServerContext*, const v1::ShowConfigRequest*,
                          v1::ShowConfigReply* reply) override {
    absl::MutexLock lock(&daemon_.mutex);
    reply->set_textproto(daemon_.config_text);
    return grpc::Status::OK;
  }

 private:
  template <typename T, typename Work>
  absl::StatusOr<T> Call(const grpc::ServerContext& context, Work work) {
    return CallOnReactor<T>(daemon_.reactor, DeadlineOf(context, daemon_), std::move(work));
  }

  Daemon& daemon_;
};

// gRPC's own log is for those who debug it; what matters of it comes back as a status.
void TakeGrpcLog(gpr_log_func_args* line) {
  Log(LogLevel::kDebug, "grpc",
      {{"severity", gpr_log_severity_string(line->severity)}, {"text", line->message}});
}

// gRPC says only that it cannot listen. Tries the same by hand, to say why.
absl::Status WhyNotListening(const std::string& address, const HostPort& where) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  if (failed != 0) {
    return absl::UnavailableError(
        absl::StrCat("control_address ", address, ": ", gai_strerror(failed)));
  }
  const auto free_found = absl::MakeCleanup([found] { freeaddrinfo(found); });
  const int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0) {
    return absl::UnavailableError(absl::StrCat("control_address ", address, ": cannot listen"));
  }
  const std::string text = absl::StrCat("control_address ", address, ": ", std::strerror(errno));
  return errno == EADDRINUSE
             ? absl::AlreadyExistsError(absl::StrCat(text, "; another daemon may run there"))
             : absl::UnavailableError(text);
}

}  // namespace

struct ControlServer::State {
  State(ControlServerOptions options, PoolNode& node, Reactor& reactor, MetricRegistry& registry)
      : daemon{std::move(options), node, reactor, registry, {}, {}}, pool(daemon), admin(daemon) {}

  Daemon daemon;
  PoolService pool;
  AdminService admin;
  std::unique_ptr<grpc::Server> server;
  std::string address;
  uint16_t port = 0;
};

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(ControlServerOptions options,
                                                                    PoolNode& node,
                                                                    Reactor& reactor,
                                                                    MetricRegistry& registry) {
  gpr_set_log_function(&TakeGrpcLog);
  FB_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(options.address));
  auto state = std::make_unique<State>(std::move(options), node, reactor, registry);
  const std::string& address = state->daemon.options.address;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&state->pool);
  builder.RegisterService(&state->admin);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  // Two daemons on one port would each get every other client.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  grpc::ResourceQuota quota("forebay control");
  quota.SetMaxThreads(kThreadsMax);
  builder.SetResourceQuota(quota);
  state->server = builder.BuildAndStart();
  if (state->server == nullptr || port == 0) return WhyNotListening(address, where);

  state->port = static_cast<uint16_t>(port);
  state->address = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(state)));
}

ControlServer::ControlServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
ControlServer::~ControlServer() { Shutdown(0); }

const std::string& ControlServer::address() const { return state_->address; }
uint16_t ControlServer::port() const { return state_->port; }

void ControlServer::SetConfigText(std::string text) {
  absl::MutexLock lock(&state_->daemon.mutex);
  state_->daemon.config_text = std::move(text);
}

void ControlServer::Shutdown(Nanos grace) {
  if (state_->server == nullptr) return;
  state_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(grace));
  state_->server->Wait();
  state_->server.reset();
}

}  // namespace forebay
