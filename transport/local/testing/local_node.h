#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/reactor.h"
#include "transport/local/local_transport.h"
#include "transport/transport.h"

namespace forebay::testing {

// Byte `i` of the payload with seed `seed`.
inline std::byte PatternByte(uint64_t seed, uint64_t i) {
  return static_cast<std::byte>((seed * 131 + i * 7 + (i >> 8)) & 0xff);
}

// A memfd sealed as a pool's slab is, mapped for writing by its owner.
class Slab {
 public:
  explicit Slab(uint64_t bytes)
      : fd_(memfd_create("forebay-test-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING)), bytes_(bytes) {
    FB_CHECK(ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0);
    base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    FB_CHECK(base_ != MAP_FAILED);
    FB_CHECK(fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0);
  }
  ~Slab() { munmap(base_, bytes_); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(base_); }
  MutableBytes bytes() const { return {data(), bytes_}; }
  LocalTransportOptions::Export exported() const {
    return {.fd = fd_.get(), .bytes = bytes_, .memory = data()};
  }

 private:
  UniqueFd fd_;
  void* base_;
  uint64_t bytes_;
};

// A reactor with one local transport whose handler keeps what arrives. Payloads of more than
// kLandingBytesMax are dropped. Works without gtest, so that a forked child can be one.
//
// Threads  one.
class LocalNode final : public TransportHandler {
 public:
  static constexpr uint64_t kLandingBytesMax = 4 << 20;

  struct Payload {
    std::vector<std::byte> bytes;
    RunningChecksum checksum;
    absl::Status status = absl::UnknownError("still arriving");
  };

  explicit LocalNode(LocalTransportOptions options = {}, const Reactor::Options& spin = {})
      : reactor_(clock_, spin) {
    absl::StatusOr<std::unique_ptr<LocalTransport>> made =
        LocalTransport::Create(clock_, *this, std::move(options));
    FB_CHECK(made.ok());
    transport_ = *std::move(made);
    reactor_.Add(*transport_);
  }
  ~LocalNode() override { reactor_.Remove(*transport_); }

  LocalTransport& transport() { return *transport_; }
  Nanos Now() const { return clock_.Now(); }
  // False when `done` did not come true within `time`.
  bool RunUntil(const std::function<bool()>& done, Nanos time = 20 * kSecond) {
    const Nanos deadline = clock_.Now() + time;
    reactor_.RunUntil([&] { return done() || clock_.Now() >= deadline; }, deadline);
    return done();
  }
  void Turn() { reactor_.TurnOnce(); }

  // 0 where it did not work.
  EndpointId Connect(absl::string_view address) {
    const absl::StatusOr<EndpointId> id = transport_->Connect(address, Now() + 20 * kSecond);
    if (!id.ok() || !RunUntil([&] { return peers.contains(*id) || closed.contains(*id); }))
      return 0;
    return peers.contains(*id) ? *id : 0;
  }
  // A header of one letter and a number; the token of the send where it has a payload.
  uint64_t Send(EndpointId to, char letter, uint64_t number = 0,
                const PayloadRanges& payload = {}) {
    std::byte header[9];
    header[0] = static_cast<std::byte>(letter);
    std::memcpy(header + 1, &number, sizeof(number));
    const uint64_t token = payload.empty() ? 0 : ++last_token_;
    transport_->Send(to, {.header = header, .payload = payload, .token = token});
    return token;
  }

  std::function<void(EndpointId, char letter, uint64_t number)> on_message;

  std::map<EndpointId, PeerDescription> peers;  // all that ever connected
  std::map<EndpointId, absl::Status> closed;
  std::map<uint64_t, absl::Status> sent;           // by token
  std::vector<std::unique_ptr<Payload>> payloads;  // a landing's token is its index + 1
  EndpointId newest = 0;
  uint64_t messages = 0;
  uint64_t landed = 0;  // with any status

  void OnConnected(EndpointId endpoint, const PeerDescription& peer) override {
    newest = endpoint;
    peers[endpoint] = peer;
  }
  Landing OnMessage(EndpointId endpoint, Bytes header, uint64_t payload_bytes) override {
    ++messages;
    uint64_t number = 0;
    if (header.size() >= 9) std::memcpy(&number, header.data() + 1, sizeof(number));
    if (on_message) on_message(endpoint, static_cast<char>(header[0]), number);
    if (payload_bytes == 0 || payload_bytes > kLandingBytesMax) return Landing::Drop();
    payloads.push_back(std::make_unique<Payload>());
    Payload& payload = *payloads.back();
    payload.bytes.resize(payload_bytes);
    Landing landing;
    landing.token = payloads.size();
    landing.segments.push_back({absl::MakeSpan(payload.bytes), &payload.checksum});
    return landing;
  }
  void OnLanded(EndpointId, uint64_t token, const absl::Status& status) override {
    ++landed;
    payloads[token - 1]->status = status;
  }
  void OnSent(EndpointId, uint64_t token, const absl::Status& status) override {
    FB_CHECK(sent.emplace(token, status).second);
  }
  void OnClosed(EndpointId endpoint, const absl::Status& why) override {
    FB_CHECK(closed.emplace(endpoint, why).second);
  }

 private:
  SystemClock clock_;
  Reactor reactor_;
  std::unique_ptr<LocalTransport> transport_;
  uint64_t last_token_ = 0;
};

// Whether `payload` arrived, is the pattern of `seed`, and was added up as it landed.
inline bool IsPattern(const LocalNode::Payload& payload, uint64_t seed) {
  if (!payload.status.ok() || payload.checksum.Digest() != ChecksumOf(payload.bytes)) return false;
  for (size_t i = 0; i < payload.bytes.size(); ++i) {
    if (payload.bytes[i] != PatternByte(seed, i)) return false;
  }
  return true;
}

inline std::vector<std::byte> Pattern(uint64_t seed, size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = PatternByte(seed, i);
  return pattern;
}

// An abstract address of this process and nobody else.
inline std::string FreshAddress() {
  static int count = 0;
  return "local:@forebay-node-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

}  // namespace forebay::testing
