#include "client/ctl/subcommand.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace forebay::ctl {
namespace {

const std::vector<const Subcommand*>& Subcommands() {
  static const auto* all =
      new std::vector<const Subcommand*>{&kStatus,      &kNamespaces, &kLookup,  &kExplainCodec,
                                         &kConfigCheck, &kConfigShow, &kMetrics, &kBench};
  return *all;
}

const std::vector<Flag>& CommonFlags() {
  static const auto* flags = new std::vector<Flag>{
      {"--daemon", "HOST:PORT", "the daemon's control address; or FOREBAY_DAEMON (127.0.0.1:7400)"},
      {"--token", "TOKEN", "the tenant's token; or FOREBAY_TOKEN"},
      {"--token-file", "FILE", "a file that holds it"},
      {"--deadline-ms", "N", "how long each call may take (5000)"},
      {"--json", "", "one JSON object instead of text"},
      {"--help", "", "this text"},
  };
  return *flags;
}

// Levenshtein distance: small texts, so the plain table.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row.back();
}

// "; did you mean 'status'?" where one of `known` is close.
std::string Hint(absl::string_view wrong, const std::vector<absl::string_view>& known) {
  const auto nearest = std::min_element(known.begin(), known.end(), [&](auto a, auto b) {
    return EditDistance(wrong, a) < EditDistance(wrong, b);
  });
  if (nearest == known.end() || EditDistance(wrong, *nearest) > 3) return "";
  return absl::StrCat("; did you mean '", *nearest, "'?");
}

void PrintFlags(std::ostream& out, absl::Span<const Flag> flags) {
  for (const Flag& flag : flags) {
    const std::string head = absl::StrCat(flag.name, flag.value.empty() ? "" : " ", flag.value);
    out << absl::StrFormat("  %-26s %s\n", head, flag.help);
  }
}

void PrintHelp(std::ostream& out) {
  out << "forebayctl: looks at and tries a Forebay pool\n\n"
         "usage: forebayctl [flags] SUBCOMMAND …\n\n";
  for (const Subcommand* subcommand : Subcommands()) {
    out << absl::StrFormat("  %-14s %s\n", subcommand->name, subcommand->summary);
  }
  out << "\nflags\n";
  PrintFlags(out, CommonFlags());
  out << "\n'forebayctl SUBCOMMAND --help' tells more.\n";
}

void PrintHelp(std::ostream& out, const Subcommand& subcommand) {
  out << "forebayctl " << subcommand.name << ": " << subcommand.summary << "\n\nusage: forebayctl "
      << subcommand.name << " " << subcommand.usage << "\n\nflags\n";
  PrintFlags(out, subcommand.flags);
  PrintFlags(out, CommonFlags());
}

// Takes the words of a subcommand's name off the front of `words`.
const Subcommand* FindSubcommand(std::vector<std::string>* words) {
  for (const size_t count : {2u, 1u}) {
    if (words->size() < count) continue;
    const std::string name = absl::StrJoin(words->begin(), words->begin() + count, " ");
    for (const Subcommand* subcommand : Subcommands()) {
      if (subcommand->name != name) continue;
      words->erase(words->begin(), words->begin() + count);
      return subcommand;
    }
  }
  return nullptr;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::Status FillContext(const Flags& flags, Context* context) {
  const std::string daemon = Environment("FOREBAY_DAEMON");
  if (!daemon.empty()) context->daemon = daemon;
  context->daemon = flags.Get("--daemon", context->daemon);
  context->token = flags.Get("--token", Environment("FOREBAY_TOKEN"));
  if (const std::string path = flags.Get("--token-file"); !path.empty()) {
    std::ifstream file(path);
    if (!file) return absl::NotFoundError(absl::StrCat("cannot open the token file ", path));
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    context->token = std::string(absl::StripTrailingAsciiWhitespace(text));
  }
  context->json = flags.Has("--json");
  FB_ASSIGN_OR_RETURN(const uint64_t ms, flags.Number("--deadline-ms", 5000, 1, 3'600'000));
  context->deadline = static_cast<Nanos>(ms) * kMillisecond;
  return absl::OkStatus();
}

int Fail(std::ostream& err, const absl::Status& status) {
  err << "forebayctl: " << status.message() << "\n";
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

// The words of the command line that are no flags of all subcommands, up to the subcommand's name,
// may stand on either side of it: "forebayctl --json status" and "forebayctl status --json".
std::vector<std::string> MoveLeadingFlagsBack(absl::Span<const std::string> args) {
  std::vector<std::string> leading;
  size_t i = 0;
  while (i < args.size() && absl::StartsWith(args[i], "--")) {
    leading.push_back(args[i]);
    const bool takes_value =
        std::any_of(CommonFlags().begin(), CommonFlags().end(),
                    [&](const Flag& flag) { return flag.name == args[i] && !flag.value.empty(); });
    ++i;
    if (takes_value && i < args.size()) leading.push_back(args[i++]);
  }
  std::vector<std::string> words(args.begin() + static_cast<ptrdiff_t>(i), args.end());
  words.insert(words.end(), leading.begin(), leading.end());
  return words;
}

}  // namespace

absl::StatusOr<Flags> Flags::Parse(absl::Span<const std::string> args,
                                   absl::Span<const Flag> known) {
  Flags flags;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!absl::StartsWith(args[i], "--")) {
      flags.rest_.push_back(args[i]);
      continue;
    }
    const size_t equals = args[i].find('=');
    const std::string name = args[i].substr(0, equals);
    const auto flag = std::find_if(known.begin(), known.end(),
                                   [&](const Flag& candidate) { return candidate.name == name; });
    if (flag == known.end()) {
      std::vector<absl::string_view> names;
      for (const Flag& candidate : known) names.push_back(candidate.name);
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", name, Hint(name, names)));
    }
    if (flag->value.empty()) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat(name, " takes no value"));
      }
      flags.values_.emplace_back(name, "");
    } else if (equals != std::string::npos) {
      flags.values_.emplace_back(name, args[i].substr(equals + 1));
    } else if (++i < args.size()) {
      flags.values_.emplace_back(name, args[i]);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, " needs a value: ", flag->help));
    }
  }
  return flags;
}

bool Flags::Has(absl::string_view name) const {
  return std::any_of(values_.begin(), values_.end(),
                     [&](const auto& value) { return value.first == name; });
}

std::string Flags::Get(absl::string_view name, absl::string_view otherwise) const {
  std::string found(otherwise);
  for (const auto& [flag, value] : values_) {
    if (flag == name) found = value;
  }
  return found;
}

absl::StatusOr<uint64_t> Flags::Number(absl::string_view name, uint64_t otherwise, uint64_t min,
                                       uint64_t max) const {
  if (!Has(name)) return otherwise;
  const std::string text = Get(name);
  uint64_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < min || number > max) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " takes a number from ", min, " to ", max, ", not '", text, "'"));
  }
  return number;
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string JsonQuote(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

int Run(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  std::vector<std::string> words = MoveLeadingFlagsBack(args);
  if (words.empty() || words[0] == "help" || absl::StartsWith(words[0], "--")) {
    const bool asked = !words.empty() && (words[0] == "help" || words[0] == "--help");
    PrintHelp(asked ? out : err);
    return asked ? 0 : 2;
  }
  const std::string first = words[0];
  const Subcommand* subcommand = FindSubcommand(&words);
  if (subcommand == nullptr) {
    std::vector<absl::string_view> names;
    for (const Subcommand* each : Subcommands()) names.push_back(each->name);
    err << "forebayctl: no subcommand '" << first << "'" << Hint(first, names)
        << "\nTry 'forebayctl --help'.\n";
    return 2;
  }
  std::vector<Flag> known = subcommand->flags;
  known.insert(known.end(), CommonFlags().begin(), CommonFlags().end());
  const absl::StatusOr<Flags> flags = Flags::Parse(words, known);
  if (!flags.ok()) {
    Fail(err, flags.status());
    err << "Try 'forebayctl " << subcommand->name << " --help'.\n";
    return 2;
  }
  if (flags->Has("--help")) {
    PrintHelp(out, *subcommand);
    return 0;
  }
  Context context{.out = out};
  if (absl::Status status = FillContext(*flags, &context); !status.ok()) return Fail(err, status);
  if (absl::Status status = subcommand->run(context, *flags); !status.ok()) {
    return Fail(err, status);
  }
  return 0;
}

}  // namespace forebay::ctl
