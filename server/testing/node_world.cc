#include "server/testing/node_world.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/checksum.h"

namespace forebay::testing {
namespace {

constexpr Nanos kAnswerLimit = 30 * kSecond;  // of virtual time

}  // namespace

ScriptedClient::ScriptedClient(NodeWorld& world, const std::string& name)
    : world_(world), transport_(world.network.MakeTransport(name, *this)) {}

ScriptedClient::~ScriptedClient() = default;

void ScriptedClient::Connect() {
  absl::StatusOr<EndpointId> endpoint =
      transport_->Connect("loopback:node", world_.clock.Now() + kAnswerLimit);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  endpoint_ = *endpoint;
  connected_ = false;
  closed_ = false;
  ASSERT_TRUE(world_.RunUntil([&] { return connected_; }));
}

absl::StatusCode ScriptedClient::Hello(const OpenSessionReply& session) {
  session_ = session;
  wire::Hello hello;
  hello.session = session.session;
  hello.boot_epoch = session.boot_epoch;
  const uint64_t op = NextOp();
  wire::Writer writer(wire::Kind::kHello, op, hello);
  Send(writer);
  const auto reply = Await(op).As<wire::HelloReply>(wire::Kind::kHelloReply);
  return static_cast<absl::StatusCode>(reply.status);
}

void ScriptedClient::Open(const NamespaceSpec& spec) {
  OpenSessionRequest request;
  request.spec = spec;
  request.wire_version_min = kWireVersionMin;
  request.wire_version_max = kWireVersionMax;
  absl::StatusOr<OpenSessionReply> opened = world_.node->OpenSession(kDefaultTenant, request);
  ASSERT_TRUE(opened.ok()) << opened.status();
  Connect();
  ASSERT_EQ(Hello(*opened), absl::StatusCode::kOk);
}

void ScriptedClient::Send(Bytes header, const std::vector<std::byte>& payload) {
  OutgoingMessage message;
  message.header = header;
  if (!payload.empty()) {
    message.token = ++last_token_;
    const std::vector<std::byte>& kept = sending_[message.token] = payload;
    message.payload.push_back(absl::MakeConstSpan(kept));
  }
  transport_->Send(endpoint_, std::move(message));
}

std::deque<std::unique_ptr<Received>>::iterator ScriptedClient::Find(uint64_t op) {
  return std::find_if(received_.begin(), received_.end(), [op](const auto& received) {
    return received->op == op && received->landed;
  });
}

bool ScriptedClient::Gets(uint64_t op, Nanos limit) {
  return world_.RunUntil([&] { return Find(op) != received_.end(); }, limit);
}

Received ScriptedClient::Await(uint64_t op) {
  if (!Gets(op, kAnswerLimit)) {
    ADD_FAILURE() << "no answer to operation " << op << (closed_ ? ": closed" : "");
    return {};
  }
  const auto found = Find(op);
  Received received = std::move(**found);
  received_.erase(found);
  return received;
}

void ScriptedClient::Close() { transport_->Close(endpoint_); }

void ScriptedClient::AwaitClosed() {
  EXPECT_TRUE(world_.RunUntil([&] { return closed_; }));
}

void ScriptedClient::OnConnected(EndpointId, const PeerDescription&) { connected_ = true; }

Landing ScriptedClient::OnMessage(EndpointId, Bytes header, uint64_t payload_bytes) {
  auto received = std::make_unique<Received>();
  received->header.assign(header.begin(), header.end());
  if (const absl::StatusOr<wire::Reader> reader = wire::Reader::Of(header); reader.ok()) {
    received->kind = reader->kind();
    received->op = reader->head().op;
  }
  Landing landing;
  if (payload_bytes > 0) {
    received->landed = false;
    received->payload.resize(payload_bytes);
    landing.segments.push_back({absl::MakeSpan(received->payload), nullptr});
    landing.token = ++last_token_;
    landing_[landing.token] = received.get();
  }
  received_.push_back(std::move(received));
  return landing;
}

void ScriptedClient::OnLanded(EndpointId, uint64_t token, const absl::Status& status) {
  Received* received = landing_.at(token);
  received->landed = true;
  received->status = status;
  landing_.erase(token);
}

void ScriptedClient::OnSent(EndpointId, uint64_t token, const absl::Status&) {
  sending_.erase(token);
}

void ScriptedClient::OnClosed(EndpointId, const absl::Status&) { closed_ = true; }

NodeWorldOptions::NodeWorldOptions() {
  node.node = "node";
  node.dram.capacity_bytes = 1 << 20;
  node.dram.slab_bytes = 64 << 10;
  node.dram.huge_pages = false;
  node.eviction_policy = "lru";
}

NodeWorld::NodeWorld(Options options) : network(options.seed, clock, options.faults) {
  absl::StatusOr<std::unique_ptr<PoolNode>> created =
      PoolNode::Create(options.node, clock, registry);
  FB_CHECK(created.ok());
  node = *std::move(created);
  TransportHandler& handler = node->NewHandler();
  transport = network.MakeTransport("node", handler);
  node->Attach(handler, *transport);
  absl::StatusOr<std::string> address = transport->Listen("loopback:node");
  FB_CHECK(address.ok());
  node->SetDataAddresses({*address});
}

NodeWorld::~NodeWorld() = default;

bool NodeWorld::RunUntil(const std::function<bool()>& done, Nanos limit) {
  const Nanos until = clock.Now() + limit;
  while (!done()) {
    bool worked = network.Step();
    if (node->Poll(clock.Now())) worked = true;
    if (worked) continue;
    if (clock.Now() >= until) return done();
    const Nanos next = std::min(network.NextDeadline(), node->NextDeadline());
    clock.Set(std::min(until, std::max(next, clock.Now() + kMicrosecond)));
  }
  return true;
}

void NodeWorld::RunFor(Nanos time) {
  RunUntil([] { return false; }, time);
}

KvLayout NodeWorld::SmallLayout() {
  return KvLayout::Uniform(/*layer_count=*/4, /*kv_heads=*/2, /*head_dim=*/8, DType::kFp16,
                           /*page_tokens=*/4, /*layers_per_part=*/2);
}

NamespaceSpec NodeWorld::Spec(const std::string& model) {
  NamespaceSpec spec;
  spec.model = model;
  spec.model_revision = "1";
  spec.layout = SmallLayout();
  spec.position_encoding = "rope";
  return spec;
}

void NodeWorld::ExpectQuiet() {
  // An answer may be read before the transport has handed its memory back.
  const auto quiet = [this] {
    const NodeStatus now = node->Status();
    return now.get_bytes_in_flight == 0 && now.puts_in_flight == 0;
  };
  RunUntil(quiet, kSecond);
  const NodeStatus status = node->Status();
  EXPECT_EQ(status.slots.total(), node->dram().slot_count());
  EXPECT_EQ(status.slots.filling, 0u);
  EXPECT_EQ(status.slots.draining, 0u);
  EXPECT_EQ(status.slots.quarantine, 0u);
  EXPECT_EQ(status.slots.pins, 0u);
  EXPECT_EQ(status.slots.sealed, status.pages.frames);
  EXPECT_EQ(status.leases, 0u);
  EXPECT_EQ(status.leased_bytes, 0u);
  EXPECT_EQ(status.puts_in_flight, 0u);
  EXPECT_EQ(status.get_bytes_in_flight, 0u);
}

TestChain::TestChain(const KvLayout& layout, const PageKey& root, size_t page_count,
                     uint32_t first_token)
    : layout_(layout), root_(root), parts_(layout.Parts()) {
  std::vector<uint32_t> tokens(page_count * layout.page_tokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = first_token + static_cast<uint32_t>(i);
  keys_ = PageKeysOf(root, tokens, layout.page_tokens);
}

std::vector<std::byte> TestChain::Payload(size_t page, uint16_t part) const {
  SeededRandom random(keys_[page].Prefix64() + part);
  std::vector<std::byte> bytes(parts_[part].raw_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

wire::PutItem TestChain::Item(size_t page, uint16_t part) const {
  const std::vector<std::byte> payload = Payload(page, part);
  wire::PutItem item;
  item.key = keys_[page];
  item.parent = page == 0 ? root_ : keys_[page - 1];
  item.part = part;
  item.header =
      MakeFrameHeader(layout_, parts_[part], keys_[page], static_cast<uint32_t>(page),
                      CodecId::kRaw, static_cast<uint32_t>(payload.size()), ChecksumOf(payload));
  return item;
}

void PutMessage::Add(const wire::PutItem& item, const std::vector<std::byte>& bytes) {
  items.push_back(item);
  payload.insert(payload.end(), bytes.begin(), bytes.end());
}

PutMessage PutMessage::Pages(const TestChain& chain, size_t begin, size_t end) {
  PutMessage put;
  for (size_t page = begin; page < end; ++page) {
    for (uint16_t part = 0; part < chain.parts().size(); ++part) {
      put.Add(chain.Item(page, part), chain.Payload(page, part));
    }
  }
  return put;
}

wire::Writer PutMessage::Message(uint64_t op, uint32_t ns) const {
  wire::Put put;
  put.namespace_id = ns;
  put.item_count = static_cast<uint32_t>(items.size());
  wire::Writer writer(wire::Kind::kPut, op, put);
  writer.Array(absl::MakeConstSpan(items));
  return writer;
}

std::vector<absl::StatusCode> Put(ScriptedClient& client, const PutMessage& put) {
  const uint64_t op = client.NextOp();
  wire::Writer writer = put.Message(op, client.ns());
  client.Send(writer, put.payload);
  const Received received = client.Await(op);
  wire::Reader rest;
  const auto reply = received.As<wire::PutReply>(wire::Kind::kPutReply, &rest);
  std::vector<uint32_t> numbers;
  EXPECT_TRUE(rest.ReadArray(reply.item_count, wire::kPutItemsMax, &numbers).ok());
  std::vector<absl::StatusCode> codes;
  for (const uint32_t number : numbers) codes.push_back(static_cast<absl::StatusCode>(number));
  return codes;
}

LookupAnswer Lookup(ScriptedClient& client, const std::vector<PageKey>& keys, uint32_t lease_ms,
                    uint32_t flags) {
  wire::Lookup lookup;
  lookup.namespace_id = client.ns();
  lookup.flags = flags;
  lookup.lease_ms = (flags & wire::kProbe) != 0 ? 0 : lease_ms;
  lookup.key_count = static_cast<uint32_t>(keys.size());
  const uint64_t op = client.NextOp();
  wire::Writer writer(wire::Kind::kLookup, op, lookup);
  writer.Array(absl::MakeConstSpan(keys));
  client.Send(writer);
  const Received received = client.Await(op);
  wire::Reader rest;
  LookupAnswer answer;
  answer.reply = received.As<wire::LookupReply>(wire::Kind::kLookupReply, &rest);
  EXPECT_TRUE(rest.ReadArray(answer.reply.page_count, wire::kKeysMax, &answer.classes).ok());
  EXPECT_TRUE(rest.SkipPadTo8().ok());
  EXPECT_TRUE(
      rest.ReadArray(answer.reply.location_count, wire::kLocationsMax, &answer.locations).ok());
  EXPECT_TRUE(rest.Finish().ok());
  return answer;
}

wire::ReleaseReply Release(ScriptedClient& client, uint64_t lease, uint32_t keep_pages) {
  wire::Release release;
  release.lease = lease;
  release.keep_pages = keep_pages;
  const uint64_t op = client.NextOp();
  wire::Writer writer(wire::Kind::kRelease, op, release);
  client.Send(writer);
  return client.Await(op).As<wire::ReleaseReply>(wire::Kind::kReleaseReply);
}

std::vector<wire::GetItem> ItemsOf(const TestChain& chain, size_t begin, size_t end) {
  std::vector<wire::GetItem> items;
  for (size_t page = begin; page < end; ++page) {
    for (uint16_t part = 0; part < chain.parts().size(); ++part) {
      wire::GetItem& item = items.emplace_back();
      item.key = chain.keys()[page];
      item.part = part;
      item.payload_bytes_max = chain.parts()[part].raw_bytes;
    }
  }
  return items;
}

wire::Writer GetRequest(uint64_t op, uint32_t ns, const std::vector<wire::GetItem>& items,
                        uint32_t deadline_ms) {
  wire::Get get;
  get.namespace_id = ns;
  get.item_count = static_cast<uint32_t>(items.size());
  get.deadline_ms = deadline_ms;
  wire::Writer writer(wire::Kind::kGet, op, get);
  writer.Array(absl::MakeConstSpan(items));
  return writer;
}

std::vector<GotPart> CollectGet(ScriptedClient& client, uint64_t op, size_t item_count) {
  std::vector<GotPart> parts(item_count);
  size_t answered = 0;
  while (answered < item_count) {
    const Received received = client.Await(op);
    if (received.kind != wire::Kind::kGetData) break;
    wire::Reader rest;
    const auto data = received.As<wire::GetData>(wire::Kind::kGetData, &rest);
    std::vector<wire::GetDataItem> items;
    EXPECT_TRUE(rest.ReadArray(data.item_count, wire::kGetItemsMax, &items).ok());
    size_t at = 0;
    for (const wire::GetDataItem& item : items) {
      GotPart& part = parts.at(item.item);
      EXPECT_EQ(part.code, absl::StatusCode::kUnknown) << "item " << item.item << " came twice";
      part.code = static_cast<absl::StatusCode>(item.status);
      part.header = item.header;
      ++answered;
      if (item.status != 0) continue;
      const auto begin = received.payload.begin() + static_cast<ptrdiff_t>(at);
      part.payload.assign(begin, begin + item.header.payload_bytes);
      at += item.header.payload_bytes;
    }
    EXPECT_EQ(at, received.payload.size());
  }
  return parts;
}

std::vector<GotPart> Get(ScriptedClient& client, const std::vector<wire::GetItem>& items) {
  const uint64_t op = client.NextOp();
  wire::Writer writer = GetRequest(op, client.ns(), items);
  client.Send(writer);
  return CollectGet(client, op, items.size());
}

}  // namespace forebay::testing
