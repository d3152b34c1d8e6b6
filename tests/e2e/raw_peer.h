#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "proto/control.h"
#include "proto/wire.h"
#include "transport/tcp/tcp_transport.h"

// Who speaks to a daemon without the client library, and so may say what it never would.
namespace forebay::testing {

// A session as the control plane opens it. The deadline is 20 s.
absl::StatusOr<OpenSessionReply> OpenSessionAt(const std::string& control,
                                               const OpenSessionRequest& request);
OpenSessionRequest RequestFor(const NamespaceSpec& spec);

// An endpoint of the data plane over TCP.
//
// Threads  one.
class RawPeer final : public TransportHandler {
 public:
  struct Answer {
    bool closed = false;  // the daemon ended the endpoint; the rest is empty
    wire::Kind kind = wire::Kind::kError;
    uint64_t op = 0;
    std::vector<std::byte> header;

    // Of an Error, a HelloReply or any reply that begins with a status. "" and OK where closed.
    absl::Status status() const;
    // Of a PutReply with one item.
    absl::StatusCode put_item() const;
  };

  // To "tcp:HOST:PORT". UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<RawPeer>> Connect(const std::string& address);
  // The same, and greets as `session`.
  static absl::StatusOr<std::unique_ptr<RawPeer>> Greet(const std::string& address,
                                                        const OpenSessionReply& session);

  // Sends one message; the daemon may have closed already. Payload is copied.
  void Send(Bytes header, absl::string_view payload = "");
  // The next message, or the end. DEADLINE_EXCEEDED after 10 s: a daemon that says nothing.
  absl::StatusOr<Answer> Await();
  absl::StatusOr<Answer> Ask(Bytes header, absl::string_view payload = "");
  bool closed() const { return closed_; }

  void OnConnected(EndpointId endpoint, const PeerDescription& peer) override;
  Landing OnMessage(EndpointId endpoint, Bytes header, uint64_t payload_bytes) override;
  void OnLanded(EndpointId endpoint, uint64_t token, const absl::Status& status) override;
  void OnSent(EndpointId endpoint, uint64_t token, const absl::Status& status) override;
  void OnClosed(EndpointId endpoint, const absl::Status& why) override;

 private:
  RawPeer() = default;
  bool PollUntil(const std::function<bool()>& done);

  SystemClock clock_;
  std::unique_ptr<TcpTransport> transport_;
  EndpointId endpoint_ = 0;
  bool connected_ = false;
  bool closed_ = false;
  uint64_t last_token_ = 0;
  std::deque<std::pair<uint64_t, std::string>> payloads_;  // by token, until OnSent
  std::deque<Answer> answers_;
};

// A message header; `op` 7.
template <typename Body>
std::vector<std::byte> MessageOf(wire::Kind kind, const Body& body) {
  wire::Writer writer(kind, /*op=*/7, body);
  const Bytes bytes = writer.Take();
  return {bytes.begin(), bytes.end()};
}

// A put of one part of one page, right in every byte.
struct OnePut {
  OnePut(const OpenSessionReply& session, const KvLayout& layout, const PageKey& page_key,
         uint16_t part = 0);
  std::vector<std::byte> Header() const;

  uint32_t namespace_id = 0;
  wire::PutItem item;
  std::string payload;
};

// How many of the leading `keys` the daemon has, by a probe. UNAVAILABLE where it closes.
absl::StatusOr<uint32_t> ProbePages(RawPeer& peer, uint32_t namespace_id,
                                    const std::vector<PageKey>& keys);

}  // namespace forebay::testing
