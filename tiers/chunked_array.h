#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace forebay {

// An array that grows by chunks and never moves an element: no copy of a million rows in one turn
// of a reactor, and references stay. It does not shrink.
//
// Threads  one reactor.
template <typename T, size_t kChunkLog2 = 12>
class ChunkedArray {
 public:
  T& operator[](size_t i) { return chunks_[i >> kChunkLog2][i & kMask]; }
  const T& operator[](size_t i) const { return chunks_[i >> kChunkLog2][i & kMask]; }

  // Makes [0, size) usable; new elements are value-initialised.
  void GrowTo(size_t size) {
    while (chunks_.size() << kChunkLog2 < size) chunks_.push_back(std::make_unique<T[]>(kMask + 1));
  }
  size_t capacity() const { return chunks_.size() << kChunkLog2; }
  size_t memory_bytes() const { return capacity() * sizeof(T); }

 private:
  static constexpr size_t kMask = (size_t{1} << kChunkLog2) - 1;
  std::vector<std::unique_ptr<T[]>> chunks_;
};

}  // namespace forebay
