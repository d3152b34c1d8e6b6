#include "server/subscription.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/wire.h"
#include "server/node_core.h"
#include "server/reply.h"
#include "server/session.h"

namespace forebay {
namespace {

void SendEvent(Endpoint& endpoint, uint64_t op, absl::StatusCode code, uint32_t page_count,
               bool final) {
  wire::SubscribeEvent event;
  event.status = static_cast<uint32_t>(code);
  event.page_count = page_count;
  event.final = final ? 1 : 0;
  wire::Writer writer(wire::Kind::kSubscribeEvent, op, event);
  SendReply(endpoint, writer);
}

}  // namespace

void SubscriptionTable::Add(NodeCore& core, Endpoint& endpoint, uint64_t op,
                            std::vector<PageKey> keys, uint32_t deadline_ms, Nanos now) {
  Session& session = *endpoint.session;
  if (session.subscriptions >= core.options.limits.subscriptions_per_session_max) {
    SendError(
        endpoint, op,
        absl::ResourceExhaustedError(absl::StrCat("the session waits for ", session.subscriptions,
                                                  " subscriptions already, as many as it may")));
    return;
  }
  if (subscriptions_.contains(Name(&endpoint, op))) {
    SendError(endpoint, op,
              absl::AlreadyExistsError(absl::StrCat("operation ", op, " waits already")));
    return;
  }
  auto owned = std::make_unique<Subscription>();
  Subscription& subscription = *owned;
  subscription.endpoint = &endpoint;
  subscription.op = op;
  subscription.ns = session.ns->id;
  subscription.keys = std::move(keys);
  subscription.deadline = now + deadline_ms * kMillisecond;
  Advance(core, subscription);
  const bool final = subscription.complete == subscription.keys.size();
  SendEvent(endpoint, op, absl::StatusCode::kOk, subscription.complete, final);
  if (final) return;

  WaitAt(subscription);
  subscription.arrival = arrivals_++;
  by_deadline_.emplace(std::make_pair(subscription.deadline, subscription.arrival), &subscription);
  subscriptions_.emplace(Name(&endpoint, op), std::move(owned));
  ++session.subscriptions;
  core.WakeBy(subscription.deadline);
}

bool SubscriptionTable::Advance(NodeCore& core, Subscription& subscription) {
  const uint32_t before = subscription.complete;
  while (subscription.complete < subscription.keys.size()) {
    const PageRef page =
        core.index().Find(subscription.ns, subscription.keys[subscription.complete]);
    if (!page.valid() || !core.index().Complete(page)) break;
    ++subscription.complete;
  }
  return subscription.complete > before;
}

void SubscriptionTable::WaitAt(Subscription& subscription) {
  waiting_[WaitPoint(subscription.ns, subscription.keys[subscription.complete])].push_back(
      &subscription);
}

void SubscriptionTable::StopWaiting(const Subscription& subscription) {
  const auto point =
      waiting_.find(WaitPoint(subscription.ns, subscription.keys[subscription.complete]));
  if (point == waiting_.end()) return;
  std::vector<Subscription*>& waiters = point->second;
  waiters.erase(std::remove(waiters.begin(), waiters.end(), &subscription), waiters.end());
  if (waiters.empty()) waiting_.erase(point);
}

void SubscriptionTable::OnPageComplete(NodeCore& core, uint32_t ns, const PageKey& key) {
  if (waiting_.empty()) return;
  const auto point = waiting_.find(WaitPoint(ns, key));
  if (point == waiting_.end()) return;
  const std::vector<Subscription*> waiters = std::move(point->second);
  waiting_.erase(point);
  for (Subscription* subscription : waiters) {
    Advance(core, *subscription);
    const bool final = subscription->complete == subscription->keys.size();
    SendEvent(*subscription->endpoint, subscription->op, absl::StatusCode::kOk,
              subscription->complete, final);
    if (final) {
      Erase(*subscription);
    } else {
      WaitAt(*subscription);
    }
  }
}

// Of a subscription that waits nowhere.
void SubscriptionTable::Erase(const Subscription& subscription) {
  Session* session = subscription.endpoint->session;
  if (session != nullptr) --session->subscriptions;
  by_deadline_.erase({subscription.deadline, subscription.arrival});
  subscriptions_.erase(Name(subscription.endpoint, subscription.op));
}

void SubscriptionTable::Cancel(Endpoint& endpoint, uint64_t op) {
  const auto found = subscriptions_.find(Name(&endpoint, op));
  if (found == subscriptions_.end()) return;
  StopWaiting(*found->second);
  Erase(*found->second);
}

void SubscriptionTable::DropEndpoint(Endpoint& endpoint) {
  std::vector<Subscription*> gone;
  for (const auto& [name, subscription] : subscriptions_) {
    if (name.first == &endpoint) gone.push_back(subscription.get());
  }
  for (Subscription* subscription : gone) {
    StopWaiting(*subscription);
    Erase(*subscription);
  }
}

bool SubscriptionTable::Expire(Nanos now) {
  bool any = false;
  while (!by_deadline_.empty() && by_deadline_.begin()->first.first <= now) {
    Subscription& subscription = *by_deadline_.begin()->second;
    SendEvent(*subscription.endpoint, subscription.op, absl::StatusCode::kDeadlineExceeded,
              subscription.complete, /*final=*/true);
    StopWaiting(subscription);
    Erase(subscription);
    any = true;
  }
  return any;
}

}  // namespace forebay
