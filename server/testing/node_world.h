#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/metrics.h"
#include "base/testing/manual_clock.h"
#include "proto/wire.h"
#include "server/pool_node.h"
#include "transport/loopback/loopback_network.h"
#include "transport/loopback/loopback_transport.h"

// A node on a loopback network in virtual time, and clients that speak the wire by hand: so a test
// says exactly what goes over the link, right or wrong.
namespace forebay::testing {

// A message that a client received.
struct Received {
  wire::Kind kind{};
  uint64_t op = 0;
  std::vector<std::byte> header;
  std::vector<std::byte> payload;
  bool landed = true;   // false while its payload is under way
  absl::Status status;  // of the landing

  // The fixed body of the message, and a reader that stands after it.
  template <typename Body>
  Body As(wire::Kind expected, wire::Reader* rest = nullptr) const {
    EXPECT_EQ(kind, expected);
    absl::StatusOr<wire::Reader> reader = wire::Reader::Of(header);
    Body body{};
    EXPECT_TRUE(reader.ok() && reader->Read(&body).ok());
    if (rest != nullptr && reader.ok()) *rest = *reader;
    return body;
  }
};

class NodeWorld;

// One client endpoint.
class ScriptedClient final : public TransportHandler {
 public:
  ScriptedClient(NodeWorld& world, const std::string& name);
  ~ScriptedClient() override;

  // Opens an endpoint and waits for it.
  void Connect();
  // Says Hello for `session` and returns the code of the answer.
  absl::StatusCode Hello(const OpenSessionReply& session);
  // OpenSession, Connect and Hello, all expected to succeed.
  void Open(const NamespaceSpec& spec);

  void Send(Bytes header, const std::vector<std::byte>& payload = {});
  void Send(wire::Writer& writer, const std::vector<std::byte>& payload = {}) {
    Send(writer.Take(), payload);
  }
  // Runs the world until a message for `op` has come whole; takes it. Fails the test if none comes.
  Received Await(uint64_t op);
  // Whether one comes within `limit`.
  bool Gets(uint64_t op, Nanos limit);
  uint64_t NextOp() { return ++last_op_; }

  void Close();
  bool closed() const { return closed_; }
  void AwaitClosed();
  const OpenSessionReply& session() const { return session_; }
  uint32_t ns() const { return session_.namespace_id; }
  LoopbackTransport& transport() { return *transport_; }
  size_t unread() const { return received_.size(); }

  void OnConnected(EndpointId endpoint, const PeerDescription& peer) override;
  Landing OnMessage(EndpointId endpoint, Bytes header, uint64_t payload_bytes) override;
  void OnLanded(EndpointId endpoint, uint64_t token, const absl::Status& status) override;
  void OnSent(EndpointId endpoint, uint64_t token, const absl::Status& status) override;
  void OnClosed(EndpointId endpoint, const absl::Status& why) override;

 private:
  std::deque<std::unique_ptr<Received>>::iterator Find(uint64_t op);

  NodeWorld& world_;
  std::unique_ptr<LoopbackTransport> transport_;
  OpenSessionReply session_;
  EndpointId endpoint_ = 0;
  bool connected_ = false;
  bool closed_ = false;
  uint64_t last_op_ = 0;
  uint64_t last_token_ = 0;
  std::deque<std::unique_ptr<Received>> received_;
  std::map<uint64_t, Received*> landing_;               // by token
  std::map<uint64_t, std::vector<std::byte>> sending_;  // payloads, until OnSent
};

// What a world starts from.
struct NodeWorldOptions {
  uint64_t seed = 1;
  PoolNodeOptions node;
  LoopbackFaults faults;

  // A small node: 1 MiB in slabs of 64 KiB, LRU.
  NodeWorldOptions();
};

class NodeWorld {
 public:
  using Options = NodeWorldOptions;
  explicit NodeWorld(Options options = Options());
  ~NodeWorld();

  // Turns everything until `done`, or until nothing will ever happen, or for `limit` of virtual
  // time. Whether `done` came true.
  bool RunUntil(const std::function<bool()>& done, Nanos limit = 60 * kSecond);
  void RunFor(Nanos time);

  // A layout of two parts a page, 512 bytes each.
  static KvLayout SmallLayout();
  static NamespaceSpec Spec(const std::string& model = "model");

  // Lets what is under way end; then the identity of slots, and that nothing is pinned.
  void ExpectQuiet();

  ManualClock clock;
  MetricRegistry registry;
  LoopbackNetwork network;
  std::unique_ptr<PoolNode> node;
  std::unique_ptr<LoopbackTransport> transport;
};

// A chain of pages whose bytes follow from their keys, and the messages about them.
class TestChain {
 public:
  // `first_token` tells chains of one root apart.
  TestChain(const KvLayout& layout, const PageKey& root, size_t page_count,
            uint32_t first_token = 0);

  const std::vector<PageKey>& keys() const { return keys_; }
  const std::vector<PartSpec>& parts() const { return parts_; }
  std::vector<std::byte> Payload(size_t page, uint16_t part) const;
  wire::PutItem Item(size_t page, uint16_t part) const;

 private:
  KvLayout layout_;
  PageKey root_;
  std::vector<PartSpec> parts_;
  std::vector<PageKey> keys_;
};

// One Put of any items.
struct PutMessage {
  std::vector<wire::PutItem> items;
  std::vector<std::byte> payload;

  void Add(const wire::PutItem& item, const std::vector<std::byte>& bytes);
  // Every part of the pages [begin, end).
  static PutMessage Pages(const TestChain& chain, size_t begin, size_t end);
  wire::Writer Message(uint64_t op, uint32_t ns) const;
};

// Sends it and returns the codes of the answer.
std::vector<absl::StatusCode> Put(ScriptedClient& client, const PutMessage& put);

struct LookupAnswer {
  wire::LookupReply reply;
  std::vector<uint8_t> classes;
  std::vector<wire::SlotLocation> locations;
};
LookupAnswer Lookup(ScriptedClient& client, const std::vector<PageKey>& keys,
                    uint32_t lease_ms = 2000, uint32_t flags = 0);
wire::ReleaseReply Release(ScriptedClient& client, uint64_t lease, uint32_t keep_pages = 0);

// One part of a get's answer.
struct GotPart {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  FrameHeader header;
  std::vector<std::byte> payload;
};
std::vector<wire::GetItem> ItemsOf(const TestChain& chain, size_t begin, size_t end);
wire::Writer GetRequest(uint64_t op, uint32_t ns, const std::vector<wire::GetItem>& items,
                        uint32_t deadline_ms = 0);
// Takes messages of `op` until every item is answered, each exactly once.
std::vector<GotPart> CollectGet(ScriptedClient& client, uint64_t op, size_t item_count);
std::vector<GotPart> Get(ScriptedClient& client, const std::vector<wire::GetItem>& items);

}  // namespace forebay::testing
