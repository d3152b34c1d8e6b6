#include "transport/testing/recording_handler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"

namespace forebay::testing {
namespace {

constexpr std::byte kCanary{0xc5};
constexpr std::byte kPoison{0xa7};

// First fields of a test header, in native order: sender and receiver are one process.
struct HeaderFields {
  uint64_t magic = 0;
  uint64_t id = 0;
  uint64_t payload_bytes = 0;

  static constexpr uint64_t kMagic = 0x7473657479626672;
};
static_assert(sizeof(HeaderFields) == TestMessage::kHeaderBytesMin);

std::string MakeHeader(uint64_t id, uint64_t payload_bytes, size_t header_bytes) {
  const HeaderFields fields{HeaderFields::kMagic, id, payload_bytes};
  std::string header(std::max(header_bytes, sizeof(fields)), '\0');
  FillPattern(~id, AsMutableBytes(header.data(), header.size()));
  std::memcpy(header.data(), &fields, sizeof(fields));
  return header;
}

// The id of a test header, 0 if it is none; fails the test where the rest of it is damaged.
uint64_t ParseHeader(const std::string& header, uint64_t payload_bytes) {
  HeaderFields fields;
  if (header.size() < sizeof(fields)) return 0;
  std::memcpy(&fields, header.data(), sizeof(fields));
  if (fields.magic != HeaderFields::kMagic) return 0;
  EXPECT_EQ(fields.payload_bytes, payload_bytes) << "OnMessage tells another payload than was sent";
  EXPECT_TRUE(header == MakeHeader(fields.id, fields.payload_bytes, header.size()))
      << "the header of message " << fields.id << " is damaged";
  return fields.id;
}

uint64_t ChecksumOfSegments(const std::vector<GuardedBuffer>& segments) {
  RunningChecksum checksum;
  for (const GuardedBuffer& segment : segments) checksum.Update(segment.bytes());
  return checksum.Digest();
}

}  // namespace

uint64_t TestMessage::payload_bytes() const {
  uint64_t sum = 0;
  for (const size_t bytes : range_bytes) sum += bytes;
  return sum;
}

std::string TestMessage::Header() const { return MakeHeader(id, payload_bytes(), header_bytes); }

void FillPattern(uint64_t seed, MutableBytes bytes) {
  SeededRandom random(seed);
  size_t done = 0;
  for (; done + 8 <= bytes.size(); done += 8) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + done, &word, 8);
  }
  const uint64_t word = random.Next();
  if (done < bytes.size()) std::memcpy(bytes.data() + done, &word, bytes.size() - done);
}

GuardedBuffer::GuardedBuffer(size_t bytes)
    : bytes_(bytes), memory_(bytes + 2 * kCanaryBytes, kCanary) {}

bool GuardedBuffer::canaries_intact() const {
  const auto is_canary = [](std::byte b) { return b == kCanary; };
  return std::all_of(memory_.begin(), memory_.begin() + kCanaryBytes, is_canary) &&
         std::all_of(memory_.end() - kCanaryBytes, memory_.end(), is_canary);
}

Landing RecordingHandler::LandInSegments(Received& received) {
  SeededRandom random(received.id + received.payload_bytes);
  std::vector<size_t> segment_bytes;
  uint64_t left = received.payload_bytes;
  while (left > 0 && segment_bytes.size() < 4) {
    const size_t bytes = static_cast<size_t>(1 + random.Below(left));
    segment_bytes.push_back(bytes);
    left -= bytes;
  }
  if (left > 0) segment_bytes.push_back(static_cast<size_t>(left));
  return LandIn(received, segment_bytes);
}

Landing RecordingHandler::LandIn(Received& received, const std::vector<size_t>& segment_bytes) {
  received.checksum = std::make_unique<RunningChecksum>();
  Landing landing;
  received.segments.reserve(segment_bytes.size());
  for (const size_t bytes : segment_bytes) {
    received.segments.emplace_back(bytes);
    landing.segments.push_back({received.segments.back().bytes(), received.checksum.get()});
  }
  landing.token = ++last_landing_token_;
  return landing;
}

void RecordingHandler::ExpectSent(EndpointId endpoint, uint64_t token) {
  FB_CHECK(token != 0);
  const SendOut out{endpoint, closed(endpoint)};
  EXPECT_TRUE(sends_.emplace(token, out).second) << "a test used token " << token << " twice";
}

void RecordingHandler::VerifyMemory() const {
  for (const std::unique_ptr<Received>& received : received_) {
    if (!received->landed) continue;
    EXPECT_EQ(ChecksumOfSegments(received->segments), received->checksum_memory)
        << name_ << ": memory of message " << received->id << " changed after OnLanded("
        << received->status << ")";
    for (const GuardedBuffer& segment : received->segments) {
      EXPECT_TRUE(segment.canaries_intact())
          << name_ << ": message " << received->id << " landed outside its segments";
    }
  }
}

uint64_t RecordingHandler::connected_count() const {
  return static_cast<uint64_t>(std::count_if(endpoints_.begin(), endpoints_.end(),
                                             [](const auto& e) { return e.second.connected; }));
}

uint64_t RecordingHandler::closed_count() const {
  return static_cast<uint64_t>(std::count_if(endpoints_.begin(), endpoints_.end(),
                                             [](const auto& e) { return e.second.closed; }));
}

uint64_t RecordingHandler::sends_out() const { return sends_.size(); }
uint64_t RecordingHandler::landings_out() const { return landings_.size(); }

const RecordingHandler::Endpoint* RecordingHandler::endpoint(EndpointId id) const {
  const auto it = endpoints_.find(id);
  return it == endpoints_.end() ? nullptr : &it->second;
}

bool RecordingHandler::connected(EndpointId id) const {
  const Endpoint* found = endpoint(id);
  return found != nullptr && found->connected;
}

bool RecordingHandler::closed(EndpointId id) const {
  const Endpoint* found = endpoint(id);
  return found != nullptr && found->closed;
}

const RecordingHandler::Sent* RecordingHandler::sent(uint64_t token) const {
  const auto it = sent_.find(token);
  return it == sent_.end() ? nullptr : &it->second;
}

std::string RecordingHandler::ToString() const {
  std::string text =
      absl::StrCat(name_, ": ", connected_count(), " connected, ", closed_count(), " closed, ",
                   messages_count(), " messages, ", landed_count_, " landed, ", delivered_count_,
                   " delivered whole, ", sent_.size(), " sent, ", sends_out(), " sends and ",
                   landings_out(), " landings not handed back");
  for (const auto& [id, endpoint] : endpoints_) {
    if (endpoint.closed) absl::StrAppend(&text, "; ", id, " closed: ", endpoint.why.ToString());
  }
  return text;
}

void RecordingHandler::CheckInPoll(const char* callback) const {
  EXPECT_TRUE(in_poll_) << name_ << ": " << callback << " came outside Poll()";
}

void RecordingHandler::OnConnected(EndpointId id, const PeerDescription& peer) {
  CheckInPoll("OnConnected");
  EXPECT_NE(id, 0u);
  Endpoint& endpoint = endpoints_[id];
  EXPECT_FALSE(endpoint.connected) << name_ << ": OnConnected twice for " << id;
  EXPECT_FALSE(endpoint.closed) << name_ << ": OnConnected after OnClosed of " << id;
  endpoint.connected = true;
  endpoint.peer = peer;
  newest_endpoint_ = id;
  if (on_connected) on_connected(id);
}

Landing RecordingHandler::OnMessage(EndpointId id, Bytes header, uint64_t payload_bytes) {
  CheckInPoll("OnMessage");
  const Endpoint* from = endpoint(id);
  EXPECT_TRUE(from != nullptr && from->connected) << name_ << ": OnMessage before OnConnected";
  EXPECT_FALSE(from != nullptr && from->closed) << name_ << ": OnMessage after OnClosed";

  received_.push_back(std::make_unique<Received>());
  Received& received = *received_.back();
  received.endpoint = id;
  received.header.assign(reinterpret_cast<const char*>(header.data()), header.size());
  received.payload_bytes = payload_bytes;
  received.id = ParseHeader(received.header, payload_bytes);
  if (received.id != 0) {
    EXPECT_EQ(++seen_ids_[std::make_pair(id, received.id)], 1u)
        << name_ << ": message " << received.id << " was delivered again";
  }
  if (payload_bytes == 0) {
    ++delivered_count_;
    if (on_message) on_message(received);
    return Landing::Drop();
  }
  Landing landing = choose_landing ? choose_landing(received) : LandInSegments(received);
  if (!landing.segments.empty()) {
    received.landing_token = landing.token;
    landings_[landing.token] = &received;
    ++endpoints_[id].landings_out;
  }
  if (on_message) on_message(received);
  return landing;
}

void RecordingHandler::OnLanded(EndpointId id, uint64_t token, const absl::Status& status) {
  CheckInPoll("OnLanded");
  EXPECT_FALSE(closed(id)) << name_ << ": OnLanded after OnClosed";
  const auto it = landings_.find(token);
  ASSERT_NE(it, landings_.end()) << name_ << ": OnLanded for token " << token
                                 << ", which is no landing or was handed back already";
  Received& received = *it->second;
  landings_.erase(it);
  EXPECT_EQ(received.endpoint, id);
  --endpoints_[id].landings_out;
  received.landed = true;
  received.status = status;
  ++landed_count_;
  CheckPayload(received);
  if (on_landed) on_landed(received);
}

void RecordingHandler::CheckPayload(Received& received) {
  if (!received.status.ok()) {
    for (GuardedBuffer& segment : received.segments) {
      std::fill(segment.bytes().begin(), segment.bytes().end(), kPoison);
    }
    received.checksum_memory = ChecksumOfSegments(received.segments);
    return;
  }
  ++delivered_count_;
  received.checksum_memory = ChecksumOfSegments(received.segments);
  if (received.checksum == nullptr) return;
  received.checksum_landed = received.checksum->Digest();
  EXPECT_EQ(received.checksum->bytes(), received.payload_bytes);
  EXPECT_EQ(received.checksum_landed, received.checksum_memory)
      << name_ << ": the running checksum of message " << received.id << " is not of its bytes";
  if (expect_damage_ || received.id == 0) return;
  std::vector<std::byte> expected(received.payload_bytes);
  FillPattern(received.id, AsMutableBytes(expected.data(), expected.size()));
  size_t at = 0;
  for (const GuardedBuffer& segment : received.segments) {
    ASSERT_LE(at + segment.bytes().size(), expected.size());
    ASSERT_EQ(0, std::memcmp(segment.bytes().data(), expected.data() + at, segment.bytes().size()))
        << name_ << ": wrong bytes in message " << received.id << " of " << received.payload_bytes
        << " bytes, in the segment at " << at;
    at += segment.bytes().size();
  }
  EXPECT_EQ(received.checksum_landed, ChecksumOf(AsBytes(expected.data(), expected.size())));
}

void RecordingHandler::OnSent(EndpointId id, uint64_t token, const absl::Status& status) {
  CheckInPoll("OnSent");
  const auto it = sends_.find(token);
  ASSERT_NE(it, sends_.end()) << name_ << ": OnSent for token " << token
                              << ", which nobody sent or which was handed back already";
  EXPECT_EQ(it->second.endpoint, id);
  sends_.erase(it);
  sent_[token] = {id, status};
  if (on_sent) on_sent(id, token, status);
}

void RecordingHandler::OnClosed(EndpointId id, const absl::Status& why) {
  CheckInPoll("OnClosed");
  Endpoint& endpoint = endpoints_[id];
  EXPECT_FALSE(endpoint.closed) << name_ << ": OnClosed twice for " << id;
  EXPECT_EQ(endpoint.landings_out, 0u) << name_ << ": OnClosed of " << id << " before its OnLanded";
  for (const auto& [token, out] : sends_) {
    EXPECT_FALSE(out.endpoint == id && !out.after_closed)
        << name_ << ": OnClosed of " << id << " before OnSent of " << token;
  }
  endpoint.closed = true;
  endpoint.why = why;
  if (on_closed) on_closed(id, why);
}

}  // namespace forebay::testing
