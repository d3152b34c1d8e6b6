#include "tiers/dram/memory_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace forebay {
namespace {

uint64_t ResourceLimit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return UINT64_MAX;
  return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

uint64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  return file >> word && absl::SimpleAtoi(word, &value) ? value
                                                        : UINT64_MAX;  // "max" is no number.
}

// The least limit of this process's cgroup and of those above it.
uint64_t CgroupBytes() {
  uint64_t least = UINT64_MAX;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" (v2) or "4:memory:/path" (v1).
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v1 = controllers.find("memory") != std::string::npos;
    if (!controllers.empty() && !v1) continue;
    const std::string root = v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
    const std::string name = v1 ? "/memory.limit_in_bytes" : "/memory.max";
    for (std::string path = line.substr(second + 1); !path.empty() && path[0] == '/';) {
      least = std::min(least, NumberIn(root + path + name));
      path.resize(path.rfind('/'));
    }
    least = std::min(least, NumberIn(root + name));
  }
  return least;
}

}  // namespace

MemoryLimits MemoryLimits::Read() {
  MemoryLimits limits;
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page_bytes > 0) limits.physical_bytes = uint64_t(pages) * uint64_t(page_bytes);
  limits.cgroup_bytes = CgroupBytes();
  limits.address_space_bytes = ResourceLimit(RLIMIT_AS);
  limits.file_bytes = ResourceLimit(RLIMIT_FSIZE);
  limits.open_files = ResourceLimit(RLIMIT_NOFILE);
  return limits;
}

std::string MemoryLimits::InTheWayOf(uint64_t slab_count, uint64_t slab_bytes) const {
  const auto exceeds = [&](uint64_t limit) { return slab_count > limit / slab_bytes; };
  if (exceeds(physical_bytes)) return absl::StrCat("physical memory of ", physical_bytes, " bytes");
  if (exceeds(cgroup_bytes)) return absl::StrCat("cgroup memory limit of ", cgroup_bytes, " bytes");
  if (exceeds(address_space_bytes)) {
    return absl::StrCat("RLIMIT_AS of ", address_space_bytes, " bytes");
  }
  if (slab_bytes > file_bytes) return absl::StrCat("RLIMIT_FSIZE of ", file_bytes, " bytes");
  if (slab_count > open_files) return absl::StrCat("RLIMIT_NOFILE of ", open_files, " files");
  return "";
}

}  // namespace forebay
