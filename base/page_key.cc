#include "base/page_key.h"

#include <bit>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/sha256.h"

namespace forebay {
namespace {

// Token ids are hashed as they lie in memory.
static_assert(std::endian::native == std::endian::little);

// Three kinds of message are hashed into keys, told apart by their length modulo 4, so that none
// can be taken for another whatever a caller puts into it:
//   0  parent, tokens
//   1  parent, tokens, extras, counts, padding (AppendExtras)
//   2  root, engine hash, kEngineDomain
constexpr char kEngineDomain[] = "forebay.engine.v1";  // its NUL is hashed too: 18 bytes
static_assert((32 + 32 + sizeof(kEngineDomain)) % 4 == 2);

void AppendLittleEndian64(std::string& out, uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Each extra with its length first; the counts of extras and of tokens; then 1 to 4 bytes that hold
// how many they are, to a length of 1 modulo 4. Read from its end, the message has one parse only.
std::string EncodeExtras(absl::Span<const absl::string_view> extra_keys, size_t token_count) {
  std::string out;
  for (const absl::string_view extra : extra_keys) {
    AppendLittleEndian64(out, extra.size());
    out.append(extra.data(), extra.size());
  }
  AppendLittleEndian64(out, extra_keys.size());
  AppendLittleEndian64(out, token_count);
  const size_t padding = 1 + (4 - out.size() % 4) % 4;
  out.append(padding, static_cast<char>(padding));
  FB_CHECK(out.size() % 4 == 1);
  return out;
}

}  // namespace

std::string PageKey::ToHex() const {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

absl::StatusOr<PageKey> PageKey::FromHex(absl::string_view hex) {
  PageKey key;
  if (hex.size() != 2 * key.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a page key is 64 hexadecimal digits, not ", hex.size(), " characters"));
  }
  for (const char c : hex) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) {
      return absl::InvalidArgumentError("a page key is 64 hexadecimal digits");
    }
  }
  const std::string raw = absl::HexStringToBytes(hex);
  std::memcpy(key.bytes.data(), raw.data(), key.bytes.size());
  return key;
}

PageKey NextPageKey(const PageKey& parent, absl::Span<const uint32_t> tokens,
                    absl::Span<const absl::string_view> extra_keys) {
  const Bytes parent_bytes = AsBytes(parent.bytes.data(), parent.bytes.size());
  const Bytes token_bytes = AsBytes(tokens.data(), tokens.size() * sizeof(uint32_t));
  if (extra_keys.empty()) return PageKey{Sha256({parent_bytes, token_bytes})};
  const std::string extras = EncodeExtras(extra_keys, tokens.size());
  return PageKey{Sha256({parent_bytes, token_bytes, AsBytes(extras.data(), extras.size())})};
}

std::vector<PageKey> PageKeysOf(const PageKey& root, absl::Span<const uint32_t> tokens,
                                uint32_t page_tokens) {
  FB_CHECK(page_tokens >= 1);
  const size_t page_count = tokens.size() / page_tokens;
  std::vector<PageKey> keys;
  keys.reserve(page_count);
  PageKey parent = root;
  for (size_t page = 0; page < page_count; ++page) {
    parent = NextPageKey(parent, tokens.subspan(page * page_tokens, page_tokens));
    keys.push_back(parent);
  }
  return keys;
}

PageKey BindEngineHash(const PageKey& root, const std::array<uint8_t, 32>& engine_hash) {
  return PageKey{Sha256({AsBytes(root.bytes.data(), root.bytes.size()),
                         AsBytes(engine_hash.data(), engine_hash.size()),
                         AsBytes(kEngineDomain, sizeof(kEngineDomain))})};
}

}  // namespace forebay
