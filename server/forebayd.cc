// The daemon. Everything it does is in daemon.h; here is only what a program must do.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "proto/pool_config.h"
#include "server/config.h"
#include "server/daemon.h"
#include "server/flags.h"
#include "server/supervisor.h"
#include "server/version.h"

namespace forebay {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

int Fail(const absl::Status& why, int code) {
  std::fprintf(stderr, "forebayd: %s\n", std::string(why.message()).c_str());
  return code;
}

// The file's configuration with the flags over it and every default filled in.
absl::StatusOr<v1::PoolConfig> ReadConfig(const DaemonFlags& flags, const MachineFacts& machine) {
  v1::PoolConfig config;
  if (!flags.config.empty()) {
    FB_ASSIGN_OR_RETURN(config, LoadPoolConfig(flags.config));
  }
  if (!flags.node.empty()) config.set_node(flags.node);
  if (!flags.log_level.empty()) config.set_log_level(flags.log_level);
  FillDefaults(machine, &config);
  // Again: what flags and the machine brought in must fit too.
  const std::vector<std::string> faults = FaultsOf(config);
  if (!faults.empty()) return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
  return config;
}

absl::Status SayReady(const DaemonFlags& flags, const Daemon& daemon) {
  LogInfo("daemon.ready", {{"version", kVersion},
                           {"control", daemon.control_address()},
                           {"data", absl::StrJoin(daemon.data_addresses(), ",")}});
  if (!flags.ready_file.empty()) {
    std::string text = absl::StrCat("control=", daemon.control_address(), "\n");
    for (const std::string& address : daemon.data_addresses()) {
      absl::StrAppend(&text, "data=", address, "\n");
    }
    FB_RETURN_IF_ERROR(WriteWhole(flags.ready_file, text));
  }
  return NotifySupervisor("READY=1");
}

int Serve(const DaemonFlags& flags, const v1::PoolConfig& config, const MachineFacts& machine) {
#if defined(FOREBAY_FAILPOINTS)
  if (const char* armed = std::getenv("FOREBAY_FAILPOINTS_ARM"); armed != nullptr) {
    if (absl::Status status = failpoint::ArmFromText(armed); !status.ok()) {
      return Fail(status, kExitUsage);
    }
  }
#endif
  StopSignals stop;  // Before any thread is there, so that none of them takes the signals.
  RaiseOpenFileLimit();
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config, machine);
  if (!daemon.ok()) return Fail(daemon.status(), kExitFailed);
  if (absl::Status status = SayReady(flags, **daemon); !status.ok()) {
    return Fail(status, kExitFailed);
  }
  (*daemon)->Run(stop);
  return 0;
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<DaemonFlags> flags = ParseDaemonFlags(arguments);
  if (!flags.ok()) return Fail(flags.status(), kExitUsage);
  if (flags->help) {
    std::fputs(DaemonUsage().c_str(), stdout);
    return 0;
  }
  if (flags->version) {
    std::printf("forebayd %s\n", std::string(kVersion).c_str());
    return 0;
  }
  const MachineFacts machine = MachineFacts::Read();
  const absl::StatusOr<v1::PoolConfig> config = ReadConfig(*flags, machine);
  if (!config.ok()) return Fail(config.status(), kExitFailed);
  SetLogLevel(*ParseLogLevel(config->log_level()));
  if (flags->check) {
    if (absl::StatusOr<PoolNodeOptions> options = NodeOptionsOf(*config); !options.ok()) {
      return Fail(options.status(), kExitFailed);
    }
    std::fputs(ShowConfig(*config).c_str(), stdout);
    return 0;
  }
  return Serve(*flags, *config, machine);
}

}  // namespace
}  // namespace forebay

int main(int argc, char** argv) {
  return forebay::Main(std::vector<std::string>(argv + 1, argv + argc));
}
