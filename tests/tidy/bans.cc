#include <functional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/tidy/rules.h"

namespace forebay::tidy {
namespace {

enum class Scope { kEverything, kCode };

// What must follow a word for it to count.
enum class Form { kWord, kCall, kNoIssue };

struct Ban {
  Scope scope;  // kCode: C++ without comments and literals
  Form form;
  std::vector<absl::string_view> words;
  const char* instead;
  std::function<bool(absl::string_view path)> applies;
};

bool Anywhere(absl::string_view) { return true; }

// The rules must spell what they ban.
bool OutsideTidy(absl::string_view path) { return !absl::StartsWith(path, "tests/tidy/"); }

bool OutsideMain(absl::string_view path) { return !absl::EndsWith(path, "main.cc"); }

// Product code that may start threads: the program itself, and the library that an engine links.
bool MayNotStartThreads(absl::string_view path) {
  if (IsTestCode(path)) return false;
  constexpr absl::string_view kAllowed[] = {
      "server/daemon.",     "server/rpc/",           "client/rpc/", "client/engine.",
      "client/codec_book.", "client/codec_workers.", "client/ctl/", "examples/",
  };
  for (const absl::string_view allowed : kAllowed) {
    if (absl::StartsWith(path, allowed)) return false;
  }
  return true;
}

// Tests of real processes may wait for them; an armed failpoint sleeps on purpose; programs may
// pause.
bool MayNotSleep(absl::string_view path) {
  if (TopFolder(path) == "tests" || absl::StartsWith(path, "client/ctl/")) return false;
  return path != "base/failpoint.cc" && path != "server/forebayd_test.cc";
}

// What a reactor runs must not block.
bool RunsOnAReactor(absl::string_view path) {
  if (IsTestCode(path)) return false;
  return absl::StartsWith(path, "transport/") || absl::StartsWith(path, "base/reactor") ||
         (absl::StartsWith(path, "server/") && absl::StrContains(path, "_op."));
}

const std::vector<Ban>& Bans() {
  static const auto* bans = new std::vector<Ban>{
      {Scope::kEverything,
       Form::kWord,
       {"FIXME", "XXX"},
       "fix it, or write down the limitation",
       OutsideTidy},
      {Scope::kEverything,
       Form::kNoIssue,
       {"TODO"},
       "open an issue and write TODO(#issue)",
       OutsideTidy},
      {Scope::kEverything,
       Form::kWord,
       // In two pieces, so that this file does not break its own rule.
       {"/wor"
        "k/main",
        "/wor"
        "k/shared",
        "/tmp/buil"
        "d-"},
       "no path of one machine",
       Anywhere},
      {Scope::kCode, Form::kWord, {"throw", "try", "catch"}, "absl::Status", OutsideMain},
      {Scope::kCode,
       Form::kWord,
       {"std::thread", "std::jthread", "std::async"},
       "a Reactor, or list the file in tests/tidy/bans.cc",
       MayNotStartThreads},
      {Scope::kCode,
       Form::kCall,
       {"sleep", "usleep", "nanosleep", "sleep_for", "sleep_until", "SleepFor"},
       "a Clock and a deadline",
       MayNotSleep},
      {Scope::kCode,
       Form::kWord,
       {"absl::Mutex", "absl::Notification", "absl::BlockingCounter", "std::mutex",
        "std::condition_variable"},
       "a Mailbox: a reactor does not wait",
       RunsOnAReactor},
      {Scope::kCode,
       Form::kCall,
       {"cudaStreamSynchronize", "cudaDeviceSynchronize"},
       "cudaEventQuery",
       Anywhere},
      {Scope::kCode, Form::kWord, {"using namespace"}, "the names one by one", Anywhere},
      {Scope::kCode, Form::kCall, {"assert"}, "FB_CHECK, which release builds keep", Anywhere},
      {Scope::kCode,
       Form::kCall,
       {"strcpy", "strcat", "sprintf", "gets", "rand"},
       "absl::StrCat, absl::StrFormat, SeededRandom",
       Anywhere},
  };
  return *bans;
}

bool IsWordCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
}

// Whether `word` at `at` is a whole word of the form that is banned.
bool Matches(absl::string_view text, size_t at, absl::string_view word, Form form) {
  if (at > 0 && IsWordCharacter(text[at - 1]) && IsWordCharacter(word.front())) return false;
  const absl::string_view after = text.substr(at + word.size());
  if (!after.empty() && IsWordCharacter(after.front()) && IsWordCharacter(word.back()))
    return false;
  switch (form) {
    case Form::kWord:
      return true;
    case Form::kCall:
      return absl::StartsWith(absl::StripLeadingAsciiWhitespace(after), "(");
    case Form::kNoIssue:
      return !absl::StartsWith(after, "(#");
  }
  return true;
}

}  // namespace

Faults BannedWordFaults(const SourceFile& file) {
  Faults faults;
  const std::string code = IsCpp(file.path) ? WithoutCommentsAndText(file.text) : std::string();
  for (const Ban& ban : Bans()) {
    if (!ban.applies(file.path)) continue;
    const std::string& text = ban.scope == Scope::kCode ? code : file.text;
    for (const absl::string_view word : ban.words) {
      for (size_t at = text.find(word.data(), 0, word.size()); at != std::string::npos;
           at = text.find(word.data(), at + 1, word.size())) {
        if (!Matches(text, at, word, ban.form)) continue;
        faults.push_back(absl::StrCat(file.path, ":", LineOf(text, at), ": '", word,
                                      "' is banned; instead: ", ban.instead));
      }
    }
  }
  return faults;
}

}  // namespace forebay::tidy
