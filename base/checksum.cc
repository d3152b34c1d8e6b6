#include "base/checksum.h"

#include <algorithm>
#include <cstring>

#include "base/checksum_kernel.h"

namespace forebay {
namespace {

// Copied, then hashed where it arrived. Half of a first-level cache of 32 KiB: the block that was
// just written is still there when it is read back.
constexpr size_t kCopyBlockBytes = size_t{16} << 10;

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
  if (bytes == 0) return ChecksumOf({});
  if (bytes <= kCopyBlockBytes) {
    std::memcpy(to, from, bytes);
    return Kernel().hash(to, bytes);
  }
  RunningChecksum running;
  running.CopyAndUpdate(to, from, bytes);
  return running.Digest();
}

void RunningChecksum::Reset() {
  Kernel().reset(state_);
  bytes_ = 0;
}

void RunningChecksum::Update(Bytes bytes) {
  if (bytes.empty()) return;
  Kernel().update(state_, bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

void RunningChecksum::CopyAndUpdate(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const size_t block = std::min(bytes, kCopyBlockBytes);
    std::memcpy(target, source, block);
    Update({target, block});
    target += block;
    source += block;
    bytes -= block;
  }
}

uint64_t RunningChecksum::Digest() const { return Kernel().digest(state_); }

}  // namespace forebay
