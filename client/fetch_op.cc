#include "client/fetch_op.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/broken.h"
#include "base/status_macros.h"
#include "client/core_services.h"
#include "client/dictionary_exchange.h"
#include "codec/codec.h"

namespace forebay {
namespace {

bool IsBadFrame(const absl::Status& status) {
  return status.code() == absl::StatusCode::kDataLoss ||
         status.code() == absl::StatusCode::kUnimplemented;
}

}  // namespace

FetchOp::FetchOp(CoreServices& services, uint64_t id, ClientNamespace& ns, std::shared_ptr<Hit> hit,
                 KvView view, uint32_t first_page, uint32_t page_count, Nanos deadline,
                 OnLayer on_layer, Done done)
    : ClientOp(services, id, deadline),
      ns_(ns),
      hit_(std::move(hit)),
      view_(std::move(view)),
      first_page_(first_page),
      page_count_(page_count),
      on_layer_(std::move(on_layer)),
      done_(std::move(done)),
      parts_(view_.PartsHeld(ns.spec.layout)),
      streams_(ns.links.size()),
      parts_left_(page_count),
      layer_left_(ns.spec.layout.layers.size()),
      layer_told_(ns.spec.layout.layers.size()) {
  std::stable_sort(parts_.begin(), parts_.end(), [&](uint16_t a, uint16_t b) {
    return ns_.parts[a].layer_begin < ns_.parts[b].layer_begin;
  });
  for (uint32_t page = first_page; page < first_page + page_count; ++page) {
    streams_[hit_->daemons[page]].pages.push_back(page);
  }
  for (uint16_t index : parts_) {
    const PartSpec& part = ns_.parts[index];
    uint32_t needed = 0;
    for (uint32_t i = 0; i < page_count; ++i) {
      if (!ns_.Needs(part, first_page + i, hit_->page_count())) continue;
      ++parts_left_[i];
      ++needed;
    }
    for (uint32_t l = 0; l < part.layer_count; ++l) layer_left_[part.layer_begin + l] += needed;
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    streams_[i].epoch = ns_.links[i]->epoch();
    streams_[i].started_at = services.clock.Now();
  }
  // Layers that nothing is asked for (a view that holds no part of them) are in place already.
  for (uint32_t layer = 0; layer < layer_left_.size(); ++layer) {
    if (layer_left_[layer] > 0) continue;
    layer_told_[layer] = true;
    if (on_layer_) on_layer_(layer, true);
  }
}

FetchOp::~FetchOp() { services().dictionaries->Forget(*this); }

ExpectedFrame FetchOp::Expected(const Item& item) const {
  return ExpectedFrame{ns_.spec.layout, ns_.parts[item.part], hit_->keys[item.page], item.page,
                       ns_.spec.quality};
}

bool FetchOp::NextItem(Stream& stream, Item* item) {
  if (!stream.again.empty()) {
    *item = stream.again.front();
    stream.again.pop_front();
    return true;
  }
  while (stream.next_part < parts_.size()) {
    if (stream.next_page == stream.pages.size()) {
      stream.next_page = 0;
      ++stream.next_part;
      continue;
    }
    const uint16_t part = parts_[stream.next_part];
    const uint32_t page = stream.pages[stream.next_page++];
    if (!ns_.Needs(ns_.parts[part], page, hit_->page_count())) continue;
    *item = {part, page};
    return true;
  }
  return false;
}

void FetchOp::Advance(Nanos now) {
  if (!ending_ && (cancelled() || now >= deadline())) BeginEnd(now);
  if (!ending_) {
    AdvanceParked();
    uint64_t slice = services().options.slice_bytes;
    // First what comes over a link, so that it crosses while we copy.
    uint64_t no_copies = 0;
    for (uint16_t daemon = 0; daemon < streams_.size(); ++daemon) Fill(daemon, now, &no_copies);
    for (uint16_t daemon = 0; daemon < streams_.size(); ++daemon) Fill(daemon, now, &slice);
    if (Idle()) ending_ = true;
  }
  if (!ending_) return;
  if (landings_.empty()) {
    // Workers that are still at it end soon, and tell.
    if (decodes_.empty()) Finish();
    return;
  }
  if (now < wake_at()) return;
  // What still lands had its grace. Closing hands the memory back.
  for (const auto& [token, record] : landings_) {
    services().metrics.forced_closes.Add();
    ns_.links[record.daemon]->Abort(absl::DeadlineExceededError("a transfer outlived its call"));
  }
  SetWakeAt(kForever);
}

bool FetchOp::Idle() const {
  if (!requests_.empty() || !landings_.empty() || !decodes_.empty() || !parked_.empty()) {
    return false;
  }
  return std::all_of(streams_.begin(), streams_.end(), [&](const Stream& stream) {
    if (stream.local.active) return false;
    return stream.lost || stream.pages.empty() ||
           (stream.again.empty() && stream.next_part == parts_.size());
  });
}

void FetchOp::Fill(uint16_t daemon, Nanos /*now*/, uint64_t* slice) {
  Stream& stream = streams_[daemon];
  if (stream.pages.empty() || stream.lost) return;
  DaemonLink& link = *ns_.links[daemon];
  if (!link.ready() || link.epoch() != stream.epoch) {
    LoseStream(daemon);
    return;
  }
  const uint64_t window = services().options.fetch_window_bytes;
  const uint64_t message_bytes = std::min(services().options.get_message_bytes, window);
  for (;;) {
    if (stream.local.active && !ContinueLocal(stream, slice)) {
      WakeUp();
      return;
    }
    if (stream.outstanding_bytes > 0 && stream.outstanding_bytes + message_bytes > window) return;
    Item item;
    if (!NextItem(stream, &item)) return;
    if (!BeginLocal(stream, item)) FillByGet(daemon, item);
  }
}

// Takes `item` and those after it that come by Get too, up to one message.
void FetchOp::FillByGet(uint16_t daemon, Item item) {
  Stream& stream = streams_[daemon];
  std::vector<Item> items;
  uint64_t bytes = 0;
  for (;;) {
    items.push_back(item);
    bytes += ns_.parts[item.part].raw_bytes;
    if (items.size() == wire::kGetItemsMax || bytes >= services().options.get_message_bytes) break;
    if (!NextItem(stream, &item)) break;
    if (BeginLocal(stream, item)) break;
  }
  SendGet(daemon, std::move(items));
}

void FetchOp::SendGet(uint16_t daemon, std::vector<Item> items) {
  DaemonLink& link = *ns_.links[daemon];
  const uint64_t id = link.BeginRequest(*this);
  std::vector<wire::GetItem> wire_items(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const uint32_t bytes = ns_.parts[items[i].part].raw_bytes;
    wire_items[i].key = hit_->keys[items[i].page];
    wire_items[i].part = items[i].part;
    wire_items[i].payload_bytes_max = bytes;
    streams_[daemon].outstanding_bytes += bytes;
  }
  const Nanos left = deadline() - services().clock.Now();
  wire::Get get;
  get.namespace_id = link.namespace_id();
  get.item_count = static_cast<uint32_t>(items.size());
  get.deadline_ms =
      static_cast<uint32_t>(std::clamp<Nanos>(left / kMillisecond, 1, Nanos{UINT32_MAX}));
  GetRequest& request = requests_[id];
  request.daemon = daemon;
  request.answered.resize(items.size());
  request.unanswered = items.size();
  request.items = std::move(items);
  wire::Writer writer(wire::Kind::kGet, id, get);
  writer.Array<wire::GetItem>(wire_items);
  link.Send(writer.Take());
}

absl::StatusOr<Landing> FetchOp::OnReply(DaemonLink& link, uint64_t request_id,
                                         wire::Reader& reader, uint64_t payload_bytes) {
  WakeUp();
  const auto it = requests_.find(request_id);
  FB_CHECK(it != requests_.end());
  GetRequest& request = it->second;
  if (reader.kind() == wire::Kind::kError) {
    absl::Status told;
    FB_RETURN_IF_ERROR(wire::ReadError(reader, &told));
    OnRequestLost(link, request_id, told);
    link.EndRequest(request_id);
    return Landing::Drop();
  }
  if (reader.kind() != wire::Kind::kGetData) {
    return absl::InvalidArgumentError("an answer to a get of another kind");
  }
  wire::GetData data;
  std::vector<wire::GetDataItem> items;
  FB_RETURN_IF_ERROR(reader.Read(&data));
  FB_RETURN_IF_ERROR(reader.ReadArray(data.item_count, wire::kGetItemsMax, &items));
  FB_RETURN_IF_ERROR(reader.Finish());
  LandingRecord record;
  record.daemon = link.index();
  Landing landing;
  FB_RETURN_IF_ERROR(PlanLanding(request, items, payload_bytes, &record, &landing));
  if (request.unanswered == 0) {
    link.EndRequest(request_id);
    requests_.erase(it);
  }
  if (payload_bytes == 0) {
    // Parts of no bytes do not exist, so nothing in it was a frame.
    for (const LandingItem& landed : record.items) {
      Settle(landed.item, absl::DataLossError("a frame of no bytes"), 0);
    }
    return Landing::Drop();
  }
  landing.token = link.NewLanding(*this);
  landings_.emplace(landing.token, std::move(record));
  return landing;
}

// Where each frame goes: raw ones into the engine's memory. One that must be decoded, or whose
// header is not what was asked for, lands in the record's own.
absl::Status FetchOp::PlanLanding(GetRequest& request, const std::vector<wire::GetDataItem>& items,
                                  uint64_t payload_bytes, LandingRecord* record, Landing* landing) {
  uint64_t total = 0;
  for (const wire::GetDataItem& item : items) {
    if (item.item >= request.items.size()) {
      return absl::InvalidArgumentError("a get was answered for an item that it does not have");
    }
    if (item.status != 0) continue;
    if (item.header.payload_bytes > ns_.parts[request.items[item.item].part].raw_bytes) {
      return absl::InvalidArgumentError(
          "a get was answered with more bytes than there is room for");
    }
    total += item.header.payload_bytes;
  }
  if (total != payload_bytes) {
    return absl::InvalidArgumentError("payloads that are not as long as their headers say");
  }
  record->checksums = std::make_unique<RunningChecksum[]>(items.size());
  std::vector<MutableBytes> runs;
  size_t own_bytes = 0;
  const auto own_memory = [&](size_t bytes) {
    if (record->memory == nullptr) {
      record->memory = std::make_shared<BufferPool::Buffer>(services().buffers.Take(payload_bytes));
    }
    own_bytes += bytes;
    return record->memory->span().subspan(own_bytes - bytes, bytes);
  };
  for (const wire::GetDataItem& answer : items) {
    const Item item = request.items[answer.item];
    if (request.answered[answer.item]) {
      return absl::InvalidArgumentError("an item of a get was answered twice");
    }
    request.answered[answer.item] = true;
    --request.unanswered;
    if (answer.status != 0) {
      GiveBack(request.daemon, item);
      Missed(item, absl::Status(static_cast<absl::StatusCode>(answer.status), "not sent"));
      continue;
    }
    const FrameHeader& header = answer.header;
    absl::Status claim = CheckFrameClaim(header, Expected(item));
    const PartSpec& part = ns_.parts[item.part];
    const absl::StatusOr<const Codec*> codec = CodecRegistry::Default().Find(header.codec);
    if (claim.ok()) claim = codec.status();
    if (claim.ok() && (*codec)->identity() && header.payload_bytes != part.raw_bytes) {
      claim = absl::DataLossError("a frame of another length");
    }
    if (!claim.ok()) {
      GiveBack(request.daemon, item);
      Settle(item, claim, 0);
      if (header.payload_bytes == 0) continue;
      landing->segments.push_back({own_memory(header.payload_bytes), nullptr});
      continue;
    }
    RunningChecksum* checksum = &record->checksums[record->items.size()];
    LandingItem& landed = record->items.emplace_back();
    landed.item = item;
    landed.header = header;
    if ((*codec)->identity()) {
      view_.PartRuns(ns_.spec.layout, part, item.page, &runs);
      for (MutableBytes run : runs) landing->segments.push_back({run, checksum});
      continue;
    }
    const MutableBytes memory = own_memory(header.payload_bytes);
    landed.encoded = memory;
    landing->segments.push_back({memory, checksum});
  }
  return absl::OkStatus();
}

void FetchOp::OnLanded(DaemonLink& link, uint64_t token, const absl::Status& status) {
  WakeUp();
  const auto it = landings_.find(token);
  FB_CHECK(it != landings_.end());
  LandingRecord record = std::move(it->second);
  landings_.erase(it);
  DecodeJob job;
  for (size_t i = 0; i < record.items.size(); ++i) {
    const LandingItem& landed = record.items[i];
    ArrivedFrame frame;
    frame.transport = status;
    frame.header = landed.header;
    frame.payload_bytes_arrived = record.checksums[i].bytes();
    frame.checksum = record.checksums[i].Digest();
    const absl::Status accepted = AcceptFrame(frame, Expected(landed.item));
    if (accepted.ok() && !landed.encoded.empty()) {
      job.daemon = link.index();
      job.path = link.path();
      job.memory = record.memory;
      AddToDecode(landed.item, landed.header, landed.encoded, 0, &job);
      continue;
    }
    GiveBack(link.index(), landed.item);
    Settle(landed.item, accepted, 0);
    if (accepted.ok()) CountBytes(link.index(), link.path(), landed.header.payload_bytes);
  }
  StartDecode(std::move(job));
  GiveMemory(std::move(record.memory));
}

void FetchOp::CountBytes(uint16_t daemon, PathChoice path, uint64_t bytes) {
  streams_[daemon].bytes += bytes;
  result_.bytes += bytes;
  switch (path) {
    case PathChoice::kLocal:
      result_.bytes_local += bytes;
      break;
    case PathChoice::kUcx:
      result_.bytes_ucx += bytes;
      break;
    default:
      result_.bytes_tcp += bytes;
  }
}

void FetchOp::OnRequestLost(DaemonLink& link, uint64_t request_id, const absl::Status& why) {
  WakeUp();
  const auto it = requests_.find(request_id);
  FB_CHECK(it != requests_.end());
  const GetRequest request = std::move(it->second);
  requests_.erase(it);
  for (size_t i = 0; i < request.items.size(); ++i) {
    if (request.answered[i]) continue;
    GiveBack(link.index(), request.items[i]);
    Missed(request.items[i], why);
  }
}

// The daemon is away: what was still to come from it are misses, by not being loaded.
void FetchOp::LoseStream(uint16_t daemon) {
  Stream& stream = streams_[daemon];
  const absl::Status& last = ns_.links[daemon]->last_error();
  const absl::Status why = last.ok() ? absl::UnavailableError("the connection was lost") : last;
  if (std::exchange(stream.local.active, false)) Missed(stream.local.item, why);
  Item item;
  while (NextItem(stream, &item)) Missed(item, why);
  stream.lost = true;
}

void FetchOp::GiveBack(uint16_t daemon, const Item& item) {
  streams_[daemon].outstanding_bytes -= ns_.parts[item.part].raw_bytes;
}

// The verdict of the accept rule on one frame.
void FetchOp::Settle(const Item& item, const absl::Status& status, uint64_t generation) {
  if (status.ok()) {
    Loaded(item);
    return;
  }
  if (IsBadFrame(status)) {
    services().metrics.bad_frames.Add();
    ReportBad(item, generation);
  }
  Missed(item, status);
}

void FetchOp::ReportBad(const Item& item, uint64_t generation) {
  DaemonLink& link = *ns_.links[hit_->daemons[item.page]];
  if (!link.ready()) return;
  wire::ReportBad report;
  report.namespace_id = link.namespace_id();
  report.part = item.part;
  report.key = hit_->keys[item.page];
  report.generation = generation;
  wire::Writer writer(wire::Kind::kReportBad, services().NextId(), report);
  link.Send(writer.Take());
}

void FetchOp::Loaded(const Item& item) {
  --parts_left_[item.page - first_page_];
  CountLayers(item, true);
}

void FetchOp::Missed(const Item& item, const absl::Status& why) {
  services().metrics.fetch_parts_missed.Add();
  if (result_.first_error.ok()) {
    const uint16_t daemon = hit_->daemons[item.page];
    result_.first_error = absl::Status(
        why.code(), absl::StrCat(services().options.daemons[daemon].control, ": part ", item.part,
                                 " of page ", item.page, ": ", why.message()));
  }
  if (FB_BROKEN("count_failed_as_loaded")) return Loaded(item);
  CountLayers(item, false);
}

void FetchOp::CountLayers(const Item& item, bool in_place) {
  const PartSpec& part = ns_.parts[item.part];
  for (uint32_t i = 0; i < part.layer_count; ++i) {
    const uint32_t layer = part.layer_begin + i;
    --layer_left_[layer];
    if (layer_told_[layer] || (in_place && layer_left_[layer] > 0)) continue;
    layer_told_[layer] = true;
    if (on_layer_) on_layer_(layer, in_place);
  }
}

void FetchOp::BeginEnd(Nanos now) {
  ending_ = true;
  given_up_.store(true, std::memory_order_relaxed);
  if (cancelled()) end_status_ = absl::CancelledError("the fetch was cancelled");
  for (Stream& stream : streams_) stream.local.active = false;
  parked_.clear();
  for (const auto& [id, request] : requests_) {
    DaemonLink& link = *ns_.links[request.daemon];
    link.EndRequest(id);
    if (!link.ready()) continue;
    wire::Cancel cancel;
    cancel.target = id;
    wire::Writer writer(wire::Kind::kCancel, services().NextId(), cancel);
    link.Send(writer.Take());
  }
  requests_.clear();
  if (!landings_.empty()) SetWakeAt(now + services().options.landing_grace);
}

void FetchOp::Finish() {
  SetDone();
  const Nanos now = services().clock.Now();
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].bytes > 0) {
      ns_.links[i]->NoteTransfer(streams_[i].bytes, !streams_[i].decodes,
                                 now - streams_[i].started_at);
    }
  }
  ClientMetrics& metrics = services().metrics;
  metrics.fetch_bytes_local.Add(result_.bytes_local);
  metrics.fetch_bytes_tcp.Add(result_.bytes_tcp);
  metrics.fetch_bytes_ucx.Add(result_.bytes_ucx);
  for (uint32_t layer = 0; layer < layer_told_.size(); ++layer) {
    if (layer_told_[layer]) continue;
    layer_told_[layer] = true;
    if (on_layer_) on_layer_(layer, false);
  }
  result_.pages.resize(page_count_);
  bool leading = true;
  for (uint32_t i = 0; i < page_count_; ++i) {
    result_.pages[i] = parts_left_[i] == 0;
    leading = leading && result_.pages[i];
    if (leading) ++result_.page_count;
  }
  if (end_status_.ok()) {
    done_(std::move(result_));
  } else {
    done_(end_status_);
  }
}

}  // namespace forebay
