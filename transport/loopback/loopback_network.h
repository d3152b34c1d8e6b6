#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/random.h"
#include "transport/loopback/loopback_packet.h"
#include "transport/transport.h"

namespace forebay {

class LoopbackTransport;

// What a LoopbackNetwork does to what it carries. May be changed while it runs.
struct LoopbackFaults {
  // Each packet takes a time of its own, uniform in this range.
  Nanos delay_ns_min = 2 * kMicrosecond;
  Nanos delay_ns_max = 60 * kMicrosecond;
  // Packets overtake each other, within an endpoint too. Off: each direction of an endpoint is a
  // queue.
  bool reorder = true;
  // Payloads go in fragments of a random size in this range.
  size_t fragment_bytes_min = 1;
  size_t fragment_bytes_max = 64 * 1024;
  // Bytes of one message in the air at once.
  size_t window_bytes = 256 * 1024;
  // Payloads up to this may ride along with their header; half of them do, by chance.
  size_t eager_bytes_max = 8 * 1024;
  // Chance that OnSent comes as soon as the last byte has left, not when the peer has it.
  double sent_early_chance = 0.5;
  // Chance, for each packet with payload bytes, that one bit of them flips on the way.
  double corrupt_chance = 0;
  // Chance, for each packet, that it arrives twice.
  double duplicate_chance = 0;
  // Chance that the end of a node is told to its peers at once, as by a kernel that outlives its
  // process; else they find out by peer_timeout, as when a machine loses power. The same chance
  // holds for an answer to whoever connects where nobody listens.
  double reset_chance = 0.5;
};

enum class LoopbackDeath : uint8_t {
  kByChance,  // reset_chance decides
  kReset,     // peers are told
  kSilent,    // peers must find out
};

// One thing that happened, for a trace that people can read.
struct LoopbackEvent {
  enum class Kind : uint8_t {
    kSent = 1,
    kDuplicated,
    kCorrupted,
    kHeld,  // the link is cut
    kDelivered,
    kDiscarded,  // came for an endpoint that is gone, or a second time
    kLost,       // the node is dead
    kConnected,
    kMessage,
    kLanded,
    kSentBack,  // OnSent
    kClosed,
    kKilled,
  };
  Nanos now = 0;
  Kind kind = Kind::kSent;
  uint64_t node = 0;
  EndpointId endpoint = 0;
  uint64_t message = 0;
  uint64_t bytes = 0;
  uint64_t detail = 0;  // packet kind, or status code

  std::string ToString() const;
};

// Counts of a network; plain numbers.
struct LoopbackCounts {
  uint64_t packets_sent = 0;
  uint64_t packets_delivered = 0;
  uint64_t packets_duplicated = 0;
  uint64_t packets_held = 0;  // by a cut link, so far
  uint64_t packets_lost = 0;  // their node was dead
  uint64_t duplicates_suppressed = 0;
  uint64_t late_fragments_discarded = 0;  // payload bytes for an endpoint that had closed
  uint64_t fragments_corrupted = 0;
  uint64_t overtakes = 0;  // fragments that came before an earlier one of theirs
};

// A network within one process and one thread, in virtual time, from one seed. Equal seeds, equal
// calls: equal everything, which trace_hash() shows.
//
//   ManualClock clock;
//   LoopbackNetwork network(seed, clock);
//   auto daemon = network.MakeTransport("node1", daemon_handler);
//   auto client = network.MakeTransport("client1", client_handler);
//   daemon->Listen("loopback:node1");
//   client->Connect("loopback:node1", deadline);
//   while (…) if (!network.Step()) clock.Set(network.NextDeadline());
//
// It has no thread and does no I/O: packets wait in a queue until their time has come and their
// receiver polls. Its semantics are weak on purpose, as weak as transport.h allows.
//
// Borrows  the clock. Outlives its transports.
// Threads  one.
class LoopbackNetwork {
 public:
  LoopbackNetwork(uint64_t seed, const Clock& clock, const LoopbackFaults& faults = {});
  ~LoopbackNetwork();
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;

  // A transport on the node `node_name`: the name that KillNode and Cut go by. A name may come
  // again once the node before is dead; its packets never reach the new one. Destroying a transport
  // is the death of its node, by chance told or silent.
  std::unique_ptr<LoopbackTransport> MakeTransport(absl::string_view node_name,
                                                   TransportHandler& handler,
                                                   const TransportOptions& options = {});

  // Stops every live transport of that name, at once and for good: no callback, no access to memory
  // that its user lent. The objects stay until their owner destroys them. False if there is none.
  bool KillNode(absl::string_view node_name, LoopbackDeath death = LoopbackDeath::kByChance);

  // Nothing passes between two nodes until mended, then what was held does, if anybody still wants
  // it. Goes by names, so that it holds for a node that starts anew.
  void Cut(absl::string_view a, absl::string_view b);
  void CutOneWay(absl::string_view from, absl::string_view to);
  void Mend(absl::string_view a, absl::string_view b);
  void MendAll();

  // Polls each live transport once, in an order of its own. True if anything was done.
  bool Step();
  // When the next thing is due, anywhere; kForever if nothing ever.
  Nanos NextDeadline() const;

  size_t packets_in_air() const;
  size_t packets_held() const { return held_.size(); }
  const LoopbackCounts& counts() const { return counts_; }
  // Of everything that happened so far.
  uint64_t trace_hash() const { return trace_hash_; }
  void set_trace(std::function<void(const LoopbackEvent&)> trace) { trace_ = std::move(trace); }
  LoopbackFaults& faults() { return faults_; }

 private:
  friend class LoopbackTransport;

  struct Node {
    std::string name;
    LoopbackTransport* transport = nullptr;  // nullptr once dead
    bool resets = false;                     // a dead one: whether its peers are told
    std::map<std::pair<Nanos, uint64_t>, LoopbackPacket> air;  // towards it, by (due, order)
  };
  using NamePair = std::pair<std::string, std::string>;

  void Post(LoopbackPacket packet);
  void Launch(LoopbackPacket packet);
  bool IsCut(const LoopbackPacket& packet) const;
  // The packets for `node` whose time has come, in order of arrival.
  std::vector<LoopbackPacket> TakeDue(uint64_t node, Nanos now);
  Nanos NextDue(uint64_t node) const;
  void EndNode(uint64_t node, LoopbackDeath death);
  // The node that listens at `name`; 0 if none.
  uint64_t Listener(const std::string& name) const;
  const std::string& NameOfNode(uint64_t node) const { return nodes_.at(node).name; }
  bool TakeName(const std::string& name, uint64_t node);
  void RefuseOpen(uint64_t node, EndpointId endpoint);
  void ReleaseHeld();
  void Record(LoopbackEvent::Kind kind, uint64_t node, EndpointId endpoint, uint64_t message,
              uint64_t bytes, uint64_t detail);

  const Clock& clock_;
  LoopbackFaults faults_;
  SeededRandom random_;
  std::map<uint64_t, Node>
      nodes_;  // by number, from 1; dead ones stay, to know what became of them
  std::map<std::string, uint64_t> listeners_;
  std::set<NamePair> cuts_;
  std::vector<LoopbackPacket> held_;
  std::map<std::pair<uint64_t, uint64_t>, Nanos> queue_ends_;  // by nodes; without reordering
  LoopbackCounts counts_;
  EndpointId last_endpoint_ = 0;
  uint64_t last_order_ = 0;
  uint64_t trace_hash_ = 0;
  std::function<void(const LoopbackEvent&)> trace_;
};

}  // namespace forebay
