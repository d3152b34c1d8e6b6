#include "codec/plane_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

using Rows = absl::Span<const uint32_t>;

size_t RowBytes(const PlaneShape& shape) { return shape.dim * DTypeBytes(shape.dtype); }

size_t Aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

// How many of `coded` tokens are coded in fact.
uint32_t WholeGroups(const PlaneFormat& format, uint32_t coded, bool page_is_whole,
                     uint32_t page_tokens) {
  if (format.axis != GroupAxis::kColumn || coded == page_tokens) return coded;
  const uint32_t rest = coded % (format.group == 0 ? page_tokens : format.group);
  return page_is_whole && rest >= kColumnTokensMin ? coded : coded - rest;
}

void Gather(const PlaneShape& shape, Rows rows, Bytes plane, std::byte* to) {
  const size_t bytes = RowBytes(shape);
  for (const uint32_t row : rows) {
    std::memcpy(to, plane.data() + row * bytes, bytes);
    to += bytes;
  }
}

void Scatter(const PlaneShape& shape, Rows rows, const std::byte* from, MutableBytes plane) {
  const size_t bytes = RowBytes(shape);
  for (const uint32_t row : rows) {
    std::memcpy(plane.data() + row * bytes, from, bytes);
    from += bytes;
  }
}

EncodedRun* Find(const PlaneRun& run, std::vector<EncodedRun>* kept) {
  if (kept == nullptr) return nullptr;
  const auto found = std::find_if(kept->begin(), kept->end(),
                                  [&](const EncodedRun& one) { return one.run == run; });
  return found == kept->end() ? nullptr : &*found;
}

}  // namespace

PlaneShape PlaneRows::RunShape(const PlaneRun& run) const {
  if (whole) return shape;
  return {run.tokens, run.head_count, shape.dim, PlaneOrder::kHeadMajor, shape.dtype};
}

size_t PlaneRows::BytesMax() const {
  size_t bytes = Aligned(exact.size() * RowBytes(shape));
  for (const PlaneRun& run : runs) {
    if (run.tokens > 0) bytes += PlaneBytesMax(run.format, RunShape(run));
  }
  return bytes;
}

PlaneRows LayRows(const Composition& composition, const KvLayout& layout, const PartSpec& part,
                  uint32_t layer, bool value) {
  const LayerSpec& spec = layout.layers[part.layer_begin + layer];
  PlaneRows rows;
  rows.shape = {layout.page_tokens, part.head_count, value ? spec.v_dim : spec.k_dim,
                layout.plane_order, part.dtype};
  const uint32_t token_count = composition.token_count;
  if (composition.classes.empty() && composition.format_scope != PlanScope::kHead &&
      token_count == layout.page_tokens) {
    rows.whole = true;
    rows.runs.push_back(
        {composition.FormatOf(part, layer, 0, value), 0, part.head_count, token_count});
    return rows;
  }
  for (uint32_t head = 0; head < part.head_count; ++head) {
    const PlaneFormat format = composition.FormatOf(part, layer, head, value);
    const TokenClass* const classes = composition.ClassesOf(layout, part, layer, head);
    const auto count = classes == nullptr
                           ? token_count
                           : std::count(classes, classes + token_count, TokenClass::kCoded);
    const uint32_t coded = WholeGroups(format, static_cast<uint32_t>(count),
                                       token_count == layout.page_tokens, layout.page_tokens);
    const bool joins =
        head > 0 && rows.runs.back().format == format && rows.runs.back().tokens == coded;
    if (!joins) rows.runs.push_back({format, head, 0, coded});
    ++rows.runs.back().head_count;
    uint32_t left = coded;
    for (uint32_t token = 0; token < token_count; ++token) {
      const TokenClass c = classes == nullptr ? TokenClass::kCoded : classes[token];
      if (c == TokenClass::kDropped) continue;
      const bool is_coded = c == TokenClass::kCoded && left > 0;
      const size_t row = rows.shape.RowAt(token, head) / rows.shape.dim;
      (is_coded ? rows.coded : rows.exact).push_back(static_cast<uint32_t>(row));
      left -= is_coded ? 1 : 0;
    }
  }
  rows.whole = rows.runs.size() == 1 && rows.coded.size() == rows.shape.row_count();
  return rows;
}

std::optional<size_t> EncodeRows(const PlaneRows& rows, Bytes plane, MutableBytes payload,
                                 std::vector<EncodedRun>* kept) {
  FB_CHECK(plane.size() == rows.shape.raw_bytes());
  std::vector<EncodedRun> fresh;
  std::vector<std::byte> gathered;
  Rows coded = rows.coded;
  size_t at = 0;
  for (const PlaneRun& run : rows.runs) {
    const Rows own = coded.subspan(0, size_t{run.head_count} * run.tokens);
    coded.remove_prefix(own.size());
    if (run.tokens == 0) continue;
    if (EncodedRun* const found = Find(run, kept); found != nullptr) {
      std::memcpy(payload.data() + at, found->bytes.data(), found->bytes.size());
      at += found->bytes.size();
      fresh.push_back(std::move(*found));
      continue;
    }
    const PlaneShape shape = rows.RunShape(run);
    Bytes from = plane;
    if (!rows.whole) {
      gathered.resize(shape.raw_bytes());
      Gather(shape, own, plane, gathered.data());
      from = gathered;
    }
    const std::optional<size_t> bytes = EncodePlane(run.format, shape, from, payload.subspan(at));
    if (!bytes) {
      if (kept != nullptr) kept->clear();  // some were moved away
      return std::nullopt;
    }
    const std::byte* const begin = payload.data() + at;
    if (kept != nullptr) fresh.push_back({run, {begin, begin + *bytes}});
    at += *bytes;
  }
  if (kept != nullptr) *kept = std::move(fresh);
  Gather(rows.shape, rows.exact, plane, payload.data() + at);
  const size_t exact_bytes = rows.exact.size() * RowBytes(rows.shape);
  std::memset(payload.data() + at + exact_bytes, 0, Aligned(exact_bytes) - exact_bytes);
  return at + Aligned(exact_bytes);
}

absl::Status DecodeRows(const PlaneRows& rows, Bytes* payload, MutableBytes plane) {
  FB_CHECK(plane.size() == rows.shape.raw_bytes());
  if (rows.whole) return DecodePlane(rows.runs[0].format, rows.shape, payload, plane);
  if (rows.Drops()) std::memset(plane.data(), 0, plane.size());
  std::vector<std::byte> gathered;
  Rows coded = rows.coded;
  for (const PlaneRun& run : rows.runs) {
    if (run.tokens == 0) continue;
    const PlaneShape shape = rows.RunShape(run);
    gathered.resize(shape.raw_bytes());
    FB_RETURN_IF_ERROR(DecodePlane(run.format, shape, payload, absl::MakeSpan(gathered)));
    Scatter(shape, coded.subspan(0, shape.row_count()), gathered.data(), plane);
    coded.remove_prefix(shape.row_count());
  }
  const size_t exact_bytes = rows.exact.size() * RowBytes(rows.shape);
  if (payload->size() < Aligned(exact_bytes)) {
    return absl::DataLossError(absl::StrCat("exact rows end after ", payload->size(), " of ",
                                            Aligned(exact_bytes), " bytes"));
  }
  Scatter(rows.shape, rows.exact, payload->data(), plane);
  payload->remove_prefix(Aligned(exact_bytes));
  return absl::OkStatus();
}

}  // namespace forebay
