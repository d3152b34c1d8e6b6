#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "transport/transport.h"

namespace forebay {

// Makes the transport of a scheme ("local", "tcp", "ucx", "loopback"), once, when it is first
// needed. UNIMPLEMENTED where this build or process has none.
using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<Transport>>(
    absl::string_view scheme, TransportHandler& handler)>;

// Who hears of an endpoint. The promises of transport.h hold, with one endpoint at a time.
class EndpointOwner {
 public:
  virtual ~EndpointOwner() = default;
  virtual void OnConnected(const PeerDescription& peer) = 0;
  virtual Landing OnMessage(Bytes header, uint64_t payload_bytes) = 0;
  virtual void OnLanded(uint64_t token, const absl::Status& status) = 0;
  virtual void OnSent(uint64_t token, const absl::Status& status) = 0;
  virtual void OnClosed(const absl::Status& why) = 0;
};

// The transports of a client, by scheme, and whose each endpoint is.
//
// Threads  the core's reactor.
class TransportPorts {
 public:
  // One transport and the endpoints that were opened over it.
  class Port final : public TransportHandler {
   public:
    // As Transport::Connect; `owner` is borrowed until its OnClosed.
    absl::StatusOr<EndpointId> Connect(absl::string_view address, Nanos deadline,
                                       EndpointOwner& owner);
    Transport& transport() { return *transport_; }

    void OnConnected(EndpointId endpoint, const PeerDescription& peer) override;
    Landing OnMessage(EndpointId endpoint, Bytes header, uint64_t payload_bytes) override;
    void OnLanded(EndpointId endpoint, uint64_t token, const absl::Status& status) override;
    void OnSent(EndpointId endpoint, uint64_t token, const absl::Status& status) override;
    void OnClosed(EndpointId endpoint, const absl::Status& why) override;

   private:
    friend class TransportPorts;
    std::string scheme_;
    absl::flat_hash_map<EndpointId, EndpointOwner*> owners_;
    std::unique_ptr<Transport> transport_;
  };

  explicit TransportPorts(TransportFactory factory) : factory_(std::move(factory)) {}

  // Requires an address "scheme:rest". The factory's error, or INVALID_ARGUMENT.
  absl::StatusOr<Port*> PortFor(absl::string_view address);

  bool Poll(Nanos now);
  bool PrepareToSleep(std::vector<int>& fds);
  Nanos NextDeadline() const;
  size_t endpoint_count() const;

 private:
  TransportFactory factory_;
  std::vector<std::unique_ptr<Port>> ports_;
};

// "tcp" of "tcp:host:port"; empty where there is no colon.
absl::string_view SchemeOf(absl::string_view address);

}  // namespace forebay
