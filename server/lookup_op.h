#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/page_key.h"
#include "proto/wire.h"

namespace forebay {

struct Endpoint;
struct NodeCore;

// The small messages of the data plane: each is answered within the call. The namespace has been
// checked, the counts are within their limits.
void AnswerLookup(NodeCore& core, Endpoint& endpoint, uint64_t op, const wire::Lookup& lookup,
                  const std::vector<PageKey>& keys, Nanos now);
void AnswerRelease(NodeCore& core, Endpoint& endpoint, uint64_t op, const wire::Release& release,
                   Nanos now);
void AnswerRenew(NodeCore& core, Endpoint& endpoint, uint64_t op, const wire::Renew& renew,
                 Nanos now);
void AnswerOffer(NodeCore& core, Endpoint& endpoint, uint64_t op, const std::vector<PageKey>& keys);
// Looks at the frame itself; drops it if it is bad. There is no answer.
void TakeReport(NodeCore& core, Endpoint& endpoint, const wire::ReportBad& report);

}  // namespace forebay
