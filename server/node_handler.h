#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "proto/wire.h"
#include "server/node_core.h"
#include "server/session.h"
#include "server/session_table.h"
#include "transport/transport.h"

namespace forebay {

// The node at one transport: its endpoints, and what each message means. One object a transport,
// since endpoint ids are unique only there.
//
// Threads  one reactor.
class NodeHandler final : public TransportHandler {
 public:
  NodeHandler(NodeCore& core, SessionTable& sessions) : core_(core), sessions_(sessions) {}
  ~NodeHandler() override;

  void set_transport(Transport* transport) { transport_ = transport; }

  void OnConnected(EndpointId id, const PeerDescription& peer) override;
  Landing OnMessage(EndpointId id, Bytes header, uint64_t payload_bytes) override;
  void OnLanded(EndpointId id, uint64_t token, const absl::Status& status) override;
  void OnSent(EndpointId id, uint64_t token, const absl::Status& status) override;
  void OnClosed(EndpointId id, const absl::Status& why) override;

  // Does what is due by time. Returns when it has work next.
  Nanos Sweep(Nanos now);
  // Takes no new requests; endpoints end once nothing is under way on them.
  void Drain();
  // While draining: closes endpoints that are idle, or all of them.
  void CloseDrained(bool all);

  size_t endpoint_count() const { return endpoints_.size(); }

 private:
  Endpoint* Find(EndpointId id);
  Landing Dispatch(Endpoint& endpoint, wire::Reader& reader, uint64_t payload_bytes, Nanos now);
  absl::Status Handle(Endpoint& endpoint, wire::Reader& reader, Nanos now);
  Landing HandlePut(Endpoint& endpoint, wire::Reader& reader, uint64_t payload_bytes, Nanos now);
  void HandleHello(Endpoint& endpoint, wire::Reader& reader);
  absl::Status HandleLookup(Endpoint& endpoint, wire::Reader& reader, Nanos now);
  absl::Status HandleRelease(Endpoint& endpoint, wire::Reader& reader, Nanos now);
  absl::Status HandleRenew(Endpoint& endpoint, wire::Reader& reader, Nanos now);
  absl::Status HandleGet(Endpoint& endpoint, wire::Reader& reader, Nanos now);
  absl::Status HandleOffer(Endpoint& endpoint, wire::Reader& reader);
  absl::Status HandleSubscribe(Endpoint& endpoint, wire::Reader& reader, Nanos now);
  absl::Status HandleCancel(Endpoint& endpoint, wire::Reader& reader);
  absl::Status HandlePing(Endpoint& endpoint, wire::Reader& reader);
  absl::Status HandleProbe(Endpoint& endpoint, wire::Reader& reader);
  absl::Status HandleReportBad(Endpoint& endpoint, wire::Reader& reader);
  bool SweepEndpoint(Endpoint& endpoint, Nanos now, Nanos* next);

  NodeCore& core_;
  SessionTable& sessions_;
  Transport* transport_ = nullptr;
  absl::btree_map<EndpointId, std::unique_ptr<Endpoint>> endpoints_;  // walked in order
  bool draining_ = false;
};

}  // namespace forebay
