// pagecheck: says what the test pages in a file are, and whether they are what was asked for.

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "tests/oracle/page_check.h"

namespace forebay::testing {
namespace {

constexpr char kUsage[] =
    "usage: pagecheck [options] FILE\n"
    "Classifies the self-describing test pages in FILE (- for standard input).\n"
    "Without an expectation it says what is there; with one it judges, and exits with 1 when a "
    "page\n"
    "is wrong, 0 when all are right, 2 when it cannot tell.\n"
    "  --page-bytes=N   FILE holds pages of N bytes each (default: one page)\n"
    "  --tenant=NAME    expect this tenant\n"
    "  --key=HEX        expect the key that begins with these 16 bytes (32 digits)\n"
    "  --part=N         expect this part (default: 0)\n"
    "  --writer=N       expect this writer (default: any)\n"
    "  --attempt=N      expect exactly this attempt (default: any)\n"
    "  --attempt-min=N  expect this attempt or a newer one\n";

struct Options {
  std::string file;
  size_t page_bytes = 0;
  std::optional<std::string> tenant;
  std::optional<std::string> key_hex;
  PageExpectation expected;
};

// False where `argument` is no option of ours, or its value is none.
bool ParseOption(absl::string_view argument, Options& options) {
  uint64_t number = 0;
  if (absl::ConsumePrefix(&argument, "--tenant=")) {
    options.tenant = std::string(argument);
    return !argument.empty();
  }
  if (absl::ConsumePrefix(&argument, "--key=")) {
    options.key_hex = std::string(argument);
    const auto is_digit = [](unsigned char c) { return std::isxdigit(c) != 0; };
    return argument.size() == 2 * options.expected.key.size() &&
           std::all_of(argument.begin(), argument.end(), is_digit);
  }
  const size_t equals = argument.find('=');
  if (equals == absl::string_view::npos) return false;
  const absl::string_view name = argument.substr(0, equals);
  if (!absl::SimpleAtoi(argument.substr(equals + 1), &number)) return false;
  PageExpectation& expected = options.expected;
  if (name == "--page-bytes") {
    options.page_bytes = static_cast<size_t>(number);
    return number > 0 && number <= UINT32_MAX;
  }
  if (name == "--part" || name == "--writer") {
    if (number > UINT32_MAX) return false;
    if (name == "--part") expected.part = static_cast<uint32_t>(number);
    if (name == "--writer") expected.writer = static_cast<uint32_t>(number);
    return true;
  }
  if (name == "--attempt") {
    expected.attempt_min = expected.attempt_max = number;
    return true;
  }
  if (name != "--attempt-min") return false;
  expected.attempt_min = number;
  return true;
}

std::optional<Options> ParseArguments(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument.size() > 2 && absl::StartsWith(argument, "--")) {
      if (!ParseOption(argument, options)) {
        std::fprintf(stderr, "pagecheck: bad option %s\n", argv[i]);
        return std::nullopt;
      }
    } else if (options.file.empty()) {
      options.file = std::string(argument);
    } else {
      std::fprintf(stderr, "pagecheck: one file at a time\n");
      return std::nullopt;
    }
  }
  if (options.file.empty()) {
    std::fprintf(stderr, "pagecheck: which file?\n");
    return std::nullopt;
  }
  if (options.tenant.has_value() != options.key_hex.has_value()) {
    std::fprintf(stderr, "pagecheck: an expectation needs --tenant and --key\n");
    return std::nullopt;
  }
  if (options.tenant) {
    options.expected.tenant = PageStamp::TenantOf(*options.tenant);
    const std::string key = absl::HexStringToBytes(*options.key_hex);
    std::memcpy(options.expected.key.data(), key.data(), options.expected.key.size());
  }
  return options;
}

std::optional<std::string> ReadAll(const std::string& file) {
  if (file == "-") {
    std::string text;
    char buffer[65536];
    for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), stdin)) > 0;) text.append(buffer, n);
    return text;
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

int Run(const Options& options) {
  const std::optional<std::string> content = ReadAll(options.file);
  if (!content || content->empty()) {
    std::fprintf(stderr, "pagecheck: cannot read %s, or it is empty\n", options.file.c_str());
    return 2;
  }
  const size_t page_bytes = options.page_bytes > 0 ? options.page_bytes : content->size();
  if (content->size() % page_bytes != 0 || page_bytes > UINT32_MAX) {
    std::fprintf(stderr, "pagecheck: %zu bytes are no pages of %zu bytes\n", content->size(),
                 page_bytes);
    return 2;
  }
  size_t wrong = 0;
  for (size_t at = 0; at < content->size(); at += page_bytes) {
    const Bytes page = AsBytes(content->data() + at, page_bytes);
    std::printf("page at %zu\n", at);
    if (options.tenant) {
      const PageFinding finding = CheckPage(page, options.expected);
      std::printf("  %s\n", finding.ToString().c_str());
      if (finding.ok()) continue;
      ++wrong;
    }
    for (const PageRun& run : DescribePage(page)) std::printf("    %s\n", run.ToString().c_str());
  }
  if (options.tenant) std::printf("%zu pages, %zu wrong\n", content->size() / page_bytes, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace forebay::testing

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--help") != 0) continue;
    std::fputs(forebay::testing::kUsage, stdout);
    return 0;
  }
  const std::optional<forebay::testing::Options> options =
      forebay::testing::ParseArguments(argc, argv);
  if (!options) {
    std::fputs(forebay::testing::kUsage, stderr);
    return 2;
  }
  return forebay::testing::Run(*options);
}
