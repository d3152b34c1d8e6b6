#include "base/failpoint.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace forebay::failpoint {
namespace {

struct Point {
  bool armed = false;
  Action action;
  uint64_t hit_count = 0;  // Since it was last armed.
};

struct Table {
  absl::Mutex mutex;
  absl::flat_hash_map<std::string, Point> points ABSL_GUARDED_BY(mutex);
};

// How many points are armed: all that Evaluate() reads while there are none.
std::atomic<int> armed_count{0};

Table& GetTable() {
  static Table* table = new Table;  // Never destroyed: threads may still evaluate at exit.
  return *table;
}

// Counts a hit; true with what to do when the point is due.
bool TakeDueAction(absl::string_view name, Action& action) {
  Table& table = GetTable();
  absl::MutexLock lock(&table.mutex);
  const auto found = table.points.find(name);
  if (found == table.points.end() || !found->second.armed) return false;
  Point& point = found->second;
  const uint64_t hit = point.hit_count++;
  if (hit < point.action.skip_count) return false;
  if (hit - point.action.skip_count >= point.action.act_count) return false;
  action = point.action;
  return true;
}

void SleepFor(int64_t sleep_ns) {
  timespec left{.tv_sec = sleep_ns / kSecond, .tv_nsec = sleep_ns % kSecond};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

absl::StatusOr<absl::StatusCode> ParseCode(absl::string_view name) {
  const std::string upper = absl::AsciiStrToUpper(name);
  for (int code = 1; code <= 16; ++code) {
    if (absl::StatusCodeToString(static_cast<absl::StatusCode>(code)) == upper) {
      return static_cast<absl::StatusCode>(code);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("no error code is named \"", name, "\""));
}

// The part of an entry after "=".
absl::StatusOr<Action> ParseAction(absl::string_view name, absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ':');
  const bool takes_word = words[0] == "error" || words[0] == "sleep";
  Action action;
  if (words[0] == "error" && words.size() >= 2) {
    FB_ASSIGN_OR_RETURN(const absl::StatusCode code, ParseCode(words[1]));
    action.status = absl::Status(code, absl::StrCat("failpoint ", name));
  } else if (words[0] == "sleep" && words.size() == 2) {
    int64_t sleep_ms = 0;
    if (!absl::SimpleAtoi(words[1], &sleep_ms) || sleep_ms < 0 || sleep_ms > 3'600'000) {
      return absl::InvalidArgumentError(
          absl::StrCat("failpoint ", name, ": sleep takes 0 to 3,600,000 ms"));
    }
    action.kind = Action::Kind::kSleep;
    action.sleep_ns = sleep_ms * kMillisecond;
    return action;
  } else if (words[0] == "kill") {
    action.kind = Action::Kind::kKill;
  } else if (words[0] == "stop") {
    action.kind = Action::Kind::kStop;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("failpoint ", name, ": \"", text,
                     "\" is none of error:CODE[:skip], kill[:skip], stop[:skip], sleep:MS"));
  }
  const size_t skip_word = takes_word ? 2 : 1;
  if (words.size() > skip_word + 1) {
    return absl::InvalidArgumentError(absl::StrCat("failpoint ", name, ": too many fields"));
  }
  if (words.size() == skip_word + 1 && !absl::SimpleAtoi(words[skip_word], &action.skip_count)) {
    return absl::InvalidArgumentError(absl::StrCat("failpoint ", name, ": skip is no number"));
  }
  return action;
}

}  // namespace

void Arm(absl::string_view name, Action action) {
  if (action.kind == Action::Kind::kError && action.status.ok()) {
    action.status = absl::InternalError(absl::StrCat("failpoint ", name));
  }
  Table& table = GetTable();
  absl::MutexLock lock(&table.mutex);
  Point& point = table.points[name];
  if (!point.armed) armed_count.fetch_add(1, std::memory_order_relaxed);
  point = Point{.armed = true, .action = std::move(action)};
}

void Disarm(absl::string_view name) {
  Table& table = GetTable();
  absl::MutexLock lock(&table.mutex);
  const auto found = table.points.find(name);
  if (found == table.points.end() || !found->second.armed) return;
  found->second.armed = false;
  armed_count.fetch_sub(1, std::memory_order_relaxed);
}

absl::Status ArmFromText(absl::string_view text) {
  std::vector<std::pair<std::string, Action>> parsed;
  for (const absl::string_view entry : absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(absl::StripAsciiWhitespace(entry), absl::MaxSplits('=', 1));
    if (halves.first.empty() || halves.second.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("failpoint \"", entry, "\" is not name=action"));
    }
    FB_ASSIGN_OR_RETURN(Action action, ParseAction(halves.first, halves.second));
    parsed.emplace_back(halves.first, std::move(action));
  }
  for (auto& [name, action] : parsed) Arm(name, std::move(action));
  return absl::OkStatus();
}

absl::Status Evaluate(const char* name) {
  if (armed_count.load(std::memory_order_relaxed) == 0) return absl::OkStatus();
  Action action;
  if (!TakeDueAction(name, action)) return absl::OkStatus();
  switch (action.kind) {
    case Action::Kind::kError:
      return action.status;
    case Action::Kind::kKill:
      std::raise(SIGKILL);
      return absl::OkStatus();
    case Action::Kind::kStop:
      std::raise(SIGSTOP);  // Whoever continues the process lets it go on from here.
      return absl::OkStatus();
    case Action::Kind::kSleep:
      SleepFor(action.sleep_ns);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

uint64_t HitCount(absl::string_view name) {
  Table& table = GetTable();
  absl::MutexLock lock(&table.mutex);
  const auto found = table.points.find(name);
  return found == table.points.end() ? 0 : found->second.hit_count;
}

ScopedArm::ScopedArm(absl::string_view name, absl::Status status) : name_(name) {
  Arm(name_, Action{.status = std::move(status)});
}

ScopedArm::ScopedArm(absl::string_view name, Action action) : name_(name) {
  Arm(name_, std::move(action));
}

ScopedArm::~ScopedArm() { Disarm(name_); }

}  // namespace forebay::failpoint
