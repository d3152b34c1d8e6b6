#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"

// A ring of records between two processes that do not trust each other. One writes, one reads.
// Positions are bytes since the start, ever; they wrap at the size of the ring only when they
// become addresses. Whatever comes out of the shared words or the ring is a claim: it is copied out
// once, then checked, and only the copy is used.
namespace forebay {

enum class RecordKind : uint32_t {
  kMessage = 1,  // a message begins: its header follows
  kStaged = 2,   // the next payload bytes lie in the writer's staging area
  kShared = 3,   // the next payload bytes lie in a region that the writer exports
  kPing = 4,     // nothing but a reason to move the head
};

// First in every record. Records begin at multiples of its size, so it never wraps.
struct RecordHead {
  RecordKind kind = RecordKind::kPing;
  uint32_t header_bytes = 0;   // kMessage: how many follow this head
  uint64_t payload_bytes = 0;  // kMessage: of the whole payload; kStaged, kShared: of this chunk
  uint64_t offset = 0;         // kStaged, kShared: where in the area or region
  uint32_t region = 0;         // kShared: which
  uint32_t reserved = 0;
};
static_assert(sizeof(RecordHead) == 32);

inline uint64_t RecordBytes(uint64_t header_bytes) {
  return (sizeof(RecordHead) + header_bytes + sizeof(RecordHead) - 1) & ~(sizeof(RecordHead) - 1);
}

// The writing end. Keeps its position to itself and only announces it.
//
// Borrows  the ring and the words.
class RecordWriter {
 public:
  // `ring` is a power of two long. `head` is the reader's word.
  RecordWriter(MutableBytes ring, std::atomic<uint64_t>& tail, const std::atomic<uint64_t>& head)
      : ring_(ring), shared_tail_(tail), shared_head_(head) {}

  uint64_t tail() const { return tail_; }
  // How far the reader came, by its own word.
  uint64_t consumed() const { return consumed_; }
  uint64_t free_bytes() const { return ring_.size() - (tail_ - consumed_); }
  bool Fits(uint64_t header_bytes) const { return RecordBytes(header_bytes) <= free_bytes(); }

  // Requires Fits(header.size()).
  void Write(const RecordHead& head, Bytes header = {}) {
    CopyIn(tail_, &head, sizeof(head));
    CopyIn(tail_ + sizeof(head), header.data(), header.size());
    tail_ += RecordBytes(header.size());
  }
  // Shows the reader what was written.
  void Publish() { shared_tail_.store(tail_, std::memory_order_release); }

  // Whether the reader moved since Refresh().
  bool HasNews() const { return shared_head_.load(std::memory_order_acquire) != consumed_; }
  // Learns how far the reader came. False if what its word says cannot be.
  bool Refresh() {
    const uint64_t head = shared_head_.load(std::memory_order_acquire);
    if (tail_ - head > tail_ - consumed_) return false;
    consumed_ = head;
    return true;
  }

 private:
  void CopyIn(uint64_t position, const void* from, size_t bytes) {
    if (bytes == 0) return;
    const size_t at = position & (ring_.size() - 1);
    const size_t first = std::min(bytes, ring_.size() - at);
    std::memcpy(ring_.data() + at, from, first);
    std::memcpy(ring_.data(), static_cast<const std::byte*>(from) + first, bytes - first);
  }

  const MutableBytes ring_;
  std::atomic<uint64_t>& shared_tail_;
  const std::atomic<uint64_t>& shared_head_;
  uint64_t tail_ = 0;
  uint64_t consumed_ = 0;
};

// The reading end.
//
// Borrows  the ring and the words.
class RecordReader {
 public:
  RecordReader(Bytes ring, const std::atomic<uint64_t>& tail, std::atomic<uint64_t>& head)
      : ring_(ring), shared_tail_(tail), shared_head_(head) {}

  uint64_t available() const { return tail_ - head_; }
  // How far the writer was told that we came.
  uint64_t published() const { return published_; }
  // Whether there is anything to read, known or not yet known.
  bool HasNews() const { return shared_tail_.load(std::memory_order_acquire) != head_; }
  // Learns how far the writer came. False if what its word says cannot be.
  bool Refresh() {
    const uint64_t tail = shared_tail_.load(std::memory_order_acquire);
    const uint64_t ahead = tail - head_;
    if (ahead > ring_.size() || ahead % sizeof(RecordHead) != 0 || ahead < available())
      return false;
    tail_ = tail;
    return true;
  }

  // A copy of the next head. Requires available() > 0.
  RecordHead Peek() const {
    RecordHead head;
    std::memcpy(&head, ring_.data() + (head_ & (ring_.size() - 1)), sizeof(head));
    // So that the compiler never fetches a checked field a second time from the ring.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return head;
  }
  // Copies what follows the next head. Requires RecordBytes(to.size()) <= available().
  void CopyHeader(MutableBytes to) const {
    FB_CHECK(RecordBytes(to.size()) <= available());
    const size_t at = (head_ + sizeof(RecordHead)) & (ring_.size() - 1);
    const size_t first = std::min(to.size(), ring_.size() - at);
    std::memcpy(to.data(), ring_.data() + at, first);
    std::memcpy(to.data() + first, ring_.data(), to.size() - first);
  }
  // Requires RecordBytes(header_bytes) <= available().
  void Consume(uint64_t header_bytes) {
    FB_CHECK(RecordBytes(header_bytes) <= available());
    head_ += RecordBytes(header_bytes);
  }
  // Tells the writer how far we came. True if there was something to tell.
  bool Publish() {
    if (published_ == head_) return false;
    published_ = head_;
    shared_head_.store(head_, std::memory_order_release);
    return true;
  }

 private:
  const Bytes ring_;
  const std::atomic<uint64_t>& shared_tail_;
  std::atomic<uint64_t>& shared_head_;
  uint64_t tail_ = 0;
  uint64_t head_ = 0;
  uint64_t published_ = 0;
};

}  // namespace forebay
