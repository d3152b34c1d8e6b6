#include "codec/part_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

absl::Status CheckLists(const char* what, PlanScope scope, const PartSpec& part, size_t count,
                        size_t list_length) {
  if (scope > PlanScope::kHead) {
    return absl::InvalidArgumentError(absl::StrCat("no such scope of ", what));
  }
  const size_t due = ListCount(scope, part) * list_length;
  if (count == due) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a plan of ", count, " ", what, " where ", due, " are due"));
}

}  // namespace

size_t ListCount(PlanScope scope, const PartSpec& part) {
  if (scope == PlanScope::kPart) return 1;
  return size_t{part.layer_count} * (scope == PlanScope::kHead ? part.head_count : 1);
}

size_t ListIndex(PlanScope scope, const PartSpec& part, uint32_t layer, uint32_t head) {
  if (scope == PlanScope::kPart) return 0;
  return scope == PlanScope::kLayer ? layer : size_t{layer} * part.head_count + head;
}

bool HasPlanes(const PartSpec& part) {
  return part.stream != Stream::kState &&
         (part.dtype == DType::kBf16 || part.dtype == DType::kFp16);
}

TokenClass PartPlan::ClassOf(const KvLayout& layout, const PartSpec& part, uint32_t layer,
                             uint32_t head, uint32_t token) const {
  if (token >= token_count.value_or(layout.page_tokens)) return TokenClass::kDropped;
  if (classes.empty()) return TokenClass::kCoded;
  return classes[ListIndex(class_scope, part, layer, head) * layout.page_tokens + token];
}

bool PartPlan::Drops(const KvLayout& layout) const {
  return token_count.value_or(layout.page_tokens) < layout.page_tokens ||
         std::find(classes.begin(), classes.end(), TokenClass::kDropped) != classes.end();
}

absl::Status CheckPartPlan(const PartPlan& plan, const KvLayout& layout, const PartSpec& part) {
  if (plan.plain()) return absl::OkStatus();
  if (!HasPlanes(part)) {
    return absl::InvalidArgumentError("a plan for a part that has no planes of 16-bit numbers");
  }
  const uint32_t tokens = plan.token_count.value_or(layout.page_tokens);
  if (tokens == 0 || tokens > layout.page_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan for ", tokens, " tokens of a page of ", layout.page_tokens));
  }
  if (!plan.classes.empty()) {
    FB_RETURN_IF_ERROR(
        CheckLists("classes", plan.class_scope, part, plan.classes.size(), layout.page_tokens));
  }
  for (const TokenClass c : plan.classes) {
    if (c > TokenClass::kExact) return absl::InvalidArgumentError("no such class of tokens");
  }
  if (!plan.formats.empty()) {
    FB_RETURN_IF_ERROR(
        CheckLists("formats", plan.format_scope, part, plan.formats.size(), /*list_length=*/1));
  }
  for (const PartPlan::Formats& formats : plan.formats) {
    for (const std::optional<PlaneFormat>& format : {formats.k, formats.v}) {
      if (format) FB_RETURN_IF_ERROR(CheckPlaneFormat(*format, part.dtype));
    }
  }
  return absl::OkStatus();
}

}  // namespace forebay
