// What a hit needs, by the classes of layers and the shares of tensor-parallel ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/testing/status_matchers.h"
#include "tests/integration/client_world.h"

namespace forebay {
namespace {

using ::forebay::testing::ClientWorld;
using ::forebay::testing::EngineMemory;
using ::forebay::testing::SpecOf;
using ::forebay::testing::Tokens;
using ::forebay::testing::WorldClient;

constexpr uint32_t kPageTokens = 4;
constexpr uint32_t kHeads = 8;
constexpr uint32_t kPages = 20;

std::vector<PageKey> Chain(const PageKey& root, uint32_t pages) {
  return PageKeysOf(root, Tokens(pages * kPageTokens), kPageTokens);
}

// The share of one rank: its own memory, [layer][K, V][page][token][head of the rank][channel].
struct RankMemory {
  RankMemory(const KvLayout& layout, uint32_t rank, uint32_t ranks) {
    const uint32_t heads = kHeads / ranks;
    view.block_tokens = layout.page_tokens;
    view.head_begin = rank * heads;
    view.head_count = heads;
    for (uint32_t page = 0; page < kPages; ++page) view.block_table.push_back(page);
    const size_t row = layout.layers[0].k_dim * DTypeBytes(layout.layers[0].dtype);
    const size_t plane = size_t{kPages} * layout.page_tokens * heads * row;
    memory.resize(layout.layers.size() * 2 * plane);
    for (size_t layer = 0; layer < layout.layers.size(); ++layer) {
      LayerView at;
      at.k = memory.data() + layer * 2 * plane;
      at.v = at.k + plane;
      at.k_head_stride = at.v_head_stride = row;
      at.k_token_stride = at.v_token_stride = heads * row;
      at.k_block_stride = at.v_block_stride = layout.page_tokens * heads * row;
      view.layers.push_back(at);
    }
  }
  // Each element says which layer, plane, token and head of the model it is.
  void Write(const KvLayout& layout) {
    ForEach(layout, [](std::byte* row, size_t bytes, uint64_t name) {
      for (size_t i = 0; i < bytes; ++i) {
        row[i] = static_cast<std::byte>((name * 2654435761u >> 8) + i);
      }
    });
  }
  int WrongRows(const KvLayout& layout) {
    int wrong = 0;
    ForEach(layout, [&wrong](std::byte* row, size_t bytes, uint64_t name) {
      for (size_t i = 0; i < bytes; ++i) {
        if (row[i] != static_cast<std::byte>((name * 2654435761u >> 8) + i)) {
          ++wrong;
          return;
        }
      }
    });
    return wrong;
  }

  std::vector<std::byte> memory;
  KvView view;

 private:
  template <typename Do>
  void ForEach(const KvLayout& layout, Do visit) {
    for (uint32_t layer = 0; layer < layout.layers.size(); ++layer) {
      const LayerView& at = view.layers[layer];
      for (uint32_t token = 0; token < kPages * layout.page_tokens; ++token) {
        for (uint32_t head = 0; head < view.head_count; ++head) {
          const uint64_t name =
              ((uint64_t{layer} * 1000 + token) * 64 + view.head_begin + head) * 2;
          const size_t offset = token * at.k_token_stride + head * at.k_head_stride;
          visit(at.k + offset, at.k_head_stride, name);
          visit(at.v + offset, at.k_head_stride, name + 1);
        }
      }
    }
  }
};

KvLayout TensorParallelLayout(uint32_t heads_per_part) {
  KvLayout layout = KvLayout::Uniform(3, kHeads, 8, DType::kBf16, kPageTokens, 1);
  layout.heads_per_part = heads_per_part;
  return layout;
}

void PublishByRanks(ClientWorld& world, const KvLayout& layout, uint32_t ranks, uint32_t first,
                    uint32_t last) {
  for (uint32_t rank = first; rank < last; ++rank) {
    auto writer = world.NewClient("writer");
    FB_ASSERT_OK(writer->Open(SpecOf(layout)));
    RankMemory memory(layout, rank, ranks);
    memory.Write(layout);
    const auto published = writer->Publish(Chain(writer->root, kPages), memory.view);
    FB_ASSERT_OK(published);
    EXPECT_EQ(published->pages_refused, 0u);
    // A page is whole only when the last rank has been.
    EXPECT_EQ(published->pages_stored, rank + 1 == ranks ? kPages : 0u);
  }
}

void FetchByRanks(ClientWorld& world, const KvLayout& layout, uint32_t ranks) {
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    auto reader = world.NewClient("reader");
    FB_ASSERT_OK(reader->Open(SpecOf(layout)));
    const auto hit = reader->Lookup(Chain(reader->root, kPages));
    FB_ASSERT_OK(hit);
    ASSERT_EQ((*hit)->page_count(), kPages);
    RankMemory memory(layout, rank, ranks);
    const auto fetched = reader->Fetch(*hit, memory.view);
    FB_ASSERT_OK(fetched);
    EXPECT_EQ(fetched->page_count, kPages);
    EXPECT_EQ(fetched->bytes, memory.memory.size());
    EXPECT_EQ(memory.WrongRows(layout), 0) << "rank " << rank << " of " << ranks;
  }
}

TEST(LayoutNodeTest, TwoRanksWriteAndOneReadsTheWhole) {
  ClientWorld world(2);
  const KvLayout layout = TensorParallelLayout(4);
  PublishByRanks(world, layout, 2, 0, 1);
  {
    auto reader = world.NewClient("early");
    FB_ASSERT_OK(reader->Open(SpecOf(layout)));
    EXPECT_EQ(reader->Pages(Chain(reader->root, kPages)), 0u);
  }
  PublishByRanks(world, layout, 2, 1, 2);
  FetchByRanks(world, layout, 1);
}

TEST(LayoutNodeTest, TwoRanksWriteAndFourRead) {
  ClientWorld world(2);
  const KvLayout layout = TensorParallelLayout(2);
  PublishByRanks(world, layout, 2, 0, 2);
  FetchByRanks(world, layout, 4);
}

TEST(LayoutNodeTest, FourRanksWriteAndTwoRead) {
  ClientWorld world(3);
  const KvLayout layout = TensorParallelLayout(2);
  PublishByRanks(world, layout, 4, 0, 4);
  FetchByRanks(world, layout, 2);
}

// Two full layers, two of a window of 10 tokens (three pages), one state.
KvLayout MixedLayout() {
  KvLayout layout = KvLayout::Uniform(4, 2, 8, DType::kBf16, kPageTokens, 1);
  for (size_t i : {1, 3}) {
    layout.layers[i].layer_class = LayerClass::kSlidingWindow;
    layout.layers[i].window_tokens = 10;
  }
  LayerSpec state;
  state.layer_class = LayerClass::kState;
  state.attention = AttentionKind::kNone;
  state.state_bytes = 256;
  layout.layers.push_back(state);
  return layout;
}

TEST(LayoutNodeTest, AHitNeedsTheWindowAndTheStateAtItsEnd) {
  ClientWorld world(3);
  const KvLayout layout = MixedLayout();
  FB_ASSERT_OK(layout.Validate());
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(client->root, 60);
  EngineMemory source(layout, 60);
  source.Fill(11);
  // An engine that ran through 40 pages: windows from page 37 on, and the state after page 39.
  const std::vector<PageKey> some(keys.begin(), keys.begin() + 40);
  const auto published = client->Publish(some, source.view, {.sliding_first_page = 37});
  FB_ASSERT_OK(published);
  EXPECT_EQ(published->pages_stored, 40u) << published->first_error;

  EXPECT_EQ(client->Pages(keys), 40u);
  // A chain that ends earlier has neither its window nor its state.
  EXPECT_EQ(client->Pages({keys.begin(), keys.begin() + 39}), 0u);

  const auto hit = client->Lookup(keys);
  FB_ASSERT_OK(hit);
  EngineMemory target(layout, 60);
  const auto fetched = client->Fetch(*hit, target.view);
  FB_ASSERT_OK(fetched);
  EXPECT_EQ(fetched->page_count, 40u);
  // Exactly what a reader needs was moved: full layers of all pages, windows of three, one state.
  const std::vector<PartSpec> parts = layout.Parts();
  uint64_t needed = 0;
  std::vector<MutableBytes> from;
  std::vector<MutableBytes> to;
  for (uint32_t page = 0; page < 40; ++page) {
    for (const PartSpec& part : parts) {
      if (part.layer_class == LayerClass::kSlidingWindow && page < 37) continue;
      if (part.layer_class == LayerClass::kState && page < 39) continue;
      needed += part.raw_bytes;
      source.view.PartRuns(layout, part, page, &from);
      target.view.PartRuns(layout, part, page, &to);
      ASSERT_EQ(from.size(), to.size());
      for (size_t i = 0; i < from.size(); ++i) {
        EXPECT_EQ(memcmp(from[i].data(), to[i].data(), from[i].size()), 0);
      }
    }
  }
  EXPECT_EQ(fetched->bytes, needed);
}

TEST(LayoutNodeTest, StatesOfAllPagesMakeEveryPrefixUsable) {
  ClientWorld world(2);
  const KvLayout layout = MixedLayout();
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(SpecOf(layout)));
  const std::vector<PageKey> keys = Chain(client->root, 30);
  EngineMemory source(layout, 30);
  FB_ASSERT_OK(client->Publish(keys, source.view, {.states_of_all_pages = true}));
  for (uint32_t pages : {1u, 2u, 17u, 30u}) {
    EXPECT_EQ(client->Pages({keys.begin(), keys.begin() + pages}), pages);
  }
}

TEST(LayoutNodeTest, AnAdapterNamedLikeASaltCollidesWithNothing) {
  ClientWorld world(1);
  const KvLayout layout = KvLayout::Uniform(2, 2, 8, DType::kBf16, kPageTokens, 1);
  NamespaceSpec adapter = SpecOf(layout);
  adapter.adapter = "x";
  NamespaceSpec salt = SpecOf(layout);
  salt.salt = "x";
  NamespaceSpec split = SpecOf(layout, "mode");
  split.model_revision = "l1";
  NamespaceSpec joined = SpecOf(layout, "model");
  joined.model_revision = "1";
  auto client = world.NewClient("client");
  FB_ASSERT_OK(client->Open(adapter));
  EngineMemory source(layout, 4);
  FB_ASSERT_OK(client->Publish(Chain(client->root, 4), source.view));
  EXPECT_EQ(client->Pages(Chain(client->root, 4)), 4u);
  const PageKey adapter_root = client->root;
  FB_ASSERT_OK(client->Open(salt));
  EXPECT_NE(client->root, adapter_root);
  EXPECT_EQ(client->Pages(Chain(client->root, 4)), 0u);
  FB_ASSERT_OK(client->Open(split));
  const PageKey split_root = client->root;
  FB_ASSERT_OK(client->Open(joined));
  EXPECT_NE(client->root, split_root);
}

}  // namespace
}  // namespace forebay
