#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/clock.h"
#include "base/kv_layout.h"
#include "base/namespace_spec.h"
#include "base/page_key.h"
#include "base/random.h"
#include "server/get_op.h"
#include "server/put_op.h"
#include "tiers/page_index.h"
#include "transport/transport.h"

namespace forebay {

// A namespace that some session opened. It stays when the session ends, since pages rest under it,
// until another one needs its place. Counters are for people.
struct NamespaceEntry {
  uint32_t id = 0;
  NamespaceSpec spec;
  PageKey root;
  std::vector<PartSpec> parts;
  uint64_t page_frame_bytes = 0;  // all frames of a page, unencoded
  uint64_t sessions = 0;
  Nanos idle_since = 0;  // while it has no session
  uint64_t lookups = 0, lookup_pages = 0, hit_pages = 0;
};

struct Endpoint;

// One client and the namespace that it opened. It lives while it has an endpoint, and for
// session_idle_ms after.
struct Session {
  Uint128Bytes id{};
  uint64_t owner = 0;  // names it in the lease table; never reused
  NamespaceEntry* ns = nullptr;
  std::string client_name;
  absl::flat_hash_set<Endpoint*> endpoints;
  Nanos idle_since = 0;  // while it has no endpoint
  uint32_t puts_in_flight = 0;
  uint32_t subscriptions = 0;
};

// One endpoint of one transport. Tokens of sends and landings count per node.
struct Endpoint {
  Transport* transport = nullptr;
  EndpointId id = 0;
  std::string peer;
  bool same_host = false;
  Session* session = nullptr;  // null until Hello
  Nanos hello_by = kForever;   // closed if Hello has not come by then
  bool closing = false;        // its last message is on the way; nothing more is read from it
  Nanos close_at = kForever;   // while closing
  bool ended = false;          // closed by us: OnClosed is on its way
  uint64_t last_token = 0;     // of the message after whose OnSent it is closed
  uint64_t probe_token = 0;    // of the probe's answer that is being sent, or 0
  // Puts whose bytes are arriving, by landing token: the first is the oldest.
  std::map<uint64_t, std::unique_ptr<PutOp>> puts;
  GetQueue gets;
};

}  // namespace forebay
