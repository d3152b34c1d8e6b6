#include "examples/llama/inference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace forebay::examples {
namespace {

// Tokens computed at once: enough that a row of weights is read once for many tokens.
constexpr uint32_t kChunkTokens = 32;
// Partial sums of a dot product: a fixed number, so that the compiler may keep them in one vector
// register without changing the order of additions.
constexpr size_t kLanes = 16;
constexpr size_t kWideChannels = 64;  // of a head, summed at once

// The hot loop is compiled for wider registers too, and the processor chooses. Lanes are summed
// apart and nothing is fused, so every variant gives the same bits. (A sanitizer's runtime is not
// up yet when the choice is made.)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FB_WIDE_CLONES
#else
#define FB_WIDE_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#endif

#define FB_INLINE inline __attribute__((always_inline))

FB_INLINE float Dot(const float* a, const float* b, size_t count) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += a[i] * b[i];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// out[t][row] = weights[row] . in[t]
FB_WIDE_CLONES void MatMul(const float* weights, const float* in, float* out, size_t rows,
                           size_t columns, size_t token_count) {
  for (size_t row = 0; row < rows; ++row) {
    const float* w = weights + row * columns;
    for (size_t t = 0; t < token_count; ++t) {
      out[t * rows + row] = Dot(w, in + t * columns, columns);
    }
  }
}

void RmsNorm(const float* in, const float* weight, float* out, size_t dim, size_t token_count) {
  for (size_t t = 0; t < token_count; ++t) {
    const float* x = in + t * dim;
    const float mean_square = Dot(x, x, dim) / static_cast<float>(dim);
    const float scale = 1.0f / std::sqrt(mean_square + 1e-5f);
    for (size_t i = 0; i < dim; ++i) out[t * dim + i] = weight[i] * (scale * x[i]);
  }
}

void Rotate(float* heads, size_t head_count, size_t head_dim, const float* cos, const float* sin) {
  for (size_t head = 0; head < head_count; ++head) {
    float* v = heads + head * head_dim;
    for (size_t i = 0; i < head_dim / 2; ++i) {
      const float a = v[2 * i], b = v[2 * i + 1];
      v[2 * i] = a * cos[i] - b * sin[i];
      v[2 * i + 1] = a * sin[i] + b * cos[i];
    }
  }
}

void SoftMax(float* scores, size_t count) {
  const float highest = *std::max_element(scores, scores + count);
  float sum = 0;
  for (size_t i = 0; i < count; ++i) {
    scores[i] = std::exp(scores[i] - highest);
    sum += scores[i];
  }
  for (size_t i = 0; i < count; ++i) scores[i] /= sum;
}

// scores[i] = q . row i * scale
FB_WIDE_CLONES void Score(const float* q, const float* const* rows, size_t offset, size_t head_dim,
                          float scale, float* scores, size_t count) {
  for (size_t i = 0; i < count; ++i) scores[i] = Dot(q, rows[i] + offset, head_dim) * scale;
}

// `width` channels of the sum of scores[i] * row i, row by row; in registers where width is known.
FB_INLINE void AddRows(const float* scores, const float* const* rows, size_t offset, size_t width,
                       float* out, size_t count) {
  float sums[kWideChannels] = {};
  for (size_t i = 0; i < count; ++i) {
    if (scores[i] == 0) continue;  // dropped: its memory may hold anything
    const float* row = rows[i] + offset;
    for (size_t c = 0; c < width; ++c) sums[c] += scores[i] * row[c];
  }
  std::copy(sums, sums + width, out);
}

FB_WIDE_CLONES void SumRows(const float* scores, const float* const* rows, size_t offset,
                            size_t head_dim, float* out, size_t count) {
  size_t c = 0;
  for (; c + kWideChannels <= head_dim; c += kWideChannels) {
    AddRows(scores, rows, offset + c, kWideChannels, out + c, count);
  }
  for (; c + 8 <= head_dim; c += 8) AddRows(scores, rows, offset + c, 8, out + c, count);
  if (c < head_dim) AddRows(scores, rows, offset + c, head_dim - c, out + c, count);
}

void Drop(const RetentionMask& mask, uint32_t kv_head, absl::Span<float> scores) {
  const uint32_t scope = mask.ScopeOf(kv_head);
  for (uint32_t i = 0; i < std::min<size_t>(mask.tokens, scores.size()); ++i) {
    if (!mask.Keeps(scope, i)) scores[i] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void Attend(const Checkpoint& model, PagedCache& cache, uint32_t layer, uint32_t position,
            absl::Span<const float> queries, const ForwardHooks& hooks, absl::Span<float> outputs) {
  const size_t head_dim = model.head_dim(), dim = model.dim;
  const uint32_t share = model.head_count / model.kv_head_count;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const auto count = static_cast<uint32_t>(queries.size() / dim);
  std::vector<const float*> keys(position + count), values(position + count);
  for (uint32_t i = 0; i < keys.size(); ++i) {
    keys[i] = cache.Key(layer, i);
    values[i] = cache.Value(layer, i);
  }
  std::vector<float> scores(position + count);
  for (uint32_t t = 0; t < count; ++t) {
    const absl::Span<float> visible(scores.data(), position + t + 1);
    for (uint32_t head = 0; head < model.head_count; ++head) {
      const float* q = &queries[t * dim + head * head_dim];
      const size_t offset = head / share * head_dim;
      Score(q, keys.data(), offset, head_dim, scale, visible.data(), visible.size());
      if (!hooks.masks.empty()) Drop(hooks.masks[layer], head / share, visible);
      SoftMax(visible.data(), visible.size());
      if (hooks.probabilities) hooks.probabilities(layer, position + t, head, visible);
      SumRows(visible.data(), values.data(), offset, head_dim, &outputs[t * dim + head * head_dim],
              visible.size());
    }
  }
}

Inference::Inference(const Checkpoint& model, PagedCache& cache) : model_(model), cache_(cache) {
  const size_t chunk = kChunkTokens;
  x_.resize(chunk * model.dim);
  normed_.resize(chunk * model.dim);
  q_.resize(chunk * model.dim);
  attended_.resize(chunk * model.dim);
  projected_.resize(chunk * std::max(model.dim, 2 * model.kv_dim()));
  gate_.resize(chunk * model.hidden_dim);
  up_.resize(chunk * model.hidden_dim);
  logits_.resize(model.vocabulary);
}

const std::vector<float>& Inference::Forward(absl::Span<const uint32_t> tokens, uint32_t position,
                                             const ForwardHooks& hooks) {
  FB_CHECK(!tokens.empty());
  FB_CHECK(position + tokens.size() <= model_.context_tokens);
  FB_CHECK(position + tokens.size() <= cache_.token_capacity());
  for (size_t at = 0; at < tokens.size(); at += kChunkTokens) {
    const absl::Span<const uint32_t> chunk = tokens.subspan(at, kChunkTokens);
    const bool last = at + chunk.size() == tokens.size();
    Chunk(chunk, position + static_cast<uint32_t>(at), hooks, last);
  }
  return logits_;
}

void Inference::Chunk(absl::Span<const uint32_t> tokens, uint32_t position,
                      const ForwardHooks& hooks, bool last) {
  const Checkpoint& m = model_;
  const size_t dim = m.dim, kv_dim = m.kv_dim(), hidden = m.hidden_dim, count = tokens.size();
  for (size_t t = 0; t < count; ++t) {
    FB_CHECK(tokens[t] < m.vocabulary);
    const float* row = m.token_embedding + tokens[t] * dim;
    std::copy(row, row + dim, &x_[t * dim]);
  }
  for (uint32_t layer = 0; layer < m.layer_count; ++layer) {
    if (hooks.before_layer) hooks.before_layer(layer);
    RmsNorm(x_.data(), m.attention_norm + layer * dim, normed_.data(), dim, count);
    MatMul(m.wq + layer * dim * dim, normed_.data(), q_.data(), dim, dim, count);
    float* k = projected_.data();
    float* v = projected_.data() + count * kv_dim;
    MatMul(m.wk + layer * kv_dim * dim, normed_.data(), k, kv_dim, dim, count);
    MatMul(m.wv + layer * kv_dim * dim, normed_.data(), v, kv_dim, dim, count);
    for (size_t t = 0; t < count; ++t) {
      const uint32_t at = position + static_cast<uint32_t>(t);
      const float* cos = m.rope_cos + at * (m.head_dim() / 2);
      const float* sin = m.rope_sin + at * (m.head_dim() / 2);
      Rotate(&q_[t * dim], m.head_count, m.head_dim(), cos, sin);
      Rotate(k + t * kv_dim, m.kv_head_count, m.head_dim(), cos, sin);
      std::copy(k + t * kv_dim, k + (t + 1) * kv_dim, cache_.Key(layer, at));
      std::copy(v + t * kv_dim, v + (t + 1) * kv_dim, cache_.Value(layer, at));
    }
    if (hooks.cached) hooks.cached(layer, position, static_cast<uint32_t>(count));
    const absl::Span<const float> queries(q_.data(), count * dim);
    const absl::Span<float> attended(attended_.data(), count * dim);
    Attend(m, cache_, layer, position, queries, hooks, attended);
    if (hooks.attended) hooks.attended(layer, position, queries, attended);
    MatMul(m.wo + layer * dim * dim, attended_.data(), projected_.data(), dim, dim, count);
    for (size_t i = 0; i < count * dim; ++i) x_[i] += projected_[i];

    RmsNorm(x_.data(), m.ffn_norm + layer * dim, normed_.data(), dim, count);
    MatMul(m.w1 + layer * hidden * dim, normed_.data(), gate_.data(), hidden, dim, count);
    MatMul(m.w3 + layer * hidden * dim, normed_.data(), up_.data(), hidden, dim, count);
    for (size_t i = 0; i < count * hidden; ++i) {
      gate_[i] = gate_[i] / (1.0f + std::exp(-gate_[i])) * up_[i];
    }
    MatMul(m.w2 + layer * dim * hidden, gate_.data(), projected_.data(), dim, hidden, count);
    for (size_t i = 0; i < count * dim; ++i) x_[i] += projected_[i];
  }
  if (hooks.logits) {
    all_logits_.resize(count * m.vocabulary);
    RmsNorm(x_.data(), m.final_norm, normed_.data(), dim, count);
    MatMul(m.output, normed_.data(), all_logits_.data(), m.vocabulary, dim, count);
    hooks.logits(position, all_logits_);
  }
  if (!last) return;
  RmsNorm(&x_[(count - 1) * dim], m.final_norm, normed_.data(), dim, 1);
  MatMul(m.output, normed_.data(), logits_.data(), m.vocabulary, dim, 1);
}

uint32_t Inference::Greedy(const std::vector<float>& logits) {
  return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace forebay::examples
