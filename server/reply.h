#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/wire.h"
#include "server/node_core.h"
#include "server/session.h"

// How the node answers. None of these fails: an endpoint that is gone takes no answer.
namespace forebay {

void SendReply(Endpoint& endpoint, wire::Writer& writer);
// Answers a request that was refused whole; the endpoint stays.
void SendError(Endpoint& endpoint, uint64_t op, const absl::Status& why);
// Sends the last message of an endpoint, reads nothing more from it, and closes it once the message
// has left and the peer has had a moment to read it.
void SendLast(NodeCore& core, Endpoint& endpoint, wire::Writer& writer);
// What a message that breaks the protocol gets: an Error, then the end of the endpoint. Counted.
void RefuseMalformed(NodeCore& core, Endpoint& endpoint, uint64_t op, const absl::Status& why);
// True if `namespace_id` is the session's own; else answers PERMISSION_DENIED, counted.
bool CheckNamespace(NodeCore& core, Endpoint& endpoint, uint64_t op, uint32_t namespace_id);

inline uint32_t WireStatus(const absl::Status& status) {
  return static_cast<uint32_t>(status.code());
}

}  // namespace forebay
