#include <algorithm>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/tidy/rules.h"

namespace forebay::tidy {
namespace {

constexpr int kColumnsMax = 100;
constexpr int kFileLinesMax = 600;
constexpr int kFunctionLinesMax = 70;
constexpr int kPureVirtualsMax = 6;

// Code points, not bytes.
int ColumnsOf(absl::string_view line) {
  return static_cast<int>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

// The offset of the brace that closes the one at `open`.
size_t ClosingBrace(const std::string& code, size_t open) {
  int depth = 0;
  for (size_t at = open; at < code.size(); ++at) {
    if (code[at] == '{') ++depth;
    if (code[at] == '}' && --depth == 0) return at;
  }
  return code.size();
}

bool OpensContainer(const std::string& head) {
  static const std::regex kContainer(R"re(^\s*(template\s*<[^{]*>\s*)?(inline\s+)?)re"
                                     R"re((namespace|class|struct|union|extern\s*"\s*")(\s|$))re");
  static const std::regex kCall(R"(\)\s*(const|noexcept|override|final|->[^{]*)*\s*$)");
  return std::regex_search(head, kContainer) && !std::regex_search(head, kCall);
}

bool OpensFunction(const std::string& head) {
  static const std::regex kAssigned(R"([=,(]\s*$)");
  return absl::StrContains(head, ")") && !std::regex_search(head, kAssigned);
}

// Preprocessor lines would be read as part of the next declaration.
std::string WithoutPreprocessor(std::string code) {
  static const std::regex kDirective(R"(^[ \t]*#(?:[^\n]*\\\n)*[^\n]*)", std::regex::multiline);
  std::string out;
  size_t last = 0;
  for (std::sregex_iterator match(code.begin(), code.end(), kDirective), end; match != end;
       ++match) {
    const auto position = static_cast<size_t>(match->position());
    out += code.substr(last, position - last);
    for (const char c : match->str()) out += c == '\n' ? '\n' : ' ';
    last = position + static_cast<size_t>(match->length());
  }
  return out + code.substr(last);
}

// Where the declaration in `head` begins, past blanks and access specifiers.
size_t DeclarationBegin(const std::string& head) {
  static const std::regex kBefore(R"(^(\s*(public|protected|private)\s*:)*\s*)");
  std::smatch match;
  std::regex_search(head, match, kBefore);
  return static_cast<size_t>(match.length());
}

// Reads declarations at the level of namespaces and classes; what is inside a function is skipped.
void AddFunctionFaults(const SourceFile& file, Faults& faults) {
  const std::string code = WithoutPreprocessor(WithoutCommentsAndText(file.text));
  size_t head_begin = 0;
  for (size_t at = 0; at < code.size(); ++at) {
    if (code[at] == ';' || code[at] == '}') head_begin = at + 1;
    if (code[at] != '{') continue;
    const std::string head = code.substr(head_begin, at - head_begin);
    if (OpensContainer(head)) {
      head_begin = at + 1;
      continue;
    }
    const size_t close = ClosingBrace(code, at);
    if (OpensFunction(head)) {
      const int begin_line = LineOf(code, head_begin + DeclarationBegin(head));
      const int lines = LineOf(code, std::min(close, code.size() - 1)) - begin_line + 1;
      if (lines > kFunctionLinesMax) {
        faults.push_back(absl::StrCat(file.path, ":", begin_line, ": a function of ", lines,
                                      " lines, more than ", kFunctionLinesMax));
      }
      head_begin = close + 1;
    }
    at = close;
  }
}

}  // namespace

Faults LimitFaults(const SourceFile& file) {
  Faults faults;
  if (!IsCpp(file.path) && !absl::EndsWith(file.path, ".proto")) return faults;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(file.text, '\n')) {
    ++number;
    if (ColumnsOf(line) > kColumnsMax) {
      faults.push_back(absl::StrCat(file.path, ":", number, ": ", ColumnsOf(line),
                                    " columns, more than ", kColumnsMax));
    }
  }
  // The text after the last line feed is no line.
  if (number - 1 > kFileLinesMax) {
    faults.push_back(
        absl::StrCat(file.path, ": ", number - 1, " lines, more than ", kFileLinesMax));
  }
  if (IsCpp(file.path)) AddFunctionFaults(file, faults);
  return faults;
}

Faults HeaderFaults(const SourceFile& file) {
  if (!IsHeader(file.path) || absl::StrContains(file.text, "#pragma once\n")) return {};
  return {absl::StrCat(file.path, ":1: no #pragma once")};
}

Faults InterfaceFaults(const SourceFile& file) {
  Faults faults;
  if (!IsHeader(file.path) || IsTestCode(file.path)) return faults;
  static const std::regex kClass(R"(\b(class|struct)\s+([A-Za-z_]+)[^;{()]*\{)");
  static const std::regex kPure(R"(\)\s*(const)?\s*(noexcept)?\s*=\s*0\s*;)");
  const std::string code = WithoutCommentsAndText(file.text);
  for (std::sregex_iterator match(code.begin(), code.end(), kClass), end; match != end; ++match) {
    const auto open = static_cast<size_t>(match->position() + match->length()) - 1;
    const std::string body = code.substr(open, ClosingBrace(code, open) - open);
    const auto count = std::distance(std::sregex_iterator(body.begin(), body.end(), kPure),
                                     std::sregex_iterator());
    if (count <= kPureVirtualsMax) continue;
    faults.push_back(absl::StrCat(file.path, ":", LineOf(code, open), ": ", (*match)[2].str(),
                                  " has ", count, " pure virtual functions, more than ",
                                  kPureVirtualsMax));
  }
  return faults;
}

}  // namespace forebay::tidy
