#include "server/reply.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace forebay {
namespace {

// A peer that does not take its last message is not worth more than this.
constexpr Nanos kLastMessageTimeout = kSecond;

constexpr size_t kErrorTextBytesMax = 512;

wire::Writer ErrorMessage(uint64_t op, const absl::Status& why) {
  const absl::string_view text = why.message().substr(0, kErrorTextBytesMax);
  wire::Error error;
  error.status = WireStatus(why);
  error.text_bytes = static_cast<uint32_t>(text.size());
  wire::Writer writer(wire::Kind::kError, op, error);
  writer.Array(absl::Span<const char>(text.data(), text.size()));
  return writer;
}

}  // namespace

void SendReply(Endpoint& endpoint, wire::Writer& writer) {
  endpoint.transport->Send(endpoint.id, OutgoingMessage{writer.Take(), {}, 0});
}

void SendError(Endpoint& endpoint, uint64_t op, const absl::Status& why) {
  wire::Writer writer = ErrorMessage(op, why);
  SendReply(endpoint, writer);
}

void SendLast(NodeCore& core, Endpoint& endpoint, wire::Writer& writer) {
  if (endpoint.closing) return;
  endpoint.closing = true;
  endpoint.close_at = core.clock.Now() + kLastMessageTimeout;
  endpoint.last_token = core.next_token++;
  core.WakeBy(endpoint.close_at);
  endpoint.transport->Send(endpoint.id, OutgoingMessage{writer.Take(), {}, endpoint.last_token});
}

void RefuseMalformed(NodeCore& core, Endpoint& endpoint, uint64_t op, const absl::Status& why) {
  core.metrics.malformed_messages.Add();
  if (core.log_limiter.Allow(core.clock.Now())) {
    LogWarning("endpoint.malformed",
               {{"node", core.options.node}, {"peer", endpoint.peer}, {"why", why.message()}});
  }
  wire::Writer writer = ErrorMessage(op, why);
  SendLast(core, endpoint, writer);
}

bool CheckNamespace(NodeCore& core, Endpoint& endpoint, uint64_t op, uint32_t namespace_id) {
  if (namespace_id == endpoint.session->ns->id) return true;
  core.metrics.permission_denied.Add();
  SendError(endpoint, op,
            absl::PermissionDeniedError(absl::StrCat("namespace ", namespace_id,
                                                     " is not the one that this session opened")));
  return false;
}

}  // namespace forebay
