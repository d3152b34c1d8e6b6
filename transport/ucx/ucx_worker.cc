#include "transport/ucx/ucx_worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "transport/ucx/ucx_envelope.h"
#include "transport/ucx/ucx_status.h"

namespace forebay {
namespace {

using Setting = std::pair<std::string, std::string>;

// Measured over loopback (docs/decisions): below it a message sent at once is faster than a
// rendezvous, over it the rendezvous saves copies. On RDMA a copy costs more than a round trip.
constexpr size_t kTcpRendezvousBytes = 128 * 1024;
constexpr size_t kRdmaRendezvousBytes = 16 * 1024;
// A queue pair with its receive buffers takes a few MiB; pages are pinned on top.
constexpr rlim_t kMemlockBytesMin = 64 << 20;
constexpr int kCapIpcLock = 14;  // CAP_IPC_LOCK: the limit does not bind its owner
constexpr Nanos kRcTimeoutMin = 100 * kMillisecond;
constexpr char kEnvironmentPrefix[] = "FOREBAY";

std::string Microseconds(Nanos nanos) {
  return absl::StrCat(std::max<Nanos>(1, nanos / kMicrosecond), "us");
}

bool MayLockAnyMemory() {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return false;
  char line[256];
  uint64_t capabilities = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "CapEff: %lx", &capabilities) == 1) break;
  }
  std::fclose(file);
  return ((capabilities >> kCapIpcLock) & 1) != 0;
}

absl::Status CheckMemlock(const UcxTransportOptions& options) {
  if (options.is_tcp() || MayLockAnyMemory()) return absl::OkStatus();
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur >= kMemlockBytesMin) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "RDMA (", options.transports, ") pins its memory, and RLIMIT_MEMLOCK allows ", limit.rlim_cur,
      " bytes; raise it (ulimit -l unlimited, LimitMEMLOCK=infinity), or use tcp"));
}

// UCX reads the environment whether we want it or not. What we set wins over it; for the rest the
// operator should know.
void WarnOfEnvironment(const std::vector<Setting>& settings) {
  std::set<std::string> ours;
  for (const Setting& setting : settings) ours.insert(setting.first);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    absl::string_view name = *entry;
    name = name.substr(0, name.find('='));
    for (absl::string_view prefix : {"UCX_", "FOREBAY_UCX_"}) {
      if (!absl::StartsWith(name, prefix)) continue;
      const bool overridden = ours.count(std::string(name.substr(prefix.size()))) > 0;
      LogWarning("ucx.environment",
                 {{"name", name}, {"effect", overridden ? "none: set by us" : "steers UCX"}});
    }
  }
}

}  // namespace

bool UcxTransportOptions::is_tcp() const {
  const std::vector<std::string> names = absl::StrSplit(transports, ',');
  return std::all_of(names.begin(), names.end(),
                     [](const std::string& name) { return name == "tcp" || name == "self"; });
}

size_t UcxTransportOptions::rendezvous_bytes_used() const {
  if (rendezvous_bytes > 0) return rendezvous_bytes;
  return is_tcp() ? kTcpRendezvousBytes : kRdmaRendezvousBytes;
}

std::vector<Setting> UcxSettings(const UcxTransportOptions& options) {
  const Nanos peer_timeout = options.base.peer_timeout;
  // With "self" UCX would open though the device is not there, and then reach nobody.
  std::vector<std::string> transports = absl::StrSplit(options.transports, ',');
  transports.erase(std::remove(transports.begin(), transports.end(), "self"), transports.end());
  std::vector<Setting> settings = {
      {"TLS", absl::StrJoin(transports, ",")},
      {"NET_DEVICES", options.devices},
      // Our own pings do it better. With this one UCX 1.13 adds a datagram lane to each RDMA
      // endpoint, and aborts when that is closed while its wire-up has not been answered.
      {"KEEPALIVE_INTERVAL", "inf"},
      {"PROTO_ENABLE", "n"},   // the new protocols of 1.13 are two to five times slower
      {"LOG_LEVEL", "fatal"},  // UCX logs to stdout; every error comes back as a status
  };
  if (absl::StrContains(options.transports, "tcp")) {
    // connect() to a host that is gone would stop the reactor.
    settings.emplace_back("TCP_CONN_NB", "y");
  }
  if (!options.is_tcp()) {
    // Six tries of at most twice the timeout (it is rounded up to a power of two) stay well under
    // the peer's timeout.
    settings.emplace_back("RC_TIMEOUT", Microseconds(std::max(peer_timeout / 50, kRcTimeoutMin)));
    settings.emplace_back("RC_RETRY_COUNT", "5");
    // Before the endpoint is wired up, and for ud, this is what counts.
    settings.emplace_back("UD_TIMEOUT", Microseconds(peer_timeout));
    settings.emplace_back("UD_LINGER_TIMEOUT", Microseconds(peer_timeout));
    if (options.gid_index >= 0) {
      settings.emplace_back("IB_GID_INDEX", absl::StrCat(options.gid_index));
    }
  }
  settings.insert(settings.end(), options.settings.begin(), options.settings.end());
  return settings;
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const UcxTransportOptions& options) {
  FB_RETURN_IF_ERROR(CheckMemlock(options));
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  FB_RETURN_IF_ERROR(worker->OpenContext(options));
  FB_RETURN_IF_ERROR(worker->OpenWorker());
  return worker;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

void UcxWorker::Abandon() {
  worker_ = nullptr;
  context_ = nullptr;
}

absl::Status UcxWorker::OpenContext(const UcxTransportOptions& options) {
  ucp_config_t* config = nullptr;
  FB_RETURN_IF_ERROR(
      UcxStatus(ucp_config_read(kEnvironmentPrefix, nullptr, &config), "read the UCX settings"));
  const std::vector<Setting> settings = UcxSettings(options);
  absl::Status status;
  for (const auto& [name, value] : settings) {
    status = UcxStatus(ucp_config_modify(config, name.c_str(), value.c_str()),
                       absl::StrCat("set UCX_", name, "=", value));
    if (!status.ok()) break;
  }
  if (status.ok()) {
    WarnOfEnvironment(settings);
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.name = "forebay";
    status = UcxStatus(ucp_init(&params, config, &context_),
                       absl::StrCat("open UCX with ", options.transports, " on ", options.devices));
    if (!status.ok()) context_ = nullptr;
  }
  ucp_config_release(config);
  if (status.ok()) {
    LogInfo("ucx.open", {{"version", ucp_get_version_string()},
                         {"settings", absl::StrJoin(settings, " ", absl::PairFormatter("="))}});
  }
  return status;
}

absl::Status UcxWorker::OpenWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  const ucs_status_t created = ucp_worker_create(context_, &params, &worker_);
  if (created != UCS_OK) worker_ = nullptr;
  FB_RETURN_IF_ERROR(UcxStatus(created, "create a UCX worker"));
  FB_RETURN_IF_ERROR(UcxStatus(ucp_worker_get_efd(worker_, &event_fd_), "UCX wake-up"));

  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  FB_RETURN_IF_ERROR(UcxStatus(ucp_worker_query(worker_, &attributes), "ask a UCX worker"));
  header_bytes_max_ = attributes.max_am_header;
  if (header_bytes_max_ < 2 * UcxEnvelope::kBytes) {
    return absl::UnimplementedError(
        absl::StrCat("UCX takes only ", header_bytes_max_, " bytes of header on this transport"));
  }

  ucp_address_t* address = nullptr;
  size_t address_bytes = 0;
  FB_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_get_address(worker_, &address, &address_bytes), "UCX worker address"));
  address_.assign(reinterpret_cast<const char*>(address), address_bytes);
  ucp_worker_release_address(worker_, address);
  if (address_bytes > UcxHello::kAddressBytesMax) {
    return absl::UnimplementedError(
        absl::StrCat("a worker address of ", address_bytes, " bytes; name fewer devices"));
  }
  return absl::OkStatus();
}

}  // namespace forebay
