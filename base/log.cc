#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>

#include "absl/strings/str_format.h"

namespace forebay {
namespace {

std::atomic<LogLevel> log_level{LogLevel::kInfo};
std::atomic<int> log_fd{STDERR_FILENO};

// A longer value is cut: a line stays short of PIPE_BUF, which a pipe takes whole.
constexpr size_t kValueBytesMax = 512;

constexpr absl::string_view kLevelNames[] = {"debug", "info", "warning", "error"};

std::string TimestampNow() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc;
  gmtime_r(&now.tv_sec, &utc);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                         utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, now.tv_nsec / 1'000'000);
}

bool NeedsQuotes(absl::string_view value) {
  if (value.empty()) return true;
  for (const char c : value) {
    if (c <= ' ' || c >= 0x7f || c == '"' || c == '=' || c == '\\') return true;
  }
  return false;
}

// Nothing that a peer can put into a value may end the line or look like another field.
void AppendValue(std::string& line, absl::string_view value) {
  const bool cut = value.size() > kValueBytesMax;
  if (cut) value = value.substr(0, kValueBytesMax);
  if (!cut && !NeedsQuotes(value)) {
    absl::StrAppend(&line, value);
    return;
  }
  line.push_back('"');
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      line.push_back('\\');
      line.push_back(c);
    } else if (c == '\n') {
      line.append("\\n");
    } else if (c < ' ' || c >= 0x7f) {
      absl::StrAppendFormat(&line, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      line.push_back(c);
    }
  }
  line.append(cut ? "...\"" : "\"");
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  for (size_t i = 0; i < std::size(kLevelNames); ++i) {
    if (kLevelNames[i] == name) return static_cast<LogLevel>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("no log level is named \"", name,
                                                 "\"; known ones: debug, info, warning, error"));
}

void SetLogLevel(LogLevel level) { log_level.store(level, std::memory_order_relaxed); }

LogLevel GetLogLevel() { return log_level.load(std::memory_order_relaxed); }

int SetLogFd(int fd) { return log_fd.exchange(fd); }

void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) {
  if (level < GetLogLevel()) return;
  std::string line =
      absl::StrCat(TimestampNow(), " ", kLevelNames[static_cast<size_t>(level)], " ", event);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.name, "=");
    AppendValue(line, field.value);
  }
  line.push_back('\n');
  ssize_t written;
  do {
    written = write(log_fd.load(), line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  // A log that cannot be written must not stop the daemon; there is nobody left to tell.
}

bool LogLimiter::Allow(int64_t now_ns) {
  if (passed_ < burst_) {
    ++passed_;
    next_ns_ = now_ns + interval_ns_;
    return true;
  }
  if (now_ns >= next_ns_) {
    next_ns_ = now_ns + interval_ns_;
    return true;
  }
  ++suppressed_;
  return false;
}

}  // namespace forebay
