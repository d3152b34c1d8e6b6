// The part of a publish that makes frames of an engine's memory.

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "client/core_services.h"
#include "client/publish_op.h"
#include "codec/part_plan.h"

namespace forebay {

// What the parts that are wanted are sent as, over this daemon's path.
void PublishOp::ChooseCodecs(uint16_t daemon) {
  Stream& stream = streams_[daemon];
  DaemonLink& link = *ns_.links[daemon];
  CodecBook& book = services().codecs;
  uint64_t raw_bytes = 0;
  for (const Item& item : stream.items) raw_bytes += ns_.parts[item.part].raw_bytes;
  absl::btree_map<uint16_t, const Codec*> by_bound;
  stream.codecs.clear();
  for (const PartSpec& part : ns_.parts) {
    if (!HasPlanes(part)) {
      stream.codecs.push_back(&CodecBook::Find("raw"));
      continue;
    }
    const QualityBound bound = ns_.spec.quality.StrictestOf(part);
    const Codec*& codec = by_bound[PackQuality(bound)];
    if (codec == nullptr) {
      codec = &link.codec().Choose(book, bound, link.path_rates(), raw_bytes,
                                   services().options.put_message_bytes);
    }
    // What drops tokens, or keeps some formats apart, is made of planes.
    const bool planned = options_.plan != nullptr && codec->id() != CodecId::kPlanes;
    stream.codecs.push_back(planned ? &CodecBook::Find("lossless_fast") : codec);
  }
}

PartPlan PublishOp::PlanOf(const Item& item) const {
  const PartSpec& part = ns_.parts[item.part];
  if (options_.plan == nullptr || !HasPlanes(part)) return {};
  return PartPlanOf(*options_.plan, ns_.spec.layout, part, item.page,
                    static_cast<uint32_t>(keys_.size()));
}

FrameHeader PublishOp::AddRaw(const Item& item, uint16_t flags, PutPayload* payload) {
  const PartSpec& part = ns_.parts[item.part];
  std::vector<MutableBytes> runs;
  view_.PartRuns(ns_.spec.layout, part, item.page, &runs);
  RunningChecksum checksum;
  for (MutableBytes run : runs) {
    if (payload->lent.empty()) {
      checksum.Update(run);
      payload->ranges.push_back(run);
    } else {
      checksum.CopyAndUpdate(payload->lent.data() + payload->lent_at, run.data(), run.size());
      payload->lent_at += run.size();
    }
  }
  FrameHeader header = MakeFrameHeader(ns_.spec.layout, part, keys_[item.page], item.page,
                                       CodecId::kRaw, part.raw_bytes, checksum.Digest());
  header.flags = flags;
  header.Seal();
  return header;
}

// The next `count` items of the stream.
void PublishOp::StartEncoding(uint16_t daemon, size_t count, uint64_t raw_bytes) {
  const KvLayout& layout = ns_.spec.layout;
  Stream& stream = streams_[daemon];
  const uint64_t id = services().NextId();
  Encoding& encoding = *(encodings_[id] = std::make_unique<Encoding>());
  encoding.daemon = daemon;
  encoding.raw_bytes = raw_bytes;
  size_t room = 0;
  size_t gathered = 0;
  std::vector<size_t> rooms;
  for (size_t i = 0; i < count; ++i) {
    EncodeItem& item = encoding.items.emplace_back();
    item.item = stream.items[stream.next_item++];
    const PartSpec& part = ns_.parts[item.item.part];
    item.codec = stream.codecs[item.item.part];
    item.plan = PlanOf(item.item);
    view_.PartRuns(layout, part, item.item.page, &item.runs);
    rooms.push_back(item.codec->identity() ? 0
                                           : item.codec->PayloadBytesMax(layout, part, item.plan));
    room += rooms.back();
    if (item.runs.size() > 1) gathered = std::max<size_t>(gathered, part.raw_bytes);
  }
  encoding.memory = services().buffers.Take(room);
  if (gathered > 0) encoding.gathered = services().buffers.Take(gathered);
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    encoding.items[i].to = encoding.memory.span().subspan(at, rooms[i]);
    at += rooms[i];
  }
  stream.outstanding_bytes += raw_bytes;
  stream.encodings.push_back(id);
  services().workers.Run([this, &encoding] { Encode(encoding); }, [this, id] { EndEncoding(id); });
}

// On a worker: touches nothing but the encoding, the engine's memory and what never changes.
void PublishOp::Encode(Encoding& encoding) const {
  for (EncodeItem& item : encoding.items) {
    if (item.codec->identity()) continue;
    if (given_up_.load(std::memory_order_relaxed)) return;
    Bytes raw = item.runs.front();
    if (item.runs.size() > 1) {
      size_t at = 0;
      for (MutableBytes run : item.runs) {
        std::memcpy(encoding.gathered.memory.get() + at, run.data(), run.size());
        at += run.size();
      }
      raw = encoding.gathered.span().first(at);
    }
    const Nanos start = services().clock.Now();
    item.encoded =
        item.codec->Encode(ns_.spec.layout, ns_.parts[item.item.part], item.plan, raw, item.to);
    item.took = services().clock.Now() - start;
    if (item.encoded.ok()) item.checksum = ChecksumOf(item.to.first(item.encoded->payload_bytes));
  }
}

void PublishOp::EndEncoding(uint64_t id) {
  WakeUp();
  Encoding& encoding = *encodings_.at(id);
  services().buffers.Give(std::move(encoding.gathered));
  encoding.ready = true;
  if (!encoding.unwanted) return;
  services().buffers.Give(std::move(encoding.memory));
  encodings_.erase(id);
}

void PublishOp::SendEncoded(uint16_t daemon) {
  Stream& stream = streams_[daemon];
  const auto it = encodings_.find(stream.encodings.front());
  Encoding encoding = std::move(*it->second);
  encodings_.erase(it);
  stream.encodings.pop_front();
  PutPayload payload;
  PutRequest request;
  request.daemon = daemon;
  request.raw_bytes = encoding.raw_bytes;
  std::vector<FrameHeader> headers;
  for (const EncodeItem& item : encoding.items) {
    headers.push_back(item.codec->identity() ? AddRaw(item.item, 0, &payload)
                                             : AddEncoded(item, &payload));
    request.items.push_back(item.item);
  }
  payload.encoded = std::move(encoding.memory);
  SendItems(daemon, std::move(request), headers, std::move(payload));
}

// As AddRaw where the codec gives up on the part.
FrameHeader PublishOp::AddEncoded(const EncodeItem& item, PutPayload* payload) {
  const PartSpec& part = ns_.parts[item.item.part];
  FB_CHECK(item.encoded.ok());
  const EncodedPart& encoded = *item.encoded;
  services().codecs.NoteEncode(*item.codec, part.raw_bytes, encoded.payload_bytes, item.took);
  services().metrics.NoteEncode(*item.codec, part.raw_bytes, encoded.payload_bytes, item.took);
  services().metrics.raw_planes.Add(encoded.raw_planes);
  if ((encoded.flags & kFrameRawFallback) != 0) {
    services().metrics.raw_fallbacks.Add();
    return AddRaw(item.item, kFrameRawFallback, payload);
  }
  FrameHeader header = MakeFrameHeader(ns_.spec.layout, part, keys_[item.item.page], item.item.page,
                                       item.codec->id(),
                                       static_cast<uint32_t>(encoded.payload_bytes), item.checksum);
  header.flags = encoded.flags;
  header.codec_param = PackQuality(encoded.quality);
  header.Seal();
  payload->ranges.push_back(item.to.first(encoded.payload_bytes));
  return header;
}

}  // namespace forebay
