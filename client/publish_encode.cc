// The part of a publish that makes frames of an engine's memory.

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

// As AddRaw where the codec gives up on the part.
FrameHeader PublishOp::AddEncoded(const Item& item, const Codec& codec, PutPayload* payload) {
  const KvLayout& layout = ns_.spec.layout;
  const PartSpec& part = ns_.parts[item.part];
  std::vector<MutableBytes> runs;
  view_.PartRuns(layout, part, item.page, &runs);
  const PartPlan plan = PlanOf(item);
  const size_t room = codec.PayloadBytesMax(layout, part, plan);
  const MutableBytes to = payload->encoded.span().subspan(payload->encoded_at, room);
  BufferPool::Buffer gathered;
  Bytes raw = runs.front();
  if (runs.size() > 1) {
    gathered = services().buffers.Take(part.raw_bytes);
    size_t at = 0;
    for (MutableBytes run : runs) {
      std::memcpy(gathered.memory.get() + at, run.data(), run.size());
      at += run.size();
    }
    raw = Bytes(gathered.memory.get(), at);
  }
  const Nanos start = services().clock.Now();
  const absl::StatusOr<EncodedPart> encoded = codec.Encode(layout, part, plan, raw, to);
  FB_CHECK(encoded.ok());
  const Nanos took = services().clock.Now() - start;
  services().buffers.Give(std::move(gathered));
  services().codecs.NoteEncode(codec, part.raw_bytes, encoded->payload_bytes, took);
  services().metrics.NoteEncode(codec, part.raw_bytes, encoded->payload_bytes, took);
  if ((encoded->flags & kFrameRawFallback) != 0) {
    services().metrics.raw_fallbacks.Add();
    return AddRaw(item, kFrameRawFallback, payload);
  }
  const Bytes bytes = to.first(encoded->payload_bytes);
  FrameHeader header = MakeFrameHeader(layout, part, keys_[item.page], item.page, codec.id(),
                                       static_cast<uint32_t>(bytes.size()), ChecksumOf(bytes));
  header.flags = encoded->flags;
  header.codec_param = PackQuality(encoded->quality);
  header.Seal();
  payload->ranges.push_back(bytes);
  payload->encoded_at += bytes.size();
  return header;
}

}  // namespace forebay
