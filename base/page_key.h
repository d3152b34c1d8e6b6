#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace forebay {

// Names one full page by everything that decides its contents: the namespace (through its root key)
// and every token from the start of the sequence to the end of the page.
//
// Shape    32 bytes: SHA-256(parent key, token ids as 4-byte little-endian, extra keys, each extra
//          with its length first). Equal keys are equal pages; no token is compared again.
// Errors   none: any 32 bytes are a key. A key that nobody published is simply a miss.
// Threads  a value; copy it freely.
// Source   chained block hashing as in the prefix caches of inference engines.
struct PageKey {
  std::array<uint8_t, 32> bytes{};

  friend bool operator==(const PageKey&, const PageKey&) = default;
  friend auto operator<=>(const PageKey&, const PageKey&) = default;

  // The first eight bytes: uniform, so good enough to place and to hash by.
  uint64_t Prefix64() const {
    uint64_t value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }

  std::string ToHex() const;
  static absl::StatusOr<PageKey> FromHex(absl::string_view hex);

  template <typename H>
  friend H AbslHashValue(H h, const PageKey& key) {
    return H::combine(std::move(h), key.Prefix64());
  }
};
static_assert(sizeof(PageKey) == 32);

// The key of the page after `parent` that holds `tokens`. `extra_keys`: what else decides the
// contents of this page (hashes of images in it, for example), in order.
//
// Shape    without extras exactly SHA-256(parent, tokens as LE32). With extras a trailer follows
// (see
//          page_key.cc), so that no (tokens, extras) hash like any other pair.
PageKey NextPageKey(const PageKey& parent, absl::Span<const uint32_t> tokens,
                    absl::Span<const absl::string_view> extra_keys = {});

// Keys of the full pages of `tokens`, first page first. A trailing partial page has no key.
//
// Shape    tokens: [token_count] ids -> keys: [token_count / page_tokens]
// Requires page_tokens >= 1.
std::vector<PageKey> PageKeysOf(const PageKey& root, absl::Span<const uint32_t> tokens,
                                uint32_t page_tokens);

// Binds a 256-bit chained hash of an engine's own under a namespace.
PageKey BindEngineHash(const PageKey& root, const std::array<uint8_t, 32>& engine_hash);

}  // namespace forebay
