#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"

namespace forebay {

// A bounded queue of small messages: many senders, one receiver, no lock.
//
// Errors   TryPut() is false when full: the sender answers RESOURCE_EXHAUSTED.
// Threads  TryPut() from any thread; TryTake() from the owner alone.
// Source   the bounded MPMC ring of D. Vyukov, with one consumer.
template <typename T>
class Mailbox {
 public:
  // `capacity` is rounded up to a power of two.
  explicit Mailbox(size_t capacity) {
    size_t size = 2;
    while (size < capacity) size *= 2;
    mask_ = size - 1;
    cells_ = std::make_unique<Cell[]>(size);
    for (size_t i = 0; i < size; ++i) cells_[i].sequence.store(i, std::memory_order_relaxed);
  }

  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Moves from `message` only if it returns true.
  bool TryPut(T& message) {
    size_t position = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[position & mask_];
      const size_t sequence = cell.sequence.load(std::memory_order_acquire);
      const auto ahead = static_cast<ptrdiff_t>(sequence - position);
      if (ahead < 0) return false;
      if (ahead > 0) {
        position = tail_.load(std::memory_order_relaxed);
        continue;
      }
      if (tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
        cell.value.emplace(std::move(message));
        cell.sequence.store(position + 1, std::memory_order_release);
        return true;
      }
    }
  }

  std::optional<T> TryTake() {
    Cell& cell = cells_[head_ & mask_];
    if (cell.sequence.load(std::memory_order_acquire) != head_ + 1) return std::nullopt;
    std::optional<T> message(std::move(cell.value));
    cell.value.reset();
    cell.sequence.store(head_ + mask_ + 1, std::memory_order_release);
    ++head_;
    return message;
  }

  // For the owner, just before it sleeps.
  bool empty() const {
    return cells_[head_ & mask_].sequence.load(std::memory_order_acquire) != head_ + 1;
  }

 private:
  struct Cell {
    std::atomic<size_t> sequence{0};
    std::optional<T> value;
  };

  size_t mask_ = 0;
  std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<size_t> tail_{0};
  alignas(64) size_t head_ = 0;
};

}  // namespace forebay
