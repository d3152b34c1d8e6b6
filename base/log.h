#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace forebay {

enum class LogLevel : uint8_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);

// A name and a value of one log line. Values are quoted where they need it.
struct LogField {
  LogField(absl::string_view field_name, const absl::AlphaNum& field_value)
      : name(field_name), value(field_value.Piece()) {}
  absl::string_view name;
  std::string value;
};

// One line on stderr: time, level, event and fields as name=value, e.g.
//   2026-11-29T12:00:00.000Z info daemon.ready address=tcp:127.0.0.1:7470
// Page contents, token ids, secrets and whole keys never go into a log.
//
// Threads  any. One write(2) a line.
void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields = {});
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
// Where lines go; 2 (stderr) at first. Borrows `fd`; returns the one before. For tests.
int SetLogFd(int fd);

inline void LogInfo(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, event, fields);
}
inline void LogWarning(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarning, event, fields);
}
inline void LogError(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, event, fields);
}

// Lets `burst` calls through, then one every `interval_ns`: for lines that a peer could cause.
class LogLimiter {
 public:
  explicit LogLimiter(int64_t interval_ns = 1'000'000'000, uint64_t burst = 10)
      : interval_ns_(interval_ns), burst_(burst) {}
  bool Allow(int64_t now_ns);
  uint64_t suppressed() const { return suppressed_; }

 private:
  int64_t interval_ns_;
  uint64_t burst_;
  uint64_t passed_ = 0;
  int64_t next_ns_ = 0;
  uint64_t suppressed_ = 0;
};

}  // namespace forebay
