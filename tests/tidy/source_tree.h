#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace forebay::tidy {

// One file of the tree under test. `path` is relative to the root, with slashes.
struct SourceFile {
  std::string path;
  std::string text;
};

// The source folders and docs/, read once: every .h, .cc, .inc, .proto, .py, .sh, .md and
// CMakeLists.txt in them; and the files of the root that people run or read.
const std::vector<SourceFile>& SourceTree();
// The text of one file below the root; empty where there is none.
std::string ReadFile(absl::string_view path);
bool FileExists(absl::string_view path);

// "a/b.cc" -> "a"
absl::string_view TopFolder(absl::string_view path);
// "a/b/c.cc" -> "a/b"
absl::string_view FolderOf(absl::string_view path);
bool IsCpp(absl::string_view path);
bool IsHeader(absl::string_view path);
// In tests/, in a testing/ folder, or a unit test beside its code.
bool IsTestCode(absl::string_view path);

// `text` with comments, and what is inside string and character literals, turned into blanks. Line
// feeds stay, so that lines count the same.
std::string WithoutCommentsAndText(absl::string_view text);
// `text` with comments turned into blanks.
std::string WithoutComments(absl::string_view text);
// 1 for the first line.
int LineOf(absl::string_view text, size_t offset);

}  // namespace forebay::tidy
