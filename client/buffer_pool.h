#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace forebay {

// Memory for payloads on their way through a codec, kept for the next one: fresh memory costs a
// page fault for every 4 KiB, which is about as much as to encode them.
//
// Threads  one reactor.
class BufferPool {
 public:
  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;

    MutableBytes span() const { return {memory.get(), bytes}; }
  };

  // Of at least `bytes`; what is in it is unspecified.
  Buffer Take(size_t bytes) {
    for (Buffer& kept : kept_) {
      if (kept.bytes < bytes) continue;
      std::swap(kept, kept_.back());
      Buffer buffer = std::move(kept_.back());
      kept_.pop_back();
      kept_bytes_ -= buffer.bytes;
      return buffer;
    }
    return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  }
  void Give(Buffer buffer) {
    if (buffer.memory == nullptr || kept_bytes_ + buffer.bytes > kKeptBytesMax) return;
    kept_bytes_ += buffer.bytes;
    kept_.push_back(std::move(buffer));
  }

 private:
  static constexpr size_t kKeptBytesMax = 16u << 20;
  std::vector<Buffer> kept_;
  size_t kept_bytes_ = 0;
};

}  // namespace forebay
