#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/tcp/stream.h"

struct ssl_ctx_st;

namespace forebay {

// What TLS needs to know. Files are PEM.
struct TlsOptions {
  std::string certificate_file;  // chain, own certificate first; needed to listen
  std::string key_file;
  std::string ca_file;      // who may sign the peer's certificate
  bool verify_peer = true;  // both ways: a peer without a certificate of that CA is refused
  std::string server_name;  // the name that a server's certificate must carry; empty: any of the CA
};

// Makes TLS 1.3 streams. The only file that knows OpenSSL.
//
// Where the kernel can encrypt (kTLS), OpenSSL lets it.
// Threads  one reactor.
class TlsContext {
 public:
  // INVALID_ARGUMENT that names the file and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Create(const TlsOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  bool has_certificate() const { return has_certificate_; }
  // Takes over `fd`. RESOURCE_EXHAUSTED, and the descriptor is closed, where memory is short.
  absl::StatusOr<std::unique_ptr<ByteStream>> NewStream(int fd, bool is_server) const;

 private:
  TlsContext(ssl_ctx_st* context, std::string server_name, bool has_certificate)
      : context_(context),
        server_name_(std::move(server_name)),
        has_certificate_(has_certificate) {}

  ssl_ctx_st* const context_;
  const std::string server_name_;
  const bool has_certificate_;
};

}  // namespace forebay
