#include "client/kv_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::HasSubstr;

// An engine's cache with strides of its own, and the memory behind it.
struct Engine {
  std::vector<std::vector<std::byte>> memory;
  KvView view;
};

constexpr uint32_t kBlocks = 40;

// Gives `plane` of [block][...] strides: token-major or head-major inside a block, with gaps.
void LayOut(SeededRandom& random, uint32_t block_tokens, uint32_t heads, size_t row,
            std::vector<std::byte>* memory, std::byte** base, size_t* block, size_t* token,
            size_t* head) {
  const size_t gap = random.Chance(0.5) ? 0 : random.Below(24);
  if (random.Chance(0.5)) {  // NHD
    *head = row + gap;
    *token = heads * *head + (random.Chance(0.7) ? 0 : 16);
    *block = block_tokens * *token + (random.Chance(0.5) ? 0 : 64);
  } else {  // HND
    *token = row + gap;
    *head = block_tokens * *token + (random.Chance(0.7) ? 0 : 16);
    *block = heads * *head + (random.Chance(0.5) ? 0 : 64);
  }
  memory->resize(*block * kBlocks);
  for (std::byte& b : *memory) b = static_cast<std::byte>(random.Next());
  *base = memory->data();
}

KvLayout RandomLayout(SeededRandom& random) {
  KvLayout layout;
  layout.page_tokens = 1u << random.Below(5);
  layout.plane_order = random.Chance(0.5) ? PlaneOrder::kTokenMajor : PlaneOrder::kHeadMajor;
  layout.layers_per_part = static_cast<uint32_t>(1 + random.Below(3));
  const bool mla = random.Chance(0.2);
  layout.split_key_value = !mla && random.Chance(0.3);
  LayerSpec layer;
  layer.attention = mla ? AttentionKind::kMla : AttentionKind::kGqa;
  layer.kv_heads = mla ? 1 : 1u << random.Below(4);
  layer.dtype = random.Chance(0.5) ? DType::kBf16 : DType::kFp32;
  layer.k_dim = static_cast<uint32_t>(8 * (1 + random.Below(3)));
  layer.v_dim = mla ? 4 : static_cast<uint32_t>(8 * (1 + random.Below(3)));
  if (!mla && layer.kv_heads > 1 && random.Chance(0.5)) layout.heads_per_part = layer.kv_heads / 2;
  layout.layers.assign(1 + random.Below(5), layer);
  if (random.Chance(0.3)) {
    LayerSpec state;
    state.layer_class = LayerClass::kState;
    state.attention = AttentionKind::kNone;
    state.dtype = layer.dtype;
    state.state_bytes = 96;
    layout.layers.push_back(state);
  }
  return layout;
}

Engine RandomEngine(SeededRandom& random, const KvLayout& layout, uint32_t pages, bool has_state) {
  Engine engine;
  const uint32_t factor = 1u << random.Below(3);
  engine.view.block_tokens = !has_state && random.Chance(0.5)
                                 ? layout.page_tokens * factor
                                 : std::max(1u, layout.page_tokens / factor);
  const uint32_t tokens = pages * layout.page_tokens;
  const uint32_t blocks = (tokens + engine.view.block_tokens - 1) / engine.view.block_tokens;
  for (uint32_t i = 0; i < blocks; ++i) engine.view.block_table.push_back((i * 7 + 3) % kBlocks);
  engine.memory.resize(layout.layers.size() * 2);
  engine.view.layers.resize(layout.layers.size());
  for (size_t l = 0; l < layout.layers.size(); ++l) {
    const LayerSpec& spec = layout.layers[l];
    LayerView& view = engine.view.layers[l];
    const size_t element = DTypeBytes(spec.dtype);
    if (spec.layer_class == LayerClass::kState) {
      LayOut(random, 1, 1, spec.state_bytes, &engine.memory[2 * l], &view.k, &view.k_block_stride,
             &view.k_token_stride, &view.k_head_stride);
      continue;
    }
    LayOut(random, engine.view.block_tokens, spec.kv_heads, spec.k_dim * element,
           &engine.memory[2 * l], &view.k, &view.k_block_stride, &view.k_token_stride,
           &view.k_head_stride);
    LayOut(random, engine.view.block_tokens, spec.kv_heads, spec.v_dim * element,
           &engine.memory[2 * l + 1], &view.v, &view.v_block_stride, &view.v_token_stride,
           &view.v_head_stride);
  }
  return engine;
}

// The raw bytes of a part, element by element, by the words of kv_layout.h and kv_view.h.
std::vector<std::byte> NaiveGather(const KvLayout& layout, const KvView& view, const PartSpec& part,
                                   uint32_t page) {
  std::vector<std::byte> raw;
  const auto row = [&](const std::byte* base, size_t block_stride, size_t token_stride,
                       size_t head_stride, uint32_t token, uint32_t head, size_t bytes) {
    const uint32_t at = page * layout.page_tokens + token;
    const std::byte* from = base + view.block_table[at / view.block_tokens] * block_stride +
                            at % view.block_tokens * token_stride +
                            (head - view.head_begin) * head_stride;
    raw.insert(raw.end(), from, from + bytes);
  };
  for (uint32_t l = part.layer_begin; l < uint32_t{part.layer_begin} + part.layer_count; ++l) {
    const LayerSpec& spec = layout.layers[l];
    const LayerView& memory = view.layers[l];
    const size_t element = DTypeBytes(spec.dtype);
    if (spec.layer_class == LayerClass::kState) {
      row(memory.k, memory.k_block_stride, 0, 0, layout.page_tokens - 1, view.head_begin,
          spec.state_bytes);
      continue;
    }
    for (int plane = 0; plane < 2; ++plane) {
      if (plane == 0 && part.stream == Stream::kValue) continue;
      if (plane == 1 && part.stream == Stream::kKey) continue;
      const bool token_major = layout.plane_order == PlaneOrder::kTokenMajor;
      const uint32_t outer = token_major ? layout.page_tokens : part.head_count;
      const uint32_t inner = token_major ? part.head_count : layout.page_tokens;
      for (uint32_t i = 0; i < outer; ++i) {
        for (uint32_t j = 0; j < inner; ++j) {
          const uint32_t token = token_major ? i : j;
          const uint32_t head = part.head_begin + (token_major ? j : i);
          if (plane == 0) {
            row(memory.k, memory.k_block_stride, memory.k_token_stride, memory.k_head_stride, token,
                head, spec.k_dim * element);
          } else {
            row(memory.v, memory.v_block_stride, memory.v_token_stride, memory.v_head_stride, token,
                head, spec.v_dim * element);
          }
        }
      }
    }
  }
  return raw;
}

std::vector<std::byte> Gather(const KvLayout& layout, const KvView& view, const PartSpec& part,
                              uint32_t page) {
  std::vector<MutableBytes> runs;
  view.PartRuns(layout, part, page, &runs);
  std::vector<std::byte> raw;
  for (MutableBytes run : runs) raw.insert(raw.end(), run.begin(), run.end());
  return raw;
}

TEST(KvViewTest, RunsAreThePartsBytesForRandomLayouts) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SeededRandom random(seed);
    const KvLayout layout = RandomLayout(random);
    FB_ASSERT_OK(layout.Validate()) << "seed " << seed;
    const bool has_state = layout.layers.back().layer_class == LayerClass::kState;
    const uint32_t pages = static_cast<uint32_t>(1 + random.Below(2));
    const Engine engine = RandomEngine(random, layout, pages, has_state);
    FB_ASSERT_OK(engine.view.Validate(layout, pages)) << "seed " << seed;
    const std::vector<PartSpec> parts = layout.Parts();
    EXPECT_EQ(engine.view.PartsHeld(layout).size(), parts.size());
    for (uint32_t page = 0; page < pages; ++page) {
      for (const PartSpec& part : parts) {
        const std::vector<std::byte> raw = Gather(layout, engine.view, part, page);
        ASSERT_EQ(raw.size(), part.raw_bytes) << "seed " << seed;
        ASSERT_EQ(raw, NaiveGather(layout, engine.view, part, page)) << "seed " << seed;
      }
    }
  }
}

TEST(KvViewTest, AContiguousPartIsOneRun) {
  const KvLayout layout = KvLayout::Uniform(4, 2, 8, DType::kBf16, 16, 2);
  std::vector<std::byte> memory(layout.PageBytes() * 3);
  const KvView view = KvView::Contiguous(layout, memory.data(), 3);
  FB_ASSERT_OK(view.Validate(layout, 3));
  size_t at = layout.PageBytes();
  for (const PartSpec& part : layout.Parts()) {
    std::vector<MutableBytes> runs;
    view.PartRuns(layout, part, 1, &runs);
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].data(), memory.data() + at);
    EXPECT_EQ(runs[0].size(), part.raw_bytes);
    at += part.raw_bytes;
  }
}

TEST(KvViewTest, ARankHoldsThePartsOfItsHeads) {
  KvLayout layout = KvLayout::Uniform(2, 8, 8, DType::kBf16, 4, 1);
  layout.heads_per_part = 2;
  std::vector<std::byte> memory(layout.PageBytes());
  KvView view = KvView::Contiguous(layout, memory.data(), 1);
  view.head_begin = 4;
  view.head_count = 4;
  FB_ASSERT_OK(view.Validate(layout, 1));
  for (uint16_t index : view.PartsHeld(layout)) {
    EXPECT_GE(layout.Parts()[index].head_begin, 4);
  }
  EXPECT_EQ(view.PartsHeld(layout).size(), 4u);

  view.head_begin = 1;
  EXPECT_THAT(view.Validate(layout, 1),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("cut through a part")));
  view.head_begin = 6;
  EXPECT_THAT(view.Validate(layout, 1),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("heads 6 to 10 of 8")));
}

TEST(KvViewTest, ValidateNamesWhatDoesNotFit) {
  const KvLayout layout = KvLayout::Uniform(2, 2, 8, DType::kBf16, 16, 1);
  std::vector<std::byte> memory(layout.PageBytes() * 4);
  const KvView good = KvView::Contiguous(layout, memory.data(), 4);
  FB_ASSERT_OK(good.Validate(layout, 4));
  const auto fails = [&](absl::string_view text, auto change) {
    KvView view = good;
    change(view);
    EXPECT_THAT(view.Validate(layout, 4),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr(std::string(text))));
  };
  fails("1 layers where the layout has 2", [](KvView& v) { v.layers.pop_back(); });
  fails("blocks of 10 tokens", [](KvView& v) { v.block_tokens = 10; });
  fails("blocks of 0 tokens", [](KvView& v) { v.block_tokens = 0; });
  fails("hold less than 4 pages", [](KvView& v) { v.block_table.pop_back(); });
  fails("layer 1: no memory (k", [](KvView& v) { v.layers[1].k = nullptr; });
  fails("layer 0: no memory (v", [](KvView& v) { v.layers[0].v = nullptr; });
  fails("overlaps", [](KvView& v) { v.layers[0].k_token_stride = 16; });
  fails("head stride", [](KvView& v) { v.layers[0].v_head_stride = 8; });
  fails("block stride", [](KvView& v) { v.layers[0].k_block_stride = 0; });
  fails("head_begin without", [](KvView& v) { v.head_begin = 1; });
}

}  // namespace
}  // namespace forebay
