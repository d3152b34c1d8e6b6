#include "server/flags.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace forebay {
namespace {

struct FlagRow {
  absl::string_view name;
  absl::string_view value;  // what to call it in help; empty for a switch
  absl::string_view help;
  std::string DaemonFlags::*text;
  bool DaemonFlags::*on;
};

constexpr FlagRow kFlags[] = {
    {"--config", "FILE", "configuration, as textproto (proto/forebay/v1/config.proto explains it)",
     &DaemonFlags::config, nullptr},
    {"--node", "NAME", "name of this node, instead of the configuration's", &DaemonFlags::node,
     nullptr},
    {"--log_level", "LEVEL", "debug, info, warning or error", &DaemonFlags::log_level, nullptr},
    {"--ready_file", "PATH", "write the bound addresses there once ready", &DaemonFlags::ready_file,
     nullptr},
    {"--check", "", "check the configuration, print what would run, and exit", nullptr,
     &DaemonFlags::check},
    {"--version", "", "print the version and exit", nullptr, &DaemonFlags::version},
    {"--help", "", "print this and exit", nullptr, &DaemonFlags::help},
};

// Letters to change, add or drop to get from one to the other.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

absl::Status UnknownFlag(absl::string_view name) {
  const FlagRow* nearest = &kFlags[0];
  for (const FlagRow& row : kFlags) {
    if (EditDistance(name, row.name) < EditDistance(name, nearest->name)) nearest = &row;
  }
  std::string text = absl::StrCat("unknown flag ", name);
  if (EditDistance(name, nearest->name) <= nearest->name.size() / 2) {
    absl::StrAppend(&text, "; did you mean ", nearest->name, "?");
  }
  return absl::InvalidArgumentError(absl::StrCat(text, " (--help lists them)"));
}

}  // namespace

absl::StatusOr<DaemonFlags> ParseDaemonFlags(absl::Span<const std::string> arguments) {
  DaemonFlags flags;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const absl::string_view argument = arguments[i];
    if (!absl::StartsWith(argument, "--")) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", argument, "\" is no flag: settings go into --config FILE"));
    }
    const size_t equals = argument.find('=');
    const absl::string_view name = argument.substr(0, equals);
    const auto* row = std::find_if(std::begin(kFlags), std::end(kFlags),
                                   [&](const FlagRow& known) { return known.name == name; });
    if (row == std::end(kFlags)) return UnknownFlag(name);
    const bool has_value = equals != absl::string_view::npos;
    if (row->on != nullptr) {
      if (has_value) return absl::InvalidArgumentError(absl::StrCat(name, " takes no value"));
      flags.*(row->on) = true;
    } else if (has_value) {
      flags.*(row->text) = std::string(argument.substr(equals + 1));
    } else if (i + 1 < arguments.size()) {
      flags.*(row->text) = arguments[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, " needs a value: ", row->value));
    }
  }
  return flags;
}

std::string DaemonUsage() {
  std::string text =
      "forebayd: one node of the pool of KV pages.\n"
      "\n"
      "usage: forebayd [flags]\n"
      "Without flags it runs on loopback with defaults that suit one machine.\n"
      "\n";
  for (const FlagRow& row : kFlags) {
    const std::string left = absl::StrCat("  ", row.name, row.value.empty() ? "" : " ", row.value);
    absl::StrAppend(&text, left, std::string(left.size() < 24 ? 24 - left.size() : 1, ' '),
                    row.help, "\n");
  }
  return text;
}

}  // namespace forebay
