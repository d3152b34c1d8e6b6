#pragma once

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "base/bytes.h"

namespace forebay {

using Sha256Digest = std::array<uint8_t, 32>;

// SHA-256 of the concatenation of `pieces`.
Sha256Digest Sha256(absl::Span<const Bytes> pieces);
// HMAC-SHA-256 (RFC 2104) of `message` under `secret` of any length.
Sha256Digest HmacSha256(Bytes secret, Bytes message);

}  // namespace forebay
