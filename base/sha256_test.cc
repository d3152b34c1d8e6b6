#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"

namespace forebay {
namespace {

Bytes BytesOf(absl::string_view text) { return AsBytes(text.data(), text.size()); }

std::string Hex(const Sha256Digest& digest) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// FIPS 180-2, appendix B.
TEST(Sha256Test, KnownVectors) {
  EXPECT_EQ(Hex(Sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256({BytesOf("abc")})),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Sha256({BytesOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")})),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256Test, PiecesAreOneMessage) {
  EXPECT_EQ(Sha256({BytesOf("a"), BytesOf(""), BytesOf("bc")}), Sha256({BytesOf("abc")}));
}

// RFC 4231, test cases 1, 2, 6 and 7.
TEST(HmacSha256Test, KnownVectors) {
  EXPECT_EQ(Hex(HmacSha256(BytesOf(std::string(20, '\x0b')), BytesOf("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256(BytesOf("Jefe"), BytesOf("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::string long_secret(131, '\xaa');
  EXPECT_EQ(Hex(HmacSha256(BytesOf(long_secret),
                           BytesOf("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(
      Hex(HmacSha256(BytesOf(long_secret),
                     BytesOf("This is a test using a larger than block-size key and a larger than "
                             "block-size data. The key needs to be hashed before being used by the "
                             "HMAC algorithm."))),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(HmacSha256Test, AnEmptySecretIsASecret) {
  EXPECT_EQ(Hex(HmacSha256({}, {})),
            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

}  // namespace
}  // namespace forebay
