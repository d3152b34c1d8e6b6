#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace forebay {

// The sizes of slots that a slab can be cut into.
//
// A frame is a header of 64 bytes and a payload that is often a power of two. So a class is 64
// bytes and one of eight sizes an octave: such a frame fits exactly, where eighths of an octave
// alone would waste a tenth of the pool on the header. No frame wastes more than an eighth, but for
// those under half a KiB and those of which a slab holds only a few. From 128 KiB up, slots are
// whole pages.
//
// Limits   at most kSlotsPerSlabMax slots a slab, which bounds the smallest class from below.
class SizeClasses {
 public:
  static constexpr uint32_t kSlotsPerSlabMax = 1u << 16;

  struct Class {
    uint64_t slot_bytes = 0;  // a multiple of 64
    uint32_t slots_per_slab = 0;
  };

  // Requires slab_bytes to be a multiple of 4096, and more than 0.
  explicit SizeClasses(uint64_t slab_bytes);

  // The class with the smallest slots that hold `frame_bytes`. Requires 1 to slab_bytes.
  uint32_t ClassOf(uint64_t frame_bytes) const;
  const Class& operator[](uint32_t i) const { return classes_[i]; }
  uint32_t count() const { return static_cast<uint32_t>(classes_.size()); }

 private:
  std::vector<Class> classes_;  // by slot size, ascending; the last is a whole slab
};

}  // namespace forebay
