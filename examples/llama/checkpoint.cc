#include "examples/llama/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"

namespace forebay::examples {
namespace {

constexpr size_t kHeaderWords = 7;

std::string HexOf(const Sha256Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool HeaderIsPlausible(const int32_t (&words)[kHeaderWords]) {
  for (const int32_t word : words) {
    if (word == 0 || word > (1 << 20) || word < -(1 << 20)) return false;
  }
  for (const size_t i : {0, 1, 2, 3, 4, 6}) {
    if (words[i] < 0) return false;
  }
  const int32_t dim = words[0], heads = words[3], kv_heads = words[4];
  return dim % heads == 0 && heads % kv_heads == 0 && (dim / heads) % 2 == 0;
}

// Hands out consecutive matrices of the file, and counts what they take.
class Cursor {
 public:
  explicit Cursor(const float* base) : base_(base) {}
  const float* Take(uint64_t values) {
    const float* at = base_ + taken_;
    taken_ += values;
    return at;
  }
  uint64_t taken() const { return taken_; }

 private:
  const float* base_;
  uint64_t taken_ = 0;
};

uint64_t PlaceMatrices(Checkpoint* c, bool own_output) {
  const uint64_t layers = c->layer_count, dim = c->dim, hidden = c->hidden_dim, kv = c->kv_dim();
  Cursor cursor(c->values.data());
  c->token_embedding = cursor.Take(uint64_t{c->vocabulary} * dim);
  c->attention_norm = cursor.Take(layers * dim);
  c->wq = cursor.Take(layers * dim * dim);
  c->wk = cursor.Take(layers * kv * dim);
  c->wv = cursor.Take(layers * kv * dim);
  c->wo = cursor.Take(layers * dim * dim);
  c->ffn_norm = cursor.Take(layers * dim);
  c->w1 = cursor.Take(layers * hidden * dim);
  c->w2 = cursor.Take(layers * dim * hidden);
  c->w3 = cursor.Take(layers * hidden * dim);
  c->final_norm = cursor.Take(dim);
  c->rope_cos = cursor.Take(uint64_t{c->context_tokens} * (c->head_dim() / 2));
  c->rope_sin = cursor.Take(uint64_t{c->context_tokens} * (c->head_dim() / 2));
  c->output = own_output ? cursor.Take(uint64_t{c->vocabulary} * dim) : c->token_embedding;
  return cursor.taken();
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Load(absl::string_view path) {
  const std::string file_name(path);
  std::ifstream file(file_name, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open the model ", path));
  const std::string raw((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  int32_t words[kHeaderWords];
  if (raw.size() < sizeof(words)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", raw.size(), " bytes: too short for a llama2.c model"));
  }
  std::memcpy(words, raw.data(), sizeof(words));
  if (!HeaderIsPlausible(words)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no llama2.c model: its header is ", "out of range"));
  }
  Checkpoint c;
  c.dim = static_cast<uint32_t>(words[0]);
  c.hidden_dim = static_cast<uint32_t>(words[1]);
  c.layer_count = static_cast<uint32_t>(words[2]);
  c.head_count = static_cast<uint32_t>(words[3]);
  c.kv_head_count = static_cast<uint32_t>(words[4]);
  const bool own_output = words[5] < 0;
  c.vocabulary = static_cast<uint32_t>(own_output ? -words[5] : words[5]);
  c.context_tokens = static_cast<uint32_t>(words[6]);
  c.values.resize((raw.size() - sizeof(words)) / sizeof(float));
  const uint64_t needed = PlaceMatrices(&c, own_output);
  if (c.values.size() < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " ends early: ", c.values.size(), " values of ", needed));
  }
  std::memcpy(c.values.data(), raw.data() + sizeof(words), c.values.size() * sizeof(float));
  const Bytes all = AsBytes(raw.data(), raw.size());
  c.revision = absl::StrCat("sha256:", HexOf(Sha256({all})));
  c.name = std::filesystem::path(file_name).stem().string();
  return c;
}

NamespaceSpec Checkpoint::Namespace(uint32_t page_tokens, DType dtype) const {
  NamespaceSpec spec;
  spec.model = name;
  spec.model_revision = revision;
  spec.layout = KvLayout::Uniform(layer_count, kv_head_count, head_dim(), dtype, page_tokens,
                                  /*layers_per_part=*/1);
  spec.position_encoding = "rope:interleaved,theta=10000";
  return spec;
}

}  // namespace forebay::examples
