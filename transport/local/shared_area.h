#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/local/unique_fd.h"

// The memory that two ends of a local endpoint share, and other memfds that pass between processes.
namespace forebay {

// Who of the two.
enum class LocalSide : uint8_t { kAcceptor = 0, kConnector = 1 };
inline LocalSide OtherSide(LocalSide side) {
  return side == LocalSide::kAcceptor ? LocalSide::kConnector : LocalSide::kAcceptor;
}

// A fence between two processes. Thread sanitizer knows no fences, and sees only one of the
// processes.
inline void SharedFence(std::memory_order order) {
#pragma GCC diagnostic push
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif
  std::atomic_thread_fence(order);
#pragma GCC diagnostic pop
}

// What a sleeper wants to be woken for (bits of SideWords::sleeping).
inline constexpr uint32_t kWakeOnRecords = 1;   // the other side wrote to its ring
inline constexpr uint32_t kWakeOnConsumed = 2;  // the other side read from ours

// The words of one side. That side alone writes them, but for `sleeping`, which its peer clears
// when it wakes it. A side never reads back its own words (it has private copies), and takes
// whatever the other's say as a claim to be checked: both processes can write every byte of this
// memory.
struct SideWords {
  alignas(64) std::atomic<uint64_t> tail{0};  // bytes written to its ring, ever
  alignas(64) std::atomic<uint64_t> head{0};  // bytes read of the other's ring, ever
  alignas(64) std::atomic<uint32_t> sleeping{0};
  std::atomic<uint64_t> wake_head{0};  // with kWakeOnConsumed: not before the other reads this far
  std::atomic<uint32_t> closed{0};     // 1 from just before it takes its payloads back
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(SideWords) == 192);

// A memfd with the words, a ring and a staging area of each side:
//   page 0: SideWords[2]; then ring, ring, staging, staging (acceptor's first).
// Sealed against shrinking and growing before anybody maps it, so that no access can fault.
//
// Owns     the mapping and the descriptor.
class SharedArea {
 public:
  static constexpr uint64_t kRingBytesMin = 256 * 1024;  // four of the largest headers
  static constexpr uint64_t kRingBytesMax = 64ull << 20;
  static constexpr uint64_t kStagingBytesMin = 64 * 1024;
  static constexpr uint64_t kStagingBytesMax = 1ull << 30;

  // Of one side: ring bytes a power of two, staging bytes a multiple of a page, both within the
  // limits above. INVALID_ARGUMENT otherwise.
  struct Sizes {
    uint64_t ring_bytes = 0;
    uint64_t staging_bytes = 0;
  };
  static absl::Status Validate(const Sizes& sizes);

  // RESOURCE_EXHAUSTED when the kernel gives no memory.
  static absl::StatusOr<SharedArea> Create(const Sizes& sizes);
  // Maps what a peer created. FAILED_PRECONDITION if it is not sealed or not as large as it must
  // be.
  static absl::StatusOr<SharedArea> Map(UniqueFd fd, const Sizes& sizes);

  ~SharedArea();
  SharedArea(SharedArea&& other) noexcept;
  SharedArea& operator=(SharedArea&&) = delete;

  int fd() const { return fd_.get(); }
  SideWords& words(LocalSide side) const;
  MutableBytes ring(LocalSide side) const;
  MutableBytes staging(LocalSide side) const;

 private:
  SharedArea(UniqueFd fd, std::byte* base, const Sizes& sizes);

  UniqueFd fd_;
  std::byte* base_;
  Sizes sizes_;
};

// Memory of a peer, mapped for reading alone.
//
// Owns     the mapping.
class ReadOnlyRegion {
 public:
  // Maps the first `bytes` of `fd` and does not keep it. FAILED_PRECONDITION if the file could
  // shrink under the mapping (no F_SEAL_SHRINK: reading it could then kill us) or is shorter than
  // `bytes`.
  static absl::StatusOr<ReadOnlyRegion> Map(int fd, uint64_t bytes);
  ~ReadOnlyRegion();
  ReadOnlyRegion(ReadOnlyRegion&& other) noexcept;
  ReadOnlyRegion& operator=(ReadOnlyRegion&&) = delete;

  Bytes bytes() const { return AsBytes(base_, bytes_); }

 private:
  ReadOnlyRegion(void* base, uint64_t bytes) : base_(base), bytes_(bytes) {}

  void* base_;
  uint64_t bytes_;
};

// OK if `fd` is a memfd that cannot change its size and of which a receiver can make no writable
// mapping: what an owner must have done before it hands it out. FAILED_PRECONDITION otherwise.
absl::Status CheckExportable(int fd, uint64_t bytes);

}  // namespace forebay
