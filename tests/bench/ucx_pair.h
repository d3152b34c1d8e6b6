#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tests/bench/ceilings.h"

namespace forebay::bench {

// Two UCX workers, ours and a child process's, and nothing between them but active messages: the
// ceiling of the ucx path. Settings and transport are those of the product.
//
// Threads  one.
class UcxPair {
 public:
  // UNIMPLEMENTED in a build without UCX.
  static absl::StatusOr<std::unique_ptr<UcxPair>> Start();
  ~UcxPair();
  UcxPair(const UcxPair&) = delete;
  UcxPair& operator=(const UcxPair&) = delete;

  // As SocketPair's.
  absl::StatusOr<double> ReceiveRate(Buffer& to, size_t message, size_t total);
  absl::StatusOr<double> SendRate(Buffer& from, size_t message, size_t total);

 private:
  class End;

  UcxPair(int fd, int child, std::unique_ptr<End> end);

  int fd_ = -1;
  int child_ = -1;
  std::unique_ptr<End> end_;
};

}  // namespace forebay::bench
