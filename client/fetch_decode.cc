// The part of a fetch that decodes what is no raw frame.

#include <cstring>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "client/core_services.h"
#include "client/dictionary_exchange.h"
#include "client/fetch_op.h"
#include "codec/part_plan.h"
#include "codec/planes_codec.h"
#include "codec/uniform/uniform_codec.h"

namespace forebay {
namespace {

// What one worker decodes at a time: long against handing it over, short against a message.
constexpr uint64_t kJobRawBytes = 256 << 10;

}  // namespace

// Adds to `job` what was accepted; a job that is large enough is started, and `job` is one without
// items then.
void FetchOp::AddToDecode(const Item& item, const FrameHeader& header, Bytes payload,
                          uint64_t generation, DecodeJob* job) {
  const PartSpec& part = ns_.parts[item.part];
  streams_[job->daemon].decodes = true;
  DecodeItem decoded;
  decoded.item = item;
  decoded.header = header;
  decoded.payload = payload;
  decoded.generation = generation;
  // Found already when the landing was planned.
  decoded.codec = *CodecRegistry::Default().Find(decoded.header.codec);
  view_.PartRuns(ns_.spec.layout, part, decoded.item.page, &decoded.runs);
  if (decoded.runs.size() > 1) decoded.whole = services().buffers.Take(part.raw_bytes);
  const std::optional<Sha256Digest> name = UniformCodec::DictionaryOf(header, payload);
  if (name && DictionaryStore::Default().Find(*name) == nullptr) {
    Parked& parked = parked_.emplace_back();
    parked.name = *name;
    parked.job = {job->daemon, job->path, job->memory, {}, part.raw_bytes};
    parked.job.items.push_back(std::move(decoded));
    return;
  }
  job->raw_bytes += part.raw_bytes;
  job->items.push_back(std::move(decoded));
  if (job->raw_bytes < kJobRawBytes) return;
  DecodeJob full = std::move(*job);
  *job = {full.daemon, full.path, full.memory, {}, 0};
  StartDecode(std::move(full));
}

// Decodes what waited for a dictionary that has come, or will not come.
void FetchOp::AdvanceParked() {
  std::vector<Parked> still;
  for (Parked& parked : std::exchange(parked_, {})) {
    if (services().dictionaries->Want(parked.name, *this) == DictionaryExchange::State::kLoading) {
      still.push_back(std::move(parked));
    } else {
      StartDecode(std::move(parked.job));  // which says so where it is absent
    }
  }
  parked_ = std::move(still);
}

void FetchOp::StartDecode(DecodeJob job) {
  if (job.items.empty()) return;
  const uint64_t id = services().NextId();
  DecodeJob& started = *(decodes_[id] = std::make_unique<DecodeJob>(std::move(job)));
  services().workers.Run([this, &started] { Decode(started); }, [this, id] { EndDecode(id); });
}

// On a worker: touches nothing but the job, the engine's memory and what never changes.
void FetchOp::Decode(DecodeJob& job) const {
  const KvLayout& layout = ns_.spec.layout;
  for (DecodeItem& decoded : job.items) {
    if (given_up_.load(std::memory_order_relaxed)) {
      decoded.status = absl::CancelledError("the fetch has ended");
      continue;
    }
    const PartSpec& part = ns_.parts[decoded.item.part];
    const bool in_place = decoded.runs.size() == 1;
    const MutableBytes raw =
        in_place ? decoded.runs.front() : decoded.whole.span().first(part.raw_bytes);
    const Nanos start = services().clock.Now();
    decoded.status = decoded.codec->Decode(layout, part, decoded.header, decoded.payload, raw);
    decoded.took = services().clock.Now() - start;
    if (!decoded.status.ok() || in_place) continue;
    size_t at = 0;
    for (MutableBytes run : decoded.runs) {
      std::memcpy(run.data(), raw.data() + at, run.size());
      at += run.size();
    }
  }
}

void FetchOp::EndDecode(uint64_t id) {
  WakeUp();
  const auto it = decodes_.find(id);
  FB_CHECK(it != decodes_.end());
  DecodeJob job = std::move(*it->second);
  decodes_.erase(it);
  for (DecodeItem& decoded : job.items) {
    GiveBack(job.daemon, decoded.item);
    absl::Status status = decoded.status;
    if (status.ok()) {
      const uint64_t raw_bytes = ns_.parts[decoded.item.part].raw_bytes;
      services().metrics.NoteDecode(raw_bytes, decoded.took);
      services().codecs.NoteDecode(*decoded.codec, raw_bytes, decoded.took);
      if ((decoded.header.flags & kFrameRetentionMask) != 0) {
        status = NoteKept(decoded.item, decoded.header, decoded.payload);
      }
    }
    services().buffers.Give(std::move(decoded.whole));
    Settle(decoded.item, status, decoded.generation);
    if (status.ok()) CountBytes(job.daemon, job.path, decoded.header.payload_bytes);
  }
  GiveMemory(std::move(job.memory));
}

// Back to the pool, if nobody else holds it. All holders are on the reactor.
void FetchOp::GiveMemory(SharedBuffer memory) {
  if (memory != nullptr && memory.use_count() == 1) services().buffers.Give(std::move(*memory));
}

// Which tokens the frame has, for an engine that must not attend to the others.
absl::Status FetchOp::NoteKept(const Item& item, const FrameHeader& header, Bytes payload) {
  const KvLayout& layout = ns_.spec.layout;
  const PartSpec& part = ns_.parts[item.part];
  FB_ASSIGN_OR_RETURN(const PartPlan plan, ReadPartPlan(layout, part, header, payload));
  if (result_.kept.empty()) {
    for (const LayerSpec& layer : layout.layers) {
      result_.kept.push_back(
          RetentionMask::KeepAll(page_count_ * layout.page_tokens, layer.kv_heads));
    }
  }
  const uint32_t first = (item.page - first_page_) * layout.page_tokens;
  for (uint32_t l = 0; l < part.layer_count; ++l) {
    RetentionMask& kept = result_.kept[part.layer_begin + l];
    for (uint32_t h = 0; h < part.head_count; ++h) {
      for (uint32_t t = 0; t < layout.page_tokens; ++t) {
        if (plan.ClassOf(layout, part, l, h, t) != TokenClass::kDropped) continue;
        kept.Drop(part.head_begin + h, first + t);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace forebay
