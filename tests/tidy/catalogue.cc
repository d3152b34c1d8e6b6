#include "tests/tidy/catalogue.h"

#include <map>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace forebay::tidy {
namespace {

struct Place {
  std::string path;
  int line;
};

// Group 1 of each match of `pattern` in the code of the product, with where it stands.
std::map<std::string, std::vector<Place>> NamesInProduct(const std::vector<SourceFile>& files,
                                                         const std::string& pattern) {
  const std::regex regex(pattern);
  std::map<std::string, std::vector<Place>> names;
  for (const SourceFile& file : files) {
    // The macros themselves are explained with examples.
    if (!IsCpp(file.path) || IsTestCode(file.path) || file.path == "base/failpoint.h") continue;
    const std::string code = WithoutComments(file.text);
    for (std::sregex_iterator match(code.begin(), code.end(), regex), end; match != end; ++match) {
      names[(*match)[1]].push_back(
          {file.path, LineOf(code, static_cast<size_t>(match->position()))});
    }
  }
  return names;
}

void CompareWithCatalogue(const std::map<std::string, std::vector<Place>>& names,
                          const std::set<std::string>& listed, absl::string_view heading,
                          Faults& faults) {
  for (const auto& [name, places] : names) {
    if (listed.contains(name)) continue;
    faults.push_back(absl::StrCat(places[0].path, ":", places[0].line, ": ", name,
                                  " is not listed in docs/operations.md, ", heading));
  }
  for (const std::string& name : listed) {
    if (names.contains(name)) continue;
    faults.push_back(
        absl::StrCat("docs/operations.md: ", heading, " lists ", name, ", which is not there"));
  }
}

// A test arms a point by its name in a literal; what follows may be "=kill:3".
bool IsArmed(const std::vector<SourceFile>& files, const std::string& name) {
  const std::regex quoted(
      absl::StrCat("[\"'; ]", std::regex_replace(name, std::regex(R"(\.)"), R"(\.)"), "[\"'=]"));
  for (const SourceFile& file : files) {
    if (IsTestCode(file.path) && !absl::EndsWith(file.path, ".md") &&
        std::regex_search(file.text, quoted)) {
      return true;
    }
  }
  return false;
}

// `path` without the folder of `cmake_path`; empty where it is not below it.
std::string RelativeTo(absl::string_view cmake_path, absl::string_view path) {
  const std::string folder = absl::StrCat(FolderOf(cmake_path), "/");
  return absl::StartsWith(path, folder) ? std::string(absl::StripPrefix(path, folder))
                                        : std::string();
}

bool IsNamedBy(const SourceFile& cmake_file, const std::string& path) {
  const std::string relative = RelativeTo(cmake_file.path, path);
  if (relative.empty()) return false;
  for (const absl::string_view word :
       absl::StrSplit(cmake_file.text, absl::ByAnyChar(" \t\n()\"/"), absl::SkipEmpty())) {
    if (absl::StartsWith(word, "#")) continue;
    if (word == relative.substr(relative.rfind('/') + 1)) {
      return absl::StrContains(cmake_file.text, relative);
    }
  }
  return false;
}

}  // namespace

std::set<std::string> CatalogueOf(absl::string_view markdown, absl::string_view heading) {
  std::set<std::string> names;
  const std::regex entry(R"(^- `([^`]+)`: .+)");
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(markdown, '\n')) {
    if (absl::StartsWith(line, "## ")) inside = line == heading;
    std::cmatch match;
    if (inside && std::regex_search(line.data(), line.data() + line.size(), match, entry)) {
      names.insert(match[1]);
    }
  }
  return names;
}

Faults FailpointFaults(const std::vector<SourceFile>& files, absl::string_view operations) {
  Faults faults;
  const auto names = NamesInProduct(files, R"re(FB_FAILPOINT(?:_HIT)?\("([^"]*)"\))re");
  const std::regex shape(R"(^[a-z]+(\.[a-z0-9_]+){2}$)");
  for (const auto& [name, places] : names) {
    const std::string where = absl::StrCat(places[0].path, ":", places[0].line, ": ");
    if (!std::regex_search(name, shape) ||
        TopFolder(places[0].path) != name.substr(0, name.find('.'))) {
      faults.push_back(absl::StrCat(where, name, " is not named folder.noun.verb"));
    }
    if (places.size() > 1) {
      faults.push_back(absl::StrCat(where, name, " stands in ", places[1].path, ":", places[1].line,
                                    " too: a name is one place"));
    }
    if (!IsArmed(files, name)) {
      faults.push_back(absl::StrCat(where, name, " is armed by no test"));
    }
  }
  CompareWithCatalogue(names, CatalogueOf(operations, "## Failpoints"), "## Failpoints", faults);
  return faults;
}

Faults MetricFaults(const std::vector<SourceFile>& files, absl::string_view operations) {
  Faults faults;
  const auto names = NamesInProduct(files, R"re("(forebay_[a-z0-9_]+)")re");
  CompareWithCatalogue(names, CatalogueOf(operations, "## Metrics"), "## Metrics", faults);
  return faults;
}

Faults UnregisteredSourceFaults(const std::vector<SourceFile>& files) {
  Faults faults;
  for (const SourceFile& file : files) {
    if (!absl::EndsWith(file.path, ".cc")) continue;
    bool named = false;
    for (const SourceFile& cmake_file : files) {
      named = named || (absl::EndsWith(cmake_file.path, "CMakeLists.txt") &&
                        IsNamedBy(cmake_file, file.path));
    }
    if (!named) faults.push_back(absl::StrCat(file.path, ": no CMakeLists.txt names it"));
  }
  return faults;
}

Faults TestingLinkFaults(const SourceFile& cmake_file) {
  Faults faults;
  if (!absl::EndsWith(cmake_file.path, "CMakeLists.txt") || IsTestCode(cmake_file.path)) {
    return faults;
  }
  static const std::regex kComment("#[^\n]*");
  static const std::regex kCall(
      R"(\b(forebay_library|forebay_program|target_link_libraries)\s*\(([^()]*)\))");
  static const std::regex kFakes(R"(forebay::\w*testing\b|\bGTest::)");
  const std::string text = std::regex_replace(cmake_file.text, kComment, "");
  for (std::sregex_iterator match(text.begin(), text.end(), kCall), end; match != end; ++match) {
    const std::vector<std::string> words =
        absl::StrSplit(match->str(2), absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
    if (words.empty() || absl::EndsWith(words[0], "testing")) continue;
    const std::string target = words[0];
    // What is built of testing/ alone is a fake, or the other process of a test.
    std::string section = match->str(1) == "target_link_libraries" ? "DEPS" : "";
    int product_sources = 0;
    int fake_sources = 0;
    Faults found;
    for (const std::string& word : words) {
      static const std::regex kKeyword("^[A-Z_]+$");
      if (std::regex_search(word, kKeyword)) {
        section = word == "PUBLIC" || word == "PRIVATE" || word == "INTERFACE" ? "DEPS" : word;
      }
      if (section != "SOURCES" || !absl::EndsWith(word, ".cc")) {
        // Of a library only DEPS: what its tests link is theirs.
        if (section == "DEPS" && std::regex_search(word, kFakes)) {
          found.push_back(absl::StrCat(cmake_file.path, ": ", target, " must not link ", word));
        }
      } else {
        ++(absl::StartsWith(word, "testing/") ? fake_sources : product_sources);
      }
    }
    if (product_sources > 0 || fake_sources == 0) {
      faults.insert(faults.end(), found.begin(), found.end());
    }
  }
  return faults;
}

Faults CitationFaults(const SourceFile& file) {
  Faults faults;
  const auto check = [&](const std::string& pattern, int group, absl::string_view folder) {
    const std::regex regex(pattern);
    for (std::sregex_iterator match(file.text.begin(), file.text.end(), regex), end; match != end;
         ++match) {
      const std::string target = match->str(group);
      if (FileExists(absl::StrCat(folder, folder.empty() ? "" : "/", target))) continue;
      faults.push_back(absl::StrCat(file.path, ":",
                                    LineOf(file.text, static_cast<size_t>(match->position())), ": ",
                                    target, " is not there"));
    }
  };
  if (absl::EndsWith(file.path, ".md")) {
    check(R"(\]\(([^)#: ]+)(#[^)]*)?\))", 1, FolderOf(file.path));
  } else {
    check(R"(\bdocs/[A-Za-z0-9_/-]+\.md\b)", 0, "");
  }
  return faults;
}

}  // namespace forebay::tidy
