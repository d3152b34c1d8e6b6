#include "base/kv_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace forebay {
namespace {

constexpr size_t kLayerCountMax = 1024;
constexpr uint64_t kPartCountMax = 65'535;
constexpr uint32_t kPageTokensMax = 65'535;
constexpr uint32_t kHeadsMax = 65'535;
constexpr uint32_t kDimMax = 65'536;
constexpr uint64_t kPartBytesLimit = uint64_t{1} << 30;
// Within these limits every product below stays under 2^62.

// Layers of one part are equal in every field, so that one range of a frame means one thing.
// Returns the end of the part that starts at `begin`.
size_t PartEnd(const KvLayout& layout, size_t begin) {
  size_t end = begin + 1;
  while (end < layout.layers.size() && end - begin < layout.layers_per_part &&
         layout.layers[end] == layout.layers[begin]) {
    ++end;
  }
  return end;
}

uint32_t HeadsPerPart(const KvLayout& layout, const LayerSpec& layer) {
  return layout.heads_per_part == 0 ? layer.kv_heads : layout.heads_per_part;
}

uint64_t PlaneBytes(const KvLayout& layout, uint64_t heads, uint64_t dim, DType dtype) {
  return uint64_t{layout.page_tokens} * heads * dim * DTypeBytes(dtype);
}

// The streams that a layer's parts carry, in order.
std::vector<Stream> StreamsOf(const KvLayout& layout, const LayerSpec& layer) {
  if (layer.layer_class == LayerClass::kState) return {Stream::kState};
  if (layout.split_key_value) {
    if (layer.v_dim == 0) return {Stream::kKey};
    return {Stream::kKey, Stream::kValue};
  }
  return {layer.attention == AttentionKind::kMla ? Stream::kLatent : Stream::kKeyValue};
}

uint64_t RawBytesOf(const KvLayout& layout, const LayerSpec& layer, uint64_t layer_count,
                    uint64_t head_count, Stream stream) {
  if (stream == Stream::kState) return layer_count * layer.state_bytes;
  uint64_t bytes = 0;
  if (stream != Stream::kValue) bytes += PlaneBytes(layout, head_count, layer.k_dim, layer.dtype);
  if (stream != Stream::kKey) bytes += PlaneBytes(layout, head_count, layer.v_dim, layer.dtype);
  return layer_count * bytes;
}

bool KnownClass(LayerClass c) {
  return c == LayerClass::kFull || c == LayerClass::kSlidingWindow || c == LayerClass::kState;
}

bool KnownAttention(AttentionKind kind) {
  return kind >= AttentionKind::kMha && kind <= AttentionKind::kNone;
}

// Collects faults, each named once with the layer that has it.
class Faults {
 public:
  void Require(bool condition, absl::string_view fault) {
    if (!condition) faults_.push_back(std::string(fault));
  }
  void RequireOfLayer(bool condition, size_t layer, absl::string_view fault) {
    if (!condition) faults_.push_back(absl::StrCat("layer ", layer, ": ", fault));
  }
  bool empty() const { return faults_.empty(); }
  absl::Status ToStatus() const {
    if (faults_.empty()) return absl::OkStatus();
    // A layout of a thousand faulty layers must not give a megabyte of text.
    constexpr size_t kShownMax = 16;
    const size_t shown = std::min(faults_.size(), kShownMax);
    std::string text = absl::StrJoin(faults_.begin(), faults_.begin() + shown, "; ");
    if (shown < faults_.size()) absl::StrAppend(&text, "; and ", faults_.size() - shown, " more");
    return absl::InvalidArgumentError(text);
  }

 private:
  std::vector<std::string> faults_;
};

void CheckStateLayer(const LayerSpec& layer, size_t i, Faults& faults) {
  faults.RequireOfLayer(layer.state_bytes > 0, i, "a state layer needs state_bytes above 0");
  faults.RequireOfLayer(layer.kv_heads == 0, i, "a state layer has no kv_heads");
  faults.RequireOfLayer(layer.k_dim == 0 && layer.v_dim == 0, i,
                        "a state layer has no k_dim and no v_dim");
  faults.RequireOfLayer(layer.attention == AttentionKind::kNone, i,
                        "the attention of a state layer is none");
}

void CheckAttentionLayer(const KvLayout& layout, const LayerSpec& layer, size_t i, Faults& faults) {
  faults.RequireOfLayer(layer.state_bytes == 0, i, "only a state layer has state_bytes");
  faults.RequireOfLayer(layer.kv_heads >= 1 && layer.kv_heads <= kHeadsMax, i,
                        absl::StrCat("kv_heads must be 1 to ", kHeadsMax));
  faults.RequireOfLayer(layer.k_dim >= 1 && layer.k_dim <= kDimMax, i,
                        absl::StrCat("k_dim must be 1 to ", kDimMax));
  faults.RequireOfLayer(layer.v_dim <= kDimMax, i, absl::StrCat("v_dim must be 0 to ", kDimMax));
  faults.RequireOfLayer(layer.attention != AttentionKind::kNone, i,
                        "only a state layer has no attention");
  const bool one_head =
      layer.attention == AttentionKind::kMqa || layer.attention == AttentionKind::kMla;
  faults.RequireOfLayer(!one_head || layer.kv_heads == 1, i, "MQA and MLA have one kv_head");
  faults.RequireOfLayer(layout.heads_per_part == 0 || layer.kv_heads % layout.heads_per_part == 0,
                        i,
                        absl::StrCat("heads_per_part ", layout.heads_per_part,
                                     " does not divide kv_heads ", layer.kv_heads));
}

void CheckLayer(const KvLayout& layout, size_t i, Faults& faults) {
  const LayerSpec& layer = layout.layers[i];
  faults.RequireOfLayer(KnownClass(layer.layer_class), i, "unknown layer class");
  faults.RequireOfLayer(KnownAttention(layer.attention), i, "unknown attention kind");
  faults.RequireOfLayer(DTypeBytes(layer.dtype) > 0, i, "unknown dtype");
  faults.RequireOfLayer(
      (layer.window_tokens > 0) == (layer.layer_class == LayerClass::kSlidingWindow), i,
      "window_tokens is above 0 exactly for a sliding window");
  if (layer.layer_class == LayerClass::kState) {
    CheckStateLayer(layer, i, faults);
  } else {
    CheckAttentionLayer(layout, layer, i, faults);
  }
}

// Only for a layout whose fields are in range each.
void CheckParts(const KvLayout& layout, Faults& faults) {
  uint64_t part_count = 0;
  for (size_t begin = 0; begin < layout.layers.size();) {
    const size_t end = PartEnd(layout, begin);
    const LayerSpec& layer = layout.layers[begin];
    const uint32_t heads = HeadsPerPart(layout, layer);
    for (const Stream stream : StreamsOf(layout, layer)) {
      part_count += heads == 0 ? 1 : layer.kv_heads / heads;
      const uint64_t bytes = RawBytesOf(layout, layer, end - begin, heads, stream);
      faults.RequireOfLayer(bytes < kPartBytesLimit, begin,
                            absl::StrCat("a part of ", bytes, " bytes is not below 1 GiB"));
    }
    begin = end;
  }
  faults.Require(part_count <= kPartCountMax,
                 absl::StrCat(part_count, " parts a page are more than ", kPartCountMax));
}

absl::string_view AttentionName(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kMha:
      return "mha";
    case AttentionKind::kGqa:
      return "gqa";
    case AttentionKind::kMqa:
      return "mqa";
    case AttentionKind::kMla:
      return "mla";
    case AttentionKind::kNone:
      return "none";
  }
  return "unknown";
}

std::string LayerText(const LayerSpec& layer) {
  if (layer.layer_class == LayerClass::kState) {
    return absl::StrCat("state of ", layer.state_bytes, " bytes");
  }
  std::string text =
      absl::StrCat(AttentionName(layer.attention), " ", layer.kv_heads, " x ", layer.k_dim);
  if (layer.v_dim != layer.k_dim) absl::StrAppend(&text, "/", layer.v_dim);
  absl::StrAppend(&text, ", ", DTypeName(layer.dtype));
  if (layer.layer_class == LayerClass::kSlidingWindow) {
    absl::StrAppend(&text, ", window ", layer.window_tokens);
  }
  return text;
}

std::string BytesText(uint64_t bytes) {
  if (bytes % (1 << 20) == 0) return absl::StrCat(bytes >> 20, " MiB");
  if (bytes % (1 << 10) == 0) return absl::StrCat(bytes >> 10, " KiB");
  return absl::StrCat(bytes, " bytes");
}

}  // namespace

absl::Status KvLayout::Validate() const {
  Faults faults;
  faults.Require(!layers.empty() && layers.size() <= kLayerCountMax,
                 absl::StrCat("layers must be 1 to ", kLayerCountMax, ", not ", layers.size()));
  faults.Require(page_tokens >= 1 && page_tokens <= kPageTokensMax,
                 absl::StrCat("page_tokens must be 1 to ", kPageTokensMax, ", not ", page_tokens));
  faults.Require(plane_order == PlaneOrder::kTokenMajor || plane_order == PlaneOrder::kHeadMajor,
                 "unknown plane order");
  faults.Require(layers_per_part >= 1, "layers_per_part must be at least 1");
  if (layers.size() <= kLayerCountMax) {
    for (size_t i = 0; i < layers.size(); ++i) CheckLayer(*this, i, faults);
  }
  if (faults.empty()) CheckParts(*this, faults);
  return faults.ToStatus();
}

std::vector<PartSpec> KvLayout::Parts() const {
  std::vector<PartSpec> parts;
  for (size_t begin = 0; begin < layers.size();) {
    const size_t end = PartEnd(*this, begin);
    const LayerSpec& layer = layers[begin];
    const uint32_t heads = HeadsPerPart(*this, layer);
    FB_CHECK(heads == 0 || layer.kv_heads % heads == 0);
    const uint32_t head_groups = heads == 0 ? 1 : layer.kv_heads / heads;
    for (uint32_t group = 0; group < head_groups; ++group) {
      for (const Stream stream : StreamsOf(*this, layer)) {
        PartSpec part;
        part.layer_begin = static_cast<uint16_t>(begin);
        part.layer_count = static_cast<uint16_t>(end - begin);
        part.head_begin = static_cast<uint16_t>(group * heads);
        part.head_count = static_cast<uint16_t>(heads);
        part.stream = stream;
        part.layer_class = layer.layer_class;
        part.dtype = layer.dtype;
        part.raw_bytes =
            static_cast<uint32_t>(RawBytesOf(*this, layer, end - begin, heads, stream));
        parts.push_back(part);
      }
    }
    begin = end;
  }
  return parts;
}

uint64_t KvLayout::PageBytes() const {
  uint64_t bytes = 0;
  for (const LayerSpec& layer : layers) {
    for (const Stream stream : StreamsOf(*this, layer)) {
      bytes += RawBytesOf(*this, layer, /*layer_count=*/1, layer.kv_heads, stream);
    }
  }
  return bytes;
}

ClassMask KvLayout::Classes() const {
  ClassMask mask = 0;
  for (const LayerSpec& layer : layers) mask |= ClassBit(layer.layer_class);
  return mask;
}

size_t KvLayout::KeyPlaneBytes(uint32_t layer, uint32_t head_count) const {
  FB_CHECK(layer < layers.size());
  return PlaneBytes(*this, head_count, layers[layer].k_dim, layers[layer].dtype);
}

size_t KvLayout::ValuePlaneBytes(uint32_t layer, uint32_t head_count) const {
  FB_CHECK(layer < layers.size());
  return PlaneBytes(*this, head_count, layers[layer].v_dim, layers[layer].dtype);
}

std::string KvLayout::ToString() const {
  std::string text = absl::StrCat(layers.size(), layers.size() == 1 ? " layer" : " layers");
  // A model of mixed layers: each kind once, with how many there are.
  std::vector<std::pair<LayerSpec, size_t>> kinds;
  for (const LayerSpec& layer : layers) {
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const auto& entry) { return entry.first == layer; });
    if (kind == kinds.end()) {
      kinds.emplace_back(layer, 1);
    } else {
      ++kind->second;
    }
  }
  for (const auto& [layer, count] : kinds) {
    absl::StrAppend(&text, ", ", kinds.size() > 1 ? absl::StrCat(count, " of ") : "",
                    LayerText(layer));
  }
  absl::StrAppend(&text, ", ", page_tokens, " tokens a page");
  if (Validate().ok()) {
    uint32_t largest = 0;
    for (const PartSpec& part : Parts()) largest = std::max(largest, part.raw_bytes);
    absl::StrAppend(&text, ", ", BytesText(largest), " a part");
  }
  return text;
}

KvLayout KvLayout::Uniform(uint32_t layer_count, uint32_t kv_heads, uint32_t head_dim, DType dtype,
                           uint32_t page_tokens, uint32_t layers_per_part) {
  LayerSpec layer;
  layer.dtype = dtype;
  layer.kv_heads = kv_heads;
  layer.k_dim = head_dim;
  layer.v_dim = head_dim;
  KvLayout layout;
  layout.page_tokens = page_tokens;
  layout.layers.assign(layer_count, layer);
  layout.layers_per_part = layers_per_part;
  return layout;
}

}  // namespace forebay
