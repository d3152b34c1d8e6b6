#include "client/kv_view.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace forebay {
namespace {

// One plane (K or V) of one layer, as the view holds it.
struct PlaneView {
  std::byte* base = nullptr;
  size_t block_stride = 0;
  size_t token_stride = 0;
  size_t head_stride = 0;
  size_t row_bytes = 0;  // the channels of one head of one token
};

PlaneView KeyPlane(const LayerView& view, const LayerSpec& spec) {
  return {view.k, view.k_block_stride, view.k_token_stride, view.k_head_stride,
          spec.k_dim * DTypeBytes(spec.dtype)};
}

PlaneView ValuePlane(const LayerView& view, const LayerSpec& spec) {
  return {view.v, view.v_block_stride, view.v_token_stride, view.v_head_stride,
          spec.v_dim * DTypeBytes(spec.dtype)};
}

void AddRun(std::byte* at, size_t bytes, std::vector<MutableBytes>* runs) {
  if (bytes == 0) return;
  if (!runs->empty()) {
    MutableBytes& last = runs->back();
    if (last.data() + last.size() == at) {
      last = MutableBytes(last.data(), last.size() + bytes);
      return;
    }
  }
  runs->push_back(MutableBytes(at, bytes));
}

// What PlaneRuns walks: a part's share of one plane of one page.
struct PlaneSlice {
  uint32_t head_begin = 0;  // in the view
  uint32_t head_count = 0;
  uint64_t token_begin = 0;  // in the sequence
  uint32_t token_count = 0;
};

// [token][head][row]. Where the heads of a token lie together they are one step, and where the
// tokens of a block do, a block is one.
void TokenMajorRuns(const PlaneView& plane, const PlaneSlice& slice, uint32_t block_tokens,
                    absl::Span<const uint32_t> block_table, std::vector<MutableBytes>* runs) {
  const bool heads_together = slice.head_count == 1 || plane.head_stride == plane.row_bytes;
  const size_t token_bytes = slice.head_count * plane.row_bytes;
  const bool tokens_together = heads_together && plane.token_stride == token_bytes;
  for (uint64_t token = slice.token_begin; token < slice.token_begin + slice.token_count;) {
    const uint32_t row = static_cast<uint32_t>(token % block_tokens);
    std::byte* at = plane.base + block_table[token / block_tokens] * plane.block_stride +
                    row * plane.token_stride + slice.head_begin * plane.head_stride;
    if (tokens_together) {
      const uint64_t count =
          std::min<uint64_t>(block_tokens - row, slice.token_begin + slice.token_count - token);
      AddRun(at, count * token_bytes, runs);
      token += count;
      continue;
    }
    if (heads_together) {
      AddRun(at, token_bytes, runs);
    } else {
      for (uint32_t head = 0; head < slice.head_count; ++head) {
        AddRun(at + head * plane.head_stride, plane.row_bytes, runs);
      }
    }
    ++token;
  }
}

// [head][token][row].
void HeadMajorRuns(const PlaneView& plane, const PlaneSlice& slice, uint32_t block_tokens,
                   absl::Span<const uint32_t> block_table, std::vector<MutableBytes>* runs) {
  const bool tokens_together = plane.token_stride == plane.row_bytes;
  const uint64_t token_end = slice.token_begin + slice.token_count;
  for (uint32_t head = slice.head_begin; head < slice.head_begin + slice.head_count; ++head) {
    for (uint64_t token = slice.token_begin; token < token_end;) {
      const uint32_t row = static_cast<uint32_t>(token % block_tokens);
      std::byte* at = plane.base + block_table[token / block_tokens] * plane.block_stride +
                      row * plane.token_stride + head * plane.head_stride;
      const uint64_t count =
          tokens_together ? std::min<uint64_t>(block_tokens - row, token_end - token) : 1;
      AddRun(at, count * plane.row_bytes, runs);
      token += count;
    }
  }
}

// "" if no two elements of the plane share a byte. Nested strides are asked for: each covers all
// that smaller strides reach. That is more than needed, and every engine's layout has it.
std::string OverlapOf(const PlaneView& plane, uint64_t blocks, uint64_t tokens, uint64_t heads) {
  struct Step {
    size_t stride;
    uint64_t count;
    const char* name;
  };
  std::array<Step, 3> steps = {{{plane.block_stride, blocks, "block"},
                                {plane.token_stride, tokens, "token"},
                                {plane.head_stride, heads, "head"}}};
  std::sort(steps.begin(), steps.end(),
            [](const Step& a, const Step& b) { return a.stride < b.stride; });
  uint64_t extent = plane.row_bytes;
  for (const Step& step : steps) {
    if (step.count <= 1) continue;
    if (step.stride < extent) {
      return absl::StrCat(step.name, " stride ", step.stride, " overlaps ", extent, " bytes");
    }
    extent += step.stride * (step.count - 1);
  }
  return "";
}

absl::Status CheckLayer(const KvView& view, const LayerSpec& spec, uint32_t layer,
                        uint64_t blocks) {
  const LayerView& memory = view.layers[layer];
  const auto fault = [layer](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("kv view: layer ", layer, ": ", what));
  };
  if (memory.k == nullptr) return fault("no memory (k is null)");
  if (spec.layer_class == LayerClass::kState) {
    if (blocks > 1 && memory.k_block_stride < spec.state_bytes) {
      return fault(absl::StrCat("block stride ", memory.k_block_stride, " overlaps states of ",
                                spec.state_bytes, " bytes"));
    }
    return absl::OkStatus();
  }
  if (view.head_begin + uint64_t{view.head_count} > spec.kv_heads) {
    return fault(absl::StrCat("heads ", view.head_begin, " to ",
                              view.head_begin + uint64_t{view.head_count}, " of ", spec.kv_heads));
  }
  const uint64_t heads = view.head_count == 0 ? spec.kv_heads : view.head_count;
  std::string overlap = OverlapOf(KeyPlane(memory, spec), blocks, view.block_tokens, heads);
  if (!overlap.empty()) return fault(absl::StrCat("k: ", overlap));
  if (spec.v_dim == 0) return absl::OkStatus();
  if (memory.v == nullptr) return fault("no memory (v is null)");
  overlap = OverlapOf(ValuePlane(memory, spec), blocks, view.block_tokens, heads);
  if (!overlap.empty()) return fault(absl::StrCat("v: ", overlap));
  return absl::OkStatus();
}

bool HoldsHeads(const KvView& view, const PartSpec& part) {
  if (view.head_count == 0 || part.layer_class == LayerClass::kState) return true;
  return part.head_begin >= view.head_begin &&
         part.head_begin + uint32_t{part.head_count} <= view.head_begin + view.head_count;
}

bool HoldsSomeHeads(const KvView& view, const PartSpec& part) {
  return part.head_begin < view.head_begin + view.head_count &&
         view.head_begin < part.head_begin + uint32_t{part.head_count};
}

}  // namespace

absl::Status KvView::Validate(const KvLayout& layout, uint32_t page_count) const {
  if (layers.size() != layout.layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv view: ", layers.size(), " layers where the layout has ", layout.layers.size()));
  }
  if (block_tokens == 0 ||
      (block_tokens % layout.page_tokens != 0 && layout.page_tokens % block_tokens != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("kv view: blocks of ", block_tokens,
                                                   " tokens do not fit pages of ",
                                                   layout.page_tokens, " tokens"));
  }
  const uint64_t tokens = uint64_t{page_count} * layout.page_tokens;
  if (block_table.size() * uint64_t{block_tokens} < tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv view: ", block_table.size(), " blocks of ", block_tokens, " tokens hold less than ",
        page_count, " pages of ", layout.page_tokens, " tokens"));
  }
  if (head_count == 0 && head_begin != 0) {
    return absl::InvalidArgumentError("kv view: head_begin without a head_count");
  }
  const uint64_t blocks =
      block_table.empty() ? 0
                          : uint64_t{*std::max_element(block_table.begin(), block_table.end())} + 1;
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    const LayerSpec& spec = layout.layers[layer];
    if (spec.layer_class == LayerClass::kState && block_tokens > layout.page_tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "kv view: layer ", layer, " keeps states, one a block, so a block of ", block_tokens,
          " tokens may not be larger than a page of ", layout.page_tokens));
    }
    if (absl::Status status = CheckLayer(*this, spec, layer, blocks); !status.ok()) return status;
  }
  for (const PartSpec& part : layout.Parts()) {
    if (!HoldsHeads(*this, part) && HoldsSomeHeads(*this, part)) {
      return absl::InvalidArgumentError(
          absl::StrCat("kv view: heads ", head_begin, " to ", head_begin + head_count,
                       " cut through a part of heads ", part.head_begin, " to ",
                       part.head_begin + part.head_count,
                       "; set heads_per_part of the layout so that it divides the share"));
    }
  }
  return absl::OkStatus();
}

void KvView::PartRuns(const KvLayout& layout, const PartSpec& part, uint32_t page,
                      std::vector<MutableBytes>* runs) const {
  runs->clear();
  PlaneSlice slice;
  slice.head_begin = part.head_begin - head_begin;
  slice.head_count = part.head_count;
  slice.token_begin = uint64_t{page} * layout.page_tokens;
  slice.token_count = layout.page_tokens;
  const auto walk = layout.plane_order == PlaneOrder::kTokenMajor ? TokenMajorRuns : HeadMajorRuns;
  for (uint32_t i = 0; i < part.layer_count; ++i) {
    const uint32_t layer = part.layer_begin + i;
    const LayerSpec& spec = layout.layers[layer];
    const LayerView& memory = layers[layer];
    if (part.stream == Stream::kState) {
      const uint64_t last = slice.token_begin + slice.token_count - 1;
      AddRun(memory.k + block_table[last / block_tokens] * memory.k_block_stride, spec.state_bytes,
             runs);
      continue;
    }
    if (part.stream != Stream::kValue) {
      walk(KeyPlane(memory, spec), slice, block_tokens, block_table, runs);
    }
    if (part.stream != Stream::kKey && spec.v_dim > 0) {
      walk(ValuePlane(memory, spec), slice, block_tokens, block_table, runs);
    }
  }
}

std::vector<uint16_t> KvView::PartsHeld(const KvLayout& layout) const {
  std::vector<uint16_t> held;
  const std::vector<PartSpec> parts = layout.Parts();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (HoldsHeads(*this, parts[i])) held.push_back(static_cast<uint16_t>(i));
  }
  return held;
}

KvView KvView::Contiguous(const KvLayout& layout, std::byte* memory, uint32_t page_count) {
  KvLayout whole_heads = layout;
  whole_heads.heads_per_part = 0;
  const size_t page_bytes = whole_heads.PageBytes();
  KvView view;
  view.layers.resize(layout.layers.size());
  view.block_tokens = layout.page_tokens;
  view.block_table.resize(page_count);
  for (uint32_t page = 0; page < page_count; ++page) view.block_table[page] = page;

  const auto strides = [&](size_t row_bytes, uint32_t heads, size_t* token, size_t* head) {
    const bool token_major = layout.plane_order == PlaneOrder::kTokenMajor;
    *token = token_major ? heads * row_bytes : row_bytes;
    *head = token_major ? row_bytes : layout.page_tokens * row_bytes;
  };
  std::byte* at = memory;
  for (const PartSpec& part : whole_heads.Parts()) {
    for (uint32_t i = 0; i < part.layer_count; ++i) {
      const uint32_t layer = part.layer_begin + i;
      const LayerSpec& spec = layout.layers[layer];
      LayerView& to = view.layers[layer];
      const size_t element = DTypeBytes(spec.dtype);
      if (part.stream == Stream::kState) {
        to.k = at;
        to.k_block_stride = page_bytes;
        at += spec.state_bytes;
        continue;
      }
      if (part.stream != Stream::kValue) {
        to.k = at;
        to.k_block_stride = page_bytes;
        strides(spec.k_dim * element, spec.kv_heads, &to.k_token_stride, &to.k_head_stride);
        at += layout.KeyPlaneBytes(layer, spec.kv_heads);
      }
      if (part.stream != Stream::kKey && spec.v_dim > 0) {
        to.v = at;
        to.v_block_stride = page_bytes;
        strides(spec.v_dim * element, spec.kv_heads, &to.v_token_stride, &to.v_head_stride);
        at += layout.ValuePlaneBytes(layer, spec.kv_heads);
      }
    }
  }
  return view;
}

}  // namespace forebay
