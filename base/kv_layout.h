#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype.h"

namespace forebay {

// How far back a layer's attention reaches, which decides what a hit needs:
// every page, the pages of the last `window_tokens`, or one state taken at exactly that length.
enum class LayerClass : uint8_t { kFull = 1, kSlidingWindow = 2, kState = 3 };
inline constexpr int kLayerClassCount = 3;

// A bit for each LayerClass: which classes of a page are complete.
using ClassMask = uint8_t;
inline constexpr ClassMask ClassBit(LayerClass c) {
  return static_cast<ClassMask>(1u << (static_cast<unsigned>(c) - 1));
}

// How keys and values are shared among query heads. MHA, GQA and MQA differ only in `kv_heads`;
// MLA keeps one latent (as K) and one rotary part (as V) a token, with kv_heads = 1.
enum class AttentionKind : uint8_t { kMha = 1, kGqa = 2, kMqa = 3, kMla = 4, kNone = 5 };

// Order of elements inside one plane (the K or the V of one layer of one part).
enum class PlaneOrder : uint8_t {
  kTokenMajor = 1,  // [token][head][dim], "NHD"
  kHeadMajor = 2,   // [head][token][dim], "HND"
};

// What one frame carries.
enum class Stream : uint8_t { kKeyValue = 1, kKey = 2, kValue = 3, kLatent = 4, kState = 5 };

// One layer of a model. A state layer has attention kNone, and no k_dim and v_dim; others have not.
struct LayerSpec {
  LayerClass layer_class = LayerClass::kFull;
  AttentionKind attention = AttentionKind::kGqa;
  DType dtype = DType::kBf16;
  uint32_t kv_heads = 0;       // 0 exactly for kState
  uint32_t k_dim = 0;          // elements a head a token
  uint32_t v_dim = 0;          // may differ from k_dim; 0 where V is a view of K
  uint32_t window_tokens = 0;  // > 0 exactly for kSlidingWindow
  uint32_t state_bytes = 0;    // > 0 exactly for kState: bytes of one state of this layer

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

// A part: a range of layers of one class and of KV heads of one page, for one stream.
struct PartSpec {
  uint16_t layer_begin = 0;
  uint16_t layer_count = 0;
  uint16_t head_begin = 0;
  uint16_t head_count = 0;
  Stream stream = Stream::kKeyValue;
  LayerClass layer_class = LayerClass::kFull;
  DType dtype = DType::kBf16;
  uint32_t raw_bytes = 0;  // unencoded bytes of this part of one page

  friend bool operator==(const PartSpec&, const PartSpec&) = default;
};

// The shape of a model's KV cache, and how a page of it is cut into parts.
//
// Raw bytes of a part: for each layer of its range, the K plane then the V plane (one of them for
// kKey, kValue), each in `plane_order`, little endian, without padding:
//   kTokenMajor  [page_tokens][head_count][dim]      kHeadMajor  [head_count][page_tokens][dim]
// For kState: the states of its layers, one after another.
//
// Streams: kState for a state layer; kKey then kValue where split_key_value (kKey alone where v_dim
// is 0); else kLatent for MLA and kKeyValue for the rest.
//
// Limits   1 to 1,024 layers; 1 to 65,535 parts; page_tokens 1 to 65,535; kv_heads to 65,535; dims
//          to 65,536; a part is below 1 GiB.
// Threads  a value after construction.
struct KvLayout {
  uint32_t page_tokens = 16;
  PlaneOrder plane_order = PlaneOrder::kTokenMajor;
  std::vector<LayerSpec> layers;
  uint32_t layers_per_part = 1;  // at most; the layers of a part are equal in every field
  uint32_t heads_per_part = 0;   // 0: all heads of a layer; else must divide kv_heads
  bool split_key_value = false;  // K and V of a layer in parts of their own

  friend bool operator==(const KvLayout&, const KvLayout&) = default;

  // INVALID_ARGUMENT that names every fault, joined by "; ".
  absl::Status Validate() const;
  // The parts of a page, in the order that part indices count: by layer, then head, then stream.
  // Requires Validate().ok().
  std::vector<PartSpec> Parts() const;
  // Raw bytes of a whole page: the sum over Parts().
  uint64_t PageBytes() const;
  // Classes that this layout has.
  ClassMask Classes() const;
  // Bytes of the K (or V) plane of `layer` in a part with `head_count` heads.
  size_t KeyPlaneBytes(uint32_t layer, uint32_t head_count) const;
  size_t ValuePlaneBytes(uint32_t layer, uint32_t head_count) const;
  // "32 layers, gqa 8 x 128, bf16, 16 tokens a page, 64 KiB a part": for people.
  std::string ToString() const;

  // `layer_count` equal layers of full attention.
  static KvLayout Uniform(uint32_t layer_count, uint32_t kv_heads, uint32_t head_dim, DType dtype,
                          uint32_t page_tokens, uint32_t layers_per_part);
};

}  // namespace forebay
