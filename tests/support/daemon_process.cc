#include "tests/support/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"

extern char** environ;

namespace forebay::testing {
namespace {

constexpr Nanos kPollInterval = 2 * kMillisecond;
constexpr Nanos kReadyLimit = 60 * kSecond;  // sanitizers and emulation are slow

void PauseFor(Nanos ns) {
  timespec pause{ns / kSecond, ns % kSecond};
  nanosleep(&pause, nullptr);
}

// `environ` with additions, as exec wants it.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& additions) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string name(*entry, std::strcspn(*entry, "="));
      if (additions.count(name) == 0) texts_.push_back(*entry);
    }
    for (const auto& [name, value] : additions) texts_.push_back(absl::StrCat(name, "=", value));
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  char** get() { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const Options& options) {
  FB_CHECK(!options.command.empty());
  std::vector<std::string> words = options.command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  Environment environment(options.environment);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (!options.output_file.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, options.output_file.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  }
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, arguments[0], &actions, nullptr, arguments.data(), environment.get());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat("cannot start ", words[0], ": ", strerror(error)));
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid));
}

ChildProcess::~ChildProcess() {
  if (reaped_) return;
  kill(pid_, SIGKILL);
  kill(pid_, SIGCONT);
  Reap(0);
}

void ChildProcess::Signal(int signal) {
  if (!reaped_) kill(pid_, signal);
}

bool ChildProcess::Reap(int options) {
  if (reaped_) return true;
  pid_t got;
  do {
    got = waitpid(pid_, &wait_status_, options);
  } while (got < 0 && errno == EINTR);
  reaped_ = got == pid_;
  return reaped_;
}

bool ChildProcess::Running() { return !Reap(WNOHANG); }

absl::StatusOr<int> ChildProcess::Wait(Nanos limit) {
  const SystemClock clock;
  const Nanos until = clock.Now() + limit;
  while (!Reap(WNOHANG)) {
    if (clock.Now() >= until) {
      return absl::DeadlineExceededError(
          absl::StrCat("process ", pid_, " still runs after ", limit / kMillisecond, " ms"));
    }
    PauseFor(kPollInterval);
  }
  return wait_status_;
}

bool ExitedWell(int wait_status) { return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0; }

std::string DescribeExit(int wait_status) {
  if (WIFEXITED(wait_status)) return absl::StrCat("exit code ", WEXITSTATUS(wait_status));
  if (WIFSIGNALED(wait_status)) return absl::StrCat("signal ", WTERMSIG(wait_status));
  return absl::StrCat("wait status ", wait_status);
}

std::string ProgramFolder() {
  const char* folder = std::getenv("FOREBAY_BIN");
  if (folder != nullptr) return folder;
  return FOREBAY_BINARY_DIR "/bin";
}

TemporaryFolder::TemporaryFolder() {
  path_ = (std::filesystem::temp_directory_path() / "forebay-test.XXXXXX").string();
  FB_CHECK(mkdtemp(path_.data()) != nullptr);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

absl::Status WriteTextFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

std::string DaemonProcess::ConfigText(const TemporaryFolder& folder, const Options& options) {
  const std::string socket = options.local ? folder.File(options.name + ".sock") : "";
  return absl::StrCat(
      "node: \"", options.name, "\"\n", "control_address: \"", options.control_address, "\"\n",
      "data_plane {\n  tcp_address: \"", options.tcp_address, "\"\n  local_socket: \"", socket,
      "\"\n  ucx_address: \"", options.ucx_address, "\"\n}\n",
      "dram { capacity_bytes: ", options.capacity_bytes, " slab_bytes: ", options.slab_bytes,
      " populate: ", options.populate ? "true" : "false", " }\n", options.extra_config);
}

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(const TemporaryFolder& folder,
                                                                    const Options& options) {
  auto daemon = std::unique_ptr<DaemonProcess>(new DaemonProcess);
  const std::string config_file = folder.File(options.name + ".textproto");
  const std::string ready_file = folder.File(options.name + ".ready");
  daemon->log_file_ = folder.File(options.name + ".log");
  std::filesystem::remove(ready_file);
  FB_RETURN_IF_ERROR(WriteTextFile(config_file, ConfigText(folder, options)));
  ChildProcess::Options child;
  child.command = {ProgramFolder() + "/forebayd", "--config", config_file, "--ready_file",
                   ready_file};
  child.environment = options.environment;
  child.output_file = daemon->log_file_;
  FB_ASSIGN_OR_RETURN(daemon->process_, ChildProcess::Start(child));

  const SystemClock clock;
  const Nanos until = clock.Now() + kReadyLimit;
  for (;;) {
    const absl::StatusOr<std::string> ready = ReadTextFile(ready_file);
    if (ready.ok() && !ready->empty()) {
      for (absl::string_view line : absl::StrSplit(*ready, '\n', absl::SkipEmpty())) {
        if (absl::ConsumePrefix(&line, "control=")) daemon->control_ = std::string(line);
        if (absl::ConsumePrefix(&line, "data=")) daemon->data_.emplace_back(line);
      }
      if (!daemon->control_.empty()) return daemon;
    }
    if (!daemon->process_->Running()) {
      return absl::UnavailableError(
          absl::StrCat("forebayd ended before it was ready: ", daemon->Log()));
    }
    if (clock.Now() >= until) {
      return absl::DeadlineExceededError(
          absl::StrCat("forebayd is not ready after 60 s: ", daemon->Log()));
    }
    PauseFor(kPollInterval);
  }
}

std::string DaemonProcess::Log() const {
  const absl::StatusOr<std::string> text = ReadTextFile(log_file_);
  return text.ok() ? *text : "";
}

}  // namespace forebay::testing
