#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace forebay {

// What one call of a ByteStream did.
struct StreamResult {
  enum class Kind : uint8_t {
    kDone,        // `bytes` moved, and there may be more at once
    kWouldBlock,  // `bytes` moved (perhaps 0), and nothing more until the descriptor says so
    kEnd,         // the peer closed its side
    kFailed,      // `status`
  };
  Kind kind = Kind::kDone;
  size_t bytes = 0;
  absl::Status status;

  static StreamResult Failed(absl::Status status) { return {Kind::kFailed, 0, std::move(status)}; }
};

// A connected byte stream that never waits: a socket, or TLS over one.
//
// Owns     the descriptor; the destructor closes it.
// Errors   UNAVAILABLE where the link broke, UNAUTHENTICATED where TLS refused the peer, DATA_LOSS
//          where it is no TLS at all.
// Threads  one reactor. No call raises SIGPIPE.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Agrees with the peer before the first byte; again when the descriptor is ready. kDone when it
  // is complete.
  virtual StreamResult Handshake() = 0;
  // Into `ranges`, in order, as much as there is.
  virtual StreamResult Read(absl::Span<const iovec> ranges) = 0;
  // From `ranges`, in order, as much as fits. After kWouldBlock the next call must begin with the
  // same bytes: TLS has sealed them already.
  virtual StreamResult Write(absl::Span<const iovec> ranges) = 0;
  virtual int fd() const = 0;
};

// Takes over `fd`.
std::unique_ptr<ByteStream> NewPlainStream(int fd);

}  // namespace forebay
