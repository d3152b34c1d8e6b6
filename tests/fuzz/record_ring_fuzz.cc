// The ring between two processes that do not trust each other: a reader whose writer lies in every
// word, a writer whose reader does, and both honest, against a queue.

#include <deque>
#include <utility>
#include <vector>

#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/guarded_memory.h"
#include "transport/local/record_ring.h"

namespace forebay::fuzz {
namespace {

// A page, so that guards lie at both ends; and less, so that headers wrap often.
constexpr size_t kRingBytesMax = 4096;
constexpr size_t kStepsMax = 400;

MutableBytes TakeRing(FuzzInput& input) {
  static auto* const memory = new GuardedMemory(kRingBytesMax);
  const MutableBytes ring = memory->Last(kRingBytesMax >> input.Below(6));
  std::fill(ring.begin(), ring.end(), std::byte{0});
  return ring;
}

// A lie that is worth telling is near the truth.
uint64_t TakeWord(FuzzInput& input, uint64_t near) {
  switch (input.Below(3)) {
    case 0:
      return near + sizeof(RecordHead) * input.Below(130);
    case 1:
      return near + static_cast<uint64_t>(int64_t{input.Take<int16_t>()});
    default:
      return input.Take<uint64_t>();
  }
}

RecordHead TakeHead(FuzzInput& input, uint32_t header_bytes) {
  RecordHead head;
  head.kind = static_cast<RecordKind>(input.Take<uint8_t>());
  head.header_bytes = header_bytes;
  head.payload_bytes = input.Take<uint32_t>();
  head.offset = input.Take<uint32_t>();
  return head;
}

void CheckHeaderAgainst(const RecordReader& reader, Bytes ring, uint64_t position,
                        uint32_t header_bytes) {
  // A reader has refused a message without a header before it asks for one.
  if (header_bytes == 0) return;
  std::vector<std::byte> header(header_bytes);
  reader.CopyHeader(AsMutableBytes(header.data(), header.size()));
  for (size_t i = 0; i < header.size(); ++i) {
    FB_CHECK(header[i] == ring[(position + sizeof(RecordHead) + i) % ring.size()]);
  }
}

// The writer's words and bytes are whatever the input says.
void CheckHostileWriter(FuzzInput& input) {
  const MutableBytes ring = TakeRing(input);
  std::atomic<uint64_t> tail{0};
  std::atomic<uint64_t> head{0};
  RecordReader reader(ring, tail, head);
  uint64_t position = 0;  // the reader's, by our own count
  uint64_t known = 0;     // how far it believes that the writer came
  for (size_t step = 0; step < kStepsMax && !input.empty(); ++step) {
    const Bytes bytes = input.TakeBytes(input.Below(64));
    const size_t at = input.Below(ring.size());
    for (size_t i = 0; i < bytes.size(); ++i) ring[(at + i) % ring.size()] = bytes[i];
    const uint64_t word = TakeWord(input, position);
    tail.store(word);
    FB_CHECK(reader.HasNews() == (word != position));

    const bool may_be = word - position <= ring.size() &&
                        (word - position) % sizeof(RecordHead) == 0 &&
                        word - position >= known - position;
    FB_CHECK(reader.Refresh() == may_be);
    if (may_be) known = word;
    FB_CHECK(reader.available() == known - position);

    // As LocalChannel does: what was read may be believed only within what is there.
    while (reader.available() > 0 && input.Flag()) {
      const RecordHead record = reader.Peek();
      FB_CHECK(std::memcmp(&record, &ring[position % ring.size()], sizeof(record)) == 0);
      const bool fits = RecordBytes(record.header_bytes) <= reader.available();
      const uint32_t header_bytes = fits ? record.header_bytes : 0;
      CheckHeaderAgainst(reader, ring, position, header_bytes);
      reader.Consume(header_bytes);
      position += RecordBytes(header_bytes);
      FB_CHECK(reader.available() == known - position);
    }
    const bool moved = head.load() != position;
    FB_CHECK(reader.Publish() == moved);
    FB_CHECK(head.load() == position && reader.published() == position);
  }
}

// The reader's word is whatever the input says. What the writer writes stays in the ring, and room
// is only what the last possible word gave back.
void CheckHostileReader(FuzzInput& input) {
  const MutableBytes ring = TakeRing(input);
  std::atomic<uint64_t> tail{0};
  std::atomic<uint64_t> head{0};
  RecordWriter writer(ring, tail, head);
  uint64_t consumed = 0;
  for (size_t step = 0; step < kStepsMax && !input.empty(); ++step) {
    const std::vector<std::byte> header(input.Below(ring.size()));
    FB_CHECK(writer.Fits(header.size()) ==
             (writer.tail() + RecordBytes(header.size()) <= consumed + ring.size()));
    if (writer.Fits(header.size())) {
      writer.Write(TakeHead(input, static_cast<uint32_t>(header.size())), header);
      writer.Publish();
      FB_CHECK(tail.load() == writer.tail());
    }
    const uint64_t word = TakeWord(input, consumed);
    head.store(word);
    FB_CHECK(writer.HasNews() == (word != consumed));
    const bool may_be = word - consumed <= writer.tail() - consumed;
    FB_CHECK(writer.Refresh() == may_be);
    if (may_be) consumed = word;
    FB_CHECK(writer.consumed() == consumed);
    FB_CHECK(writer.free_bytes() <= ring.size());
  }
}

struct Record {
  RecordHead head;
  std::vector<std::byte> header;
  uint64_t end = 0;  // position behind it
};

// Both ends are honest: what goes in comes out, in order, and room is counted right.
class HonestRing {
 public:
  explicit HonestRing(MutableBytes ring)
      : ring_(ring), writer_(ring, tail_, head_), reader_(ring, tail_, head_) {}

  void Step(FuzzInput& input) {
    switch (input.Below(5)) {
      case 0:
      case 1:
        return Write(input);
      case 2:
        writer_.Publish();
        published_ = written_;
        return;
      case 3:
        FB_CHECK(reader_.Refresh());
        while (!records_.empty() && reader_.available() > 0 && input.Flag()) ReadOne();
        return;
      default:
        reader_.Publish();
        FB_CHECK(writer_.Refresh());
        FB_CHECK(writer_.consumed() == read_);
        return;
    }
  }

  // Everything that was published can be read to the end.
  void Drain() {
    writer_.Publish();
    published_ = written_;
    FB_CHECK(reader_.Refresh());
    while (!records_.empty()) ReadOne();
    FB_CHECK(reader_.available() == 0 && !reader_.HasNews());
    FB_CHECK(reader_.published() == read_ || reader_.Publish());
    FB_CHECK(writer_.Refresh() && writer_.free_bytes() == ring_.size());
  }

 private:
  void Write(FuzzInput& input) {
    Record record;
    record.header.resize(input.Below(ring_.size()));
    input.Fill(AsMutableBytes(record.header.data(), record.header.size()));
    record.head = TakeHead(input, static_cast<uint32_t>(record.header.size()));
    const uint64_t bytes = RecordBytes(record.header.size());
    FB_CHECK(writer_.Fits(record.header.size()) ==
             (written_ + bytes - writer_.consumed() <= ring_.size()));
    if (!writer_.Fits(record.header.size())) return;
    writer_.Write(record.head, record.header);
    written_ += bytes;
    FB_CHECK(writer_.tail() == written_);
    record.end = written_;
    records_.push_back(std::move(record));
  }

  void ReadOne() {
    const Record record = std::move(records_.front());
    records_.pop_front();
    FB_CHECK(record.end <= published_);
    const RecordHead head = reader_.Peek();
    FB_CHECK(std::memcmp(&head, &record.head, sizeof(head)) == 0);
    std::vector<std::byte> header(head.header_bytes);
    if (!header.empty()) reader_.CopyHeader(AsMutableBytes(header.data(), header.size()));
    FB_CHECK(header == record.header);
    reader_.Consume(head.header_bytes);
    read_ = record.end;
  }

  const MutableBytes ring_;
  std::atomic<uint64_t> tail_{0};
  std::atomic<uint64_t> head_{0};
  RecordWriter writer_;
  RecordReader reader_;
  std::deque<Record> records_;
  uint64_t written_ = 0;
  uint64_t published_ = 0;
  uint64_t read_ = 0;
};

void CheckHonestEnds(FuzzInput& input) {
  HonestRing ring(TakeRing(input));
  for (size_t step = 0; step < kStepsMax && !input.empty(); ++step) ring.Step(input);
  ring.Drain();
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (size_t shift = 0; shift < 6; ++shift) {
    SeedBuilder hostile_writer;
    hostile_writer.AddBelow(0).AddBelow(shift);
    for (uint32_t i = 0; i < 8; ++i) {
      RecordHead head;
      head.kind = RecordKind::kMessage;
      head.header_bytes = i * 20;
      // A record at the ring's start, and the word that announces it and what follows.
      hostile_writer.AddBelow(sizeof(head)).AddBytes(AsBytes(&head, sizeof(head))).AddBelow(0);
      hostile_writer.AddBelow(0).AddBelow(i).AddFlag(true).AddFlag(false);
    }
    seeds.push_back(hostile_writer.Take());

    SeedBuilder hostile_reader;
    hostile_reader.AddBelow(1).AddBelow(shift);
    for (size_t i = 0; i < 8; ++i) {
      hostile_reader.AddBelow(i * 9).Add(uint8_t{1}).Add(uint64_t{i}).AddBelow(0).AddBelow(i);
    }
    seeds.push_back(hostile_reader.Take());

    SeedBuilder honest;
    honest.AddBelow(2).AddBelow(shift);
    for (size_t i = 0; i < 20; ++i) {
      const std::vector<std::byte> header(i * 3, std::byte{7});
      honest.AddBelow(0).AddBelow(header.size()).AddBytes(header).Add(uint8_t{1}).Add(uint64_t{i});
      honest.AddBelow(2).AddBelow(3).AddFlag(true).AddFlag(i % 3 == 0).AddBelow(4);
    }
    seeds.push_back(honest.Take());
  }
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  switch (input.Below(3)) {
    case 0:
      forebay::fuzz::CheckHostileWriter(input);
      break;
    case 1:
      forebay::fuzz::CheckHostileReader(input);
      break;
    default:
      forebay::fuzz::CheckHonestEnds(input);
      break;
  }
  return 0;
}
