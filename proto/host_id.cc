#include "proto/host_id.h"

#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace forebay {
namespace {

std::string ReadBootId() {
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  char text[64];
  const ssize_t bytes = read(fd, text, sizeof(text));
  close(fd);
  if (bytes <= 0) return "";
  const absl::string_view id =
      absl::StripAsciiWhitespace(absl::string_view(text, static_cast<size_t>(bytes)));
  return id.empty() ? "" : absl::StrCat("boot:", id);
}

}  // namespace

const std::string& OwnHostId() {
  static const auto* id = new std::string(ReadBootId());
  return *id;
}

bool SameHost(const std::string& a, const std::string& b) { return !a.empty() && a == b; }

}  // namespace forebay
