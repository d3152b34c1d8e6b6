#include "tests/tidy/source_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace forebay::tidy {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kFolders[] = {"base",  "proto",  "codec",  "transport",
                                          "tiers", "server", "client", "examples",
                                          "tests", "deploy", "docs"};
constexpr absl::string_view kRootFiles[] = {"README.md", "forebay", ".ci/run", "CMakeLists.txt",
                                            "CMakePresets.json"};
constexpr absl::string_view kEndings[] = {".h", ".cc", ".inc", ".proto", ".py", ".sh", ".md"};

std::string ReadWhole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool IsRead(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "CMakeLists.txt" ||
         std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&name](absl::string_view ending) { return absl::EndsWith(name, ending); });
}

std::vector<SourceFile> ReadTree() {
  const fs::path root(FOREBAY_SOURCE_DIR);
  std::vector<SourceFile> files;
  for (const absl::string_view folder : kFolders) {
    if (!fs::exists(root / std::string(folder))) continue;
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(root / std::string(folder))) {
      if (!entry.is_regular_file() || !IsRead(entry.path())) continue;
      files.push_back({fs::relative(entry.path(), root).generic_string(), ReadWhole(entry.path())});
    }
  }
  for (const absl::string_view name : kRootFiles) {
    files.push_back({std::string(name), ReadWhole(root / std::string(name))});
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

// Walks over C++ text and blanks what it is told to. Knows line and block comments, string and
// character literals, raw strings, and that 1'000 is no character.
class Blanker {
 public:
  Blanker(absl::string_view text, bool blank_literals)
      : out_(text), blank_literals_(blank_literals) {}

  std::string Run() {
    while (at_ < out_.size()) Step();
    return std::move(out_);
  }

 private:
  void Step() {
    if (Sees("//")) {
      Blank(EndOf("\n", 0), /*blank=*/true);
    } else if (Sees("/*")) {
      Blank(EndOf("*/", 2), /*blank=*/true);
    } else if (Sees("R\"") && !IsWord(at_ == 0 ? ' ' : out_[at_ - 1])) {
      const size_t open = out_.find('(', at_);
      const std::string close = open == std::string::npos
                                    ? "\""
                                    : absl::StrCat(")", out_.substr(at_ + 2, open - at_ - 2), "\"");
      at_ += 2;
      Blank(EndOf(close, close.size()) - 1, blank_literals_);
      ++at_;
    } else if (out_[at_] == '"' || (out_[at_] == '\'' && !IsWord(at_ == 0 ? ' ' : out_[at_ - 1]))) {
      Literal(out_[at_]);
    } else {
      ++at_;
    }
  }

  void Literal(char quote) {
    size_t end = ++at_;
    while (end < out_.size() && out_[end] != quote && out_[end] != '\n') {
      end += out_[end] == '\\' ? 2 : 1;
    }
    Blank(std::min(end, out_.size()), blank_literals_);
    ++at_;
  }

  bool Sees(absl::string_view what) const {
    return absl::StartsWith(absl::string_view(out_).substr(at_), what);
  }
  static bool IsWord(char c) { return isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  size_t EndOf(const std::string& mark, size_t past) const {
    const size_t found = out_.find(mark, at_ + (past == 2 ? 2 : 0));
    return found == std::string::npos ? out_.size() : found + past;
  }
  void Blank(size_t end, bool blank) {
    for (; at_ < end; ++at_) {
      if (blank && out_[at_] != '\n') out_[at_] = ' ';
    }
  }

  std::string out_;
  const bool blank_literals_;
  size_t at_ = 0;
};

}  // namespace

const std::vector<SourceFile>& SourceTree() {
  static const auto* files = new std::vector<SourceFile>(ReadTree());
  return *files;
}

std::string ReadFile(absl::string_view path) {
  return ReadWhole(fs::path(FOREBAY_SOURCE_DIR) / std::string(path));
}

bool FileExists(absl::string_view path) {
  return fs::exists(fs::path(FOREBAY_SOURCE_DIR) / std::string(path));
}

absl::string_view TopFolder(absl::string_view path) { return path.substr(0, path.find('/')); }

absl::string_view FolderOf(absl::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == absl::string_view::npos ? "" : path.substr(0, slash);
}

bool IsHeader(absl::string_view path) { return absl::EndsWith(path, ".h"); }

bool IsCpp(absl::string_view path) {
  return IsHeader(path) || absl::EndsWith(path, ".cc") || absl::EndsWith(path, ".inc");
}

bool IsTestCode(absl::string_view path) {
  return TopFolder(path) == "tests" || absl::StrContains(path, "/testing/") ||
         absl::EndsWith(path, "_test.cc");
}

std::string WithoutCommentsAndText(absl::string_view text) {
  return Blanker(text, /*blank_literals=*/true).Run();
}

std::string WithoutComments(absl::string_view text) {
  return Blanker(text, /*blank_literals=*/false).Run();
}

int LineOf(absl::string_view text, size_t offset) {
  return 1 + static_cast<int>(
                 std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(offset), '\n'));
}

}  // namespace forebay::tidy
