#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/kv_layout.h"
#include "base/quality.h"
#include "base/retention_mask.h"
#include "codec/part_plan.h"

namespace forebay {

// What a publisher may ask of its pages besides a codec: tokens that are dropped or stay exact, and
// formats for some layers.
//
// Threads  a value.
struct PublishPlan {
  // For each layer of the model, over the tokens of the chain from its first page on, with one
  // scope or one for each KV head of the layer. Empty: every token stays. A planner of
  // client/retention makes them.
  std::vector<RetentionMask> masks;
  // Tokens that stay in 16 bits, at the front and at the end of the chain's pages.
  uint32_t exact_sinks = 0;
  uint32_t exact_newest = 0;
  // For each layer of the model; empty: the codec's.
  std::vector<PartPlan::Formats> formats;
};

// INVALID_ARGUMENT: masks that are not of the layout's layers and heads or of fewer tokens than the
// pages have; masks where the contract does not name retention; formats that are not of its layers,
// or that a layer's bound does not allow.
absl::Status CheckPublishPlan(const PublishPlan& plan, const KvLayout& layout,
                              const QualityContract& contract, uint32_t page_count);

// What it says of one part of page `page` of `page_count`. Requires CheckPublishPlan().ok(), and
// HasPlanes(part).
PartPlan PartPlanOf(const PublishPlan& plan, const KvLayout& layout, const PartSpec& part,
                    uint32_t page, uint32_t page_count);

}  // namespace forebay
