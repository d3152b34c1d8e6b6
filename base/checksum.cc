#include "base/checksum.h"

#include <algorithm>
#include <cstring>

#include "base/checksum_kernel.h"

namespace forebay {
namespace {

// Up to here XXH3 wants its input in one piece.
constexpr uint64_t kShortBytes = 240;

const ForebayChecksumKernel& ChooseKernel() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return forebay_checksum_avx512;
  if (__builtin_cpu_supports("avx2")) return forebay_checksum_avx2;
#endif
  return forebay_checksum_baseline;
}

const ForebayChecksumKernel& Kernel() {
  static const ForebayChecksumKernel& kernel = ChooseKernel();
  return kernel;
}

}  // namespace

uint64_t ChecksumOf(Bytes bytes) { return Kernel().hash(bytes.data(), bytes.size()); }

uint64_t CopyAndChecksum(void* to, const void* from, size_t bytes) {
  RunningChecksum running;
  running.CopyAndUpdate(to, from, bytes);
  return running.Digest();
}

void RunningChecksum::Reset() {
  Kernel().begin(accumulators_);
  held_bytes_ = 0;
  block_at_ = 0;
  bytes_ = 0;
}

void RunningChecksum::Update(Bytes bytes) {
  Take(nullptr, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

void RunningChecksum::CopyAndUpdate(void* to, const void* from, size_t bytes) {
  Take(static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes);
}

void RunningChecksum::Take(unsigned char* to, const unsigned char* from, size_t bytes) {
  const ForebayChecksumKernel& kernel = Kernel();
  bytes_ += bytes;
  if (bytes_ > kHeldBytesMax) {
    const size_t beyond = held_bytes_ % kStripeBytes;
    if (beyond > 0) {
      const size_t filled = std::min(bytes, kStripeBytes - beyond);
      Hold(&to, &from, filled);
      bytes -= filled;
    }
    if (bytes >= 2 * kStripeBytes) {
      const size_t stripes = bytes / kStripeBytes - 1;
      block_at_ = kernel.eat(accumulators_, block_at_, held_, held_bytes_ / kStripeBytes);
      held_bytes_ = 0;
      if (to == nullptr) {
        block_at_ = kernel.eat(accumulators_, block_at_, from, stripes);
      } else {
        block_at_ = kernel.copy(accumulators_, block_at_, to, from, stripes);
        to += stripes * kStripeBytes;
      }
      from += stripes * kStripeBytes;
      bytes -= stripes * kStripeBytes;
    }
  }
  Hold(&to, &from, bytes);
}

void RunningChecksum::Hold(unsigned char** to, const unsigned char** from, size_t bytes) {
  while (bytes > 0) {
    if (held_bytes_ == kHeldBytesMax) {
      constexpr size_t kEaten = kHeldBytesMax - kStripeBytes;
      block_at_ = Kernel().eat(accumulators_, block_at_, held_, kEaten / kStripeBytes);
      std::memcpy(held_, held_ + kEaten, kStripeBytes);
      held_bytes_ = kStripeBytes;
    }
    const size_t now = std::min(bytes, kHeldBytesMax - held_bytes_);
    unsigned char* const end = held_ + held_bytes_;
    std::memcpy(end, *from, now);
    if (*to != nullptr) {
      std::memcpy(*to, end, now);  // from what will be eaten: each byte is read once
      *to += now;
    }
    *from += now;
    held_bytes_ += now;
    bytes -= now;
  }
}

uint64_t RunningChecksum::Digest() const {
  const ForebayChecksumKernel& kernel = Kernel();
  if (bytes_ <= kShortBytes) return kernel.hash(held_, held_bytes_);
  alignas(64) uint64_t accumulators[8];
  std::memcpy(accumulators, accumulators_, sizeof(accumulators));
  kernel.eat(accumulators, block_at_, held_, (held_bytes_ - 1) / kStripeBytes);
  return kernel.digest(accumulators, held_ + held_bytes_ - kStripeBytes, bytes_);
}

}  // namespace forebay
