#include "server/get_op.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/broken.h"
#include "base/failpoint.h"
#include "base/frame_header.h"
#include "server/node_core.h"
#include "server/reply.h"
#include "server/session.h"

namespace forebay {
namespace {

// Share of the newest message in the moving average of an endpoint's rate.
constexpr double kRateGain = 0.2;

wire::GetDataItem Answer(uint32_t item, absl::StatusCode code) {
  wire::GetDataItem answer;
  answer.item = item;
  answer.status = static_cast<uint32_t>(code);
  std::memset(static_cast<void*>(&answer.header), 0, sizeof(answer.header));
  return answer;
}

void SendAnswers(Endpoint& endpoint, uint64_t op, const std::vector<wire::GetDataItem>& answers) {
  if (answers.empty()) return;
  wire::GetData data;
  data.item_count = static_cast<uint32_t>(answers.size());
  wire::Writer writer(wire::Kind::kGetData, op, data);
  writer.Array(absl::MakeConstSpan(answers));
  SendReply(endpoint, writer);
}

}  // namespace

void GetQueue::Admit(NodeCore& core, Endpoint& endpoint, uint64_t op, const wire::Get& get,
                     const std::vector<wire::GetItem>& items, Nanos now) {
  std::vector<Item> found;
  std::vector<wire::GetDataItem> answered;
  if (FB_FAILPOINT_HIT("server.get.admit")) {
    for (uint32_t i = 0; i < items.size(); ++i) {
      answered.push_back(Answer(i, absl::StatusCode::kUnavailable));
    }
    core.metrics.get_refused.Add(items.size());
  } else {
    PinItems(core, endpoint, items, &found, &answered);
  }
  SendAnswers(endpoint, op, answered);
  if (found.empty()) return;

  const Nanos deadline = get.deadline_ms == 0 ? kForever : now + get.deadline_ms * kMillisecond;
  waiting_.emplace(std::make_pair(deadline, arrivals_++), Waiting{op, std::move(found)});
  Pump(core, endpoint, now);
  if (!waiting_.empty()) core.WakeBy(NextDeadline());
}

void GetQueue::PinItems(NodeCore& core, Endpoint& endpoint, const std::vector<wire::GetItem>& items,
                        std::vector<Item>* found, std::vector<wire::GetDataItem>* answered) {
  const NamespaceEntry& ns = *endpoint.session->ns;
  PageRef page;
  const PageKey* page_key = nullptr;
  found->reserve(items.size());
  for (uint32_t i = 0; i < items.size(); ++i) {
    const wire::GetItem& item = items[i];
    // Parts of one page mostly come in a row: one look into the index serves them all.
    if (page_key == nullptr || item.key != *page_key) {
      page = core.index().Find(ns.id, item.key);
      page_key = &item.key;
    }
    std::optional<PinnedFrame> frame;
    if (item.part < ns.parts.size()) frame = core.store.PinFrame(page, item.part);
    if (frame.has_value() &&
        frame->frame.size() > kFrameHeaderBytes + uint64_t{item.payload_bytes_max}) {
      core.store.Unpin(*frame);
      frame.reset();
    }
    if (!frame.has_value()) {
      core.metrics.get_misses.Add();
      answered->push_back(Answer(i, absl::StatusCode::kNotFound));
      continue;
    }
    if (core.get_pinned_bytes + frame->frame.size() > core.pinned_bytes_max) {
      core.store.Unpin(*frame);
      core.metrics.get_refused.Add();
      answered->push_back(Answer(i, absl::StatusCode::kResourceExhausted));
      continue;
    }
    core.get_pinned_bytes += frame->frame.size();
    waiting_bytes_ += frame->frame.size();
    found->push_back({i, *frame});
  }
}

bool GetQueue::Pump(NodeCore& core, Endpoint& endpoint, Nanos now) {
  bool any = false;
  while (!waiting_.empty()) {
    const auto first = waiting_.begin();
    if (now >= first->first.first) {
      AnswerLate(core, endpoint, first->second);
      waiting_.erase(first);
      any = true;
      continue;
    }
    if (sending_bytes_ >= core.options.limits.get_window_bytes) break;
    // Send may call back into this queue only from Poll, so `first` stays good.
    SendNext(core, endpoint, first->second, now);
    if (first->second.next == first->second.items.size()) waiting_.erase(first);
    any = true;
  }
  return any;
}

void GetQueue::SendNext(NodeCore& core, Endpoint& endpoint, Waiting& waiting, Nanos now) {
  const NodeLimits& limits = core.options.limits;
  if (FB_FAILPOINT_HIT("server.get.before_send")) {
    // As if the transport had failed at this very moment: the peer sees its endpoint end.
    endpoint.transport->Close(endpoint.id);
  }
  OutgoingMessage message;
  Sending sending;
  std::vector<wire::GetDataItem> answers;
  while (waiting.next < waiting.items.size() && answers.size() < limits.get_message_items &&
         (answers.empty() || sending.bytes < limits.get_message_bytes)) {
    const Item& item = waiting.items[waiting.next++];
    wire::GetDataItem& answer = answers.emplace_back(Answer(item.item, absl::StatusCode::kOk));
    std::memcpy(&answer.header, item.frame.frame.data(), sizeof(answer.header));
    message.payload.push_back(item.frame.frame.subspan(kFrameHeaderBytes));
    sending.frames.push_back(item.frame);
    sending.bytes += item.frame.frame.size();
  }
  sending.sent_at = now;
  sending_bytes_ += sending.bytes;
  waiting_bytes_ -= sending.bytes;
  core.metrics.get_hits.Add(answers.size());
  core.metrics.get_bytes.Add(sending.bytes - answers.size() * kFrameHeaderBytes);

  wire::GetData data;
  data.item_count = static_cast<uint32_t>(answers.size());
  wire::Writer writer(wire::Kind::kGetData, waiting.op, data);
  writer.Array(absl::MakeConstSpan(answers));
  message.header = writer.Take();
  message.token = core.next_token++;
  if (FB_BROKEN("unpin_before_sent")) {
    for (const PinnedFrame& frame : std::exchange(sending.frames, {})) Unpin(core, frame);
  }
  sending_.emplace(message.token, std::move(sending));
  endpoint.transport->Send(endpoint.id, std::move(message));
}

bool GetQueue::OnSent(NodeCore& core, Endpoint& endpoint, uint64_t token, Nanos now) {
  const auto found = sending_.find(token);
  if (found == sending_.end()) return false;
  const Sending& sending = found->second;
  for (const PinnedFrame& frame : sending.frames) Unpin(core, frame);
  sending_bytes_ -= sending.bytes;
  const Nanos took = now - std::max(sending.sent_at, last_sent_end_);
  if (took > 0) {
    const double rate =
        static_cast<double>(sending.bytes) * kMicrosecond / static_cast<double>(took);
    bytes_per_us_ = bytes_per_us_ == 0 ? rate : bytes_per_us_ + kRateGain * (rate - bytes_per_us_);
  }
  last_sent_end_ = now;
  sending_.erase(found);
  if (!endpoint.closing) Pump(core, endpoint, now);
  return true;
}

void GetQueue::AnswerLate(NodeCore& core, Endpoint& endpoint, const Waiting& waiting) {
  std::vector<wire::GetDataItem> answers;
  for (size_t i = waiting.next; i < waiting.items.size(); ++i) {
    answers.push_back(Answer(waiting.items[i].item, absl::StatusCode::kDeadlineExceeded));
  }
  core.metrics.get_late.Add(answers.size());
  SendAnswers(endpoint, waiting.op, answers);
  UnpinRest(core, waiting);
}

void GetQueue::Cancel(NodeCore& core, uint64_t op) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->second.op == op) {
      UnpinRest(core, it->second);
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
}

void GetQueue::DropWaiting(NodeCore& core) {
  for (const auto& [when, waiting] : waiting_) UnpinRest(core, waiting);
  waiting_.clear();
}

void GetQueue::UnpinRest(NodeCore& core, const Waiting& waiting) {
  for (size_t i = waiting.next; i < waiting.items.size(); ++i) {
    waiting_bytes_ -= waiting.items[i].frame.frame.size();
    Unpin(core, waiting.items[i].frame);
  }
}

void GetQueue::Unpin(NodeCore& core, const PinnedFrame& frame) {
  core.get_pinned_bytes -= frame.frame.size();
  core.store.Unpin(frame);
}

uint32_t GetQueue::QueueMicroseconds(uint64_t window_bytes) const {
  if (sending_bytes_ < window_bytes && waiting_bytes_ == 0) return 0;
  if (bytes_per_us_ <= 0) return 0;
  const double us = static_cast<double>(sending_bytes_ + waiting_bytes_) / bytes_per_us_;
  return us < static_cast<double>(UINT32_MAX) ? static_cast<uint32_t>(us) : UINT32_MAX;
}

}  // namespace forebay
