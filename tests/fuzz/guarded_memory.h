#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"

namespace forebay::fuzz {

// Memory between two pages that nobody may touch: one byte too far ends the process, in builds
// without AddressSanitizer too, and also where that byte would belong to some other allocation.
//
// Owns  the mapping. Made once and used for every input, since mapping costs more than most inputs.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes_max) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    room_bytes_ = (bytes_max + page - 1) / page * page;
    mapped_bytes_ = room_bytes_ + 2 * page;
    void* const base = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                            /*fd=*/-1, /*offset=*/0);
    FB_CHECK(base != MAP_FAILED);
    base_ = static_cast<std::byte*>(base);
    room_ = base_ + page;
    FB_CHECK(mprotect(room_, room_bytes_, PROT_READ | PROT_WRITE) == 0);
  }
  ~GuardedMemory() { munmap(base_, mapped_bytes_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // `bytes` that end where the guard begins; where they are all of the room, they begin there too.
  MutableBytes Last(size_t bytes) {
    FB_CHECK(bytes <= room_bytes_);
    return {room_ + (room_bytes_ - bytes), bytes};
  }
  // A copy of `bytes` there.
  Bytes Hold(Bytes bytes) {
    const MutableBytes held = Last(bytes.size());
    if (!bytes.empty()) std::memcpy(held.data(), bytes.data(), bytes.size());
    return held;
  }

 private:
  size_t room_bytes_ = 0;
  size_t mapped_bytes_ = 0;
  std::byte* base_ = nullptr;
  std::byte* room_ = nullptr;
};

}  // namespace forebay::fuzz
