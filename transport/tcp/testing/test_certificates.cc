#include "transport/tcp/testing/test_certificates.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>

#include "base/check.h"

namespace forebay::testing {
namespace {

constexpr long kValidSeconds = 24 * 60 * 60;

void AddExtension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str());
  FB_CHECK(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

X509* NewCertificate(const std::string& name, EVP_PKEY* key, long serial) {
  X509* certificate = X509_new();
  FB_CHECK(certificate != nullptr);
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), kValidSeconds);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

std::FILE* Open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  FB_CHECK(file != nullptr);
  return file;
}

void WriteCertificate(const std::string& path, X509* certificate) {
  std::FILE* file = Open(path);
  FB_CHECK(PEM_write_X509(file, certificate) == 1);
  std::fclose(file);
}

void WriteKey(const std::string& path, EVP_PKEY* key) {
  std::FILE* file = Open(path);
  FB_CHECK(PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  std::fclose(file);
}

}  // namespace

struct TestCertificateAuthority::Keys {
  EVP_PKEY* key = nullptr;
  X509* certificate = nullptr;
  long last_serial = 1;
};

TestCertificateAuthority::TestCertificateAuthority(const std::string& name) : keys_(new Keys) {
  std::string folder = ::testing::TempDir() + "forebay_tls_XXXXXX";
  FB_CHECK(mkdtemp(folder.data()) != nullptr);
  folder_ = folder;
  ca_file_ = folder_ + "/ca.pem";
  keys_->key = EVP_EC_gen("P-256");
  FB_CHECK(keys_->key != nullptr);
  keys_->certificate = NewCertificate(name, keys_->key, 1);
  X509_set_issuer_name(keys_->certificate, X509_get_subject_name(keys_->certificate));
  AddExtension(keys_->certificate, keys_->certificate, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(keys_->certificate, keys_->certificate, NID_key_usage, "critical,keyCertSign");
  FB_CHECK(X509_sign(keys_->certificate, keys_->key, EVP_sha256()) != 0);
  WriteCertificate(ca_file_, keys_->certificate);
}

TestCertificateAuthority::~TestCertificateAuthority() {
  X509_free(keys_->certificate);
  EVP_PKEY_free(keys_->key);
  delete keys_;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

TestCertificateAuthority::Files TestCertificateAuthority::Issue(const std::string& name) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  FB_CHECK(key != nullptr);
  X509* certificate = NewCertificate(name, key, ++keys_->last_serial);
  X509_set_issuer_name(certificate, X509_get_subject_name(keys_->certificate));
  AddExtension(certificate, keys_->certificate, NID_subject_alt_name, "DNS:" + name);
  FB_CHECK(X509_sign(certificate, keys_->key, EVP_sha256()) != 0);
  const Files files{folder_ + "/" + name + ".pem", folder_ + "/" + name + ".key"};
  WriteCertificate(files.certificate_file, certificate);
  WriteKey(files.key_file, key);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return files;
}

}  // namespace forebay::testing
