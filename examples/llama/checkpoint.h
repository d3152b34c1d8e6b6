#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/namespace_spec.h"

namespace forebay::examples {

// A Llama model in the llama2.c "version 0" file format: seven int32 (dim, hidden_dim, n_layers,
// n_heads, n_kv_heads, vocab_size, seq_len), then fp32 matrices, row-major [out][in], in the order
// of the members below. A negative vocab_size means that the output matrix is its own, at the end.
struct Checkpoint {
  uint32_t dim = 0;
  uint32_t hidden_dim = 0;
  uint32_t layer_count = 0;
  uint32_t head_count = 0;
  uint32_t kv_head_count = 0;
  uint32_t vocabulary = 0;
  uint32_t context_tokens = 0;

  uint32_t head_dim() const { return dim / head_count; }
  uint32_t kv_dim() const { return kv_head_count * head_dim(); }

  std::vector<float> values;  // the whole file after its header; the pointers below go into it
  const float* token_embedding = nullptr;  // [vocabulary][dim]
  const float* attention_norm = nullptr;   // [layer][dim]
  const float* wq = nullptr;               // [layer][dim][dim]
  const float* wk = nullptr;               // [layer][kv_dim][dim]
  const float* wv = nullptr;               // [layer][kv_dim][dim]
  const float* wo = nullptr;               // [layer][dim][dim]
  const float* ffn_norm = nullptr;         // [layer][dim]
  const float* w1 = nullptr;               // [layer][hidden_dim][dim]
  const float* w2 = nullptr;               // [layer][dim][hidden_dim]
  const float* w3 = nullptr;               // [layer][hidden_dim][dim]
  const float* final_norm = nullptr;       // [dim]
  const float* rope_cos = nullptr;         // [context_tokens][head_dim / 2]
  const float* rope_sin = nullptr;         // [context_tokens][head_dim / 2]
  const float* output = nullptr;           // [vocabulary][dim]

  std::string name;      // the file's name without folder and ending
  std::string revision;  // "sha256:" and the hash of the whole file

  // INVALID_ARGUMENT naming the file and what is wrong with it; NOT_FOUND.
  static absl::StatusOr<Checkpoint> Load(absl::string_view path);

  // What makes two pages of this model interchangeable: its weights, its cache's shape and dtype.
  NamespaceSpec Namespace(uint32_t page_tokens, DType dtype = DType::kFp32) const;
};

}  // namespace forebay::examples
