// The two halves of a stream of transport/tcp without a socket. What a FrameWriter sends arrives
// whole, once and unchanged, however the kernel cuts it; and bytes that no FrameWriter would send
// mean the same to a FrameReader however they are cut.

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/random.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/tcp/frame_reader.h"
#include "transport/tcp/frame_writer.h"
#include "transport/tcp/tcp_wire.h"

namespace forebay::fuzz {
namespace {

using ByteVector = std::vector<std::byte>;

// A claim that is larger is dropped: nothing is allocated by a peer's word.
constexpr uint64_t kLandedBytesMax = 20 * 1024;
constexpr size_t kMessagesMax = 8;
constexpr size_t kFramesMax = 24;
constexpr size_t kSmallSegments = 12;

// A pipe instead of a socket: every call moves at most what its next entry of `cuts` says (0: would
// block), and once those are used up, all.
class PipeStream final : public ByteStream {
 public:
  explicit PipeStream(std::vector<uint16_t> cuts) : cuts_(std::move(cuts)) {}

  StreamResult Handshake() override { return {}; }
  StreamResult Read(absl::Span<const iovec> ranges) override {
    const size_t most = std::min(NextCut(), bytes_.size() - read_);
    return Move(ranges, most, [this](void* memory, size_t bytes) {
      std::memcpy(memory, &bytes_[read_], bytes);
      read_ += bytes;
    });
  }
  StreamResult Write(absl::Span<const iovec> ranges) override {
    return Move(ranges, NextCut(), [this](const void* memory, size_t bytes) {
      const auto* const from = static_cast<const std::byte*>(memory);
      bytes_.insert(bytes_.end(), from, from + bytes);
    });
  }
  int fd() const override { return -1; }

  void Append(Bytes bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  const ByteVector& bytes() const { return bytes_; }
  bool drained() const { return read_ == bytes_.size(); }

 private:
  template <typename Copy>
  static StreamResult Move(absl::Span<const iovec> ranges, size_t most, Copy copy) {
    StreamResult result;
    for (const iovec& range : ranges) {
      const size_t bytes = std::min(range.iov_len, most - result.bytes);
      if (bytes > 0) copy(range.iov_base, bytes);
      result.bytes += bytes;
    }
    if (result.bytes == 0) result.kind = StreamResult::Kind::kWouldBlock;
    return result;
  }
  size_t NextCut() {
    if (next_cut_ == cuts_.size()) return SIZE_MAX;
    return cuts_[next_cut_++];
  }

  const std::vector<uint16_t> cuts_;
  size_t next_cut_ = 0;
  ByteVector bytes_;
  size_t read_ = 0;
};

std::vector<uint16_t> TakeCuts(FuzzInput& input) {
  std::vector<uint16_t> cuts(input.Below(64));
  for (uint16_t& cut : cuts) {
    // Few bytes, or about what one read asks for.
    cut = input.Flag() ? input.Take<uint16_t>() : input.Take<uint8_t>();
  }
  return cuts;
}

// Where payloads land: in a few segments of one length, then in one that takes the rest.
class Collector final : public FrameSink {
 public:
  struct Message {
    ByteVector header;
    uint64_t payload_bytes = 0;
    ByteVector payload;  // where it landed
    bool landed = false;
  };

  explicit Collector(size_t segment_bytes) : segment_bytes_(segment_bytes) {}

  Landing OnMessage(Bytes header, uint64_t payload_bytes) override {
    Message& message = messages_.emplace_back();
    message.header.assign(header.begin(), header.end());
    message.payload_bytes = payload_bytes;
    if (payload_bytes == 0 || payload_bytes > kLandedBytesMax) return Landing::Drop();
    message.payload.resize(payload_bytes);
    const uint64_t token = messages_.size();
    RunningChecksum& checksum = open_[token];
    Landing landing;
    landing.token = token;
    MutableBytes rest = AsMutableBytes(message.payload.data(), message.payload.size());
    while (!rest.empty()) {
      const size_t wish = landing.segments.size() < kSmallSegments ? segment_bytes_ : rest.size();
      const MutableBytes segment = rest.subspan(0, std::min(rest.size(), wish));
      landing.segments.push_back({segment, &checksum});
      // A segment of no bytes is allowed, and nothing lands there.
      if (landing.segments.size() == 2) landing.segments.push_back({MutableBytes(), &checksum});
      rest.remove_prefix(segment.size());
    }
    return landing;
  }
  void OnLanded(uint64_t token, uint64_t payload_bytes) override {
    const auto found = open_.find(token);
    FB_CHECK(found != open_.end());
    Message& message = messages_[token - 1];
    FB_CHECK(payload_bytes == message.payload_bytes && !message.landed);
    FB_CHECK(found->second.bytes() == payload_bytes);
    FB_CHECK(found->second.Digest() == ChecksumOf(message.payload));
    message.landed = true;
    open_.erase(found);
  }
  void OnPing() override { ++pings_; }

  const std::deque<Message>& messages() const { return messages_; }
  size_t pings() const { return pings_; }
  // What the reader still owes.
  std::vector<uint64_t> OpenTokens() const {
    std::vector<uint64_t> tokens;
    for (const auto& [token, checksum] : open_) tokens.push_back(token);
    return tokens;
  }

 private:
  const size_t segment_bytes_;
  std::deque<Message> messages_;  // in place: their payloads are landings
  std::map<uint64_t, RunningChecksum> open_;
  size_t pings_ = 0;
};

// Reads to the end of what there is; OK, or why the reader gave up.
absl::Status ReadAll(FrameReader& reader, PipeStream& pipe, size_t budget, bool until_end) {
  for (;;) {
    const FrameReader::Outcome outcome = reader.ReadFrom(pipe, budget, until_end);
    switch (outcome.kind) {
      case FrameReader::Outcome::Kind::kDrained:
        if (pipe.drained()) return absl::OkStatus();
        break;
      case FrameReader::Outcome::Kind::kBudget:
        break;
      case FrameReader::Outcome::Kind::kFailed:
        FB_CHECK(!outcome.status.ok() && !outcome.status.message().empty());
        return outcome.status;
      default:
        FB_CHECK(false);  // nobody ended the stream or stopped the reader
    }
  }
}

MutableBytes Scratch() {
  static auto* const scratch = new ByteVector(4096);
  return AsMutableBytes(scratch->data(), scratch->size());
}

struct Reading {
  std::deque<Collector::Message> messages;
  size_t pings = 0;
  absl::Status status;
};

// Requires that what is open at the end is what the reader hands back.
Reading ReadBytes(Bytes bytes, std::vector<uint16_t> cuts, size_t segment_bytes, size_t budget) {
  PipeStream pipe(std::move(cuts));
  pipe.Append(bytes);
  Collector collector(segment_bytes);
  FrameReader reader(Scratch(), collector);
  Reading reading;
  reading.status = ReadAll(reader, pipe, budget, /*until_end=*/true);
  std::vector<uint64_t> open = reader.TakeOpenLandings();
  std::sort(open.begin(), open.end());
  FB_CHECK(open == collector.OpenTokens());
  FB_CHECK(reader.TakeOpenLandings().empty());
  reading.messages = collector.messages();
  reading.pings = collector.pings();
  return reading;
}

// Of random bytes, from a place that `which` decides.
ByteVector Pattern(size_t bytes, uint8_t which) {
  static const ByteVector random_bytes = [] {
    SeededRandom random(/*seed=*/1);
    ByteVector made(kLandedBytesMax + UINT8_MAX);
    for (std::byte& byte : made) byte = static_cast<std::byte>(random.Next());
    return made;
  }();
  const auto begin = random_bytes.begin() + which;
  return ByteVector(begin, begin + static_cast<std::ptrdiff_t>(bytes));
}

struct Sent {
  ByteVector header;
  ByteVector payload;
};

// In up to three ranges, one of which may be empty.
PayloadRanges Ranges(FuzzInput& input, const ByteVector& payload) {
  if (payload.empty()) return {};
  const size_t first = input.Below(payload.size() + 1);
  const size_t second = first + input.Below(payload.size() - first + 1);
  const Bytes all(payload);
  return {all.subspan(0, first), all.subspan(first, second - first), all.subspan(second)};
}

void QueueSome(FuzzInput& input, FrameWriter& writer, std::deque<Sent>& sent, size_t& pings) {
  for (size_t count = input.Below(4); count > 0 && sent.size() < kMessagesMax; --count) {
    if (input.Take<uint8_t>() == 7) {
      writer.QueuePing(FrameType::kPing);
      ++pings;
      continue;
    }
    Sent& message = sent.emplace_back();
    const auto number = static_cast<uint8_t>(sent.size());
    message.header = Pattern(1 + input.Below(200), number);
    // The header names its message, as some may be equal otherwise and they come in any order.
    message.header[0] = std::byte{number};
    const size_t bound = input.Flag() ? kLandedBytesMax : 600;
    message.payload = Pattern(input.Below(bound), number);
    OutgoingMessage outgoing{message.header, Ranges(input, message.payload), number};
    writer.QueueMessage(outgoing, message.payload.size(), message.header.size());
  }
}

void CheckRoundTrip(FuzzInput& input) {
  PipeStream pipe(TakeCuts(input));
  // Not so few that a large payload becomes tens of thousands of frames.
  FrameWriter writer(/*chunk_bytes=*/16 + input.Below(5000));
  std::deque<Sent> sent;
  std::vector<FrameWriter::Done> done;
  size_t pings = 0;
  while (!input.empty() && sent.size() < kMessagesMax) {
    QueueSome(input, writer, sent, pings);
    writer.WriteTo(pipe, 1 + input.Below(20'000), done);
  }
  while (!writer.idle()) {
    const FrameWriter::Outcome outcome = writer.WriteTo(pipe, SIZE_MAX, done);
    FB_CHECK(outcome.kind != FrameWriter::Outcome::Kind::kFailed);
  }
  FB_CHECK(writer.queued_payload_bytes() == 0 && writer.TakeUnsent().empty());
  FB_CHECK(done.size() == sent.size());

  const Reading reading =
      ReadBytes(pipe.bytes(), TakeCuts(input), 1 + input.Below(9000), 1 + input.Below(9000));
  FB_CHECK(reading.status.ok() && reading.pings == pings);
  FB_CHECK(reading.messages.size() == sent.size());
  std::vector<bool> seen(sent.size());
  for (const Collector::Message& message : reading.messages) {
    const size_t index = static_cast<size_t>(message.header[0]) - 1;
    FB_CHECK(index < sent.size() && !seen[index]);
    seen[index] = true;
    FB_CHECK(message.header == sent[index].header);
    FB_CHECK(message.payload == sent[index].payload);
    FB_CHECK(message.landed == !message.payload.empty());
  }
  for (const FrameWriter::Done& one : done) {
    FB_CHECK(one.is_message && one.token >= 1 && one.token <= sent.size());
    FB_CHECK(one.payload_bytes == sent[one.token - 1].payload.size());
    FB_CHECK(one.queued_bytes == sent[one.token - 1].header.size());
  }
}

struct Stream {
  ByteVector bytes;
  // A frame in it is damaged or out of turn, and what comes before it does not hide that.
  bool must_be_refused = false;
};

// Frames of a peer that seals what it likes.
Stream TakeStream(FuzzInput& input) {
  PipeStream stream({});
  bool must_be_refused = false;
  bool in_step = true;      // heads lie where the frames before them say
  uint32_t open_bytes = 0;  // payload of a large message, so that chunks of it can be made
  for (uint32_t frame = 0; frame < kFramesMax && !input.empty(); ++frame) {
    TcpFrameHead head;
    head.type = static_cast<uint8_t>(1 + input.Below(6));
    head.sequence = input.Take<uint8_t>() == 1 ? input.Take<uint32_t>() : frame;
    const bool has_header = head.type <= 2;
    const ByteVector header = Pattern(has_header ? input.Below(300) : 0, head.type);
    head.header_bytes = static_cast<uint32_t>(header.size());
    const bool bad_header = input.Take<uint8_t>() == 1;
    head.header_checksum = Checksum32Of(header) ^ (bad_header ? 1 : 0);
    if (head.type <= 3) {
      head.payload_bytes = head.type == 3 && input.Take<uint8_t>() != 1
                               ? open_bytes
                               : static_cast<uint32_t>(input.Below(2000));
      if (input.Take<uint8_t>() == 1) head.payload_bytes = input.Take<uint32_t>();
      head.chunk_bytes = head.payload_bytes;
      if (head.type != 1) head.chunk_bytes = static_cast<uint32_t>(1 + input.Below(900));
      if (head.type == 2) open_bytes = head.payload_bytes;
    }
    head.Seal();
    const bool bad_head = input.Take<uint8_t>() == 1;
    if (bad_head) head.head_checksum ^= 1u << input.Below(32);
    const bool is_bad = bad_head || (bad_header && has_header) || head.sequence != frame;
    must_be_refused = must_be_refused || (in_step && is_bad);
    stream.Append(AsBytes(&head, sizeof(head)));
    stream.Append(header);
    const size_t chunk = std::min<size_t>(head.chunk_bytes, 4000);
    stream.Append(Pattern(chunk, input.Take<uint8_t>()));
    in_step = in_step && chunk == head.chunk_bytes;
    if (input.Take<uint8_t>() == 1) {
      stream.Append(input.TakeBytes(input.Below(100)));
      in_step = false;
    }
  }
  return {stream.bytes(), must_be_refused};
}

void CheckHostileBytes(FuzzInput& input) {
  const std::vector<uint16_t> cuts = TakeCuts(input);
  const size_t segment_bytes = 1 + input.Below(3000);
  const size_t budget = 1 + input.Below(9000);
  // Or bytes that are no frames at all.
  Stream stream;
  if (input.Flag()) {
    const Bytes raw = input.TakeRest();
    stream.bytes.assign(raw.begin(), raw.end());
  } else {
    stream = TakeStream(input);
  }

  const Reading whole = ReadBytes(stream.bytes, {}, kLandedBytesMax, SIZE_MAX);
  const Reading cut = ReadBytes(stream.bytes, cuts, segment_bytes, budget);
  FB_CHECK(!stream.must_be_refused || !whole.status.ok());
  FB_CHECK(whole.status == cut.status);
  FB_CHECK(whole.status.ok() || whole.status.code() == absl::StatusCode::kDataLoss);
  FB_CHECK(whole.pings == cut.pings);
  FB_CHECK(whole.messages.size() == cut.messages.size());
  for (size_t i = 0; i < whole.messages.size(); ++i) {
    FB_CHECK(whole.messages[i].header == cut.messages[i].header);
    FB_CHECK(whole.messages[i].payload_bytes == cut.messages[i].payload_bytes);
    FB_CHECK(whole.messages[i].landed == cut.messages[i].landed);
    FB_CHECK(!whole.messages[i].landed || whole.messages[i].payload == cut.messages[i].payload);
  }
}

SeedBuilder& AddCuts(SeedBuilder& seed) {
  seed.AddBelow(20);
  for (uint8_t i = 0; i < 10; ++i) {
    seed.AddFlag(false).Add(static_cast<uint8_t>(i * 5));
    seed.AddFlag(true).Add(static_cast<uint16_t>(i * 700));
  }
  return seed;
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const size_t chunk_bytes : {0, 100, 4096}) {
    SeedBuilder round_trip;
    AddCuts(round_trip.AddFlag(false)).AddBelow(chunk_bytes);
    for (uint16_t i = 0; i < 5; ++i) {
      round_trip.AddBelow(2).Add(uint8_t{7}).Add(uint8_t{0}).AddBelow(30).AddFlag(i % 2 == 1);
      round_trip.AddBelow(i * 100).AddBelow(i * 20).AddBelow(i * 30).AddBelow(3000);
    }
    seeds.push_back(round_trip.Take());
  }
  SeedBuilder frames;
  AddCuts(frames.AddFlag(true)).AddBelow(100).AddBelow(500).AddFlag(false);
  for (const size_t type : {1, 2, 3, 4, 1, 3, 5, 3}) {
    frames.AddBelow(type - 1).Add(uint8_t{0});
    if (type <= 2) frames.AddBelow(40);
    frames.Add(uint8_t{0});
    // A large message of 900 bytes, and chunks of 300 of it.
    if (type == 3) frames.Add(uint8_t{0}).Add(uint8_t{0}).AddBelow(299);
    if (type == 1) frames.AddBelow(500).Add(uint8_t{0});
    if (type == 2) frames.AddBelow(900).Add(uint8_t{0}).AddBelow(0);
    frames.Add(uint8_t{0}).Add(uint8_t{9}).Add(uint8_t{0});
  }
  seeds.push_back(frames.Take());

  // What a ping, and then a whole message, look like on the wire.
  SeedBuilder raw;
  AddCuts(raw.AddFlag(true)).AddBelow(100).AddBelow(500).AddFlag(true);
  TcpFrameHead ping;
  ping.type = static_cast<uint8_t>(FrameType::kPing);
  ping.Seal();
  const ByteVector header = Pattern(40, 1);
  TcpFrameHead head;
  head.type = static_cast<uint8_t>(FrameType::kWhole);
  head.sequence = 1;
  head.header_bytes = 40;
  head.header_checksum = Checksum32Of(header);
  head.chunk_bytes = head.payload_bytes = 200;
  head.Seal();
  raw.Add(ping).Add(head).AddBytes(header).AddBytes(Pattern(200, 3));
  seeds.push_back(raw.Take());
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  if (input.Flag()) {
    forebay::fuzz::CheckHostileBytes(input);
  } else {
    forebay::fuzz::CheckRoundTrip(input);
  }
  return 0;
}
