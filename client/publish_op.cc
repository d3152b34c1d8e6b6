#include "client/publish_op.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/core_services.h"

namespace forebay {

PublishOp::PublishOp(CoreServices& services, uint64_t id, ClientNamespace& ns,
                     std::vector<PageKey> keys, KvView view, const PublishOptions& options,
                     Nanos deadline, Done done)
    : ClientOp(services, id, deadline),
      ns_(ns),
      keys_(std::move(keys)),
      view_(std::move(view)),
      options_(options),
      done_(std::move(done)),
      held_(ns.parts.size()),
      streams_(ns.links.size()),
      pages_(keys_.size()) {
  for (uint16_t part : view_.PartsHeld(ns.spec.layout)) held_[part] = true;
  std::vector<uint16_t> nodes;
  ns_.placement.NodesOf(keys_, &nodes);
  for (uint32_t page = options_.first_page; page < keys_.size(); ++page) {
    streams_[nodes[page]].pages.push_back(page);
  }
  for (uint16_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    if (stream.pages.empty()) {
      stream.step = Step::kEnded;
      continue;
    }
    stream.epoch = ns_.links[i]->epoch();
  }
}

// Parts that the engine does not have for this page, by their class.
bool PublishOp::LeftOut(const PartSpec& part, uint32_t page) const {
  if (part.layer_class == LayerClass::kSlidingWindow) return page < options_.sliding_first_page;
  if (part.layer_class == LayerClass::kState) {
    return !options_.states_of_all_pages && page + 1 != keys_.size();
  }
  return false;
}

// So many that the answer's bits fit one message.
uint32_t PublishOp::OfferPagesMax() const {
  const auto bytes_each = static_cast<uint32_t>((ns_.parts.size() + 7) / 8);
  constexpr uint32_t kReplyBytesMax = kHeaderBytesMax - 4096;
  return std::clamp<uint32_t>(kReplyBytesMax / bytes_each, 1, wire::kKeysMax);
}

void PublishOp::Advance(Nanos now) {
  if (!ending_ && (cancelled() || now >= deadline())) BeginEnd(now);
  if (!ending_) {
    // Whoever drives: the transport gets a turn after each message that goes over a network.
    uint64_t slice = std::min(services().options.slice_bytes, services().options.put_message_bytes);
    bool ended = true;
    for (uint16_t daemon = 0; daemon < streams_.size(); ++daemon) {
      AdvanceStream(daemon, &slice);
      // Nothing may be open at a link when this op goes: its answer would find nobody.
      ended = ended && streams_[daemon].step == Step::kEnded && streams_[daemon].offer == 0 &&
              streams_[daemon].puts_unanswered == 0;
    }
    if (slice == 0) WakeUp();
    if (ended && encodings_.empty()) ending_ = true;
  }
  if (!ending_) return;
  if (sends_.empty()) {
    // Workers that are still at it end soon, and tell.
    if (encodings_.empty()) Finish();
    return;
  }
  // An answer may come before OnSent: that is near, and only a deadline ends the patience with it.
  if (now < wake_at()) return;
  if (wake_at() == deadline()) {
    SetWakeAt(now + services().options.landing_grace);
    return;
  }
  for (const auto& [token, send] : sends_) {
    services().metrics.forced_closes.Add();
    ns_.links[send.daemon]->Abort(absl::DeadlineExceededError("a transfer outlived its call"));
  }
  SetWakeAt(kForever);
}

void PublishOp::AdvanceStream(uint16_t daemon, uint64_t* slice) {
  Stream& stream = streams_[daemon];
  if (stream.step == Step::kEnded) return;
  DaemonLink& link = *ns_.links[daemon];
  if (!link.ready() || link.epoch() != stream.epoch) {
    const absl::Status why =
        link.last_error().ok() ? absl::UnavailableError("not connected") : link.last_error();
    RefuseRest(daemon, absl::UnavailableError(why.message()));
    return;
  }
  for (;;) {
    switch (stream.step) {
      case Step::kOffering:
      case Step::kConfirming:
        if (stream.offer == 0) SendOffer(daemon);
        return;
      case Step::kSending: {
        while (stream.next_item < stream.items.size() || !stream.encodings.empty()) {
          if (!SendPut(daemon, slice)) return;
        }
        if (stream.offer_end < stream.pages.size()) {
          stream.step = Step::kOffering;
          break;
        }
        if (stream.puts_unanswered > 0) return;
        // Parts of other ranks may have come meanwhile; only the daemon knows.
        const bool open = std::any_of(stream.pages.begin(), stream.pages.end(), [&](uint32_t page) {
          return pages_[page].absent_parts > 0 && !pages_[page].refused;
        });
        stream.step = open ? Step::kConfirming : Step::kEnded;
        stream.offer_end = 0;
        if (!open) return;
        break;
      }
      case Step::kEnded:
        return;
    }
  }
}

void PublishOp::SendOffer(uint16_t daemon) {
  Stream& stream = streams_[daemon];
  DaemonLink& link = *ns_.links[daemon];
  stream.offer_begin = stream.offer_end;
  stream.offer_end = std::min<uint32_t>(stream.offer_begin + OfferPagesMax(),
                                        static_cast<uint32_t>(stream.pages.size()));
  std::vector<PageKey> keys;
  for (uint32_t i = stream.offer_begin; i < stream.offer_end; ++i) {
    keys.push_back(keys_[stream.pages[i]]);
  }
  wire::Offer offer;
  offer.namespace_id = link.namespace_id();
  offer.key_count = static_cast<uint32_t>(keys.size());
  stream.offer = link.BeginRequest(*this);
  wire::Writer writer(wire::Kind::kOffer, stream.offer, offer);
  writer.Array<PageKey>(keys);
  link.Send(writer.Take());
}

absl::StatusOr<Landing> PublishOp::OnReply(DaemonLink& link, uint64_t request, wire::Reader& reader,
                                           uint64_t /*payload_bytes*/) {
  WakeUp();
  Stream& stream = streams_[link.index()];
  absl::Status error;
  if (reader.kind() == wire::Kind::kError) {
    FB_RETURN_IF_ERROR(wire::ReadError(reader, &error));
  }
  if (request == stream.offer) {
    if (error.ok()) {
      FB_RETURN_IF_ERROR(OnOffer(link, reader));
    }
    link.EndRequest(request);
    if (!error.ok()) RefuseRest(link.index(), error);
    stream.offer = 0;
    return Landing::Drop();
  }
  const auto it = puts_.find(request);
  FB_CHECK(it != puts_.end());
  if (error.ok()) {
    FB_RETURN_IF_ERROR(OnPutReply(it->second, reader));
  }
  link.EndRequest(request);
  EndPut(request, error);
  return Landing::Drop();
}

absl::Status PublishOp::OnOffer(DaemonLink& link, wire::Reader& reader) {
  Stream& stream = streams_[link.index()];
  if (stream.step == Step::kEnded) return absl::OkStatus();  // refused meanwhile
  if (reader.kind() != wire::Kind::kOfferReply) {
    return absl::InvalidArgumentError("an answer to an offer of another kind");
  }
  wire::OfferReply reply;
  std::vector<uint8_t> bits;
  FB_RETURN_IF_ERROR(reader.Read(&reply));
  if (reply.status != 0) {
    RefuseRest(link.index(), absl::Status(static_cast<absl::StatusCode>(reply.status),
                                          "the daemon refused the offer"));
    return absl::OkStatus();
  }
  const uint32_t asked = stream.offer_end - stream.offer_begin;
  if (reply.key_count != asked || reply.parts != ns_.parts.size()) {
    return absl::InvalidArgumentError("an answer to another offer");
  }
  const uint32_t bytes = asked * ((reply.parts + 7) / 8);
  FB_RETURN_IF_ERROR(reader.ReadArray(bytes, bytes, &bits));
  FB_RETURN_IF_ERROR(reader.Finish());
  if (stream.step == Step::kConfirming) {
    Confirm(stream, bits);
  } else {
    TakeOffer(link.index(), bits);
  }
  return absl::OkStatus();
}

void PublishOp::TakeOffer(uint16_t daemon, const std::vector<uint8_t>& bits) {
  Stream& stream = streams_[daemon];
  const size_t bytes_each = (ns_.parts.size() + 7) / 8;
  stream.items.clear();
  stream.next_item = 0;
  for (uint32_t i = stream.offer_begin; i < stream.offer_end; ++i) {
    const uint32_t page = stream.pages[i];
    const uint8_t* wanted = bits.data() + (i - stream.offer_begin) * bytes_each;
    for (uint16_t part = 0; part < ns_.parts.size(); ++part) {
      if (LeftOut(ns_.parts[part], page)) continue;
      const bool absent = (wanted[part / 8] >> (part % 8) & 1) != 0;
      if (absent) ++pages_[page].absent_parts;
      if (!held_[part]) continue;
      if (absent) {
        stream.items.push_back({page, part});
      } else {
        ++result_.parts_present;
      }
    }
  }
  ChooseCodecs(daemon);
  stream.step = Step::kSending;
}

void PublishOp::Confirm(Stream& stream, const std::vector<uint8_t>& bits) {
  const size_t bytes_each = (ns_.parts.size() + 7) / 8;
  for (uint32_t i = stream.offer_begin; i < stream.offer_end; ++i) {
    const uint32_t page = stream.pages[i];
    const uint8_t* wanted = bits.data() + (i - stream.offer_begin) * bytes_each;
    pages_[page].absent_parts = 0;
    for (uint16_t part = 0; part < ns_.parts.size(); ++part) {
      if (LeftOut(ns_.parts[part], page)) continue;
      if ((wanted[part / 8] >> (part % 8) & 1) != 0) ++pages_[page].absent_parts;
    }
  }
  if (stream.offer_end == stream.pages.size()) stream.step = Step::kEnded;
}

// The items of the next Put, from the stream's next one on, and their raw bytes together.
size_t PublishOp::CountPutItems(const Stream& stream, uint64_t bytes_max, uint64_t* bytes,
                                bool* encodes) const {
  size_t count = 0;
  *bytes = 0;
  *encodes = false;
  while (stream.next_item + count < stream.items.size() && count < wire::kPutItemsMax) {
    const uint16_t part = stream.items[stream.next_item + count].part;
    const uint64_t more = ns_.parts[part].raw_bytes;
    if (count > 0 && *bytes + more > bytes_max) break;
    *bytes += more;
    *encodes = *encodes || !stream.codecs[part]->identity();
    ++count;
  }
  return count;
}

bool PublishOp::SendPut(uint16_t daemon, uint64_t* slice) {
  Stream& stream = streams_[daemon];
  const ClientCoreOptions& options = services().options;
  if (*slice == 0) return false;
  if (!stream.encodings.empty() && encodings_.at(stream.encodings.front())->ready) {
    SendEncoded(daemon);
    return true;
  }
  if (stream.next_item == stream.items.size()) return false;
  if (stream.outstanding_bytes >= options.publish_window_bytes) return false;
  const bool local = ns_.links[daemon]->path() == PathChoice::kLocal;
  uint64_t raw_bytes = 0;
  bool encodes = false;
  const size_t count =
      CountPutItems(stream, local ? options.put_message_bytes_local : options.put_message_bytes,
                    &raw_bytes, &encodes);
  if (encodes) {
    // One more than there are workers, so that none waits for us.
    const auto ahead = static_cast<size_t>(services().workers.thread_count()) + 1;
    if (stream.encodings.size() >= ahead) return false;
    StartEncoding(daemon, count, raw_bytes);
  } else if (!stream.encodings.empty() || !SendRaw(daemon, count, raw_bytes)) {
    return false;  // what is before it has not gone yet, or OnSent wakes us
  }
  *slice -= std::min(*slice, raw_bytes);
  return true;
}

// False if the transport lends no memory just now.
bool PublishOp::SendRaw(uint16_t daemon, size_t count, uint64_t raw_bytes) {
  Stream& stream = streams_[daemon];
  DaemonLink& link = *ns_.links[daemon];
  const size_t header_bytes =
      sizeof(wire::Head) + sizeof(wire::Put) + count * sizeof(wire::PutItem);
  PutPayload payload;
  if (raw_bytes <= link.send_buffer_bytes_max()) {
    // Copied once and hashed on the way, where the transport would copy it anyway.
    payload.lent = link.LendSendBuffer(header_bytes, raw_bytes);
    const bool own_are_under_way = std::any_of(sends_.begin(), sends_.end(), [&](const auto& send) {
      return send.second.daemon == daemon;
    });
    if (payload.lent.empty() && own_are_under_way) return false;
    if (!payload.lent.empty()) payload.ranges.push_back(payload.lent);
  }
  PutRequest request;
  request.daemon = daemon;
  request.raw_bytes = raw_bytes;
  std::vector<FrameHeader> headers;
  for (size_t i = 0; i < count; ++i) {
    const Item item = stream.items[stream.next_item++];
    headers.push_back(AddRaw(item, 0, &payload));
    request.items.push_back(item);
  }
  FB_CHECK(payload.lent_at == payload.lent.size());
  stream.outstanding_bytes += raw_bytes;
  SendItems(daemon, std::move(request), headers, std::move(payload));
  return true;
}

// Requires that the bytes are counted as outstanding already.
void PublishOp::SendItems(uint16_t daemon, PutRequest request,
                          const std::vector<FrameHeader>& headers, PutPayload payload) {
  DaemonLink& link = *ns_.links[daemon];
  std::vector<wire::PutItem> wire_items;
  for (size_t i = 0; i < headers.size(); ++i) {
    const Item& item = request.items[i];
    wire::PutItem put;
    put.key = keys_[item.page];
    put.parent = item.page == 0 ? *ns_.root : keys_[item.page - 1];
    put.part = item.part;
    put.header = headers[i];
    wire_items.push_back(put);
    request.payload_bytes.push_back(put.header.payload_bytes);
  }
  ++streams_[daemon].puts_unanswered;
  wire::Put put;
  put.namespace_id = link.namespace_id();
  put.item_count = static_cast<uint32_t>(request.items.size());
  const uint64_t id = link.BeginRequest(*this);
  puts_.emplace(id, std::move(request));
  wire::Writer writer(wire::Kind::kPut, id, put);
  writer.Array<wire::PutItem>(wire_items);
  const uint64_t token = link.SendPayload(writer.Take(), std::move(payload.ranges), *this);
  sends_[token] = {daemon, std::move(payload.encoded)};
  put_of_send_[token] = id;
}

absl::Status PublishOp::OnPutReply(PutRequest& request, wire::Reader& reader) {
  if (reader.kind() != wire::Kind::kPutReply) {
    return absl::InvalidArgumentError("an answer to a put of another kind");
  }
  wire::PutReply reply;
  std::vector<uint32_t> codes;
  FB_RETURN_IF_ERROR(reader.Read(&reply));
  FB_RETURN_IF_ERROR(reader.ReadArray(reply.item_count, wire::kPutItemsMax, &codes));
  FB_RETURN_IF_ERROR(reader.Finish());
  if (reply.status == 0 && codes.size() != request.items.size()) {
    return absl::InvalidArgumentError("a put was answered with another number of items");
  }
  const auto whole = static_cast<absl::StatusCode>(reply.status);
  for (size_t i = 0; i < request.items.size(); ++i) {
    const Item& item = request.items[i];
    const auto code = reply.status != 0 ? whole : static_cast<absl::StatusCode>(codes[i]);
    if (code != absl::StatusCode::kOk && code != absl::StatusCode::kAlreadyExists) {
      Refuse(item,
             absl::Status(code,
                          absl::StrCat(services().options.daemons[request.daemon].control,
                                       " did not store part ", item.part, " of page ", item.page)));
      continue;
    }
    ++result_.parts_sent;
    result_.bytes += request.payload_bytes[i];
    --pages_[item.page].absent_parts;
  }
  request.items.clear();
  return absl::OkStatus();
}

void PublishOp::Refuse(const Item& item, const absl::Status& why) {
  services().metrics.publish_refused.Add();
  pages_[item.page].refused = true;
  if (result_.first_error.ok()) result_.first_error = why;
}

absl::Status PublishOp::From(uint16_t daemon, const absl::Status& why) const {
  const std::string& control = services().options.daemons[daemon].control;
  return absl::Status(why.code(), absl::StrCat(control, ": ", why.message()));
}

// Ends a put; its items, where no answer has settled them, are refused.
void PublishOp::EndPut(uint64_t id, const absl::Status& why) {
  const auto it = puts_.find(id);
  if (it == puts_.end()) return;
  const PutRequest request = std::move(it->second);
  puts_.erase(it);
  Stream& stream = streams_[request.daemon];
  stream.outstanding_bytes -= request.raw_bytes;
  --stream.puts_unanswered;
  for (const Item& item : request.items) Refuse(item, From(request.daemon, why));
}

// The daemon takes no more: what it has not taken is refused.
void PublishOp::RefuseRest(uint16_t daemon, const absl::Status& reason) {
  Stream& stream = streams_[daemon];
  const absl::Status why = From(daemon, reason);
  if (stream.step == Step::kEnded) return;
  for (uint64_t id : std::exchange(stream.encodings, {})) {
    Encoding& encoding = *encodings_.at(id);
    for (const EncodeItem& encoded : encoding.items) Refuse(encoded.item, why);
    stream.outstanding_bytes -= encoding.raw_bytes;
    encoding.unwanted = true;
    if (!encoding.ready) continue;  // a worker is at it
    services().buffers.Give(std::move(encoding.memory));
    encodings_.erase(id);
  }
  if (stream.step != Step::kConfirming) {
    for (; stream.next_item < stream.items.size(); ++stream.next_item) {
      Refuse(stream.items[stream.next_item], why);
    }
    const uint32_t begin =
        stream.step == Step::kOffering && stream.offer != 0 ? stream.offer_begin : stream.offer_end;
    for (uint32_t i = begin; i < stream.pages.size(); ++i) Refuse({stream.pages[i], 0}, why);
  }
  stream.step = Step::kEnded;
}

void PublishOp::OnRequestLost(DaemonLink& link, uint64_t request, const absl::Status& why) {
  WakeUp();
  Stream& stream = streams_[link.index()];
  if (request == stream.offer) {
    RefuseRest(link.index(), why);
    stream.offer = 0;
    return;
  }
  EndPut(request, why);
}

void PublishOp::OnSent(DaemonLink& link, uint64_t token, const absl::Status& status) {
  WakeUp();
  const auto send = sends_.find(token);
  FB_CHECK(send != sends_.end());
  services().buffers.Give(std::move(send->second.encoded));
  sends_.erase(send);
  const auto it = put_of_send_.find(token);
  FB_CHECK(it != put_of_send_.end());
  const uint64_t request = it->second;
  put_of_send_.erase(it);
  // What was not sent is not answered.
  if (status.ok() || !puts_.contains(request)) return;
  link.EndRequest(request);
  EndPut(request, status);
}

void PublishOp::BeginEnd(Nanos now) {
  ending_ = true;
  given_up_.store(true, std::memory_order_relaxed);
  absl::Status why = absl::DeadlineExceededError("the pages were not stored in time");
  if (cancelled()) {
    why = absl::CancelledError("the publish was cancelled");
    end_status_ = why;
  }
  for (uint16_t daemon = 0; daemon < streams_.size(); ++daemon) {
    Stream& stream = streams_[daemon];
    RefuseRest(daemon, why);
    if (stream.offer != 0) ns_.links[daemon]->EndRequest(stream.offer);
    stream.offer = 0;
  }
  std::vector<uint64_t> open;
  for (const auto& [id, request] : puts_) open.push_back(id);
  for (uint64_t id : open) {
    ns_.links[puts_[id].daemon]->EndRequest(id);
    EndPut(id, why);
  }
  SetWakeAt(now + services().options.landing_grace);
}

void PublishOp::Finish() {
  FB_CHECK(puts_.empty());
  SetDone();
  for (uint32_t page = options_.first_page; page < pages_.size(); ++page) {
    if (pages_[page].refused) {
      ++result_.pages_refused;
    } else if (pages_[page].absent_parts == 0) {
      ++result_.pages_stored;
    }
  }
  services().metrics.publish_bytes.Add(result_.bytes);
  if (end_status_.ok()) {
    done_(std::move(result_));
  } else {
    done_(end_status_);
  }
}

}  // namespace forebay
