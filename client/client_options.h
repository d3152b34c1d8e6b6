#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/retention_mask.h"
#include "client/codec_choice.h"
#include "client/publish_plan.h"

namespace forebay {

struct DaemonAddress {
  std::string control;  // "host:port" of its gRPC control plane
  double weight = 1.0;  // share of the page groups, against the other daemons
};

// Which ways to a daemon's data a client may take.
enum class PathChoice : uint8_t { kAuto = 0, kLocal = 1, kTcp = 2, kUcx = 3 };
absl::string_view PathName(PathChoice path);
absl::StatusOr<PathChoice> ParsePath(absl::string_view name);  // "auto", "local", "tcp", "ucx"

// What UCX may use on this side, where the path is UCX. Empty texts: UCX's TCP over loopback.
struct UcxChoice {
  std::string transports;  // as in UCX_TLS: "tcp", "rc_x", "rc_v", "ud_v"
  std::string devices;     // as in UCX_NET_DEVICES: "lo", "mlx5_0:1"
  int gid_index = -1;      // of the RDMA port; -1: UCX chooses
};

// What a call may say about itself. Deadlines are durations from the call; 0: the client's default.
struct LookupOptions {
  Nanos deadline = 0;
  uint32_t lease_ms = 2000;  // 1 to wire::kLeaseMsMax
  bool probe = false;        // no lease: existence only
};

struct FetchOptions {
  Nanos deadline = 0;
  uint32_t first_page = 0;  // of the hit; pages before it are there already
  uint32_t page_count = UINT32_MAX;
};

struct PublishOptions {
  Nanos deadline = 0;
  uint32_t first_page = 0;  // pages before it are in the pool already (or are somebody else's)
  // Pages before it have lost their sliding-window layers in the view (an engine frees what no
  // token can see any more); those parts are left out.
  uint32_t sliding_first_page = 0;
  // Whether the view holds a state for each page. False: only for the last page of the chain, since
  // an engine that runs through a prompt keeps no others.
  bool states_of_all_pages = false;
  // Tokens that are dropped or stay exact, and formats by layer; null: none of that.
  std::shared_ptr<const PublishPlan> plan = nullptr;
};

struct SubscribeOptions {
  Nanos deadline = 0;
};

// What a fetch did.
struct FetchResult {
  uint32_t page_count = 0;  // leading pages that are whole and verified in the engine's memory
  std::vector<bool> pages;  // per page asked for: whole and verified. False is a miss.
  uint64_t bytes = 0;       // payload bytes that crossed
  uint64_t bytes_local = 0, bytes_tcp = 0, bytes_ucx = 0;  // by path
  absl::Status first_error;  // why a part did not come, if one did not: daemon, part and page
  // For each layer of the model, over the tokens asked for, one scope for each KV head: what was
  // dropped reads as zeros, and attention must leave it out. Empty where nothing was.
  std::vector<RetentionMask> kept;
};

struct PublishResult {
  uint32_t pages_stored = 0;   // whole in the pool at the end, by us or by others
  uint32_t pages_refused = 0;  // no room, or their daemon is away
  uint64_t parts_sent = 0, parts_present = 0;
  uint64_t bytes = 0;
  absl::Status first_error;  // why pages were refused, if any were
};

// What a client knows of one daemon, for people and tests.
struct DaemonStatus {
  std::string control;
  bool connected = false;
  std::string path;  // "local", "tcp", "ucx" or ""
  std::string last_error;
  uint64_t reconnects = 0;
};

// The codec of one daemon's path.
struct PathCodec {
  std::string control;
  std::string path;  // "local", "tcp", "ucx", or "" while not connected
  PathRates rates;
  bool forced = false;
  CodecChoice choice;
};

}  // namespace forebay
