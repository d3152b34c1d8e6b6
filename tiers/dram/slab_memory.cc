#include "tiers/dram/slab_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/failpoint.h"
#include "base/status_macros.h"
#include "tiers/dram/memory_limits.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace forebay {
namespace {

constexpr uint64_t kHugePageBytes = 2ull << 20;

// What the kernel refused, why, and the limit that explains it, where one does.
absl::Status Refused(absl::string_view what, int error, const SlabMemory::Options& options) {
  const std::string limit = MemoryLimits::Read().InTheWayOf(options.slab_count, options.slab_bytes);
  absl::string_view hint = "";
  switch (error) {
    case EMFILE:
      hint = "RLIMIT_NOFILE";
      break;
    case ENFILE:
      hint = "fs.file-max";
      break;
    case ENOSPC:
      hint = "the size of tmpfs or memory";
      break;
    case ENOMEM:
      hint = "memory, vm.overcommit_memory, vm.max_map_count or RLIMIT_AS";
      break;
    default:
      break;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot map DRAM slabs, ", options.slab_count, " of ", options.slab_bytes, " bytes: ", what,
      ": ", std::strerror(error), limit.empty() && hint.empty() ? "" : "; in the way: ",
      limit.empty() ? hint : absl::string_view(limit)));
}

// Whether the mapping that starts at `base` has any huge page of shared memory in it.
bool HasHugePages(const void* base) {
  std::ifstream maps("/proc/self/smaps");
  const std::string start = absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(base)), "-");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    const size_t word_end = line.find(' ');
    const bool is_heading =
        word_end != std::string::npos && word_end > 0 && line[word_end - 1] != ':';
    if (is_heading) inside = line.compare(0, start.size(), start) == 0;
    if (inside && line.compare(0, 15, "ShmemPmdMapped:") == 0) {
      return line.find_first_of("123456789") != std::string::npos;
    }
  }
  return false;
}

absl::Status Seal(int fd) {
  // F_SEAL_SEAL last: whoever is given the descriptor can add nothing either.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) ==
      0) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("cannot seal a DRAM slab: ", std::strerror(errno),
                                               "; F_SEAL_FUTURE_WRITE needs Linux 5.1"));
}

}  // namespace

SlabMemory::~SlabMemory() {
  for (const Slab& slab : slabs_) {
    munmap(slab.memory.data(), slab.memory.size());
    close(slab.fd);
  }
}

// On failure nothing is left behind. The kernel aligns what it may later back with huge pages.
absl::Status SlabMemory::MapSlab(const Options& options, bool hugetlb) {
  const unsigned flags =
      MFD_CLOEXEC | MFD_ALLOW_SEALING | (hugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0u);
  const int fd = memfd_create("forebay-dram", flags);
  if (fd < 0) return Refused("memfd_create", errno, options);
  if (ftruncate(fd, static_cast<off_t>(options.slab_bytes)) != 0) {
    const int error = errno;
    close(fd);
    return Refused("ftruncate of a memfd", error, options);
  }
  void* const at =
      mmap(nullptr, options.slab_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, /*offset=*/0);
  if (at == MAP_FAILED) {
    const int error = errno;
    close(fd);
    return Refused("mmap of a memfd", error, options);
  }
  slabs_.push_back({fd, AsMutableBytes(at, options.slab_bytes)});
  if (absl::Status sealed = Seal(fd); !sealed.ok()) {
    munmap(at, options.slab_bytes);
    close(fd);
    slabs_.pop_back();
    return sealed;
  }
  // KV pages of tenants have no business in a core dump, nor would a dump of the pool be of use.
  madvise(at, options.slab_bytes, MADV_DONTDUMP);
  if (options.huge_pages && !hugetlb) madvise(at, options.slab_bytes, MADV_HUGEPAGE);
  return absl::OkStatus();
}

absl::Status SlabMemory::Map(const Options& options) {
  // A memfd takes memory only when it is touched, so the kernel would agree to any size and kill
  // the daemon later. What cannot fit is refused while somebody is there to read why.
  const std::string limit = MemoryLimits::Read().InTheWayOf(options.slab_count, options.slab_bytes);
  if (!limit.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map DRAM slabs, ", options.slab_count,
                                                     " of ", options.slab_bytes,
                                                     " bytes; in the way: ", limit));
  }
  bool hugetlb = options.huge_pages && options.slab_bytes % kHugePageBytes == 0;
  slabs_.reserve(options.slab_count);
  while (slabs_.size() < options.slab_count) {
    FB_FAILPOINT("tiers.dram.map");
    if (hugetlb && MapSlab(options, /*hugetlb=*/true).ok()) continue;
    hugetlb = false;  // None left: the rest does without.
    FB_RETURN_IF_ERROR(MapSlab(options, /*hugetlb=*/false));
  }
  if (options.populate) {
    for (const Slab& slab : slabs_) {
      if (madvise(slab.memory.data(), slab.memory.size(), MADV_POPULATE_WRITE) == 0) continue;
      if (errno != EINVAL) return Refused("populating", errno, options);
      for (size_t at = 0; at < slab.memory.size(); at += 4096) {  // Linux before 5.14
        *const_cast<volatile std::byte*>(&slab.memory[at]) = std::byte{0};
      }
    }
  }
  huge_pages_granted_ = hugetlb;
  if (options.huge_pages && !hugetlb) {
    // The last slab is one without hugetlb. Only a page that was touched shows its size.
    std::byte* const last = slabs_.back().memory.data();
    *const_cast<volatile std::byte*>(last) = std::byte{0};
    huge_pages_granted_ = HasHugePages(last);
  }
  return absl::OkStatus();
}

}  // namespace forebay
