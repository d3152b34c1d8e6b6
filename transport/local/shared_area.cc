#include "transport/local/shared_area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

constexpr uint64_t kPageBytes = 4096;
static_assert(2 * sizeof(SideWords) <= kPageBytes);
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

uint64_t AreaBytes(const SharedArea::Sizes& sizes) {
  return kPageBytes + 2 * (sizes.ring_bytes + sizes.staging_bytes);
}

absl::Status CheckSealed(int fd, uint64_t bytes, int seals_wanted) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    return absl::FailedPreconditionError("shared memory is no memfd: it has no seals");
  }
  if ((seals & seals_wanted) != seals_wanted) {
    return absl::FailedPreconditionError(absl::StrCat(
        "shared memory is not sealed: wanted ", seals_wanted, ", has ", seals, " (F_SEAL_ bits)"));
  }
  struct stat file;
  if (fstat(fd, &file) != 0 || file.st_size < 0 || static_cast<uint64_t>(file.st_size) < bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("shared memory is shorter than the ", bytes, " bytes that were named"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> MapShared(int fd, uint64_t bytes, int protection) {
  void* base = mmap(nullptr, bytes, protection, MAP_SHARED, fd, /*offset=*/0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", bytes, " bytes of shared memory: ", std::strerror(errno)));
  }
  // A fork of this process must not write as if it were this end of the endpoint. Regions it may
  // read: an engine's fork may hold views.
  if ((protection & PROT_WRITE) != 0) madvise(base, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(base);
}

}  // namespace

absl::Status SharedArea::Validate(const Sizes& sizes) {
  if (sizes.ring_bytes < kRingBytesMin || sizes.ring_bytes > kRingBytesMax ||
      !std::has_single_bit(sizes.ring_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("a ring of ", sizes.ring_bytes,
                                                   " bytes: wanted a power of two from ",
                                                   kRingBytesMin, " to ", kRingBytesMax));
  }
  if (sizes.staging_bytes < kStagingBytesMin || sizes.staging_bytes > kStagingBytesMax ||
      sizes.staging_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a staging area of ", sizes.staging_bytes, " bytes: wanted a multiple of ",
                     kPageBytes, " from ", kStagingBytesMin, " to ", kStagingBytesMax));
  }
  return absl::OkStatus();
}

absl::StatusOr<SharedArea> SharedArea::Create(const Sizes& sizes) {
  FB_FAILPOINT("transport.local.share");
  FB_RETURN_IF_ERROR(Validate(sizes));
  UniqueFd fd(memfd_create("forebay-local", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.ok() || ftruncate(fd.get(), static_cast<off_t>(AreaBytes(sizes))) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot make ", AreaBytes(sizes), " bytes of shared memory: ", std::strerror(errno)));
  }
  FB_ASSIGN_OR_RETURN(std::byte * base,
                      MapShared(fd.get(), AreaBytes(sizes), PROT_READ | PROT_WRITE));
  new (base) SideWords[2];
  return SharedArea(std::move(fd), base, sizes);
}

absl::StatusOr<SharedArea> SharedArea::Map(UniqueFd fd, const Sizes& sizes) {
  FB_RETURN_IF_ERROR(Validate(sizes));
  FB_RETURN_IF_ERROR(CheckSealed(fd.get(), AreaBytes(sizes), kSizeSeals));
  FB_ASSIGN_OR_RETURN(std::byte * base,
                      MapShared(fd.get(), AreaBytes(sizes), PROT_READ | PROT_WRITE));
  return SharedArea(std::move(fd), base, sizes);
}

SharedArea::SharedArea(UniqueFd fd, std::byte* base, const Sizes& sizes)
    : fd_(std::move(fd)), base_(base), sizes_(sizes) {}

SharedArea::SharedArea(SharedArea&& other) noexcept
    : fd_(std::move(other.fd_)), base_(std::exchange(other.base_, nullptr)), sizes_(other.sizes_) {}

SharedArea::~SharedArea() {
  if (base_ != nullptr) munmap(base_, AreaBytes(sizes_));
}

SideWords& SharedArea::words(LocalSide side) const {
  return std::launder(reinterpret_cast<SideWords*>(base_))[static_cast<size_t>(side)];
}

MutableBytes SharedArea::ring(LocalSide side) const {
  return {base_ + kPageBytes + static_cast<size_t>(side) * sizes_.ring_bytes, sizes_.ring_bytes};
}

MutableBytes SharedArea::staging(LocalSide side) const {
  return {
      base_ + kPageBytes + 2 * sizes_.ring_bytes + static_cast<size_t>(side) * sizes_.staging_bytes,
      sizes_.staging_bytes};
}

absl::StatusOr<ReadOnlyRegion> ReadOnlyRegion::Map(int fd, uint64_t bytes) {
  if (bytes == 0) return absl::FailedPreconditionError("a shared region of 0 bytes");
  FB_RETURN_IF_ERROR(CheckSealed(fd, bytes, F_SEAL_SHRINK));
  FB_ASSIGN_OR_RETURN(std::byte * base, MapShared(fd, bytes, PROT_READ));
  return ReadOnlyRegion(base, bytes);
}

ReadOnlyRegion::~ReadOnlyRegion() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

ReadOnlyRegion::ReadOnlyRegion(ReadOnlyRegion&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}

absl::Status CheckExportable(int fd, uint64_t bytes) {
  return CheckSealed(fd, bytes, kSizeSeals | F_SEAL_FUTURE_WRITE);
}

}  // namespace forebay
