#pragma once

#include <cstdint>
#include <string>

namespace forebay {

// Bounds on how much memory this process can have, as the machine states them.
struct MemoryLimits {
  uint64_t physical_bytes = UINT64_MAX;
  uint64_t cgroup_bytes = UINT64_MAX;         // memory.max (v2) or memory.limit_in_bytes (v1)
  uint64_t address_space_bytes = UINT64_MAX;  // RLIMIT_AS
  uint64_t file_bytes = UINT64_MAX;           // RLIMIT_FSIZE, which binds a memfd too
  uint64_t open_files = UINT64_MAX;           // RLIMIT_NOFILE

  // What cannot be read is no limit.
  static MemoryLimits Read();

  // The limit that forbids `slab_count` memfds of `slab_bytes` each, for people, e.g. "RLIMIT_AS of
  // 1073741824 bytes"; empty if none does.
  std::string InTheWayOf(uint64_t slab_count, uint64_t slab_bytes) const;
};

}  // namespace forebay
