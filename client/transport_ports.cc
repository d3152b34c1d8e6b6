#include "client/transport_ports.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace forebay {

absl::string_view SchemeOf(absl::string_view address) {
  const size_t colon = address.find(':');
  return colon == absl::string_view::npos ? absl::string_view() : address.substr(0, colon);
}

absl::StatusOr<EndpointId> TransportPorts::Port::Connect(absl::string_view address, Nanos deadline,
                                                         EndpointOwner& owner) {
  absl::StatusOr<EndpointId> endpoint = transport_->Connect(address, deadline);
  if (endpoint.ok()) owners_[*endpoint] = &owner;
  return endpoint;
}

void TransportPorts::Port::OnConnected(EndpointId endpoint, const PeerDescription& peer) {
  const auto it = owners_.find(endpoint);
  if (it != owners_.end()) it->second->OnConnected(peer);
}

Landing TransportPorts::Port::OnMessage(EndpointId endpoint, Bytes header, uint64_t payload_bytes) {
  const auto it = owners_.find(endpoint);
  return it == owners_.end() ? Landing::Drop() : it->second->OnMessage(header, payload_bytes);
}

void TransportPorts::Port::OnLanded(EndpointId endpoint, uint64_t token,
                                    const absl::Status& status) {
  const auto it = owners_.find(endpoint);
  if (it != owners_.end()) it->second->OnLanded(token, status);
}

void TransportPorts::Port::OnSent(EndpointId endpoint, uint64_t token, const absl::Status& status) {
  const auto it = owners_.find(endpoint);
  if (it != owners_.end()) it->second->OnSent(token, status);
}

void TransportPorts::Port::OnClosed(EndpointId endpoint, const absl::Status& why) {
  const auto it = owners_.find(endpoint);
  if (it == owners_.end()) return;
  EndpointOwner* owner = it->second;
  owners_.erase(it);
  owner->OnClosed(why);
}

absl::StatusOr<TransportPorts::Port*> TransportPorts::PortFor(absl::string_view address) {
  const absl::string_view scheme = SchemeOf(address);
  if (scheme.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("data address \"", address, "\" has no scheme"));
  }
  for (const std::unique_ptr<Port>& port : ports_) {
    if (port->scheme_ == scheme) return port.get();
  }
  auto port = std::make_unique<Port>();
  absl::StatusOr<std::unique_ptr<Transport>> transport = factory_(scheme, *port);
  if (!transport.ok()) return transport.status();
  port->scheme_ = std::string(scheme);
  port->transport_ = *std::move(transport);
  ports_.push_back(std::move(port));
  return ports_.back().get();
}

bool TransportPorts::Poll(Nanos now) {
  bool worked = false;
  // By index: a handler may make another port.
  for (size_t i = 0; i < ports_.size(); ++i) worked |= ports_[i]->transport_->Poll(now);
  return worked;
}

bool TransportPorts::PrepareToSleep(std::vector<int>& fds) {
  for (const std::unique_ptr<Port>& port : ports_) {
    if (!port->transport_->PrepareToSleep(fds)) return false;
  }
  return true;
}

Nanos TransportPorts::NextDeadline() const {
  Nanos next = kForever;
  for (const std::unique_ptr<Port>& port : ports_) {
    next = std::min(next, port->transport_->NextDeadline());
  }
  return next;
}

size_t TransportPorts::endpoint_count() const {
  size_t count = 0;
  for (const std::unique_ptr<Port>& port : ports_) count += port->owners_.size();
  return count;
}

}  // namespace forebay
