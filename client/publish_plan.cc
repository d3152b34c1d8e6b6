#include "client/publish_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "codec/plane.h"

namespace forebay {
namespace {

absl::Status CheckMasks(const PublishPlan& plan, const KvLayout& layout, uint64_t tokens) {
  if (plan.masks.size() != layout.layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan.masks.size(), " masks for ", layout.layers.size(), " layers"));
  }
  for (size_t layer = 0; layer < plan.masks.size(); ++layer) {
    const RetentionMask& mask = plan.masks[layer];
    const uint32_t heads = layout.layers[layer].kv_heads;
    if (mask.tokens < tokens || (mask.scopes != 1 && mask.scopes != heads) ||
        mask.words.size() != mask.word_count() * mask.scopes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the mask of layer ", layer, " is of ", mask.tokens, " tokens and ",
                       mask.scopes, " heads, where there are ", tokens, " and ", heads));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFormats(const PublishPlan& plan, const KvLayout& layout,
                          const QualityContract& contract) {
  if (plan.formats.size() != layout.layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan.formats.size(), " formats for ", layout.layers.size(), " layers"));
  }
  for (uint32_t layer = 0; layer < plan.formats.size(); ++layer) {
    const auto& [k, v] = plan.formats[layer];
    QualityBound is;
    if (k.has_value()) {
      FB_RETURN_IF_ERROR(CheckPlaneFormat(*k, DType::kBf16));
      is.k = KeyQuality(*k);
    }
    if (v.has_value()) {
      FB_RETURN_IF_ERROR(CheckPlaneFormat(*v, DType::kBf16));
      is.v = ValueQuality(*v);
    }
    if (contract.At(layer).Allows(is)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the formats of layer ", layer, " keep ", QualityClassName(is.k), "/",
                     QualityClassName(is.v), "; the contract is ", contract.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPublishPlan(const PublishPlan& plan, const KvLayout& layout,
                              const QualityContract& contract, uint32_t page_count) {
  if (!plan.masks.empty()) {
    if (!contract.retention) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a plan drops tokens, which the contract does not name: ", contract.ToString()));
    }
    FB_RETURN_IF_ERROR(CheckMasks(plan, layout, uint64_t{page_count} * layout.page_tokens));
  }
  return plan.formats.empty() ? absl::OkStatus() : CheckFormats(plan, layout, contract);
}

PartPlan PartPlanOf(const PublishPlan& plan, const KvLayout& layout, const PartSpec& part,
                    uint32_t page, uint32_t page_count) {
  PartPlan result;
  const uint64_t begin = uint64_t{page} * layout.page_tokens;
  const uint64_t newest =
      std::min<uint64_t>(plan.exact_newest, uint64_t{page_count} * layout.page_tokens);
  const uint64_t exact_from = uint64_t{page_count} * layout.page_tokens - newest;
  const bool any_exact =
      begin < plan.exact_sinks || (newest > 0 && begin + layout.page_tokens > exact_from);
  if (!plan.masks.empty() || any_exact) {
    const bool by_head = std::any_of(plan.masks.begin(), plan.masks.end(),
                                     [](const RetentionMask& mask) { return mask.scopes > 1; });
    result.class_scope = plan.masks.empty() ? PlanScope::kPart
                         : by_head          ? PlanScope::kHead
                                            : PlanScope::kLayer;
    const uint32_t layers = plan.masks.empty() ? 1 : part.layer_count;
    for (uint32_t layer = 0; layer < layers; ++layer) {
      for (uint32_t head = 0; head < (by_head ? part.head_count : 1u); ++head) {
        for (uint64_t token = begin; token < begin + layout.page_tokens; ++token) {
          TokenClass c = token < plan.exact_sinks || token >= exact_from ? TokenClass::kExact
                                                                         : TokenClass::kCoded;
          if (!plan.masks.empty()) {
            const RetentionMask& mask = plan.masks[part.layer_begin + layer];
            if (!mask.Keeps(mask.ScopeOf(part.head_begin + head), static_cast<uint32_t>(token))) {
              c = TokenClass::kDropped;
            }
          }
          result.classes.push_back(c);
        }
      }
    }
  }
  if (!plan.formats.empty()) {
    result.format_scope = PlanScope::kLayer;
    const auto first = plan.formats.begin() + part.layer_begin;
    result.formats.assign(first, first + part.layer_count);
  }
  return result;
}

}  // namespace forebay
