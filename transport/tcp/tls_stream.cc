#include "transport/tcp/tls_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

constexpr size_t kRecordBytes = 16 * 1024;  // the largest TLS record

// OpenSSL writes with write(2), which raises SIGPIPE on a socket whose peer is gone. A library must
// not change what the process does with signals, so the signal is held back on this thread for the
// length of a call, and taken away if it came.
class SigpipeBlock {
 public:
  SigpipeBlock() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeBlock() {
    const int error = errno;
    if (broken_ && !was_pending_) {
      const timespec no_wait{};
      while (sigtimedwait(&pipe_, nullptr, &no_wait) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

  void set_broken() { broken_ = true; }

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
  bool broken_ = false;
};

// The oldest error of OpenSSL's queue in words; empties the queue.
std::string TakeErrorText() {
  const unsigned long error = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : absl::StrCat("error 0x", absl::Hex(error));
}

absl::Status FileError(absl::string_view what, const std::string& file) {
  return absl::InvalidArgumentError(absl::StrCat("TLS ", what, " ", file, ": ", TakeErrorText()));
}

class TlsStream final : public ByteStream {
 public:
  TlsStream(SSL* ssl, int fd) : ssl_(ssl), fd_(fd) {}
  ~TlsStream() override {
    // A close_notify, so that the peer can tell an end from a cut; nobody waits for its answer.
    if (established_ && !failed_) {
      SigpipeBlock block;
      ERR_clear_error();
      SSL_shutdown(ssl_);
      block.set_broken();
    }
    SSL_free(ssl_);
    close(fd_);
  }

  StreamResult Handshake() override {
    SigpipeBlock block;
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_);
    if (result == 1) {
      established_ = true;
      return {};
    }
    return Outcome(result, block);
  }

  StreamResult Read(absl::Span<const iovec> ranges) override {
    // Reading may write: alerts, answers to key updates.
    SigpipeBlock block;
    StreamResult total;
    for (const iovec& range : ranges) {
      auto* to = static_cast<unsigned char*>(range.iov_base);
      size_t left = range.iov_len;
      while (left > 0) {
        ERR_clear_error();
        size_t got = 0;
        const int result = SSL_read_ex(ssl_, to, left, &got);
        if (result != 1) return Ended(total, result, block);
        total.bytes += got;
        to += got;
        left -= got;
      }
    }
    return total;
  }

  StreamResult Write(absl::Span<const iovec> ranges) override {
    SigpipeBlock block;
    StreamResult total;
    size_t range = 0;
    size_t offset = 0;
    while (range < ranges.size()) {
      const auto* data = static_cast<const unsigned char*>(ranges[range].iov_base) + offset;
      size_t bytes = ranges[range].iov_len - offset;
      if (bytes < kRecordBytes && range + 1 < ranges.size()) {
        bytes = Gather(ranges.subspan(range), offset);
        data = record_.data();
      }
      ERR_clear_error();
      size_t put = 0;
      const int result = SSL_write_ex(ssl_, data, bytes, &put);
      if (result != 1) return Ended(total, result, block);
      total.bytes += put;
      for (offset += put; range < ranges.size() && offset >= ranges[range].iov_len; ++range) {
        offset -= ranges[range].iov_len;
      }
    }
    return total;
  }

  int fd() const override { return fd_; }

 private:
  // Fills one record from small ranges: a record each would cost more than this copy.
  size_t Gather(absl::Span<const iovec> ranges, size_t offset) {
    size_t filled = 0;
    for (const iovec& range : ranges) {
      const size_t bytes = std::min(range.iov_len - offset, kRecordBytes - filled);
      std::memcpy(record_.data() + filled, static_cast<const char*>(range.iov_base) + offset,
                  bytes);
      filled += bytes;
      offset = 0;
      if (filled == kRecordBytes) break;
    }
    return filled;
  }

  // What moved counts, even where the next step failed: the failure comes back at the next call.
  StreamResult Ended(StreamResult total, int result, SigpipeBlock& block) {
    StreamResult last = Outcome(result, block);
    if (total.bytes == 0 || last.kind == StreamResult::Kind::kWouldBlock) {
      last.bytes = total.bytes;
      return last;
    }
    return total;
  }

  StreamResult Outcome(int result, SigpipeBlock& block) {
    const int error = errno;
    switch (SSL_get_error(ssl_, result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        return {StreamResult::Kind::kWouldBlock, 0, {}};
      case SSL_ERROR_ZERO_RETURN:
        return {StreamResult::Kind::kEnd, 0, {}};
      case SSL_ERROR_SYSCALL:
        failed_ = true;
        block.set_broken();
        ERR_clear_error();
        return StreamResult::Failed(
            absl::UnavailableError(error != 0 ? strerror(error) : "the connection was cut"));
      default:
        failed_ = true;
        block.set_broken();
        return Refused();
    }
  }

  // The protocol failed: who refused whom, and why.
  StreamResult Refused() {
    const unsigned long error = ERR_peek_error();  // NOLINT(google-runtime-int): OpenSSL's type
    const int reason = ERR_GET_REASON(error);
    if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
      ERR_clear_error();
      return {StreamResult::Kind::kEnd, 0, {}};
    }
    const long verified = SSL_get_verify_result(ssl_);  // NOLINT(google-runtime-int)
    if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
      ERR_clear_error();
      return StreamResult::Failed(absl::UnauthenticatedError(
          absl::StrCat("the peer's certificate: ", X509_verify_cert_error_string(verified))));
    }
    if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
      ERR_clear_error();
      return StreamResult::Failed(absl::UnauthenticatedError("the peer has no certificate"));
    }
    const std::string text = TakeErrorText();
    if (reason >= SSL_AD_REASON_OFFSET) {
      return StreamResult::Failed(
          absl::UnauthenticatedError(absl::StrCat("the peer refused TLS: ", text)));
    }
    return StreamResult::Failed(absl::DataLossError(absl::StrCat("TLS: ", text)));
  }

  SSL* const ssl_;
  const int fd_;
  bool established_ = false;
  bool failed_ = false;
  std::array<unsigned char, kRecordBytes> record_;
};

absl::Status LoadFiles(SSL_CTX* context, const TlsOptions& options) {
  if (!options.certificate_file.empty()) {
    if (SSL_CTX_use_certificate_chain_file(context, options.certificate_file.c_str()) != 1) {
      return FileError("certificate", options.certificate_file);
    }
    if (SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
      return FileError("key", options.key_file);
    }
    if (SSL_CTX_check_private_key(context) != 1) {
      return FileError("key does not fit its certificate,", options.key_file);
    }
  }
  if (!options.ca_file.empty() &&
      SSL_CTX_load_verify_locations(context, options.ca_file.c_str(), nullptr) != 1) {
    return FileError("CA", options.ca_file);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Create(const TlsOptions& options) {
  if (options.certificate_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError("TLS needs a certificate and its key, or neither");
  }
  if (options.verify_peer && options.ca_file.empty()) {
    return absl::InvalidArgumentError("TLS cannot verify its peers without a CA file");
  }
  ERR_clear_error();
  SSL_CTX* context = SSL_CTX_new(TLS_method());
  if (context == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("TLS context: ", TakeErrorText()));
  }
  std::unique_ptr<TlsContext> owner(
      new TlsContext(context, options.server_name, !options.certificate_file.empty()));
  if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1) {
    return absl::UnimplementedError("this OpenSSL has no TLS 1.3");
  }
  SSL_CTX_set_options(context, SSL_OP_ENABLE_KTLS | SSL_OP_NO_RENEGOTIATION);
  // The writer offers the same bytes again, perhaps from another place and with more behind them.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  // Sessions are never resumed: streams live long, and each must be verified anew.
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_verify(
      context,
      options.verify_peer ? SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT : SSL_VERIFY_NONE,
      nullptr);
  FB_RETURN_IF_ERROR(LoadFiles(context, options));
  return owner;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

absl::StatusOr<std::unique_ptr<ByteStream>> TlsContext::NewStream(int fd, bool is_server) const {
  SSL* ssl = SSL_new(context_);
  if (ssl == nullptr || SSL_set_fd(ssl, fd) != 1) {
    SSL_free(ssl);
    close(fd);
    return absl::ResourceExhaustedError(absl::StrCat("TLS stream: ", TakeErrorText()));
  }
  if (is_server) {
    SSL_set_accept_state(ssl);
  } else {
    SSL_set_connect_state(ssl);
    if (!server_name_.empty() && (SSL_set_tlsext_host_name(ssl, server_name_.c_str()) != 1 ||
                                  SSL_set1_host(ssl, server_name_.c_str()) != 1)) {
      SSL_free(ssl);
      close(fd);
      return absl::InvalidArgumentError(absl::StrCat("TLS server name ", server_name_));
    }
  }
  return std::unique_ptr<ByteStream>(std::make_unique<TlsStream>(ssl, fd));
}

}  // namespace forebay
