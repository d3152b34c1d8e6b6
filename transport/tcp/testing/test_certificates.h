#pragma once

#include <string>

namespace forebay::testing {

// A certificate authority of the test's own, made at run time, and files signed by it, in a folder
// that goes with it.
class TestCertificateAuthority {
 public:
  // Fails the running test where OpenSSL or the file system refuses.
  explicit TestCertificateAuthority(const std::string& name);
  ~TestCertificateAuthority();
  TestCertificateAuthority(const TestCertificateAuthority&) = delete;
  TestCertificateAuthority& operator=(const TestCertificateAuthority&) = delete;

  // PEM files. The certificate's name is `name`, as common name and as DNS name.
  struct Files {
    std::string certificate_file;
    std::string key_file;
  };
  Files Issue(const std::string& name);
  const std::string& ca_file() const { return ca_file_; }

 private:
  struct Keys;
  Keys* keys_;  // owned; OpenSSL's types stay in the .cc
  std::string folder_;
  std::string ca_file_;
};

}  // namespace forebay::testing
