// The low-level SHA256_* calls: OpenSSL 3 marks them deprecated in favour of EVP, whose fetch and
// allocation cost several times a two-block hash. A page key must cost 100 to 200 ns.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "base/sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include "base/check.h"

namespace forebay {

Sha256Digest Sha256(absl::Span<const Bytes> pieces) {
  SHA256_CTX context;
  FB_CHECK(SHA256_Init(&context) == 1);
  for (const Bytes piece : pieces) {
    FB_CHECK(SHA256_Update(&context, piece.data(), piece.size()) == 1);
  }
  Sha256Digest digest;
  FB_CHECK(SHA256_Final(digest.data(), &context) == 1);
  return digest;
}

Sha256Digest HmacSha256(Bytes secret, Bytes message) {
  // HMAC() takes the length of the key as an int; longer secrets are a caller's bug.
  FB_CHECK(secret.size() <= (size_t{1} << 20));
  // OpenSSL refuses a null key, even an empty one.
  const void* key = secret.empty() ? static_cast<const void*>("") : secret.data();
  Sha256Digest digest;
  unsigned int digest_bytes = 0;
  const unsigned char* result = HMAC(EVP_sha256(), key, static_cast<int>(secret.size()),
                                     reinterpret_cast<const unsigned char*>(message.data()),
                                     message.size(), digest.data(), &digest_bytes);
  FB_CHECK(result != nullptr);
  FB_CHECK(digest_bytes == digest.size());
  return digest;
}

}  // namespace forebay
