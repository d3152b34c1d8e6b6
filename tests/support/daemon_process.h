#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace forebay::testing {

// A child process whose output goes to a file. Killed and reaped at destruction.
//
// Threads  one.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> command;                // command[0] is a path
    std::map<std::string, std::string> environment;  // added to this process's
    std::string output_file;                         // stdout and stderr; empty: inherited
  };

  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const Options& options);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Nothing once it has been reaped.
  void Signal(int signal);
  bool Running();
  // Its wait status. DEADLINE_EXCEEDED if it still runs after `limit`.
  absl::StatusOr<int> Wait(Nanos limit);

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  bool Reap(int options);

  pid_t pid_;
  bool reaped_ = false;
  int wait_status_ = 0;
};

// Exit code 0 of a wait status.
bool ExitedWell(int wait_status);
std::string DescribeExit(int wait_status);

// The folder of the programs under test: FOREBAY_BIN, or bin/ of the build.
std::string ProgramFolder();
// A new folder under the system's temporary one, removed with all in it at destruction.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

absl::StatusOr<std::string> ReadTextFile(const std::string& path);
absl::Status WriteTextFile(const std::string& path, const std::string& text);

// A real forebayd on free ports of loopback, with its files in `folder`.
class DaemonProcess {
 public:
  struct Options {
    std::string name = "daemon";
    uint64_t capacity_bytes = 128ull << 20;
    uint64_t slab_bytes = 32ull << 20;
    bool populate = false;  // touch all memory at start
    std::string control_address = "127.0.0.1:0";
    std::string tcp_address = "127.0.0.1:0";
    bool local = true;
    std::string ucx_address;   // empty: off
    std::string extra_config;  // more textproto
    std::map<std::string, std::string> environment;
  };

  // Starts it and waits until it is ready: UNAVAILABLE with the end of its log if it ends before.
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Start(const TemporaryFolder& folder,
                                                              const Options& options);

  const std::string& control() const { return control_; }
  const std::vector<std::string>& data_addresses() const { return data_; }
  ChildProcess& process() { return *process_; }
  std::string Log() const;

  // The textproto that Start writes.
  static std::string ConfigText(const TemporaryFolder& folder, const Options& options);

 private:
  std::unique_ptr<ChildProcess> process_;
  std::string control_;
  std::vector<std::string> data_;
  std::string log_file_;
};

}  // namespace forebay::testing
